"""HighwayDense and HighwayConv2D compute the six forms, with gates that see what H sees."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import assert_close, gradients
from helpers.harness import run_layer_test
from helpers.reference import TC, as_float64, conv, images, random_weights, relu, sigmoid, skip_sum
from zoo.initializers import KaimingNormal, Uniform
from zoo.layers.skip import GateBias


def reference_output(layer, x, affine):
    """Return the layer's output in NumPy, float64; `affine(x, kernel, bias)` is its operation."""
    h, t, c = (
        affine(x, *as_float64(*branch.weights)) if branch else None
        for branch in (layer.transform, layer.transform_gate, layer.carry_gate)
    )
    gates = (None if z is None else sigmoid(z) for z in (t, c))
    return skip_sum(layer.variant, relu(h), x, *gates)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 3, 2, 4)], ids=len)
@pytest.mark.parametrize("variant", TC)
def test_every_dense_form_equals_the_reference_at_rank_2_3_and_4(variant, shape):
    layer, x = zoo.HighwayDense(variant=variant), images(*shape)
    layer.build(shape)
    y = random_weights(layer)(x)
    assert tuple(y.shape) == shape
    expected = reference_output(layer, x.astype("float64"), lambda x, w, b: x @ w + b)
    assert_close(y, expected, 5e-6)  # float32 sums of 4 products, values up to 20


@pytest.mark.parametrize(("kernel_size", "size"), [(3, 5), (2, 4), (1, 3)])
@pytest.mark.parametrize("variant", TC)
def test_every_convolutional_form_equals_the_reference(variant, kernel_size, size):
    layer, x = zoo.HighwayConv2D(3, kernel_size, variant=variant), images(2, size, size, 3)
    layer.build(x.shape)
    y = random_weights(layer)(x)
    expected = reference_output(layer, x, conv)
    assert_close(y, expected, 2e-5)  # float32 sums of 27 products, values up to 20


@pytest.mark.parametrize("variant", ["plain", "full"])
@pytest.mark.parametrize(
    ("layer", "arguments", "shape"),
    [
        (zoo.HighwayDense, {"units": 4}, (2, 3, 4)),
        (zoo.HighwayConv2D, {"filters": 3, "kernel_size": 3}, (2, 4, 4, 3)),
    ],
)
def test_a_form_is_a_keras_layer(layer, arguments, shape, variant):
    kinds = "kernel_regularizer", "bias_regularizer", "activity_regularizer"
    count = 2 + 2 * len(zoo.FORMS[variant].gates)
    run_layer_test(
        layer,
        {**arguments, "variant": variant, "activation": "tanh", **dict.fromkeys(kinds, "l2")},
        input_shape=shape,
        expected_output_shape=shape,
        expected_num_trainable_weights=count,
        expected_num_non_trainable_weights=0,
        expected_num_seed_generators=0,
        expected_num_losses=count + 1,  # of each weight, and of the output
        supports_masking=layer is zoo.HighwayDense,
    )


def test_a_highway_layer_of_50_costs_what_a_plain_layer_of_71_costs():
    # TVDN section 3.1: 50 blocks against 71 units, about 5000 parameters; 2 (50² + 50), 71² + 71.
    counts = []
    for variant, width in (("coupled", 50), ("plain", 71)):
        layer = zoo.HighwayDense(variant=variant)
        layer.build((None, width))
        counts.append(layer.count_params())
    assert counts == [5100, 5112]


# sigmoid(-100) is 4e-44: nothing beside 1, and its products vanish in float32.
@pytest.mark.parametrize("variant", ["coupled", "full", "t_only"])
def test_a_highway_layer_with_closed_gates_is_the_identity_with_identity_jacobian(variant):
    layer = zoo.HighwayDense(variant=variant, gate_bias=-100.0)
    x, dy = images(3, 4), images(3, 4, seed=7)
    assert_close(layer(x), x, 0)
    (dx,) = gradients(lambda x: ops.sum(ops.multiply(layer(x), dy)), [x])
    assert_close(dx, dy, 0)  # Jᵀ dy = dy for an arbitrary dy


