"""CarryLSTM reads consecutive chunks as one text: in `fit`, `evaluate` and `predict`."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import assert_close, gradients, numpy_of
from helpers.harness import run_layer_test
from zoo.layers.carry_lstm import ExplicitState

BATCH, STEPS, FEATURES, UNITS, CHUNKS = 2, 4, 3, 5, 3


def texts(seed=0, chunks=CHUNKS, batch=BATCH):
    """Return streams `(batch, chunks * steps, features)`, whole and cut into chunks."""
    rng = np.random.default_rng(seed)
    whole = rng.normal(size=(batch, chunks * STEPS, FEATURES)).astype("float32")
    return whole, np.concatenate(np.split(whole, chunks, axis=1))


def model(rate=0.0, batch=BATCH, steps=STEPS):
    x = keras.Input(batch_shape=(batch, steps, FEATURES))
    model = keras.Model(x, zoo.CarryLSTM(UNITS, bias_initializer="normal", name="lstm")(x))
    model.compile(keras.optimizers.SGD(rate), loss="mse")
    return model


def states(model):
    lstm = model.get_layer("lstm")
    return numpy_of((lstm.h, lstm.c))


def keras_lstm(lstm):
    """Return `keras.layers.LSTM` with the same weights; it returns outputs and last states."""
    reference = keras.layers.LSTM(UNITS, return_sequences=True, return_state=True)
    reference.build((None, None, FEATURES))
    reference.set_weights(numpy_of(lstm.trainable_weights))
    return reference


def unchunked(model, whole):
    """Return outputs and last states of Keras's LSTM over the whole text, from zero."""
    return numpy_of(keras_lstm(model.get_layer("lstm"))(whole))


SEEDED = {
    "kernel_initializer": keras.initializers.GlorotUniform(seed=1),
    "recurrent_initializer": keras.initializers.Orthogonal(seed=2),
}
# float32, 12 steps, values below 1, in every comparison with the unchunked pass
ATOL = 1e-6


def test_a_carry_lstm_is_a_keras_layer():
    run_layer_test(
        zoo.CarryLSTM,
        {"units": UNITS, "bias_initializer": "ones"},
        input_shape=(BATCH, STEPS, FEATURES),
        expected_output_shape=(BATCH, STEPS, UNITS),
        expected_num_trainable_weights=3,
        expected_num_non_trainable_weights=2,  # h and c
        expected_num_seed_generators=0,
        expected_num_losses=0,
    )


def test_predict_reads_consecutive_chunks_as_one_text():
    whole, chunks = texts()
    m = model()
    y, h, c = unchunked(m, whole)
    predicted = m.predict(chunks, batch_size=BATCH, verbose=0)
    assert_close(predicted, np.concatenate(np.split(y, CHUNKS, axis=1)), ATOL)
    assert_close(states(m), [h, c], ATOL)
    m.get_layer("lstm").reset_state()  # before an unrelated text
    assert h.all() and not any(s.any() for s in states(m))


def test_fit_and_evaluate_read_consecutive_chunks_as_one_text():
    whole, chunks = texts()
    targets, cut_targets = (t[..., :1] for t in texts(seed=1))
    for run in ("fit", "evaluate"):
        m = model()  # learning rate 0: `fit` does all but move the weights
        y, h, c = unchunked(m, whole)
        options = {"batch_size": BATCH, "verbose": 0}
        if run == "fit":
            history = m.fit(chunks, cut_targets, shuffle=False, **options)
            loss = history.history["loss"][0]
        else:
            loss = m.evaluate(chunks, cut_targets, **options)
        np.testing.assert_allclose(loss, np.mean((y - targets) ** 2), rtol=1e-5)  # a float32 mean
        assert_close(states(m), [h, c], ATOL)


