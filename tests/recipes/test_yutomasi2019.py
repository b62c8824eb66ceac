"""The experiments of Yu & Tomasi (2019) on small networks, against closed forms and by hand."""

import dataclasses
import types

import keras
import numpy as np
import pytest
from absl import flags

import zoo
from helpers import reference
from helpers.harness import slow_elsewhere, without_backend
from helpers.test_data import write_images
from zoo import callbacks
from zoo.applications.simplified_resnet import WIDTHS
from zoo.graph.surgery import fold_identity
from zoo.recipes.experiment import Options, Run, pages
from zoo.recipes.experiment.command_line import parse
from zoo.recipes.yutomasi2019 import (
    divergence,
    networks,
    noise_stability,
    plain_vs_residual,
    trivial_dominance,
)

SIZES = {"batch": 20, "train_examples": 40, "test_examples": 20}


@pytest.fixture
def run(tmp_path):
    write_images(tmp_path / "images.npz", shape=(16, 16, 3))
    options = Options(runs=str(tmp_path / "runs"), data_dir=str(tmp_path / "images.npz"))
    return lambda name: Run(tmp_path / name, 0, options)


def tiny(module, **changes):
    changes = {"data": "other", "widths": (4, 4, 8), **SIZES, **changes}
    return dataclasses.replace(module.SCALES["smoke"], **changes)


def check(experiment, measured, folder):
    """Check that everything can be drawn, and that all claims have numbers."""
    pages.draw(experiment, [measured, measured], folder)
    made = {path.stem for path in folder.iterdir()}
    assert made == {artifact.name for artifact in experiment.artifacts}
    for claim in experiment.claims:
        numbers = claim.value(measured), claim.control.value(measured)
        assert np.isfinite(numbers).all(), claim.name


@slow_elsewhere
def test_networks_are_compared_and_found_again_by_the_study_of_noise(run, tmp_path):
    first = run("plain")
    settings = tiny(plain_vs_residual, epochs=2)
    measured = plain_vs_residual.measure(settings, first)
    kinds = measured["networks"]["5"]
    for when in ("before", "after"):  # equivalent: equal, but for rounding
        residual, transferred = (kinds[kind][when] for kind in ("residual", "transferred"))
        for key in ("training_loss", "penalty"):
            assert transferred[key] == pytest.approx(residual[key], rel=1e-4)
    losses = {kind: facts["before"] for kind, facts in kinds.items()}
    assert losses["plain"]["own_penalty"] == pytest.approx(losses["plain"]["penalty"], rel=1e-5)
    assert losses["residual"]["own_penalty"] < 0.1 * losses["transferred"]["own_penalty"]
    weights = kinds["residual"]["weights"]
    assert weights["distance_from_start"] < 0.1 and 0.9 < weights["distance_from_kaiming"] < 1.1
    statistics = weights["before"]["statistics"]
    assert statistics["count of identity"] == statistics["count of identity > 0.25"] == 4 + 4 + 4
    assert statistics["count of > 0.7"] == 12 and statistics["count of all"] == 9 * (16 + 16 + 32)
    identities = statistics["L1 of identity"]
    assert identities == pytest.approx(12, rel=0.1)  # phi adds one to entries of 1/(9 c)
    for facts in kinds.values():  # at the epoch's end, not its mean
        assert facts["risk_by_epoch"][-1] == pytest.approx(facts["after"]["training_loss"])
    check(plain_vs_residual.EXPERIMENTS[0], measured, tmp_path / "drawn")

    folders = (tmp_path / "runs" / "networks").iterdir()
    trained = {path: (path / "state.npz").stat().st_mtime_ns for path in folders}
    settings = tiny(noise_stability, epochs=2, networks=(*networks.CONVOLUTIONAL, *networks.FULL))
    measured = noise_stability.measure(settings, run("noise"))
    assert {path: (path / "state.npz").stat().st_mtime_ns for path in trained} == trained
    facts = measured["networks"]["5"]["residual"]
    assert facts["flow_epochs"].tolist() == [0, 1, 2] and facts["flows"].shape == (3, 2)
    assert (facts["after"]["layer_cushion"] > 0).all()
    assert facts["after"]["layer_cushion_histogram"].sum(1) == pytest.approx(1)
    check(noise_stability.EXPERIMENT, measured, tmp_path / "stable")


