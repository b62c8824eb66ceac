"""Verdicts on blocks whose functions are known, their report, and plans of what to remove."""

import html
import re

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers.harness import slow_elsewhere, without_backend
from zoo.callbacks import training
from zoo.callbacks.diagnose import VERDICTS, Diagnosis, Verdict, judge
from zoo.callbacks.probes.objective import sample
from zoo.callbacks.probes.probe import Row

TURN = np.kron(np.eye(2), [[0, 1], [-1, 0]])  # f is at a right angle to x
KERNELS = {
    "idle": 0 * TURN,
    "refines": 0.5 * TURN,
    "replaces": 2 * TURN,
    "undoes": -0.75 * np.eye(4),
    "explodes": 40 * TURN,
}
X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")


def chain(kernels, top=None):
    """Return a model of blocks y = x + x K, the kernels by the blocks' names."""
    x = inputs = keras.Input((4,), name="x")
    for name, kernel in kernels.items():
        dense = layers.Dense(4, use_bias=False, name=f"{name}_branch")
        x = layers.Add(name=name)([x, dense(x)])
        dense.set_weights([kernel.astype("float32")])
    return keras.Model(inputs, x if top is None else top(x), name="chain")


@pytest.fixture(scope="module")
def report():
    return zoo.callbacks.diagnose(chain(KERNELS), X, batch_size=16)


@slow_elsewhere
def test_blocks_of_known_functions_get_their_verdicts(report):
    assert [row.verdict for row in report.verdicts] == [*KERNELS]
    assert report.blocks("undoes") == ["undoes"]
    with pytest.raises(ValueError, match="Received: verdict='undos'"):
        report.blocks("undos")


def test_the_numbers_behind_a_verdict_are_those_of_the_function(report):
    numbers = {row.block: row.numbers for row in report.verdicts}
    expected = {"l2_ratio": 0.5, "cosine_input": 0, "norm_growth": np.sqrt(1.25)}
    expected["block_influence"] = 1 - np.sqrt(0.8)
    for name, value in expected.items():
        np.testing.assert_allclose(numbers["refines"][name], value, atol=1e-5)
    np.testing.assert_allclose(numbers["undoes"]["norm_growth"], 0.25, atol=1e-5)
    y = without = X  # the output, and that without one block
    for name, kernel in KERNELS.items():
        y = y + y @ kernel
        without = without if name == "undoes" else without + without @ kernel
    change = np.linalg.norm(without - y, axis=1) / np.linalg.norm(y, axis=1)
    np.testing.assert_allclose(numbers["undoes"]["lesion_change"], change.mean(), rtol=1e-4)