@pytest.mark.parametrize(
    ("variant", "carried"), [("coupled", 0), ("full", 0), ("c_only", 0), ("t_only", 1)]
)
def test_a_highway_layer_with_open_gates_replaces_its_input(variant, carried):
    layer, x = zoo.HighwayDense(variant=variant, gate_bias=100.0), images(3, 4)
    y = layer(x)
    assert_close(y, ops.convert_to_numpy(layer.transform(x)) + carried * x, 0)


@pytest.mark.parametrize("variant", TC)
@pytest.mark.parametrize(
    ("layer", "shape"),
    [(zoo.HighwayDense, (None, 6)), (lambda **k: zoo.HighwayConv2D(None, 5, **k), (None, 8, 8, 2))],
    ids=["dense", "convolutional"],
)
def test_gates_are_as_expressive_as_what_they_gate(layer, shape, variant):
    # Greff et al. (2017), section 5.1: less expressive gates stall training.
    layer = layer(variant=variant)
    layer.build(shape)
    for gate in filter(None, (layer.transform_gate, layer.carry_gate)):
        assert [w.shape for w in gate.weights] == [w.shape for w in layer.transform.weights]
        assert gate.activation is zoo.layers.gating.gate
    assert len(layer.trainable_weights) == 2 + 2 * len(zoo.FORMS[variant].gates)


def biases(layer, shape=(None, 400)):
    layer.build(shape)
    branches = layer.transform, layer.transform_gate, layer.carry_gate
    return [ops.convert_to_numpy(branch.bias) for branch in branches]


def test_gates_start_at_their_logit_and_the_carry_gate_at_its_opposite():
    # T starts at -2 and C at +2, so that C carries what coupled's 1 - sigmoid(-2) would.
    for logit in (-2.0, -1.0, -3.0):
        h, t, c = biases(zoo.HighwayDense(variant="full", gate_bias=logit), (None, 4))
        assert set(h) == {0.0} and set(t) == {logit} and set(c) == {-logit}
    for layer, shape in ((zoo.HighwayDense, (None, 4)), (zoo.HighwayConv2D, (None, 8, 8, 2))):
        _, t, c = biases(layer(variant="full"), shape)
        assert set(t) == {-2.0} and set(c) == {2.0}  # the default


@pytest.mark.parametrize("variant", TC)
def test_the_parts_are_the_papers_letters_and_combine_to_the_output(variant):
    layer, x = zoo.HighwayDense(variant=variant, activation="tanh"), images(3, 4)
    layer.build((None, 4))
    parts = random_weights(layer).parts(ops.convert_to_tensor(x))
    assert "".join(parts) == "xh" + zoo.FORMS[variant].gates
    assert_close(layer.output_of(parts), layer(x), 0)
    x, h = (ops.convert_to_numpy(parts[letter]) for letter in "xh")
    t, c = (ops.convert_to_numpy(parts[g]) if g in parts else None for g in "tc")
    # two evaluations of the same float32 formula, values of 10
    assert_close(layer(x), zoo.FORMS[variant].combine(h, x, t, c), 2e-6)


def test_a_gate_bias_is_a_logit_plus_a_sample():
    seeded = Uniform(0.05, seed=3)
    assert_close(GateBias(-2.0, seeded)((50,)), seeded((50,)) - 2.0, 0)
    assert_close(GateBias(1.5)((3,)), np.full(3, 1.5), 0)
    copy = GateBias.from_config(json.loads(json.dumps(GateBias(-2.0, seeded).get_config())))
    assert_close(copy((50,)), GateBias(-2.0, seeded)((50,)), 0)


def test_initial_convolution_kernels_are_consecutive_kaiming_samples():
    zoo.seed_everything(4)
    layer = zoo.HighwayConv2D()
    layer.build((None, 8, 8, 4))
    rng = np.random.default_rng(4)
    for branch in (layer.transform, layer.transform_gate):  # sqrt(2 / (9 · 4))
        assert_close(branch.kernel, rng.normal(0, np.sqrt(2 / 36), (3, 3, 4, 4)), 1e-7)  # float32


