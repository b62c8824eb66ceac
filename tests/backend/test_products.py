"""Products and the character CNN equal Keras's layers, in value and gradient."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import assert_close, gradients
from zoo import backend
from zoo.backend.layers import Dense
from zoo.export import in_float32

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5, 7)).astype("float32")
KERNEL = RNG.normal(size=(7, 4)).astype("float32")
BIAS = RNG.normal(size=4).astype("float32")
UPSTREAM = RNG.normal(size=(3, 5, 4)).astype("float32")


def weighted(products):
    """Return the sum of `dense` times an upstream gradient."""
    return lambda x, k, b: ops.sum(ops.multiply(backend.dense(x, k, b, products), UPSTREAM))


def rounded(array):
    """Return an array rounded to bfloat16."""
    return ops.convert_to_numpy(ops.cast(ops.cast(array, "bfloat16"), "float32"))


@pytest.mark.parametrize("products, share", [("", 1e-6), ("bfloat16", 2**-7)])
def test_dense_and_its_gradients_equal_the_formulas(products, share):
    # share: one rounding of the result to bfloat16 on two backends, of float32 sums else
    near = rounded if products else lambda array: array
    x, kernel, dy = near(X), near(KERNEL), near(UPSTREAM)
    y = ops.convert_to_numpy(backend.dense(X, KERNEL, BIAS, products))
    expected = x @ kernel + BIAS
    assert y.dtype == "float32"
    assert np.abs(y - expected).max() < share * np.abs(expected).max()
    found = gradients(weighted(products), (X, KERNEL, BIAS))
    rows, upstream = x.reshape(-1, 7), dy.reshape(-1, 4)
    formulas = (dy @ kernel.T, rows.T @ upstream, UPSTREAM.sum((0, 1)))
    for value, formula in zip(found, formulas, strict=True):
        assert np.abs(value - formula).max() < share * np.abs(formula).max()


def test_the_gradients_of_an_empty_batch_are_zeros():
    found = gradients(lambda x, k, b: ops.sum(backend.dense(x, k, b)), (X[:0], KERNEL, BIAS))
    assert [value.shape for value in found] == [(0, 5, 7), (7, 4), (4,)]
    assert not any(value.any() for value in found)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the compiler of JAX")
@pytest.mark.parametrize("before, after", [(False, True), (True, False), (True, True)])
def test_xla_multiplies_in_bfloat16_what_is_transposed_before_and_after(before, after):
    import jax

    x, kernel = RNG.normal(size=(2, 32, 32)).astype("float32")

    def loss(x, kernel, products=""):
        x, kernel = (x.T, kernel.T) if before else (x, kernel)
        y = backend.dense(x, kernel, products=products)
        return ops.sum(jax.nn.softmax(y.T if after else y, axis=0) ** 2)

    exact = jax.grad(loss, (0, 1))(x, kernel)
    low = jax.jit(jax.grad(lambda x, kernel: loss(x, kernel, "bfloat16"), (0, 1)))(x, kernel)
    for one, other in zip(low, exact, strict=True):
        assert_close(one.T, other.T, 0.05 * float(abs(other).max()))


def test_products_in_bfloat16_are_rounded_and_others_are_not():
    exact = X @ KERNEL + BIAS
    assert np.abs(ops.convert_to_numpy(backend.dense(X, KERNEL, BIAS)) - exact).max() < 1e-5
    low = ops.convert_to_numpy(backend.dense(X, KERNEL, BIAS, "bfloat16"))
    assert np.abs(low - exact).max() > 1e-3


def test_the_dense_layer_equals_that_of_keras_and_reads_its_weights():
    ours, keras_layer = Dense(4, activation="tanh"), keras.layers.Dense(4, activation="tanh")
    ours.build(X.shape)
    keras_layer.build(X.shape)
    keras_layer.set_weights([KERNEL, BIAS])
    ours.set_weights(keras_layer.get_weights())
    assert_close(ours(X), keras_layer(X), 1e-6)
    copy = Dense.from_config({**ours.get_config(), "products": "bfloat16"})
    assert copy.get_config()["products"] == "bfloat16"
    with pytest.raises(ValueError, match="bfloat16"):
        Dense(4, products="float16")


def test_the_gradients_of_the_character_cnn_are_those_of_keras_convolution_and_pooling():
    cnn = zoo.CharCNN(9, 4, (1, 2, 4), (3, 2, 5), zoo.initializers.Uniform(1.0))
    cnn.build((None, 6))
    words = RNG.integers(3, 9, (12, 6)).astype("int32")
    words[:, 4:] = 0  # windows of pads are equal: Keras divides the gradient, ours is the first's
    upstream = RNG.normal(size=(12, 10)).astype("float32")

    def with_keras(*weights):
        e = ops.matmul(ops.one_hot(words, 9), weights[0])
        found = []
        for kernel, bias in zip(weights[1::2], weights[2::2], strict=True):
            y = ops.conv(e, kernel, padding="valid", data_format="channels_last")
            found.append(ops.max(ops.tanh(y + bias), axis=1))
        return ops.sum(ops.multiply(ops.concatenate(found, -1), upstream))

    values = [ops.convert_to_numpy(w) for w in cnn.weights]
    expected = gradients(with_keras, values)
    found = gradients(
        lambda: ops.sum(ops.multiply(cnn(words), upstream)), variables=cnn.trainable_variables
    )
    for value, formula in zip(found, expected, strict=True):
        assert_close(value, formula, 1e-6 * max(1.0, np.abs(formula).max()))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the kernels of torch")
def test_torch_runs_the_lstm_and_the_products_by_onednn_on_a_cpu():
    import torch

    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch is without oneDNN")
    lstm = zoo.layers.carry_lstm.CarryLSTM(4)
    lstm.build((3, 5, 7))
    x = torch.tensor(X, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        (lstm(x).sum() + backend.dense(x, KERNEL, BIAS).sum()).backward()
    names = {event.key for event in profile.key_averages()}
    assert {"aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"} <= names
    assert "mkldnn::_linear_pointwise" in names


def test_rounded_products_are_of_float32_layers():
    with pytest.raises(ValueError, match='Give dtype="float32"'):
        Dense(2, products="bfloat16", dtype="mixed_bfloat16")


def test_exports_multiply_in_float32():
    layer = Dense(2, products="bfloat16", dtype="float32")
    model = keras.Sequential([keras.Input((3,)), layer])
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    copy = in_float32(model)
    assert copy.layers[0].products == ""
    kernel, bias = (ops.convert_to_numpy(v) for v in layer.weights)
    np.testing.assert_allclose(
        ops.convert_to_numpy(copy(x)), x @ kernel + bias, rtol=1e-6, atol=1e-6
    )
