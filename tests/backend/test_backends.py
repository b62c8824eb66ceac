"""Each function of zoo.backend equals a reference implementation in Keras or NumPy."""

import logging
import sys

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import assert_close, gradients
from helpers.harness import without_backend
from zoo import backend as zoo_backend
from zoo.backend import compiled

BATCH, STEPS, FEATURES, UNITS = 3, 6, 4, 5


def samples(*shapes, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return [rng.normal(scale=scale, size=shape).astype("float32") for shape in shapes]


def lstm_arguments(batch=BATCH, steps=STEPS):
    wide = 4 * UNITS
    x, h, c = samples((batch, steps, FEATURES), (batch, UNITS), (batch, UNITS))
    weights = samples((FEATURES, wide), (UNITS, wide), (wide,), seed=1, scale=0.5)
    return x, h, c, *weights


def keras_lstm(*weights):
    layer = keras.layers.LSTM(UNITS, return_sequences=True, return_state=True)
    layer.build((None, None, FEATURES))
    layer.set_weights(weights)  # so `unit_forget_bias` has no effect
    return layer


def numpy_lstm(x, h, c, kernel, recurrent_kernel, bias):
    """Zaremba et al. (2014), section 3.1, step by step; gates in Keras's order i, f, g, o."""

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    ys = []
    for t in range(x.shape[1]):
        i, f, g, o = np.split(x[:, t] @ kernel + h @ recurrent_kernel + bias, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        ys.append(h)
    return [np.stack(ys, axis=1), h, c]


@pytest.mark.parametrize("target", [-1, 3])
def test_the_likelihood_of_a_class_that_does_not_exist_is_none(backend, target):
    logits = ops.convert_to_tensor(np.eye(3, dtype="float32"))
    targets = ops.convert_to_tensor(np.array([0, target, 2], "int32"))
    if backend == "torch":
        with pytest.raises(RuntimeError, match="out of bounds"):
            zoo_backend.nll(logits, targets)
        return
    found = ops.convert_to_numpy(zoo_backend.nll(logits, targets))
    np.testing.assert_array_equal(np.isnan(found), [False, True, False])


@pytest.mark.parametrize(("batch", "steps"), [(BATCH, STEPS), (1, 1), (BATCH, 1), (1, STEPS)])
def test_lstm_equals_its_numpy_implementation(batch, steps):
    arguments = lstm_arguments(batch, steps)
    expected = numpy_lstm(*(v.astype("float64") for v in arguments))
    found = zoo_backend.lstm(*map(ops.convert_to_tensor, arguments))
    assert_close(list(found), expected, 1e-6)  # float32, values below 1, 6 steps


def test_lstm_has_the_gradients_of_the_lstm_of_keras():
    x, h, c, *weights = lstm_arguments()
    layer = keras_lstm(*weights)
    dy, dh, dc = samples((BATCH, STEPS, UNITS), (BATCH, UNITS), (BATCH, UNITS), seed=2)

    def projected(outputs):
        pairs = zip(outputs, (dy, dh, dc), strict=True)
        return sum(ops.sum(ops.multiply(output, weight)) for output, weight in pairs)

    found = gradients(lambda *v: projected(zoo_backend.lstm(*v)), (x, h, c, *weights))
    expected = gradients(
        lambda x, h, c: projected(layer(x, initial_state=[h, c])),
        (x, h, c),
        layer.trainable_weights,
    )
    assert_close(found, expected, 1e-5)  # float32 sums over 18 rows, values of 10


@pytest.mark.parametrize("jit_compile", [False, True])
def test_lstm_reads_any_number_of_steps_also_when_compiled(backend, jit_compile):
    if backend == "torch" and jit_compile:
        pytest.skip("torch.compile of a train step takes half a minute; Keras leaves it off")
    layer = zoo.CarryLSTM(UNITS)
    model = keras.Sequential([keras.Input(batch_shape=(2, None, FEATURES)), layer])
    model.compile(jit_compile=jit_compile)
    h = c = np.zeros((2, UNITS))
    for steps in (3, 7):
        (x,) = samples((2, steps, FEATURES))
        y, h, c = numpy_lstm(x, h, c, *layer.get_weights()[:3])
        assert_close(model.predict_on_batch(x), y, 1e-6)  # float32, values below 1


def unique(ids, size):
    values, inverse, count = zoo_backend.unique(ops.convert_to_tensor(ids, "int32"), size)
    values, inverse = (ops.convert_to_numpy(v) for v in (values, inverse))
    assert count if isinstance(count, int) else tuple(count.shape) == ()
    return values, inverse, int(count)


@pytest.mark.parametrize(("distinct", "num"), [(1, 1), (1, 24), (6, 24), (12, 24), (24, 24)])
def test_unique_finds_every_id_where_there_is_room(backend, distinct, num):
    rng = np.random.default_rng(distinct)
    values = rng.choice(100, distinct, replace=False)
    ids = rng.permutation(np.concatenate([values, rng.choice(values, num - distinct)]))
    expected, inverses = np.unique(ids, return_inverse=True)
    for size in (1, 5, 6, 7, 12, 24, 40):  # few, as JAX compiles for each
        values, inverse, count = unique(ids, size)
        assert count == distinct
        length = distinct if backend == "torch" else min(size, count)
        np.testing.assert_array_equal(values[:length], expected[:length])
        np.testing.assert_array_equal(inverse, inverses)
        if backend != "torch":  # a static shape, padded by ids that occur
            assert len(values) == size and set(values) <= set(ids)
        if count <= size:
            np.testing.assert_array_equal(values[inverse], ids)


# Magnitudes up to 1000: exp alone would overflow at 89.
LOGITS = samples((6, 9))[0] * np.array([[1], [1], [10], [100], [1000], [1e-3]], "float32")
TARGETS = np.array([0, 8, 3, 3, 1, 5])


def log_softmax(logits):
    z = logits.astype("float64")
    z -= z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def test_nll_equals_its_numpy_implementation():
    found = zoo_backend.nll(ops.convert_to_tensor(LOGITS), ops.convert_to_tensor(TARGETS))
    expected = -log_softmax(LOGITS)[np.arange(6), TARGETS]
    assert_close(found, expected, 1e-6, rtol=1e-6)  # float32: half a unit in the last place


def test_the_gradient_of_nll_is_softmax_minus_one_hot_times_the_upstream_gradient():
    (weight,) = samples((6,), seed=1)
    targets = ops.convert_to_tensor(TARGETS)

    def weighted(logits):
        return ops.sum(ops.multiply(zoo_backend.nll(logits, targets), weight))

    (found,) = gradients(weighted, [LOGITS])
    expected = (np.exp(log_softmax(LOGITS)) - np.eye(9)[TARGETS]) * weight[:, None]
    assert_close(found, expected, 1e-6)  # float32, values below 2


def test_a_second_backward_of_nll_on_torch_is_an_error_and_not_a_wrong_number(backend):
    if backend != "torch":
        pytest.skip("only torch's backward is written here and works in place")
    logits = ops.convert_to_tensor(LOGITS).requires_grad_()
    loss = zoo_backend.nll(logits, ops.convert_to_tensor(TARGETS)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_a_seed_gives_the_same_weights_on_every_backend():
    # Reference: one NumPy stream, sampled in the order in which the weights are created.
    stream = np.random.default_rng(3435)
    expected = []
    for logit in (0.0, -2.0, 2.0):  # H, T, C
        expected.append(stream.uniform(-0.05, 0.05, (4, 4)).astype("float32"))
        expected.append(stream.uniform(-0.05, 0.05, (4,)).astype("float32") + np.float32(logit))
    zoo.seed_everything(3435)
    uniform = zoo.initializers.Uniform(0.05)
    options = {"kernel_initializer": uniform, "bias_initializer": uniform}
    layer = zoo.HighwayDense(4, "relu", "full", -2.0, **options)
    layer.build((None, 4))
    for weight, value in zip(layer.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(weight, value)


def test_the_same_seed_repeats_every_sample_and_another_does_not():
    def sample(seed):
        zoo.seed_everything(seed)
        weights = zoo.initializers.Uniform(0.05)((3, 3))
        dropped = keras.layers.Dropout(0.5)(np.ones((4, 50), "float32"), training=True)
        return np.concatenate([ops.convert_to_numpy(v).reshape(-1) for v in (weights, dropped)])

    first, again, other = sample(1), sample(1), sample(2)
    np.testing.assert_array_equal(first, again)
    assert (first[:9] != other[:9]).all() and (first[9:] != other[9:]).any()
    with pytest.raises(ValueError, match="`seed` must be a non-negative integer"):
        zoo.seed_everything(-1)


def test_a_seed_restarts_random_operations_without_a_seed():
    drawn = []
    for _ in range(2):
        zoo.seed_everything(0)
        drawn.append(ops.convert_to_numpy(keras.random.normal((3,))))
    np.testing.assert_array_equal(*drawn)


@without_backend
def test_keep_memory_returns_false_without_glibc(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert zoo.keep_memory() is False


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow warns")
def test_compiling_a_function_for_each_block_brings_no_warning(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tensorflow"), "propagate", True)  # TensorFlow logs there
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    x = ops.ones((1, 2))
    values = [zoo_backend.compiled(lambda x, i=i: i * model(x), model)(x) for i in range(8)]
    assert len(values) == 8 and not caplog.records


@pytest.mark.parametrize("depth", [1, 40])  # JAX passes all of a few variables, else those it read
def test_a_compiled_function_reads_the_weights_of_each_call(depth):
    first, last = (keras.layers.Dense(1, use_bias=False) for _ in range(2))
    between = [keras.layers.Dense(1, kernel_initializer="ones") for _ in range(depth)]
    model = keras.Sequential([keras.Input((1,)), first, *between])
    last.build((None, 1))
    shapes = compiled(lambda x: model(x) if x.shape[0] == 1 else last(model(x)), model)
    for weight in (3.0, 5.0):
        first.set_weights([np.full((1, 1), weight)])
        last.set_weights([np.full((1, 1), 2 * weight)])
        assert_close(shapes(np.ones((1, 1), "float32")), [[weight]], 0)
        assert_close(shapes(np.ones((2, 1), "float32")), [[2 * weight**2]] * 2, 0)


def test_the_error_in_double_precision_tells_a_backend_that_rounds():
    if keras.backend.backend() == "jax":
        sys.modules["jax"].config.update("jax_enable_x64", True)
    try:
        x = np.random.default_rng(1).uniform(1, 2, (5, 200))
        dense = keras.layers.Dense(3, use_bias=False, dtype="float64")
        y = ops.convert_to_numpy(dense(x))
        error = zoo_backend.double_precision_error()
        mean = ops.convert_to_numpy(ops.mean(ops.convert_to_tensor(x), axis=1))
        kernel = ops.convert_to_numpy(dense.kernel)
    finally:
        if keras.backend.backend() == "jax":
            sys.modules["jax"].config.update("jax_enable_x64", False)
    errors = np.abs(y - x @ kernel).max(), np.abs(mean - x.mean(axis=1)).max()
    rounds = max(errors) > 1e-12  # keras 3.15: 3e-16 on TensorFlow, 1e-8 to 1e-6 elsewhere
    assert (error > 1e-12) == rounds == (keras.backend.backend() != "tensorflow")