@slow_elsewhere
def test_weights_through_training_are_those_of_the_epochs(run):
    settings = tiny(plain_vs_residual, epochs=3, networks=("plain",), train_examples=20)

    def measure(network, kind):
        networks.train(network)
        last = network.model.get_weights()
        by_epoch = networks.through_training(network, lambda: network.model.get_weights()[0])
        assert [*by_epoch] == [1, 2, 3] and np.abs(by_epoch[1] - by_epoch[3]).max() > 0
        np.testing.assert_array_equal(by_epoch[3], last[0])
        for expected, weight in zip(last, network.model.get_weights(), strict=True):
            np.testing.assert_array_equal(weight, expected)
        return {}

    networks.measure_each(settings, run("one"), measure)


@slow_elsewhere
def test_a_network_that_diverges_does_not_end_the_others(run, monkeypatch):
    build = networks.build

    def broken(kind, *arguments, **sizes):
        model = build(kind, *arguments, **sizes)
        if kind == "plain":
            model.set_weights([np.nan * weight for weight in model.get_weights()])
        return model

    monkeypatch.setattr(networks, "build", broken)
    one = run("one")
    settings = tiny(plain_vs_residual, networks=("plain", "transferred"))
    measured = plain_vs_residual.measure(settings, one)
    assert [*measured["networks"]["5"]] == ["transferred"]
    assert "plain5 is left out" in one.deviations[-1]


@slow_elsewhere
def test_equivalent_networks_part_by_rounding_alone_and_go_on_exactly(run, tmp_path):
    smoke = tiny(divergence)

    def differences(name, **changes):
        measured = divergence.measure(dataclasses.replace(smoke, **changes), run(name))
        check(divergence.EXPERIMENT, measured, tmp_path / f"{name}-drawn")
        return {precision: gaps["5"] for precision, gaps in measured["differences"].items()}

    if keras.config.backend() == "tensorflow":
        exact = differences("double")["float64"]
        assert exact.shape == (4,) and exact.max() < 1e-14  # an ulp of 1, or some
    else:
        with pytest.raises(ValueError, match="or KERAS_BACKEND be tensorflow"):
            differences("double")
    assert keras.config.floatx() == "float32"
    differences("part", precision="float32", steps=2)
    gaps = differences("resumed", precision="float32")["float32"]
    again = run("whole")
    again.options = dataclasses.replace(again.options, runs=str(tmp_path / "anew"))
    whole = divergence.measure(dataclasses.replace(smoke, precision="float32"), again)
    np.testing.assert_array_equal(gaps, whole["differences"]["float32"]["5"])
    assert 1e-9 < gaps.max() < 1e-3


def test_full_networks_add_the_block_s_input_to_the_second_normalization():
    for variant in ("residual", "plain"):
        model = networks.fully_fledged(8, variant, (16, 16, 3), 10, widths=(4, 8, 8))
        reference.random_weights(model, scale=0.3)
        block, relu = (model.get_layer(f"stage1_{name}00") for name in ("block", "relu"))
        x = np.maximum(reference.images(2, 16, 16, 4), 0)
        expected = keras.ops.convert_to_numpy(block.transform(x))
        if variant == "residual":
            conv1, norm1, _, conv2, norm2 = block.transform.layers
            y = norm2(conv2(keras.ops.relu(norm1(conv1(x)))))
            expected = keras.ops.convert_to_numpy(y) + x
        whole = keras.Model(model.get_layer("stem_relu").output, relu.output)
        output = keras.ops.convert_to_numpy(whole(x))
        np.testing.assert_allclose(output, np.maximum(expected, 0), atol=1e-4)


