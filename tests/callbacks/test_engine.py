"""The engine of probes: batches, labels, gradients at shortcuts and shared tensors, errors."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference
from helpers.harness import few_elsewhere, slow_elsewhere
from helpers.reference_highway import (
    CLASSES,
    UNITS,
    X,
    Y,
    check,
    cosines,
    highway_model,
    norms,
    reference_run,
    values,
)
from zoo import callbacks
from zoo.callbacks.probes.engine import Observer
from zoo.callbacks.probes.objective import class_indices, masked_sum, norm, padded_batches
from zoo.callbacks.probes.probe import CosineInput, NormGrowth
from zoo.graph.blocks import Network


@pytest.fixture
def model():
    return highway_model()


@pytest.mark.parametrize("data", [(X, Y[:-1]), [(X[:4], Y[:4]), (X[4:], Y[4:-1])]])
def test_fewer_labels_than_examples_are_refused(model, data):
    for measure in (
        callbacks.lesions,
        lambda *arguments: callbacks.run([callbacks.L2Ratio()], *arguments),
    ):
        with pytest.raises(ValueError, match="as many labels as inputs"):
            measure(model, data)


def test_each_use_of_a_shared_block_is_its_own_row():
    inputs = keras.Input((UNITS,))
    shared = zoo.HighwayDense(name="shared")
    model = keras.Model(inputs, shared(shared(inputs)))
    table = callbacks.run([callbacks.L2Ratio()], model, X[:, :UNITS])
    assert [*table.values("l2_ratio")] == ["shared", "shared#1"]


def test_the_gradient_at_a_branch_s_input_is_not_that_of_a_shortcut_through_a_dropout():
    tables = []
    for skip in (layers.Dropout(0.5), layers.Rescaling(1.0)):
        inputs = keras.Input((5,))
        x = layers.Add(name="first")([inputs, layers.Dense(5)(inputs)])
        x = layers.Add(name="sum")([skip(x), layers.Dense(5)(x)])
        model = reference.random_weights(keras.Model(inputs, layers.Dense(3, "softmax")(x)))
        tables.append(callbacks.run([callbacks.CosineLoss()], model, (X, Y)).values("cosine_loss"))
    assert tables[0]["sum"] == pytest.approx(tables[1]["sum"], abs=1e-6)


def test_the_gradient_at_a_model_input_that_a_block_reads():
    inputs = keras.Input((2,))
    x = layers.Add(name="sum")([inputs, layers.Dense(2, use_bias=False, name="f")(inputs)])
    model = keras.Model(inputs, x)
    w = np.array([[1.0, 2.0], [0.0, -1.0]], "float32")
    model.get_layer("f").set_weights([w])
    x = np.array([[1.0, 2.0]], "float32")
    table = callbacks.run([callbacks.GradientNorm()], model, (x, x), loss="mean_squared_error")
    gradient = (x @ w) @ (np.eye(2) + w).T  # y - x = x W; half the squared error's gradient is it
    np.testing.assert_allclose(table.values("gradient_norm")["sum"], np.linalg.norm(gradient))


def test_a_projected_block_s_gradient_is_that_at_its_projection():
    images = keras.Input((4, 4, 2))
    x = zoo.ResidualBlock(3, strides=2, name="block")(images)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    model = reference.random_weights(keras.Model(images, x))
    data = reference.images(2, 4, 4, 2), reference.images(2, 3)
    table = callbacks.run(
        [callbacks.TaylorTerm("network"), callbacks.GradientNorm()], model, data, loss="mse"
    )
    block = model.get_layer("block")
    parts = block.parts(data[0], training=False)
    h, y = reference.as_float64(parts["h"], block.output_of(parts))
    gradient = 2 / 3 * (y.mean((1, 2)) - data[1]) / 4  # of the mean over three channels
    term = (h * gradient[:, None, None]).sum((1, 2, 3)).mean()
    np.testing.assert_allclose(table.values("taylor_term")["block"], term, rtol=1e-4)


HIGHWAY = (
    callbacks.L2Ratio,
    callbacks.CosineLoss,
    callbacks.TaylorTerm,
    callbacks.GradientNorm,
    callbacks.ActivationNorm,
    callbacks.EstimationError,
    callbacks.ResidualMean,
    callbacks.IntermediateAccuracy,
    callbacks.BorderlineExamples,
    callbacks.GateActivity,
    callbacks.BlockOutputs,
)


@pytest.mark.parametrize("activation", few_elsewhere(["tanh", "relu"], ["relu"]))
def test_an_input_of_nan_makes_every_measured_value_nan_and_is_reported(activation, caplog):
    inputs = keras.Input((5,))  # some backends' ReLUs make zeros of NaN
    x = layers.Dense(4, activation)(inputs)
    x = zoo.HighwayDense(activation=activation, name="block")(x)
    model = reference.random_weights(keras.Model(inputs, layers.Dense(3, "softmax")(x)))
    x = X.copy()
    x[3] = np.nan
    table = callbacks.run([probe() for probe in HIGHWAY], model, (x, Y), batch_size=3)
    assert "NaN or Inf" in caplog.text and "block" in caplog.text
    table += callbacks.lesions(model, (x, Y))
    assert not [row for row in table if not np.isnan(row.value)]


def chain(blocks=4, classes=3):
    """Return a residual network of dense layers, blocks "s0", "s1" and so on, without norms."""
    inputs = x = keras.Input((5,))
    for k in range(blocks):
        x = layers.Add(name=f"s{k}")([x, layers.Dense(5, "tanh")(x)])
    return reference.random_weights(keras.Model(inputs, layers.Dense(classes, "softmax")(x)))


@slow_elsewhere
def test_blocks_that_are_named_have_the_values_that_they_have_among_all():
    model = chain()
    probes = [callbacks.LogitLens(), callbacks.IntermediateAccuracy(), callbacks.EstimationError()]
    probes += [callbacks.TaylorTerm(), callbacks.BorderlineExamples(4)]
    y = Y % 3
    tables = [
        callbacks.run(probes, model, (X, y), blocks=names)
        + callbacks.early_exits(model, (X, y), blocks=names)
        for names in (None, ["s0", "s1"])
    ]
    of_all, of_named = ({(r.probe, r.block): r.value for r in table if r.block} for table in tables)
    assert {block for _, block in of_named} == {"s0", "s1"}
    expected = {key: value for key, value in of_all.items() if key[1] in ("s0", "s1")}
    assert of_named == pytest.approx(expected, rel=1e-5, abs=1e-6)


@slow_elsewhere
def test_blocks_of_another_tower_are_neither_read_out_nor_compared():
    ends = inputs = [keras.Input((5,)), keras.Input((5,))]
    for k in range(2):
        ends = [
            layers.Add(name=f"{name}{k}")([x, layers.Dense(5, "tanh")(x)])
            for name, x in zip("ab", ends, strict=True)
        ]
    model = keras.Model(inputs, layers.Dense(3, "softmax")(layers.Concatenate()(ends)))
    probes = [callbacks.LogitLens(), callbacks.IntermediateAccuracy(), callbacks.EstimationError()]
    table = callbacks.run(probes, model, ([X, X[::-1]], Y % 3))
    assert (
        [*table.values("logit_lens_kl")] == [*table.values("intermediate_accuracy")] == ["b0", "b1"]
    )
    errors = table.values("estimation_error")
    assert errors["a1"] == errors["b1"] == 0 and errors["a0"] != 0 and errors["b0"] != 0


@slow_elsewhere
def test_a_block_that_halves_its_input_is_compared_with_those_of_its_shape():
    model = keras.applications.ResNet50V2(weights=None, input_shape=(32, 32, 3), classes=10)
    x = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")
    errors = callbacks.run([callbacks.EstimationError()], model, x).values("estimation_error")
    assert len(errors) == 16 and np.all(np.isfinite([*errors.values()]))


@slow_elsewhere
def test_the_classifier_s_gradient_sees_the_mask():
    words = keras.Input((None,), dtype="int32")
    x = layers.Embedding(9, 5, mask_zero=True)(words)
    x = layers.Add(name="s")([x, layers.Dense(5, "tanh")(x)])
    model = keras.Model(words, layers.Dense(3, "softmax")(layers.GlobalAveragePooling1D()(x)))
    tokens = np.random.default_rng(0).integers(1, 9, (7, 6))
    tokens[:, 3:] = 0
    probes = [callbacks.TaylorTerm(), callbacks.CosineLoss("block")]
    padded, cut = (callbacks.run(probes, model, (t, Y[:7] % 3)) for t in (tokens, tokens[:, :3]))
    for one, other in zip(padded, cut, strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-4)


def test_an_example_whose_output_is_zero_counts_as_unchanged():
    inputs = x = keras.Input((5,))
    x = layers.Add(name="s")([x, layers.Dense(5, "relu")(x)])
    model = keras.Model(inputs, layers.ReLU()(x))
    x = np.concatenate([np.zeros((1, 5), "float32"), np.abs(X[:3])])
    change = [callbacks.lesions(model, v).values("lesion_change")["s"] for v in (x, x[1:])]
    assert change[0] == pytest.approx(0.75 * change[1], rel=1e-5)


def test_channels_first_have_the_numbers_of_channels_last(backend):
    if backend == "tensorflow":
        pytest.skip("its CPU has no convolutions of channels first")
    probes = [callbacks.ResidualMean(), callbacks.BlockInfluence(), callbacks.BlockOutputs()]
    images = reference.images(3, 4, 5, 2)
    tables = []
    for order, data in (("last", images), ("first", images.transpose(0, 3, 1, 2))):
        options = {"padding": "same", "data_format": f"channels_{order}"}
        inputs = keras.Input(data.shape[1:])
        y = layers.Add(name="sum")([inputs, layers.Conv2D(2, 3, **options)(inputs)])
        model = reference.random_weights(keras.Model(inputs, layers.ReLU()(y)))
        tables.append([row[-1] for row in callbacks.run(probes, model, data)])
    np.testing.assert_allclose(*tables, rtol=1e-4)


def test_class_indices_are_exact_and_may_be_ignored_ones_beyond_the_classes():
    labels = np.array([0, 257, 999])
    found = class_indices(ops.convert_to_tensor(labels), (3, 1000))
    np.testing.assert_array_equal(ops.convert_to_numpy(found), labels)
    inputs = keras.Input((6, 4))
    x = layers.Add(name="s")([inputs, layers.Dense(4)(inputs)])
    model = keras.Model(inputs, layers.Dense(3, "softmax")(x))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 6, 4)).astype("float32"), rng.integers(0, 3, (5, 6))
    tables = []
    for ignored in (255, -1):
        y[:, 2] = ignored
        loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=ignored)
        table = callbacks.run([callbacks.BorderlineExamples()], model, (x, y), loss=loss)
        tables.append([row.value for row in table])
    assert tables[0] == tables[1]


def test_weights_of_whole_examples_are_left_out_and_told_once(caplog):
    inputs = keras.Input((5,))
    x = zoo.HighwayDense(name="block")(inputs)
    model = reference.random_weights(keras.Model(inputs, layers.Dense(3, "softmax")(x)))
    weighted = [(X[:2], Y[:2], np.arange(2)), (X[2:4], Y[2:4], np.arange(2))]
    values = callbacks.run([callbacks.L2Ratio()], model, weighted).values("l2_ratio")
    assert values == callbacks.run([callbacks.L2Ratio()], model, X[:4], batch_size=2).values(
        "l2_ratio"
    )
    assert caplog.text.count("Weights of whole examples are not used") == 1
    weighted = X[:4], Y[:4], np.arange(4.0)[:, None]
    again = callbacks.run([callbacks.L2Ratio()], model, weighted).values("l2_ratio")
    assert again == pytest.approx(values)
    assert caplog.text.count("Weights of whole examples are not used") == 2


def test_the_sum_over_a_padded_batch_is_infinite_if_its_last_example_is():
    examples = np.array([[1.0], [2.0], [3.0], [4.0], [np.inf]], "float32")
    for x, _, mask in padded_batches(examples, 3):
        (total,) = masked_sum(ops.array(x), ops.array(mask))
    assert x.shape == (3, 1) and float(total) == np.inf


def test_an_input_of_nan_makes_cushions_and_dominance_nan():
    images = keras.Input((4, 4, 3))
    x = layers.Conv2D(4, 1, activation="relu")(images)
    for i in range(2):
        x = zoo.SimplifiedResidual(4, name=f"block{i}")(x)
    top = layers.Dense(2, "softmax")(layers.GlobalAveragePooling2D()(x))
    model = reference.random_weights(keras.Model(images, top), scale=0.5)
    x = reference.images(3, 4, 4, 3)
    x[1, 0, 0, 0] = np.nan
    table = callbacks.run([callbacks.LayerCushion()], model, x)
    cushions = callbacks.interlayer_cushions(model, x, projections=2)
    table += cushions.of_probe("interlayer_cushion")
    table += callbacks.dominant_flow(model, (x, np.array([0, 1, 1])))
    assert not [row for row in table if not np.isnan(row.value)]


def test_an_example_whose_skip_input_is_zero_has_no_l2_ratio_and_is_counted():
    inputs = keras.Input((4,))
    branch = layers.Dense(4, kernel_initializer="identity", bias_initializer="ones")
    model = keras.Model(inputs, layers.Add(name="sum")([inputs, branch(inputs)]))
    x = np.array([[1, 1, 1, 1], [0, 0, 0, 0]], "float32")
    table = callbacks.run([callbacks.L2Ratio()], model, x)
    assert table.values("l2_ratio") == {"sum": 2.0}
    assert table.values("l2_ratio_dead") == {"sum": 0.5}
    assert "l2_ratio_dead" not in callbacks.run([callbacks.L2Ratio()], model, x[:1]).probes()
    nothing = callbacks.run([callbacks.L2Ratio()], model, x[1:])
    assert np.isnan(nothing.values("l2_ratio")["sum"])


def test_bad_input_is_refused_before_any_work(model):
    with pytest.raises(ValueError, match="cosine_loss.*compare with labels"):
        callbacks.run([callbacks.CosineLoss()], model, X)
    with pytest.raises(ValueError, match="different.*Received: names=.'cosine_loss', 'cos"):
        callbacks.run([callbacks.CosineLoss(), callbacks.CosineLoss("block")], model, (X, Y))
    with pytest.raises(ValueError, match="Received: classifier='loss'"):
        callbacks.CosineLoss(classifier="loss")
    with pytest.raises(ValueError, match="of=3"):
        callbacks.ClassGates(3, CLASSES)
    with pytest.raises(ValueError, match="`classes` must be a positive integer"):
        callbacks.ClassGates(0, "a")
    with pytest.raises(ValueError, match="`margin` must be a number from 0 to 1"):
        callbacks.BorderlineExamples(margin=np.nan)
    plain = keras.Sequential([keras.Input((5,)), layers.Dense(2)])
    with pytest.raises(ValueError, match="has no block"):
        callbacks.run([callbacks.L2Ratio()], plain, X)
    with pytest.raises(ValueError, match="`blocks` must be one or more names"):
        callbacks.run([callbacks.L2Ratio()], model, X, blocks=[])
    with pytest.raises(ValueError, match=r"the model's, \(None, .*Received: shape=\(\d+, 2"):
        callbacks.run([callbacks.L2Ratio()], model, X[:, :2])


def test_a_probe_that_no_block_can_serve_is_an_error():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, inputs + layers.Dense(3)(inputs))
    for probe in (callbacks.GateActivity(), callbacks.GateBias()):
        with pytest.raises(ValueError, match="gate_"):
            callbacks.run([probe], model, X[:, :3])


def test_a_custom_probe_needs_a_few_lines(model):
    class Positive(callbacks.Probe):
        def measure(self, block, stage):
            return {"positive": ops.mean(ops.cast(block["y"] > 0, "float32"), axis=1)}

    _, states, _ = reference_run(model)
    check(values(Positive(), model), [(y > 0).mean() for y in states[1:]])

    class Norms(callbacks.Probe):
        def measure(self, block, stage):
            return {"y": norm(block["y"]), "x": norm(block["x"])}

    probe = Norms()
    table = callbacks.run([probe], model, (X, Y), batch_size=3)
    assert table.probes() == ["norms_y", "norms_x"]  # in their order; the first is the summary
    assert probe.summary() == pytest.approx(np.mean([*table.values("norms_y").values()]))
    table = callbacks.run([Positive("p"), Positive("po")], model, X)  # "positive" begins with both
    assert table.probes() == ["p_positive", "po_positive"]


def test_a_probe_follows_the_protocol_of_a_metric():
    probe = callbacks.ActivationNorm(name="ratio")
    probe.update_state({"block": {"mean": 3.0, "square": 5.0}}, 2)
    probe.update_state({"block": {"mean": 1.0, "square": 1.0}}, 2)
    assert probe.result() == {"block": {"ratio": 1.0, "std": np.sqrt(1.5 - 1.0)}}
    probe.reset_state()
    assert probe.result() == {}


@pytest.mark.parametrize("kind", ["projected", "pooled"])
def test_probes_measure_sums_with_a_projected_or_pooled_shortcut(kind):
    inputs = keras.Input((4, 4, 2))
    x = layers.Conv2D(2, 1, name="stem")(inputs)
    short = layers.MaxPooling2D(2) if kind == "pooled" else layers.Conv2D(2, 1, 2)
    f, g = layers.Conv2D(2, 3, 2, padding="same"), layers.Conv2D(2, 1)
    x = layers.Add(name="sum")([short(x), g(f(x))])
    x = layers.Dense(2, name="top")(layers.GlobalAveragePooling2D(name="pool")(x))
    model = reference.random_weights(keras.Model(inputs, x))
    data = reference.images(3, 4, 4, 2), reference.images(3, 2, seed=4)
    probes = [callbacks.L2Ratio(), callbacks.TaylorTerm("network"), callbacks.GradientNorm()]
    table = callbacks.run(probes, model, data, loss="mse", batch_size=2)
    stem = model.get_layer("stem")(data[0])
    x, f = reference.as_float64(short(stem), g(f(stem)))
    w, b = reference.as_float64(*model.get_layer("top").get_weights())
    of_y = ((x + f).mean((1, 2)) @ w + b - data[1]) @ w.T / 4  # 2/2 of the mean, 4 pixels
    lengths = [np.linalg.norm(v.reshape(3, -1), axis=1) for v in (f, x)]
    ratio = (lengths[0] / lengths[1]).mean()
    term = (f * of_y[:, None, None]).sum((1, 2, 3)).mean()
    np.testing.assert_allclose(table.values("l2_ratio")["sum"], ratio, rtol=1e-4)
    np.testing.assert_allclose(table.values("taylor_term")["sum"], term, rtol=1e-4, atol=1e-6)
    assert table.values("gradient_norm")["sum"] > 0


def test_examples_with_a_tiny_loss_have_a_gradient(model):
    top = model.get_layer("top")
    top.set_weights([8 * w for w in top.get_weights()])  # losses of 1e-8
    observer = Observer([callbacks.GradientNorm()], Network.of(model))
    for i in range(len(X)):
        table = observer.run((X[[i]], Y[[i]]))
        assert all(value > 0 for value in table.values("gradient_norm").values() if value)
        assert all(np.isfinite(row.value) for row in table)


def test_norms_of_half_precision_are_of_single_precision():
    v = ops.full((1, 16, 16, 64), 10.0, dtype="float16")  # a sum of squares of 1.6 million
    assert float(norm(v)[0]) == pytest.approx(10 * 128, rel=1e-3)


@pytest.mark.parametrize("kind", few_elsewhere(["plain", "masked", "carry"], ["masked"]))
def test_probes_leave_the_state_of_an_rnn_and_begin_each_batch_in_it(kind):
    def network(stateful):
        inputs = keras.Input(batch_shape=(2, 3), dtype="int32")
        x = layers.Embedding(5, 4, mask_zero=kind == "masked")(inputs)
        lstm = layers.LSTM(4, return_sequences=True, stateful=stateful)
        lstm = zoo.CarryLSTM(4) if kind == "carry" else lstm
        x = layers.Add(name="sum")([x, lstm(x)])
        model = keras.Model(inputs, layers.Dense(CLASSES, "softmax")(x))
        return reference.random_weights(model), lstm

    data = np.array([[1, 2, 0], [3, 4, 1], [2, 2, 4], [1, 0, 0]]), np.arange(12).reshape(4, 3) % 3

    def measure(model):
        probes = [callbacks.L2Ratio(), callbacks.CosineLoss()]
        table = callbacks.run(probes, model, data, batch_size=2)
        table += callbacks.loops(model, data, (1, 2), "sum", batch_size=2)
        table += callbacks.lesions(model, data, batch_size=2)
        return [row.value for row in table]

    model, lstm = network(True)
    states = (lstm.h, lstm.c) if kind == "carry" else lstm.states
    for state in states:
        state.assign(np.full((2, 4), 0.5))
    moved = measure(model)
    assert all((ops.convert_to_numpy(state) == 0.5).all() for state in states)
    if kind != "carry":
        lstm.reset_state()
        at_rest = measure(model)
        np.testing.assert_allclose(at_rest, measure(network(False)[0]), rtol=1e-5)
        assert not np.allclose(moved, at_rest, rtol=1e-3)


@pytest.mark.parametrize("size", few_elsewhere([1e25, 1e-25], [1e25]))
def test_ratios_do_not_depend_on_the_size_of_activations(size):
    x = inputs = keras.Input((4,))
    for i in range(2):
        f = layers.Dense(4, use_bias=False, name=f"f{i}")
        x = layers.Add(name=f"sum{i}")([x, f(x)])
    model = reference.random_weights(keras.Model(inputs, x))
    probes = [callbacks.L2Ratio(), callbacks.BlockInfluence(), CosineInput(), NormGrowth()]
    probes += [callbacks.LayerCushion()]
    data = X[:, :4]

    def measure(x):
        table = callbacks.run(probes, model, x) + callbacks.lesions(model, x)
        return [row.value for row in table + callbacks.loops(model, x, (1, 2))]

    f, x = (data.astype("float64") @ v for v in (model.get_layer("f0").get_weights()[0], np.eye(4)))
    assert measure(data)[0] == pytest.approx((norms(f) / norms(x)).mean(), rel=1e-4)
    np.testing.assert_allclose(measure(data * np.float32(size)), measure(data), rtol=1e-4)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_ratios_of_half_precision_are_not_those_of_rounded_sums(dtype):
    inputs = keras.Input((64,), dtype="float32")
    block = zoo.HighwayDense(gate_bias=-6.0, dtype=dtype, name="block")  # f is a hundredth of x
    model = keras.Model(inputs, block(inputs))
    x = reference.images(20, 64)
    terms = reference.as_float64(
        *(ops.cast(block.parts(ops.cast(x, block.compute_dtype))[key], "float32") for key in "xht")
    )
    x64, h, t = terms
    f = t * (h - x64)
    probes = [callbacks.L2Ratio(), CosineInput(), callbacks.ResidualMean()]
    table = callbacks.run(probes, model, x, batch_size=7)
    ratio = table.values("l2_ratio")["block"]
    assert ratio < 0.02 and ratio == pytest.approx((norms(f) / norms(x64)).mean(), rel=3e-3)
    assert table.values("cosine_input")["block"] == pytest.approx(cosines(f, x64).mean(), rel=1e-3)
    np.testing.assert_allclose(table.array("residual_mean_units")[0], f.mean(0), atol=1e-4)


def test_images_without_their_axis_of_one_channel_are_taken_as_fit_takes_them():
    inputs = keras.Input((4, 4, 1))
    f = layers.Conv2D(1, 3, padding="same", name="f")(inputs)
    model = reference.random_weights(keras.Model(inputs, layers.Add(name="sum")([inputs, f])))
    images = reference.images(5, 4, 4, 1)
    tables = [
        callbacks.run([callbacks.L2Ratio()], model, x) + callbacks.lesions(model, x)
        for x in (images, images[..., 0])
    ]
    assert [*tables[0]] == [*tables[1]]
