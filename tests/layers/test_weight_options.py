"""Regularizers, constraints, dilation, groups and channels first, as keras.layers have them."""

import sys

import keras
import numpy as np
import pytest
from keras import constraints, ops, regularizers

import zoo
from helpers.gradients import assert_close
from helpers.harness import run_layer_test
from helpers.reference import as_float64, conv, images, random_weights, relu, sigmoid
from zoo.layers.highway_stack import HighwayDenseStack
from zoo.regularizers import penalty

OPTIONS = {
    "kernel_regularizer": regularizers.L2(0.5),
    "bias_regularizer": regularizers.L1(0.25),
    "kernel_constraint": constraints.MaxNorm(0.1),
    "bias_constraint": constraints.NonNeg(),
}
IMAGES, VECTORS = (2, 4, 4, 4), (2, 4)
LAYERS = {
    "dense": (zoo.HighwayDense, {"variant": "full"}, VECTORS),
    "stack": (zoo.HighwayDenseStack, {"depth": 3}, VECTORS),
    "conv": (zoo.HighwayConv2D, {"variant": "full"}, IMAGES),
    "block": (zoo.ResidualBlock, {"filters": 8, "strides": 2, "use_bias": True}, IMAGES),
    "plain": (zoo.SimplifiedPlain, {"filters": 4}, IMAGES),
    "residual": (zoo.SimplifiedResidual, {"filters": 4}, IMAGES),
    "dominant": (zoo.SimplifiedDominant, {"filters": 4}, IMAGES),
}


def built(name, **options):
    """Return a layer with random weights."""
    layer_class, arguments, shape = LAYERS[name]
    layer = layer_class(**arguments, **options)
    layer.build(shape)
    return random_weights(layer)


def kernels_and_biases(layer):
    """Return the kernels and the biases of a layer's convolutions and products."""
    names = {w.path: as_float64(w)[0] for w in layer.trainable_weights}
    return [[v for path, v in names.items() if path.endswith(kind)] for kind in ("kernel", "bias")]


@pytest.mark.parametrize("name", LAYERS)
def test_penalties_are_those_of_all_kernels_and_biases(name):
    layer = built(name, **OPTIONS)
    kernels, biases = kernels_and_biases(layer)
    expected = 0.5 * sum((w**2).sum() for w in kernels) + 0.25 * sum(
        np.abs(b).sum() for b in biases
    )
    np.testing.assert_allclose(penalty(layer), expected, rtol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_constraints_hold_after_a_step(name):
    layer = built(name, **OPTIONS)
    for weight in layer.trainable_weights:
        if weight.constraint is not None:
            weight.assign(weight.constraint(weight.value))
    kernels, biases = kernels_and_biases(layer)
    if name == "stack":  # a layer's kernel each
        kernels = [kernel for stacked in kernels for kernel in stacked]
    for kernel in kernels:  # of each filter; of each channel's for a diagonal one
        assert np.linalg.norm(kernel, axis=0).max() < 0.1 + 1e-6
    assert min(bias.min() for bias in biases) == 0


@pytest.mark.parametrize("name", LAYERS)
def test_regularizers_and_constraints_are_in_the_configuration(name):
    layer = built(name, **OPTIONS)
    copy = type(layer).from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()
    assert copy.kernel_regularizer.l2 == 0.5 and copy.kernel_constraint.max_value == 0.1


def test_a_highway_layer_s_step_is_that_of_its_penalized_loss():
    layer = built("dense", kernel_regularizer=regularizers.L2(0.5))
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(0.1), lambda y, p: 0 * ops.sum(p))  # the penalty alone
    before = layer.get_weights()
    model.fit(images(2, 4), images(2, 4), batch_size=2, verbose=0)
    for i, (old, new) in enumerate(zip(before, layer.get_weights(), strict=True)):
        expected = old - 0.1 * 2 * 0.5 * old if i % 2 == 0 else old  # kernels; biases
        np.testing.assert_allclose(new, expected, rtol=1e-5)


@pytest.mark.parametrize("layer", [zoo.HighwayDense, zoo.HighwayConv2D])
def test_an_activity_regularizer_is_of_the_output_and_a_mean_over_the_batch(layer):
    shape = VECTORS if layer is zoo.HighwayDense else IMAGES
    layer, x = layer(activity_regularizer=regularizers.L2(0.5)), images(*shape)
    (y,) = as_float64(layer(x))
    np.testing.assert_allclose(penalty(layer), 0.5 * (y**2).sum() / 2, rtol=1e-5)