def test_rate_and_clip_are_flags_and_schedules_end_with_the_training():
    (experiment, _) = plain_vs_residual.EXPERIMENTS
    for words, steps, expected, clip in (
        (["--scale=full", "--rate=0.5", "--clip=0"], (0, 1200, 1600), [0.5, 0.05, 0.005], None),
        (["--scale=miniature"], (0, 1000, 2000), [0.05, 0.025, 0], 1.0),
    ):
        plan, _ = parse(experiment, words)
        optimizer = networks.optimizer(plan.settings, 2000)
        rates = []
        for step in steps:
            optimizer.iterations.assign(step)
            rates.append(float(optimizer.learning_rate))
        assert rates == pytest.approx(expected, abs=1e-7) and optimizer.global_clipnorm == clip


@without_backend
@pytest.mark.parametrize("word", ["--depths=21", "--full_depths=5"])
def test_networks_that_do_not_exist_are_refused(word):
    with pytest.raises(flags.Error, match="n . 2 layers each"):
        parse(plain_vs_residual.EXPERIMENTS[0], [word])


def by_hand(data="cifar10"):
    """Return measurements whose claims and tables can be worked out by hand."""
    facts = {  # training loss, test errors and risks by epoch
        ("20", "plain"): (0.2, [0.5, 0.3], [1.0, 0.1]),
        ("20", "residual"): (0.1, [0.4, 0.2], [1.0, 0.1]),
        ("20", "transferred"): (0.1, [0.5, 0.25], [1.0, 0.1]),
        ("20", "dominant"): (0.1, [0.5, 0.4], [1.0, 0.1]),
        ("20", "dominant_kaiming"): (0.1, [0.5, 0.6], [1.0, 0.1]),
        ("44", "plain"): (0.9, [0.6, 0.5], [2.0, 1.5]),
        ("44", "residual"): (0.15, [0.5, 0.4], [1.0, 0.5]),
        ("44", "transferred"): (0.15, [0.5, 0.41], [1.9, 0.5]),
        ("44", "dominant"): (0.1, [0.5, 0.4], [1.0, 0.1]),
        ("44", "dominant_kaiming"): (0.1, [0.5, 0.7], [1.0, 0.1]),
    }
    measured = {"data": data, "networks": {}}
    for (depth, kind), (loss, errors, risks) in facts.items():
        measured["networks"].setdefault(depth, {})[kind] = {
            "before": {"training_loss": 2.3},
            "after": {"training_loss": loss, "penalty": 0.001},
            "test_error_by_epoch": np.array(errors),
            "risk_by_epoch": np.array(risks),
            "weights": {"distance_from_start": 0.2, "distance_from_kaiming": 0.9},
        }
    return measured


def noise_by_hand():
    """Return measurements of the study of noise, likewise."""

    def network(dominance, accuracy):
        return {"flows": np.array([dominance] * 2), "noise": {"accuracy": np.array([1, accuracy])}}

    simple = {
        "plain": network([0.1, 0.2], 0.90),
        "residual": network([0.2, 0.8], 0.94),
        "transferred": network([0.2, 0.8], 0.93),
    }
    full = {
        kind: {
            "before": {"interlayer_cushion": np.array([0.2, np.nan])},
            "after": {"interlayer_cushion": np.array([cushion, 0.2, np.nan])},
        }
        for kind, cushion in (("full_plain", 0.0), ("full_residual", 0.4))
    }
    deep = {**simple, "residual": network([0.05, 0.2], 0.8)}
    return {"data": "mnist", "networks": {"20": {**simple, **full}, "56": deep}}