def test_the_state_is_carried_from_epoch_to_epoch():
    whole, chunks = texts()
    m = model()
    m.fit(chunks, chunks[..., :1], batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    assert_close(states(m), unchunked(m, np.concatenate([whole, whole], axis=1))[1:], ATOL)


def test_gradients_stop_at_the_carried_state():
    first, second = np.split(texts(chunks=2)[0], 2, axis=1)
    layer = zoo.CarryLSTM(UNITS)
    layer.build(first.shape)

    def loss_of_the_second(first, second):
        layer(first)
        return ops.sum(layer(second))

    into_first, into_second = gradients(loss_of_the_second, (first, second))
    assert not into_first.any() and into_second.all()


def test_the_gradient_of_a_chunk_is_truncated_to_it():
    # The reference: a gradient through keras.layers.LSTM from the state as a constant.
    first, second = np.split(texts(chunks=2)[0], 2, axis=1)
    m = model()
    lstm = m.get_layer("lstm")
    _, h, c = unchunked(m, first)
    lstm.h.assign(h)
    lstm.c.assign(c)
    ours = gradients(lambda: ops.sum(m(second)), (), lstm.trainable_weights)
    reference = keras_lstm(lstm)
    state = [ops.convert_to_tensor(v) for v in (h, c)]
    theirs = gradients(
        lambda: ops.sum(reference(second, initial_state=state)[0]), (), reference.trainable_weights
    )
    assert_close(ours, theirs, 1e-5)  # float32 sums over 8 rows, values of 10


def test_saved_weights_load_into_another_batch_size_and_hold_no_state(tmp_path):
    whole, chunks = texts(chunks=1)
    m = model()
    m.predict(chunks, batch_size=BATCH, verbose=0)
    m.save_weights(tmp_path / "m.weights.h5")
    m.save(tmp_path / "m.keras")
    seven = model(batch=7)
    seven.load_weights(tmp_path / "m.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert not any(s.any() for s in (*states(seven), *states(loaded)))
    expected = unchunked(m, whole)[0]
    assert_close(loaded(whole), expected, ATOL)
    assert_close(seven(np.repeat(whole, [3, 4], axis=0))[::3], expected[[0, 1, 1]], ATOL)


def test_a_batch_that_is_unknown_or_of_another_size_is_an_error():
    with pytest.raises(ValueError, match=r"keras.Input\(batch_shape=.*input_shape=\(None, 4, 3\)"):
        zoo.CarryLSTM(UNITS)(keras.Input((STEPS, FEATURES)))
    with pytest.raises(ValueError, match=r"Received: input_shape=\(2, 3\)"):
        zoo.CarryLSTM(UNITS)(texts(chunks=1)[0][:, 0])
    layer = zoo.CarryLSTM(UNITS)
    layer(texts(chunks=1)[0])
    with pytest.raises(ValueError, match="2, whose state .*`ExplicitState`.*rows=3"):
        layer(texts(chunks=1, batch=3)[0])


@pytest.mark.parametrize("run", ["fit", "evaluate", "predict"])
def test_a_smaller_last_batch_is_an_error_and_not_a_broadcast_state(backend, run):
    _, chunks = texts(chunks=1, batch=3)
    arguments = [chunks] if run == "predict" else [chunks, chunks[..., :1]]
    errors = [ValueError]
    if backend == "tensorflow":  # its graphs may know the size at run time only
        import tensorflow as tf

        errors.append(tf.errors.InvalidArgumentError)
    with pytest.raises(tuple(errors)):
        getattr(model(), run)(*arguments, batch_size=BATCH, verbose=0)


def test_explicit_state_computes_the_same_for_any_batch_and_leaves_the_carried_state_alone():
    m = model()
    lstm = m.get_layer("lstm")
    whole, _ = texts(batch=7)
    start = [np.full((7, UNITS), v, "float32") for v in (0.25, -0.5)]
    y, h, c = ExplicitState(lstm)(whole, *map(ops.convert_to_tensor, start))
    state = [ops.convert_to_tensor(v) for v in start]
    assert_close([y, h, c], list(keras_lstm(lstm)(whole, initial_state=state)), ATOL)
    assert not any(s.any() for s in states(m))


def test_shapes_that_do_not_fit_the_weights_are_refused():
    layer = zoo.CarryLSTM(UNITS)
    x = np.ones((BATCH, STEPS, FEATURES), "float32")
    layer(x)
    with pytest.raises(ValueError, match="kernel of 1 features. Received: .* kernel of 3"):
        layer(x[..., :1])
    state = np.zeros((1, UNITS), "float32")
    with pytest.raises(ValueError, match=r"states \(2, 5\).*Received: states \(1, 5\) and"):
        ExplicitState(layer)(x, state, state)


def test_explicit_state_saves_with_its_weights(tmp_path):
    m = model()
    x = keras.Input((None, FEATURES))
    start = [keras.Input((UNITS,)) for _ in "hc"]
    explicit = keras.Model([x, *start], ExplicitState(m.get_layer("lstm"))(x, *start))
    explicit.save(tmp_path / "explicit.keras")
    loaded = keras.saving.load_model(tmp_path / "explicit.keras")
    whole, _ = texts(batch=1)
    arguments = [ops.convert_to_tensor(v) for v in (whole, *np.ones((2, 1, UNITS), "float32"))]
    assert_close(list(loaded(arguments)), [ops.convert_to_numpy(v) for v in explicit(arguments)], 0)


def test_mixed_precision_carries_the_state_in_float32_variables():
    layer = zoo.CarryLSTM(UNITS, dtype="mixed_bfloat16")
    y = layer(texts(chunks=1)[0])
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert {w.dtype for w in layer.weights} == {"float32"}
    assert_close(ops.cast(y[:, -1], "float32"), layer.h, 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rounds_the_weights_and_outputs_of_float32(dtype):
    x = texts(chunks=1)[0]
    half, full = (zoo.CarryLSTM(UNITS, **SEEDED, dtype=d) for d in (dtype, "float32"))
    y = half(x)
    full.build(x.shape)
    kernel, recurrent, _ = (ops.convert_to_numpy(ops.cast(v, "float32")) for v in half.weights[:3])
    np.testing.assert_array_equal(
        recurrent, ops.convert_to_numpy(ops.cast(ops.cast(full.recurrent_kernel, dtype), "float32"))
    )
    full.set_weights([kernel, recurrent, *full.get_weights()[2:]])
    assert {keras.backend.standardize_dtype(v.dtype) for v in (y, half.h, half.kernel)} == {dtype}
    assert_close(ops.cast(y, "float32"), full(x), {"float16": 4e-3, "bfloat16": 3e-2}[dtype])
