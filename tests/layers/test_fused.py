"""Convolution, pooling and batch normalization by fused kernels equal Keras's layers."""

import keras
import numpy as np
import pytest
from keras import ops

from helpers.gradients import assert_close, gradients
from helpers.harness import run_layer_test
from helpers.reference import as_float64, images
from zoo.backend.layers import BatchNormalization, Conv2D, MaxPooling2D

NORMS = {
    "images": ({}, (4, 3, 3, 2)),
    "features": ({}, (5, 3)),
    "sequences": ({"momentum": 0.8}, (3, 4, 2)),
    "without_scale": ({"scale": False, "epsilon": 1e-5}, (4, 3, 3, 2)),
    "without_offset": ({"center": False}, (4, 3, 3, 2)),
    "channels_first": ({"axis": 1}, (4, 2, 3, 3)),
    "one_value": ({}, (1, 1, 1, 2)),
}
CONVS = {
    "same": {"padding": "same"},
    "same_strided": {"padding": "same", "strides": 2},  # 7 x 6 pixels: zeros on one side only
    "same_large": {"padding": "same", "strides": (2, 3), "kernel_size": (5, 2)},
    "valid": {"strides": 2, "use_bias": False, "activation": "relu"},
    "dilated": {"padding": "same", "dilation_rate": 2},
    "groups": {"padding": "same", "groups": 2},
    "pixels": {"kernel_size": 1, "strides": 2, "padding": "same"},
}
POOLS = {
    "valid": {"pool_size": 2},
    "overlapping": {"pool_size": 3, "strides": 2},
    "same": {"pool_size": 3, "strides": 2, "padding": "same"},
    "same_odd": {"pool_size": (2, 3), "strides": (2, 1), "padding": "same"},
}


def pair_of(kind, keras_kind, config, x):
    """Return one layer of each kind, with equal weights, through Keras's own format."""
    ours, theirs = kind(**config), keras_kind(**config)
    rng = np.random.default_rng(0)
    for layer in (ours, theirs):
        layer.build(x.shape)
    theirs.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in theirs.weights])
    ours.set_weights(theirs.get_weights())
    assert [w.name for w in ours.weights] == [w.name for w in theirs.weights]
    assert type(theirs).from_config(ours.get_config()).get_config() == theirs.get_config() | {
        "name": ours.name
    }
    return ours, theirs


def values_and_gradients(layer, x, **arguments):
    """Return outputs, and gradients with respect to x and the weights, of a weighted sum."""
    y = layer(x, **arguments)
    dy = images(*y.shape, seed=3)
    weights = [w for w in layer.weights if w.trainable]
    grads = gradients(
        lambda x: ops.sum(ops.multiply(layer(x, **arguments), dy)), [x], variables=weights
    )
    return [ops.convert_to_numpy(y), *grads]


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("training", [True, False])
def test_batch_normalization_equals_that_of_keras(name, training):
    config, shape = NORMS[name]
    x = images(*shape)
    ours, theirs = pair_of(BatchNormalization, keras.layers.BatchNormalization, config, x)
    both = [values_and_gradients(v, x, training=training) for v in (ours, theirs)]
    assert_close(*both, 2e-6)  # gradients are sums over the batch
    assert_close(as_float64(*ours.weights), as_float64(*theirs.weights), 1e-6)


def test_statistics_are_those_of_a_large_batch():
    x = images(4, 64, 64, 3)
    layer = BatchNormalization(momentum=0.0)
    layer(x, training=True)
    mean, variance = as_float64(*layer.non_trainable_variables)
    assert_close(mean, x.astype("float64").mean((0, 1, 2)), 1e-6)
    assert_close(variance, x.astype("float64").var((0, 1, 2)), 5e-6)  # a sum of 16,384 values


def test_half_precision_is_normalized_in_float32():
    x = ops.cast(images(4, 8, 8, 2) + 100, "bfloat16")  # whose variance bfloat16 could not hold
    layer = BatchNormalization(dtype="mixed_bfloat16")
    y = layer(x, training=True)
    exact = keras.layers.BatchNormalization(dtype="float32")(ops.cast(x, "float32"), training=True)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert_close(ops.cast(y, "float32"), exact, 0.005, rtol=2**-8)  # y is rounded