@without_backend
def test_claims_and_tables_by_hand():
    gaps = {"float64": [1e-15, 3e-15, 2e-15], "float32": [1e-7, 3e-6, 2e-6]}
    gaps = {precision: {"20": np.array(values)} for precision, values in gaps.items()}
    gaps = {"precision": "float64", "differences": gaps}
    one = by_hand()
    deep = {**one, "networks": {"44": one["networks"]["44"]}}
    studies = (  # values and controls
        (divergence.EXPERIMENT, gaps, [(3e-15, 3e-6)]),
        (  # Y2 to Y5, Y7, Y13
            plain_vs_residual.EXPERIMENTS[0],
            one,
            [(3, 10), (3, 1), (1.25, 1), (10, 7.5), (0.2, 0.9), (87.5, 50)],
        ),
        (plain_vs_residual.EXPERIMENTS[1], deep, [(0.775 / 1.1, 1.45 / 2.2)]),
        (noise_stability.EXPERIMENT, noise_by_hand(), [(3, 1), (4, 1), (2, 1)]),
    )
    for experiment, measured, expected in studies:
        for claim, pair in zip(experiment.claims, expected, strict=True):
            numbers = claim.value(measured), claim.control.value(measured)
            assert numbers == pytest.approx(pair, rel=1e-6, abs=0), claim.name
    table = plain_vs_residual.losses_table("plain")
    rows = {(row["depth"], row["quantity"]): row for row in table([one, one])}
    assert rows[44, "with the penalty"]["measured"] == 0.901
    assert rows[44, "with the penalty"]["paper"] == 0.4962  # Table 1
    assert all(row["paper"] == "" for row in table([by_hand("mnist")]))
    del one["networks"]["44"]["plain"]  # it diverged: no ratio of what is left
    with pytest.raises(ValueError, match="same depths"):
        plain_vs_residual.growth(one, "plain")


def test_initial_penalties_are_table_4_s_and_their_ratio_is_268():
    keras.utils.set_random_seed(0)
    plain, residual = (
        networks.own_penalty(networks.build(kind, 20, (32, 32, 3), 10, WIDTHS))
        for kind in ("plain", "residual")
    )
    assert plain == pytest.approx(plain_vs_residual.INITIAL_PENALTIES["plain"][20], rel=0.02)
    assert plain / residual == pytest.approx(268, rel=0.1)


@slow_elsewhere
def test_cushions_of_equal_networks_differ_by_the_kernel_s_norm_alone():
    model = networks.build("residual", 8, (8, 8, 3), 10, (4, 4, 8))
    cushions, norms = [], []
    for one in (model, fold_identity(model)):
        table = callbacks.run([callbacks.LayerCushion()], one, reference.images(4, 8, 8, 3))
        cushions.append([*table.values("layer_cushion").values()])
        blocks = [layer for layer in one.layers if hasattr(layer, "transform")]
        norms.append([np.linalg.norm(block.transform.get_weights()[0]) for block in blocks])
    ratio = np.divide(*cushions)
    np.testing.assert_allclose(ratio, np.divide(*norms[::-1]), rtol=1e-4)
    assert len(ratio) == 6 and (ratio > 2).all()  # larger in all layers of the same function


@without_backend
def test_fig_9_compares_starts_seed_by_seed(monkeypatch):
    shown = []
    monkeypatch.setattr(plain_vs_residual.plots, "lines", lambda rows, **_: shown.extend(rows))
    other = by_hand()
    other["networks"]["44"]["plain"]["risk_by_epoch"] = np.array([2.0, 2.5])
    plain_vs_residual.fig9([by_hand(), other])
    gaps = [row["difference"] for row in shown if row["network"] == "plain" and row["depth"] == 44]
    assert gaps == pytest.approx([0.1, 1.0, 0.1, 2.0])
    shown.clear()
    first = by_hand()
    del first["networks"]["44"]["plain"]  # it diverged
    first["networks"]["44"]["transferred"]["risk_by_epoch"] = np.array([1.0, 1.0])
    plain_vs_residual.fig9([first, other])
    gaps = [row["difference"] for row in shown if row["network"] == "plain" and row["depth"] == 44]
    assert gaps == pytest.approx([0.1, 2.0])


@without_backend
def test_dominance_of_the_trivial_case(run, tmp_path):
    settings = trivial_dominance.Settings(samples=3)
    measured = trivial_dominance.measure(settings, run("trivial"))
    check(trivial_dominance.EXPERIMENT, measured, tmp_path / "drawn")
    for sweep in measured.values():
        assert {len(series) for series in sweep.values()} == {len(sweep["value"])}


def noise_of(model, data):
    """Return accuracies and the noisy weights of a network in the study of noise."""
    images = types.SimpleNamespace(x_train=data[0], y_train=data[1])
    prepared = types.SimpleNamespace(images=images, preprocess=lambda x: x)
    seen = []
    assign = model.set_weights
    model.set_weights = lambda weights: (seen.append(weights), assign(weights))
    network = types.SimpleNamespace(model=model, data=prepared, batch=4)
    return noise_stability.accuracy_under_noise(network, len(data[0]), seed=0), seen