def test_stacked_layers_keep_their_penalties():
    inputs = keras.Input((4,))
    x = inputs
    for _ in range(3):
        x = zoo.HighwayDense(kernel_regularizer=regularizers.OrthogonalRegularizer(0.1))(x)
    model = random_weights(keras.Model(inputs, x))
    stacked = keras.Sequential([inputs, HighwayDenseStack.from_layers(model.layers[1:])])
    losses = [penalty(m) for m in (model, stacked)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    other = keras.Sequential(
        [inputs, zoo.HighwayDense(), zoo.HighwayDense(bias_constraint="non_neg")]
    )
    with pytest.raises(ValueError, match="layers of one kind"):
        HighwayDenseStack.from_layers(other.layers)


def highway(x, layer):
    """Return a coupled highway layer of convolutions in NumPy."""
    h, t = (conv(x, *as_float64(*v.weights)) for v in (layer.transform, layer.transform_gate))
    t = sigmoid(t)
    return relu(h) * t + x * (1 - t)


def test_a_dilated_layer_equals_one_whose_kernel_has_zeros_between():
    layer, x = zoo.HighwayConv2D(dilation_rate=2), images(2, 6, 6, 3)
    layer.build(x.shape)
    random_weights(layer)
    wide = zoo.HighwayConv2D(kernel_size=5)
    wide.build(x.shape)
    for branch, other in (
        (layer.transform, wide.transform),
        (layer.transform_gate, wide.transform_gate),
    ):
        kernel, bias = as_float64(*branch.weights)
        spread = np.zeros((5, 5, 3, 3))
        spread[::2, ::2] = kernel
        other.set_weights([spread, bias])
    assert_close(layer(x), highway(x.astype("float64"), wide), 2e-5)


def test_groups_are_layers_side_by_side():
    layer, x = zoo.HighwayConv2D(groups=2), images(2, 5, 5, 4)
    layer.build(x.shape)
    y = as_float64(random_weights(layer)(x))[0]
    for group in (slice(0, 2), slice(2, 4)):
        single = zoo.HighwayConv2D()
        single.build((2, 5, 5, 2))
        single.set_weights([w[..., group] for w in layer.get_weights()])
        assert_close(y[..., group], single(x[..., group]), 1e-5)


@pytest.mark.parametrize("options", [{}, {"dilation_rate": 2}])
def test_channels_first_are_channels_last_transposed(options):
    first = zoo.HighwayConv2D(data_format="channels_first", variant="full", **options)
    last = zoo.HighwayConv2D(variant="full", **options)
    x = images(2, 5, 6, 3)
    last.build(x.shape)
    first.build((2, 3, 5, 6))
    first.set_weights(random_weights(last).get_weights())
    call = first
    if keras.backend.backend() == "tensorflow":  # on CPUs without oneDNN only XLA has such kernels
        call = sys.modules["tensorflow"].function(first, jit_compile=True)
    y = call(np.moveaxis(x, -1, 1))
    assert_close(np.moveaxis(ops.convert_to_numpy(y), 1, -1), last(x), 1e-5)


@pytest.mark.parametrize(
    ("layer", "arguments", "shape"),
    [
        (zoo.HighwayDense, {}, VECTORS),
        (zoo.HighwayConv2D, {"dilation_rate": 2, "groups": 2}, IMAGES),
        (zoo.HighwayConv2D, {"data_format": "channels_first"}, IMAGES),
    ],
    ids=["dense", "conv", "first"],
)
def test_a_layer_with_every_option_is_a_keras_layer(layer, arguments, shape):
    if "data_format" in arguments and keras.backend.backend() == "tensorflow":
        pytest.skip("TensorFlow has no such convolution on CPUs")
    names = {name: "l2" for name in OPTIONS if "regularizer" in name}
    names |= {"kernel_constraint": "max_norm", "bias_constraint": "non_neg"}
    run_layer_test(
        layer,
        {**arguments, **names, "activity_regularizer": "l2"},
        input_shape=shape,
        expected_output_shape=shape,
        expected_num_trainable_weights=4,
        expected_num_losses=5,  # two kernels, two biases, the output
        supports_masking=layer is zoo.HighwayDense,
    )


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: zoo.HighwayConv2D(strides=2), "strides"),
        (lambda: zoo.HighwayConv2D(groups=3)(images(*IMAGES)), "groups=3, 4 channels"),
        (lambda: zoo.HighwayConv2D(data_format="first"), "`data_format` must be one of"),
        (lambda: zoo.HighwayDenseStack(2, activity_regularizer="l2"), "single `zoo.HighwayDense`"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(layer, message):
    with pytest.raises(ValueError, match=message):
        layer()