@pytest.mark.parametrize("training", [True, False])
def test_integers_are_normalized_as_by_keras(training):
    x = ops.cast(images(4, 5, 5, 3) * 9, "int32")
    ours, theirs = BatchNormalization(), keras.layers.BatchNormalization()
    assert_close(ours(x, training=training), theirs(x, training=training), 1e-6)


def test_a_frozen_or_masked_normalization_is_that_of_keras():
    x, mask = images(4, 5, 3), np.arange(20).reshape(4, 5) % 3 > 0
    ours, theirs = pair_of(BatchNormalization, keras.layers.BatchNormalization, {}, x)
    assert_close(ours(x, training=True, mask=mask), theirs(x, training=True, mask=mask), 1e-6)
    before = ours.get_weights()
    ours.trainable = theirs.trainable = False
    assert_close(ours(x, training=True), theirs(x, training=True), 1e-6)
    assert_close(ours.get_weights()[3], before[3], 0)


@pytest.mark.parametrize("name", CONVS)
def test_convolution_equals_that_of_keras(name):
    config = {"filters": 4, "kernel_size": 3, **CONVS[name]}
    x = images(2, 7, 6, 4)
    ours, theirs = pair_of(Conv2D, keras.layers.Conv2D, config, x)
    assert_close(*(values_and_gradients(v, x) for v in (ours, theirs)), 1e-5)
    assert tuple(ours(x).shape) == ours.compute_output_shape(x.shape)


@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_equals_that_of_keras(name):
    x = images(2, 7, 6, 4) - 3  # padding must not win
    ours, theirs = pair_of(MaxPooling2D, keras.layers.MaxPooling2D, POOLS[name], x)
    assert_close(*(values_and_gradients(v, x) for v in (ours, theirs)), 1e-6)
    assert tuple(ours(x).shape) == ours.compute_output_shape(x.shape)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others hide layouts")
def test_features_and_their_gradients_keep_their_layout():
    import torch

    layers = [Conv2D(4, 3, padding="same"), MaxPooling2D(3, 2, "same"), BatchNormalization()]
    for layer in layers:
        x = torch.tensor(images(2, 8, 8, 4), requires_grad=True)
        y = layer(x, training=True) if layer is layers[-1] else layer(x)
        (gradient,) = torch.autograd.grad((y * y).sum(), x)
        assert y.is_contiguous() and gradient.is_contiguous(), layer


@pytest.mark.parametrize(
    ("layer", "config"),
    [
        (BatchNormalization, {}),
        (Conv2D, {"filters": 2, "kernel_size": 3, "padding": "same"}),
        (MaxPooling2D, {"pool_size": 1}),
    ],
)
def test_keras_layer_checks(layer, config):
    run_layer_test(
        layer,
        init_kwargs=config,
        input_shape=(2, 4, 4, 2),
        expected_output_shape=(2, 4, 4, 2),
        expected_num_non_trainable_weights=2 if layer is BatchNormalization else 0,
        expected_num_trainable_weights=0 if layer is MaxPooling2D else 2,
        run_training_check=layer is not MaxPooling2D,  # Keras warns that nothing is trained
    )


@pytest.mark.parametrize("training", [True, False])
def test_layers_of_bfloat16_weights_are_keras_s(training):
    dtype = "bfloat16"
    x = np.random.default_rng(0).normal(size=(4, 3, 3, 5))
    layers = [cls(dtype=dtype) for cls in (BatchNormalization, keras.layers.BatchNormalization)]
    ours, keras_s = (layer(keras.ops.cast(x, dtype), training=training) for layer in layers)
    assert keras.backend.standardize_dtype(ours.dtype) == dtype
    ours, keras_s = (
        keras.ops.convert_to_numpy(keras.ops.cast(y, "float32")) for y in (ours, keras_s)
    )
    np.testing.assert_array_equal(ours, keras_s)