def test_noise_has_its_size_and_leaves_the_weights():
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(5, use_bias=False)(inputs))
    reference.random_weights(model)
    before = model.get_weights()[0].copy()
    x = reference.images(50, 6)
    accuracies, seen = noise_of(model, (x, (x @ before).argmax(1)))
    np.testing.assert_array_equal(model.get_weights()[0], before)
    assert accuracies[0] == 1 and accuracies[-1] < 1 and len(accuracies) == 4
    sizes = [np.linalg.norm(w[0] - before) / np.linalg.norm(before) for w in seen]
    np.testing.assert_allclose(sizes, [*np.repeat(noise_stability.NOISES, 3), 0], rtol=1e-4)


def test_equal_networks_get_equal_noise():
    inputs = keras.Input((4, 4, 3))
    x = zoo.SimplifiedResidual(3, name="block")(inputs)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(x))
    reference.random_weights(model, scale=0.1)
    data = reference.images(6, 4, 4, 3), np.zeros(6)
    changes = []
    for one in (model, fold_identity(model)):
        before = one.get_weights()
        _, seen = noise_of(one, data)
        changes.append(seen[0][0] - before[0])
    np.testing.assert_allclose(*changes, atol=1e-6)


@without_backend
@pytest.mark.parametrize(
    "setting, samples, tolerance",
    [
        ((64, 5, 0.01, 1.0), 100, 0.02),
        ((64, 5, 0.01, 0.9), 100, 0.02),
        ((64, 10, 0.01, 0.9), 100, 0.02),
        ((64, 5, 0.03, 0.9), 2000, 0.0035),  # masked too early: 0.008
        ((64, 1, 0.3, 0.5), 2000, 0.0035),
    ],
)
def test_the_trivial_case_agrees_with_its_simulation(setting, samples, tolerance):
    close = trivial_dominance.approximate(*setting, 1.0)
    simulation = trivial_dominance.simulate("residual", samples, 0, *setting, 1.0)
    assert abs(simulation - close) < tolerance
    card = {(5, 0.01, 1.0): 0.888, (5, 0.01, 0.9): 0.534, (10, 0.01, 0.9): 0.309}
    assert abs(simulation - card.get(setting[1:], simulation)) < tolerance


@without_backend
def test_the_trivial_case_is_the_gradient_after_the_relu():
    width, depth, sigma, keep = 6, 3, 0.5, 0.7
    rng = np.random.default_rng(0)
    dominant = []
    for _ in range(200):
        rows = np.eye(width)  # of feature i by its own number; then those of the layers above it
        for _ in range(depth):
            w = sigma * rng.standard_normal((width, width)) + np.eye(width)
            mask = rng.random(width) < keep
            rows = np.stack([mask * (w @ row) for row in rows])  # forward: ReLU'(z) dz
        g = rng.standard_normal(width)
        m = rows * g
        own = np.abs(np.diag(m))
        dominant.append(own > np.abs(m.sum(1) - np.diag(m)))
    setting = width, depth, sigma, keep, 1.0
    simulation = trivial_dominance.simulate("residual", 200, 0, *setting)
    assert simulation == pytest.approx(np.mean(dominant), abs=1e-12)


@without_backend
def test_a_plain_trivial_network_has_no_dominance():
    assert abs(trivial_dominance.simulate("plain", 30, 0, 64, 5, 0.01, 1.0, 1.0) - 0.06) < 0.03


@without_backend
def test_the_logistic_approximation_has_value_and_slope_at_one():
    ratio = np.array([1 - 1e-4, 1, 1 + 1e-4])
    exact, close = trivial_dominance.probability(ratio), trivial_dominance.logistic(ratio)
    np.testing.assert_allclose(exact[1], close[1])
    np.testing.assert_allclose(np.diff(exact), np.diff(close), rtol=1e-3)
    of_64_alike = trivial_dominance.probability(1 / np.sqrt(63))
    assert of_64_alike == pytest.approx(0.08, abs=5e-4)