def test_labels_tell_whether_a_block_moves_against_the_loss():
    # the loss falls where x grows along its label, which the first block does and the second undoes
    weights = np.eye(4, 2).astype("float32")
    top = layers.Dense(2, "softmax", use_bias=False)
    push = np.array([[1, -1, 0, 0], [-1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    model = chain({"forward": 0.2 * push, "backward": -0.2 * push}, top)
    top.set_weights([weights])
    labels = (X[:, 0] < X[:, 1]).astype("int32")
    report = zoo.callbacks.diagnose(model, X, labels)
    assert [row.verdict for row in report.verdicts] == ["refines", "undoes"]
    assert "cos(f,dL)" in report.verdicts[1].reason
    assert "lesion_kl" in report.verdicts[0].numbers
    losses = report.table.values("lesion_loss")
    assert losses[report.verdicts[1].block] < losses[None]  # it is better without


@slow_elsewhere
def test_lesions_are_measured_on_a_random_sample():
    report = zoo.callbacks.diagnose(chain(KERNELS), X, lesion_examples=12, seed=3)
    chosen = np.argsort(np.random.default_rng(3).random(24))[:12]
    expected = zoo.callbacks.lesions(chain(KERNELS), X[chosen]).values("lesion_change")
    for row in report.verdicts:
        np.testing.assert_allclose(row.numbers["lesion_change"], expected[row.block], rtol=1e-5)
    assert "Lesions: chain on 12 examples, a random choice (seed 3)." in str(report)


@without_backend
def test_a_sample_is_fair_and_the_same_of_arrays_and_of_batches():
    x, y = np.arange(60).reshape(20, 3), np.arange(20)
    batches = [(x[i : i + 8], y[i : i + 8]) for i in (0, 8, 16)]
    rows, total = sample((x, y), 5, seed=1)
    assert total == 20 and np.array_equal(rows[0], x[rows[1]]) and (np.diff(rows[1]) > 0).all()
    assert all(map(np.array_equal, rows, sample(iter(batches), 5, seed=1)[0]))
    assert np.array_equal(sample(x, 99)[0][0], x)
    counts = sum(np.bincount(sample(y, 5, seed)[0][0], minlength=20) for seed in range(800))
    assert abs(counts - 200).max() < 5 * np.sqrt(800 * 0.25 * 0.75)
    ragged, total = sample([(x[:8, :2], y[:8]), (x[8:], y[8:])], 12)
    assert len(ragged) == 2 and total == 20 and sum(len(part[0]) for part in ragged) == 12


class Indexed(keras.utils.PyDataset):
    """Batches by index."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


class Sequence:
    """Batches by index, which are no iterable of `collections.abc`."""

    def __init__(self, batches):
        self.batches = batches

    def __getitem__(self, index):
        return self.batches[index]


def dataset(batches):
    data = pytest.importorskip("tensorflow").data.Dataset
    return data.from_tensor_slices(tuple(map(np.concatenate, zip(*batches, strict=True)))).batch(8)


@slow_elsewhere
@pytest.mark.parametrize("kind", [list, iter, Indexed, Sequence, dataset])
def test_batches_get_the_verdicts_of_the_same_arrays(kind):
    model = chain(KERNELS, layers.Dense(2, "softmax"))
    labels = np.arange(24) % 2
    report = zoo.callbacks.diagnose(model, X, labels, batch_size=8)
    batches = [(X[i : i + 8], labels[i : i + 8]) for i in (0, 8, 16)]
    assert "cos(f,dL)" in str(report)
    assert str(zoo.callbacks.diagnose(model, kind(batches))) == str(report)


@pytest.mark.parametrize("name, value", [("lesion_examples", 2.5), ("batch_size", 0)])
def test_options_of_a_diagnosis_are_checked(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer"):
        zoo.callbacks.diagnose(chain(KERNELS), X, **{name: value})


def test_a_sequential_model_is_diagnosed():
    blocks = [zoo.HighwayDense(4, name=f"highway{i}") for i in range(2)]
    model = keras.Sequential([keras.Input((4,)), *blocks, layers.Dense(2, "softmax")])
    report = zoo.callbacks.diagnose(model, X, np.arange(24) % 2)
    assert [row.block for row in report.verdicts] == ["highway0", "highway1"]


@slow_elsewhere
def test_a_network_before_training_has_no_idle_blocks():
    top = layers.Dense(3, "softmax")
    model = chain({f"block{i}": 0.3 * TURN for i in range(5)}, top)
    top.set_weights([0.01 * np.eye(4, 3), np.zeros(3)])  # of small outputs, all effects are small
    report = zoo.callbacks.diagnose(model, X)
    assert max(row.numbers["lesion_kl"] for row in report.verdicts) < 1e-3
    assert not report.blocks("idle")


@pytest.mark.parametrize(
    "numbers, verdict",
    [
        ({"l2_ratio": 0.2, "norm_growth": np.inf}, "explodes"),
        ({"l2_ratio": 0.2, "cosine_loss": np.nan, "lesion_kl": np.nan}, "refines"),  # the network's
        ({"l2_ratio": 0.2, "lesion_kl": 0.02}, "refines"),
        ({"l2_ratio": 0.2, "lesion_kl": 0.002}, "idle"),
        ({"l2_ratio": 1.0, "cosine_input": -0.4}, "replaces"),
        ({"norm_growth": 2.0}, "replaces"),
        ({}, "replaces"),
    ],
)
def test_the_first_rule_that_holds_decides(numbers, verdict):
    assert judge(numbers)[0] == verdict


def test_blocks_without_any_effect_are_idle_whatever_the_mean():
    assert judge({"l2_ratio": 5e-7, "lesion_kl": 1.4e-12}, {"lesion_kl": 9e-13})[0] == "idle"
    assert judge({"l2_ratio": 5e-2, "lesion_kl": 1.4e-7}, {"lesion_kl": 9e-8})[0] == "refines"
    assert judge({"l2_ratio": 5e-7, "lesion_change": 9e-5}, {"lesion_change": 8e-5})[0] == "idle"


@pytest.mark.parametrize(
    "numbers, reason",
    [
        ({"cosine_input": -0.500004}, "cos(f,x) -0.500004 < -0.5"),
        ({"l2_ratio": 0.99996}, "|f|/|x| 0.99996 < 1"),
        ({"l2_ratio": 1.0}, "|f|/|x| 1 >= 1"),
        (
            {"lesion_kl": 0.0007, "l2_ratio": 0.2},
            "|f|/|x| 0.2 < 1; lesion KL 0.0007 > 0.00065 (mean / 10)",
        ),
        ({"lesion_kl": 0.0006}, "lesion KL 0.0006 < 0.01, <= 0.00065 (mean / 10)"),
        ({"lesion_kl": 1e-9}, "lesion KL 1e-09 < 1e-08"),
    ],
)
def test_the_reason_tells_numbers_and_thresholds_apart(numbers, reason):
    assert judge(numbers, {"lesion_kl": 0.0065})[1] == reason


@slow_elsewhere
def test_effects_below_rounding_are_told(caplog):
    top = layers.Dense(3, "softmax")
    model = chain({f"block{i}": 0.3 * TURN for i in range(4)}, top)
    top.set_weights([1e-8 * np.eye(4, 3), np.zeros(3)])
    message = "No modification changes the outputs by more than rounding may \\(kl"
    assert re.search(message, str(zoo.callbacks.diagnose(model, X)))
    zoo.callbacks.depth_plan(model, X, 0.5)
    assert len(re.findall(message, caplog.text)) == 1
    top.set_weights([np.eye(4, 3), np.zeros(3)])
    assert "rounding" not in str(zoo.callbacks.diagnose(model, X))


@slow_elsewhere
@pytest.mark.parametrize("activation", ["softmax", None])
@pytest.mark.parametrize("bias", [0, 1])
def test_of_a_constant_output_no_block_is_called_idle(activation, bias):
    top = layers.Dense(3, activation)
    model = chain({f"block{i}": 0.3 * TURN for i in range(4)}, top)
    top.set_weights([np.zeros((4, 3)), np.full(3, bias)])
    report = zoo.callbacks.diagnose(model, X)
    assert report.blocks("refines") == [f"block{i}" for i in range(4)]
    assert "output does not depend on x: nothing can be said of blocks" in str(report)
    assert "prune_blocks" not in str(report)


@slow_elsewhere
def test_equal_outputs_of_equal_inputs_and_idle_blocks_are_no_constant():
    idle = chain({"block": 0 * TURN})
    for x in (X, np.ones_like(X)):
        report = zoo.callbacks.diagnose(idle, x)
        assert report.blocks("idle") == ["block"] and "depend" not in str(report)


@slow_elsewhere
def test_long_diagnoses_and_plans_print_their_progress(monkeypatch, capsys):
    monkeypatch.setattr(training, "INTERVAL", -1.0)
    zoo.callbacks.diagnose(chain(FOUR), X, batch_size=8, lesion_examples=12)
    zoo.callbacks.depth_plan(chain(FOUR), X, 0.5, batch_size=8)
    lines = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "diagnose: 22%" and lines.count("diagnose: 100%") == 1
    assert lines[-2:] == ["depth_plan: 83%", "depth_plan: 100%"]


def whole_layers(sizes):
    """Return a model of composite layers, `layer0` and so on."""
    x = inputs = keras.Input((4,))
    for i, size in enumerate(sizes):
        inner = keras.Input((4,))
        dense = layers.Dense(4, use_bias=False)
        y = layers.Add()([inner, dense(inner)])
        dense.set_weights([(size * TURN).astype("float32")])
        x = Whole(keras.Model(inner, y), name=f"layer{i}")(x)
    return keras.Model(inputs, x)


def test_whole_layers_are_judged_and_removed():
    model = whole_layers((0.3, 0.1))
    report = zoo.callbacks.diagnose(model, X, grain="layer")
    ratios = [row.numbers["l2_ratio"] for row in report.verdicts]
    np.testing.assert_allclose(ratios, [0.3, 0.1], rtol=1e-4)
    assert [*zoo.callbacks.depth_plan(model, X, 0.5, "lesion_change", grain="layer")] == ["layer1"]


class Whole(layers.Layer):
    """A composite layer."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def build(self, shape):
        pass

    def call(self, x):
        return self.inner(x)


def test_a_network_that_is_no_chain_is_judged_by_its_lesions():
    inputs = keras.Input((4,))
    x = layers.Add(name="first")([inputs, layers.Dense(4)(inputs)])
    y = layers.Add(name="second")([x, layers.Dense(4)(x)])
    report = zoo.callbacks.diagnose(keras.Model(inputs, layers.Concatenate()([x, y])), X)
    assert [row.numbers["lesion_change"] > 0 for row in report.verdicts] == [True, True]


def test_the_report_prints_a_line_for_each_block_and_writes_a_page(report, tmp_path):
    head, caution, columns, *lines, advice = str(report).splitlines()
    assert head.startswith("chain on 24 examples. 5 blocks: refines 1, replaces 1, idle 1")
    assert caution.startswith("Caution: Only 24 examples: the standard error of a mean is 20%")
    assert columns.split()[:2] == ["block", "verdict"] and len(lines) == 5
    report.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 5
    for text in ("chain on 24 examples", "cos(f,x) -1 &lt; -0.5"):
        assert text in page
    for row in report.verdicts:
        dot = f'<span aria-hidden="true" style="color:{VERDICTS[row.verdict]}">●</span>'
        cells = f"{row.block}<td>{dot}&nbsp;{row.verdict}<td>{html.escape(row.reason)}<td>"
        assert f'<tr><th scope="row">{cells}' in page
        assert f'<tr><th scope="row">{row.verdict}<td>' in page  # of the legend
    assert page.index("prune_blocks(model, [&#x27;idle&#x27;])") < page.index("<table>")
    assert page.index("<mark>Caution</mark> Only 24 examples") < page.index("<table>")
    columns = [f'<th scope="col">{name}' for name in ("block", "verdict", "reason", "stage")]
    assert f"<tr>{''.join(columns)}" in page
    assert (
        advice == "Remove the idle blocks, then train on: zoo.graph.prune_blocks(model, ['idle'])"
    )
    cell = report._repr_html_()
    assert cell[cell.index("<p>") :] == page[page.index("<p>") : page.index("<h2>")]


@slow_elsewhere
def test_the_advice_for_a_list_of_inputs_runs():
    inputs = [keras.Input((4,)), keras.Input((4,))]
    x = keras.layers.Add()(inputs)
    for i in range(4):
        x = keras.layers.Add(name=f"sum{i}")([x, keras.layers.Dense(4)(x)])
    model = keras.Model(inputs, keras.layers.Dense(3, "softmax")(x))
    x = [np.random.default_rng(i).normal(size=(8, 4)).astype("float32") for i in range(2)]
    code = str(zoo.callbacks.diagnose(model, x, np.arange(8) % 3)).rpartition(": ")[2]
    assert "(x,)" in code
    assert len(eval(code, {"zoo": zoo, "model": model, "x": x})) == 1


@slow_elsewhere
@pytest.mark.parametrize("grain, options", [("sum", ""), ("layer", ", grain='layer'")])
def test_without_idle_blocks_the_advice_is_a_plan_of_at_least_one_block(grain, options):
    rows = [Verdict(f"block{i}", 0, "refines", "", {}) for i in range(4)]
    table = zoo.callbacks.Table([Row("lesion_kl", "block0", 0, None, None, 1.0)])
    code = f"zoo.callbacks.depth_plan(model, x, keep=0.75{options})"
    assert str(Diagnosis("model", rows, table, options=options)).endswith(f"make a plan: {code}")
    assert str(Diagnosis("model", rows[:3], table)).endswith("was found to be idle.")
    sizes = (0.4, 0.1, 0.2, 0.3)
    model = chain(FOUR) if grain == "sum" else whole_layers(sizes)
    for names in (None, [f"{'block' if grain == 'sum' else 'layer'}{i}" for i in range(4)]):
        report = zoo.callbacks.diagnose(model, X, grain=grain, blocks=names)
        shown = "" if names is None else f", blocks={names}"
        assert f"depth_plan(model, x, keep=0.75{shown}{options})" in str(report)


@pytest.mark.parametrize("value", [None, np.nan])
def test_without_lesions_no_block_is_said_not_to_be_idle(value, tmp_path):
    rows = [Row("lesion_kl", "block0", 0, None, None, value)] if value else []
    report = Diagnosis("m", [Verdict("block0", 0, "refines", "", {})], zoo.callbacks.Table(rows))
    assert str(report).endswith("No lesion was measured: whether a block is idle is not known.")
    report.to_html(tmp_path / "page.html")
    assert "<code>" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "data, name",
    [
        ((np.where(X == X[5, 1], np.nan, X),), "x"),
        (({"x": np.where(X == X[5, 1], np.inf, X)},), "x.x"),
        ((X, X * [1, 1, 1, np.inf]), "y"),
        (((X[i : i + 8], np.nan * X[i : i + 8]) for i in (0, 8, 16)), "y"),
    ],
)
def test_data_with_nan_or_infinity_are_refused_before_any_work(data, name):
    arguments = data if isinstance(data, tuple) else (data,)
    with pytest.raises(ValueError, match=f"`{name}` must be finite. Leave out"):
        zoo.callbacks.diagnose(None, *arguments)


@slow_elsewhere
def test_the_report_begins_with_the_accuracy_and_cautions_if_guessing_has_it(tmp_path):
    top = layers.Dense(2, "softmax", use_bias=False)
    model = chain({"block": 0.3 * TURN}, top)
    top.set_weights([9 * np.eye(4, 2)])
    x = np.random.default_rng(1).normal(size=(40, 4)).astype("float32")
    labels = model.predict(x, verbose=0).argmax(-1)
    report = zoo.callbacks.diagnose(model, x, labels)
    loss = report.table.values("lesion_loss")[None]
    assert f"lesions: accuracy 1, loss {loss:.3g}." in str(report).splitlines()[0]
    assert "Caution" not in str(report)
    for wrong in (1 - labels, np.eye(2)[1 - labels]):
        report = zoo.callbacks.diagnose(model, x, wrong)
        assert "Caution: The accuracy is not clearly above 0." in str(report)
    report.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    parts = ("accuracy 0, loss", "<mark>Caution</mark>", "<table>")
    assert page.index(parts[0]) < page.index(parts[1]) < page.index(parts[2])


@slow_elsewhere
@pytest.mark.parametrize("count, cautions", [(1, True), (31, True), (32, False)])
def test_few_examples_are_a_caution(count, cautions):
    report = zoo.callbacks.diagnose(chain({"block": 0.3 * TURN}), np.resize(X, (count, 4)))
    assert (f"Only {count} example" in str(report)) == cautions
    assert f" on {count} example{'s' * (count > 1)}. 1 block:" in str(report)


@slow_elsewhere
@pytest.mark.parametrize("labels", [None, np.arange(24) % 2])
def test_a_network_that_returns_nan_is_a_caution(labels):
    top = layers.Dense(2, "softmax", bias_initializer=keras.initializers.Constant(np.nan))
    report = zoo.callbacks.diagnose(chain({"block": 0.3 * TURN}, top), X, labels)
    assert "Caution: Outputs or loss are not finite: look for NaN" in str(report)


FOUR = {f"block{i}": size * TURN for i, size in enumerate((0.4, 0.1, 0.2, 0.3))}


def test_a_plan_removes_the_blocks_that_change_least():
    batches = (X[i : i + 8] for i in (0, 8, 16))  # read again as often as needed
    model = chain(FOUR)
    plan = zoo.callbacks.depth_plan(model, batches, 0.5)  # by their change
    assert [*plan] == ["block1", "block2"] and plan["block1"] < plan["block2"]
    small, lesioned = zoo.graph.prune_blocks(model, plan), zoo.graph.lesion(model, *plan)
    assert np.array_equal(small.predict(X, verbose=0), lesioned.predict(X, verbose=0))


@pytest.mark.parametrize("kind", [layers.BatchNormalization, zoo.backend.layers.BatchNormalization])
def test_a_plan_takes_the_statistics_of_batches(kind):
    # without "double" the features are half as large, which a normalization undoes
    model = chain({"double": np.eye(4), "turn": 0.3 * TURN}, kind(epsilon=1e-7))
    plan = zoo.callbacks.depth_plan(model, X, 0.5)
    assert plan == {"double": pytest.approx(0, abs=1e-3)}
    by_averages = zoo.callbacks.lesions(model, X).values("lesion_change")  # 0 and 1
    assert by_averages["double"] == pytest.approx(0.5, abs=1e-5)
    assert by_averages["turn"] == pytest.approx(0.3 / np.hypot(1, 0.3), abs=1e-5)
    averages = ops.convert_to_numpy(model.layers[-1].moving_variance)
    np.testing.assert_array_equal(averages, 1)
    # a short last batch, which is padded, is left out
    first = zoo.callbacks.depth_plan(model, X[:16], 0, batch_size=16)
    assert zoo.callbacks.depth_plan(model, X, 0, batch_size=16) == pytest.approx(first, abs=1e-5)
    assert zoo.callbacks.depth_plan(model, X[8:], 0, batch_size=16) != pytest.approx(
        first, abs=1e-3
    )
    with pytest.raises(ValueError, match="NaN"):
        zoo.callbacks.depth_plan(model, np.nan * X, 0.5)
    assert "call" not in vars(model.layers[-1])
    model.layers[-1].trainable = False
    assert [*zoo.callbacks.depth_plan(model, X, 0.5)] == ["turn"]


@slow_elsewhere
def test_a_plan_takes_the_statistics_of_batches_inside_of_blocks():
    x = inputs = keras.Input((6, 6, 3))
    for i in range(2):
        x = zoo.ResidualBlock(3, name=f"block{i}")(x)
    x = layers.Dense(2, "softmax")(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, x)
    data = np.random.default_rng(0).normal(3, 2, (8, 6, 6, 3)).astype("float32")
    ((name, score),) = zoo.callbacks.depth_plan(model, data, 0.5).items()
    intact, other = (
        ops.convert_to_numpy(network(data, training=True))
        for network in (model, zoo.graph.lesion(model, name))
    )
    assert score == pytest.approx(abs(intact - other).sum(-1).mean() / 2, rel=1e-3)


def test_a_plan_of_scores_that_are_nan_is_refused():
    with pytest.raises(ValueError, match="Received: NaN for .*'block0'"):
        zoo.callbacks.depth_plan(chain(FOUR), np.nan * X, 0.5, "lesion_change")


def test_greedy_search_sees_that_two_blocks_cancel_each_other():
    # alone, each of the outer blocks is needed; together they are the identity
    there = np.diag([1.0, 0, 0, 0])
    back = np.diag([-0.5, 0, 0, 0])
    model = chain({"there": there, "turn": 0.7 * TURN, "back": back, "last": 0.55 * TURN})
    single = zoo.callbacks.lesions(model, X).values("lesion_change")
    once = sorted(single.keys() - {None}, key=single.get)[:2]
    plan = zoo.callbacks.depth_plan(model, X, 0.5, "lesion_change")
    intact = model.predict(X, verbose=0)
    greedy, other = (
        np.mean(
            np.linalg.norm(zoo.graph.lesion(model, *names).predict(X, verbose=0) - intact, axis=1)
            / np.linalg.norm(intact, axis=1)
        )
        for names in (plan, once)
    )
    np.testing.assert_allclose([*plan.values()][-1], greedy, rtol=1e-4)
    assert greedy <= other


@pytest.mark.parametrize(
    "options, message",
    [
        ({"keep": 1.5}, "`keep` must be a number from 0 to 1"),
        ({"keep": 0.9}, "removes 1 to 4 of 4 blocks"),
        ({"score": "size"}, "`score` must be one of"),
        ({"score": "lesion_kl"}, "others have 'lesion_change'"),
    ],
)
def test_plans_that_cannot_be_made_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        zoo.callbacks.depth_plan(chain(FOUR), X, **options)