@pytest.mark.parametrize("initializer", [KaimingNormal(seed=3), keras.initializers.HeNormal(3)])
@pytest.mark.parametrize(
    ("kind", "options", "count"),
    [
        (zoo.HighwayDense, {}, 3),
        (zoo.HighwayDenseStack, {"depth": 1}, 3),
        (zoo.ResidualBlock, {"filters": 4}, 6),
    ],
)
def test_kernels_start_differently_with_an_integer_seed(kind, options, count, initializer):
    layer = kind(**options, variant="full", kernel_initializer=initializer)
    layer.build((None, 4, 4, 4))
    weights = [w for w in layer.trainable_weights if w.name == "kernel"]
    kernels = [ops.convert_to_numpy(kernel).ravel() for kernel in weights]
    assert len(kernels) == len(np.unique(kernels, axis=0)) == count
    shape = weights[0].shape[1:] if "depth" in options else weights[0].shape
    assert_close(kernels[0], ops.convert_to_numpy(initializer(shape)).ravel(), 1e-6)  # H's first


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (zoo.HighwayDense, {"bias_initializer": lambda shape, dtype=None: ops.ones(shape)}),
        (
            zoo.HighwayDenseStack,
            {"depth": 2, "bias_initializer": lambda shape, **_: ops.ones(shape)},
        ),
        (zoo.ResidualBlock, {"filters": 4}),
        (zoo.SimplifiedResidual, {"filters": 4}),
        (zoo.SimplifiedDominant, {"filters": 4}),
    ],
)
def test_an_initializer_may_be_a_function(kind, options):
    layer = kind(**options, kernel_initializer=lambda shape, dtype=None: ops.full(shape, 3.0))
    layer.build((None, 4, 4, 4))
    kernel = next(w for w in layer.trainable_weights if "kernel" in w.name)
    assert ops.convert_to_numpy(kernel).max() >= 3.0


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: zoo.HighwayDense(0), "`units` must be a positive integer"),
        (lambda: zoo.HighwayDense(2.5), "`units` must be a positive integer"),
        (lambda: zoo.HighwayDense(5)(images(2, 4)), r"\(2, 4\).*Put a Dense\(5\) .* units=5"),
        (lambda: zoo.HighwayDense(variant="gated"), "`variant` must be one of.*'coupled'"),
        (lambda: zoo.HighwayConv2D(0), "`filters` must be a positive integer"),
        (
            lambda: zoo.HighwayDense(bias_initializer=KaimingNormal())(images(2, 4)),
            r"a kernel.*not of a bias. Received: shape=\(4,\)",
        ),
        (lambda: zoo.HighwayConv2D(kernel_size=(3, 1)), "`kernel_size` must be a positive integer"),
        (lambda: zoo.HighwayConv2D(5)(images(2, 4, 4, 3)), r"Put a Conv2D\(5\) .* filters=5"),
    ],
)
def test_bad_arguments_say_what_to_do(layer, message):
    with pytest.raises(ValueError, match=message):
        layer()


def test_two_layers_live_in_one_model_and_weight_paths_name_the_gates(tmp_path):
    x = keras.Input((4,))
    options = {"kernel_initializer": "he_normal", "bias_initializer": Uniform(0.05), "stage": 2}
    y = zoo.HighwayDense(4, "tanh", "full", -3.0, **options, name="block01")(x)
    y = zoo.HighwayDense(variant="full", name="block02")(y)
    model = keras.Model(x, zoo.HighwayDense()(zoo.HighwayDense()(y)))
    paths = [w.path for w in model.weights]
    assert len(set(paths)) == len(paths) == 6 + 6 + 4 + 4
    branches = "transform", "transform_gate", "carry_gate"
    assert paths[:6] == [f"block01/{b}/{w}" for b in branches for w in ("kernel", "bias")]
    assert "block02/transform_gate/kernel" in paths
    random_weights(model)
    model.save(tmp_path / "two.keras")
    loaded = keras.saving.load_model(tmp_path / "two.keras")
    assert loaded.layers[1].get_config() == model.layers[1].get_config()
    assert_close(loaded(images(3, 4)), model(images(3, 4)), 0)


@pytest.mark.parametrize(
    "layer, arguments",
    [
        (zoo.HighwayConv2D, {"kernel_size": 5}),
        (zoo.ResidualBlock, {"filters": 4, "strides": 2}),
        (zoo.SimplifiedResidual, {"filters": 4, "kernel_size": 5, "strides": 2}),
    ],
)
def test_sides_may_be_pairs_as_in_keras(layer, arguments):
    pairs = {key: (v, v) if key != "filters" else v for key, v in arguments.items()}
    assert layer(**pairs, name="a").get_config() == layer(**arguments, name="a").get_config()
