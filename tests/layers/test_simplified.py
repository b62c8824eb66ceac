"""The simplified blocks equal their NumPy reference, and each other after adding 1 to a kernel."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import assert_close
from helpers.harness import run_layer_test
from helpers.reference import conv, images, random_weights, relu
from zoo.layers.simplified import SymmetricConv2D

BLOCKS = (zoo.SimplifiedPlain, zoo.SimplifiedResidual)
SHAPES = [(4, 1, "pad"), (8, 2, "pad"), (8, 2, "duplicate"), (6, 1, "pad"), (4, 2, "duplicate")]


def identity(x, filters, strides, kind):
    x = x[:, ::strides, ::strides]
    if kind == "duplicate":
        return np.tile(x, filters // x.shape[-1])
    return np.concatenate([x, np.zeros((*x.shape[:3], filters - x.shape[-1]))], axis=-1)


@pytest.mark.parametrize("size", [5, 6])
@pytest.mark.parametrize(("filters", "strides", "kind"), SHAPES)
@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_equals_its_numpy_reference(block, filters, strides, kind, size):
    x = images(2, size, size, 4)
    layer = block(filters, strides=strides, identity=kind)
    layer.build(x.shape)
    y = random_weights(layer)(x)
    expected = conv(x, *layer.transform.weights, strides, first=-1)  # symmetric at any size
    if block is zoo.SimplifiedResidual:
        expected += identity(x, filters, strides, kind)
    assert tuple(y.shape) == layer.compute_output_shape(x.shape) == expected.shape
    assert_close(y, relu(expected), 2e-5)  # float32 sums of 36 products, values of 20


@pytest.mark.parametrize(("filters", "strides", "kind"), SHAPES)
def test_one_at_the_kernel_s_centre_is_the_identity(filters, strides, kind):
    # Yu & Tomasi, equation 1: the mapping is exact, at stride 2 too.
    x = images(2, 6, 6, 4)
    plain, residual = (block(filters, strides=strides, identity=kind) for block in BLOCKS)
    plain.build(x.shape)
    residual.build(x.shape)
    kernel, bias = random_weights(residual, scale=0.1).get_weights()
    for i in range(filters if kind == "duplicate" else 4):
        kernel[1, 1, i % 4, i] += 1
    plain.set_weights([kernel, bias])
    assert_close(plain(x), residual(x), 2e-6)  # one more addition in float32, values of 5


@pytest.mark.parametrize("block", [*BLOCKS, zoo.SimplifiedDominant])
def test_a_block_is_a_keras_layer(block):
    run_layer_test(
        block,
        {"filters": 8, "strides": 2, "identity": "duplicate", "stage": 2},
        input_shape=(2, 6, 6, 4),
        expected_output_shape=(2, 3, 3, 8),
        expected_num_trainable_weights=2,
        expected_num_non_trainable_weights=0,
        expected_num_seed_generators=0,
        expected_num_losses=0,
    )


def test_parts_are_the_skip_input_and_the_convolution():
    layer, x = zoo.SimplifiedResidual(8, strides=2), images(2, 6, 6, 4)
    layer.build(x.shape)
    parts = {k: ops.convert_to_numpy(v) for k, v in layer.parts(ops.convert_to_tensor(x)).items()}
    assert "".join(parts) == "xh" and layer.opens_stage
    assert_close(parts["x"], identity(x, 8, 2, "pad"), 0)
    assert_close(layer(x), relu(parts["x"] + parts["h"]), 0)


def test_initial_kernels_have_the_papers_standard_deviations():
    # KWI: sqrt(2 / (9 · 16)) = 0.1179; HMWI: 1 / (9 · 64) = 0.001736; within 3 % for 9,216 samples.
    for block, stddev in zip(BLOCKS, (np.sqrt(2 / 144), 1 / 576), strict=True):
        layer = block(64)
        layer.build((None, 8, 8, 16))
        kernel, bias = layer.get_weights()
        assert abs(kernel.std() / stddev - 1) < 0.03 and not bias.any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"filters": 8, "kernel_size": 2}, "odd side, .* Received: kernel=.2, 2, 4, 8"),
        ({"filters": 8, "identity": "project"}, "`identity` must be one of 'pad', 'duplicate'"),
        ({"filters": 2}, "as the 4 channels or more.*'pad'. Received: filters=2"),
        ({"filters": 6, "identity": "duplicate"}, "of 'duplicate' a multiple.* filters=6"),
        ({"filters": 0}, "`filters` must be a positive integer"),
        ({"filters": 4, "strides": 1.5}, "`strides` must be a positive integer"),
    ],
)
@pytest.mark.parametrize("block", BLOCKS)
def test_bad_arguments_say_what_to_do(block, settings, message):
    with pytest.raises(ValueError, match=message):
        block(**settings)(images(1, 4, 4, 4))


@pytest.mark.parametrize("strides", [1, 2])
def test_the_symbolic_shape_of_a_symmetric_convolution_is_that_of_its_output(strides):
    padding = "same" if strides == 1 else "valid"
    layer = SymmetricConv2D(2, 3, strides, padding=padding)
    assert layer(keras.Input((8, 7, 1))).shape[1:] == layer(images(1, 8, 7, 1)).shape[1:]


@pytest.mark.parametrize(("filters", "strides"), [(4, 1), (8, 2), (12, 1)])
def test_a_dominant_block_is_a_plain_one_with_diagonal_kernels(filters, strides):
    x = images(2, 6, 6, 4)
    layer = zoo.SimplifiedDominant(filters, strides=strides)
    layer.build(x.shape)
    start = ops.convert_to_numpy(layer.transform.kernel)
    assert (start[1, 1] > 0.5).all() and np.abs(np.delete(start.reshape(9, -1), 4, 0)).max() < 0.5
    random_weights(layer)
    kernel, bias = (ops.convert_to_numpy(w) for w in layer.transform.weights)
    full = np.zeros((3, 3, 4, filters))
    for i in range(filters):
        full[:, :, i % 4, i] = kernel[:, :, i % 4, i // 4]
    expected = relu(conv(x, full, bias, strides, first=-1))
    assert_close(layer(x), expected, 2e-5)


def test_a_dominant_block_has_no_identity_but_its_kernel_s():
    with pytest.raises(ValueError, match="identity='pad'"):
        zoo.SimplifiedDominant(4, identity="pad")
