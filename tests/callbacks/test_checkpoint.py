"""Resuming: restored state, refused files, and files that are never incomplete."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import zoo
from helpers.harness import slow_elsewhere, without_backend
from zoo import io
from zoo.backend import keras_private
from zoo.callbacks.checkpoint import Resume


def dropout_model(seed=0):
    """Return a model with all that `Resume` restores: weights, statistics, seeds, momentum."""
    zoo.seed_everything(seed)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5, seed=1),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse")
    return model


def fit(model, epochs, *callbacks):
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    fitted = model.fit(x, x[:, :1], 8, epochs, shuffle=False, verbose=0, callbacks=list(callbacks))
    return fitted.history


def state(model):
    values = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(value) for value in values]


def test_two_epochs_and_two_resumed_equal_four(tmp_path):
    whole = dropout_model()
    history = fit(whole, 4)
    fit(dropout_model(), 2, Resume(tmp_path / "state.npz"))
    resumed = dropout_model(seed=1)  # what it starts from does not matter
    seen = fit(resumed, 4, Resume(tmp_path / "state.npz"))
    np.testing.assert_equal(state(resumed), state(whole))  # the same program on the same numbers
    assert seen == history


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="other random states are variables")
def test_random_states_of_gpus_are_resumed(tmp_path, monkeypatch):
    torch = sys.modules["torch"]
    cuda = torch.cuda
    states = [torch.tensor([device, 7], dtype=torch.uint8) for device in range(2)]
    restored = []
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "get_rng_state_all", lambda: states)
    monkeypatch.setattr(cuda, "set_rng_state_all", restored.extend)
    fit(dropout_model(), 1, Resume(tmp_path / "state.npz"))
    for count in (0, 1):  # devices of the machine on which it is resumed
        monkeypatch.setattr(cuda, "device_count", lambda count=count: count)
        fit(dropout_model(), 1, Resume(tmp_path / "state.npz"))
        assert [state.tolist() for state in restored] == [[0, 7]] * count


def test_a_metric_with_a_value_for_each_class_is_resumed_and_printed(tmp_path, capsys):
    x, y = np.eye(4, dtype="float32"), np.eye(4, dtype="float32")[[0, 1, 2, 2]]
    histories = []
    for epochs in (1, 2):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "softmax")])
        model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score(name="f1")])
        after = [zoo.callbacks.Progress(epochs, 1), Resume(tmp_path / "state.npz")]
        histories.append(model.fit(x, y, epochs=epochs, verbose=0, callbacks=after).history)
    assert np.shape(histories[1]["f1"]) == (2, 4)
    np.testing.assert_array_equal(histories[1]["f1"][0], histories[0]["f1"][0])
    assert "epoch 2/2 done  f1 " in capsys.readouterr().out


def test_a_setting_that_is_no_json_is_refused_before_training(tmp_path):
    with pytest.raises(TypeError, match="float32 is not JSON serializable"):
        Resume(tmp_path / "state.npz", identity={"rate": np.float32(0.1)})


def test_a_loss_that_is_not_finite_ends_training_and_keeps_the_checkpoint_of_before(tmp_path):
    rates = keras.callbacks.LearningRateScheduler([0.02, 1e30].__getitem__)
    progress = zoo.callbacks.Progress(2, 4)
    with pytest.raises(RuntimeError, match="NaN or Inf loss encountered at batch"):
        until_nan = keras.callbacks.TerminateOnNaN(raise_error=True)
        before = [until_nan, progress, Resume(tmp_path / "state.npz")]
        fit(dropout_model(), 2, rates, *before)
    resumed = dropout_model(seed=1)
    (loss,) = fit(resumed, 1, Resume(tmp_path / "state.npz"))["loss"]  # trains no more
    whole = dropout_model()
    assert fit(whole, 1)["loss"] == [loss]
    np.testing.assert_equal(state(resumed)[:8], state(whole)[:8])


class Noise(keras.layers.Layer):
    """Noise by Keras's global seed generator, which JAX refuses in a compiled step."""

    def call(self, x):
        return x if keras.backend.backend() == "jax" else x + keras.random.normal((8, 1))


def recurrent_model():
    """Return a model whose state Keras keeps out of its variables, with moving averages."""
    model = keras.Sequential([keras.Input(batch_shape=(8, 4)), keras.layers.Reshape((2, 2))])
    if keras.backend.backend() != "torch":  # where Keras cannot train it
        model.add(keras.layers.GRU(3, stateful=True, return_sequences=True))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(1))
    model.add(Noise())
    model.compile(keras.optimizers.SGD(0.02, use_ema=True, ema_momentum=0.5), "mse")
    return model


class InterruptBeforeFourth(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            raise KeyboardInterrupt


@slow_elsewhere
def test_seeds_states_of_rnns_swapped_averages_and_rare_validations_are_resumed(tmp_path):
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")

    def fit(path, seed, *callbacks):
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        model = recurrent_model()
        initial = [np.linspace(-seed, 1, v.size).reshape(v.shape) for v in model.get_weights()]
        model.set_weights(initial)
        keras_private.global_seed_generator().state.assign([seed, 0])
        options = {"validation_data": (x, x[:, :1]), "validation_freq": 2, "batch_size": 8}
        callbacks = [*callbacks, swap, Resume(tmp_path / path, [swap])]
        options |= {"epochs": 5, "callbacks": callbacks, "shuffle": False, "verbose": 0}
        return model.fit(x, x[:, :1], **options).history, model.get_weights()

    history, whole = fit("whole.npz", 1)
    with pytest.raises(KeyboardInterrupt):
        fit("part.npz", 1, InterruptBeforeFourth())
    resumed, values = fit("part.npz", 2)
    assert resumed == history and len(history["val_loss"]) == 2
    np.testing.assert_equal(values, whole)


class StopAfterTwo(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 1


def test_a_run_that_was_stopped_stays_stopped(tmp_path):
    stopped = dropout_model()
    history = fit(stopped, 5, StopAfterTwo(), Resume(tmp_path / "state.npz"))
    resumed = dropout_model(seed=1)
    assert fit(resumed, 5, StopAfterTwo(), Resume(tmp_path / "state.npz")) == history
    np.testing.assert_equal(state(resumed), state(stopped))
    assert len(history["loss"]) == 2


class Counter(keras.callbacks.Callback):
    """A counter that names its state, beside a setting."""

    state = ("epochs", "losses")

    def __init__(self, factor):
        super().__init__()
        self.factor, self.epochs, self.losses = factor, 0, []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1
        self.losses.append(logs["loss"])


def test_tracked_callbacks_resume_their_state_and_not_their_settings(tmp_path):
    first, second = Counter(2), Counter(3)
    fit(dropout_model(), 2, first, Resume(tmp_path / "state.npz", [first]))
    fit(dropout_model(), 3, second, Resume(tmp_path / "state.npz", [second]))
    assert second.epochs == 3 and second.losses[:2] == first.losses
    assert second.factor == 3 and len(second.losses) == 3
    for track in ([], [keras.callbacks.EarlyStopping("loss")]):
        with pytest.raises(ValueError, match=r"that wrote .*, \['Counter'\].*Received: track=\["):
            fit(dropout_model(), 3, Resume(tmp_path / "state.npz", track))
    other = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)
    with pytest.raises(ValueError, match="Received: track='LearningRateScheduler'"):
        fit(dropout_model(), 3, Resume(tmp_path / "new.npz", [other]))


HOLD = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@without_backend
def test_a_run_directory_belongs_to_one_process(tmp_path):
    zoo.callbacks.checkpoint.open_run(tmp_path / "own", {})
    zoo.callbacks.checkpoint.open_run(tmp_path / "own", {})
    (tmp_path / "other").mkdir()
    command = [sys.executable, "-c", HOLD, str(tmp_path / "other")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(ValueError, match="no other process writes to"):
            zoo.callbacks.checkpoint.open_run(tmp_path / "other", {})
        process.stdin.close()
    zoo.callbacks.checkpoint.open_run(tmp_path / "other", {})


def test_the_checkpoint_of_another_run_or_model_is_refused(tmp_path):
    fit(dropout_model(), 1, Resume(tmp_path / "state.npz", identity={"variant": "full"}))
    with pytest.raises(ValueError, match="variant: 'full' there, 'plain' here"):
        fit(dropout_model(), 1, Resume(tmp_path / "state.npz", identity={"variant": "plain"}))
    wider = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    wider.compile("sgd", "mse")
    with pytest.raises(ValueError, match="variables of this model"):
        fit(wider, 1, Resume(tmp_path / "state.npz", identity={"variant": "full"}))


def test_a_failing_write_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "file"
    io.replace(path, lambda temporary: temporary.write_text("good"))

    def fail(temporary):
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        io.replace(path, fail)
    assert path.read_text() == "good" and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="to read, write and lock"):
        zoo.callbacks.checkpoint.open_run(tmp_path / "file", {})


class Score(keras.callbacks.Callback):
    """Add a score to the logs that is NaN at first and best after the second epoch."""

    def on_epoch_end(self, epoch, logs=None):
        logs["score"] = [float("nan"), 1.0, 2.0][epoch]
        if epoch == 1:
            self.best = self.model.get_weights()


@slow_elsewhere
def test_a_resumed_training_keeps_the_weights_of_the_best_epoch_before(tmp_path):
    score = Score()
    for epochs in (1, 2, 3):
        best = zoo.callbacks.checkpoint.BestWeights("score")
        fit(dropout_model(), epochs, score, best, Resume(tmp_path / "state.npz", [best]))
    assert best.best == 1.0 and best.epoch == 2
    np.testing.assert_equal(best.weights, score.best)


def test_a_metric_that_the_logs_lack_is_named():
    with pytest.raises(ValueError, match="one of 'loss'. Received: monitor='val_loss'"):
        fit(dropout_model(), 1, zoo.callbacks.checkpoint.BestWeights("val_loss"))


@slow_elsewhere
def test_a_flipped_bit_of_the_best_weights_is_noticed_before_training(tmp_path):
    best = zoo.callbacks.checkpoint.BestWeights("loss")
    fit(dropout_model(), 1, best, Resume(tmp_path / "state.npz", [best]))
    content = bytearray((tmp_path / "state.npz").read_bytes())
    place = content.index(best.weights[0].tobytes(), content.index(b"c000.weights"))
    content[place] ^= 1
    (tmp_path / "state.npz").write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read .*CRC"):
        Resume(tmp_path / "state.npz").read()


def test_a_later_training_of_a_resumed_model_has_its_own_epochs(tmp_path):
    for epochs in (1, 2):
        model = dropout_model()
        fit(model, epochs, Resume(tmp_path / "state.npz"))
    before = state(model)
    fit(model, 1)
    assert model.history.epoch == [0]
    assert any(np.any(a != b) for a, b in zip(before, state(model), strict=True))


def bfloat16_model():
    policy = keras.dtype_policies.DTypePolicy("bfloat16")
    inputs = keras.Input((4,), dtype="bfloat16")
    x = keras.layers.Dense(8, "tanh", dtype=policy)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype=policy)(x))
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse")
    return model


def test_a_training_in_bfloat16_resumes_exactly_with_its_best_weights(tmp_path):
    whole = bfloat16_model()
    fit(whole, 2)
    for epochs in (1, 2):
        keras.utils.set_random_seed(epochs - 1)  # the first model starts as `whole` did
        resumed, best = bfloat16_model(), zoo.callbacks.checkpoint.BestWeights("loss")
        stop = keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True)
        fit(resumed, epochs, best, stop, Resume(tmp_path / "state.npz", [best, stop]))
    for a, b in zip(state(resumed), state(whole), strict=True):
        np.testing.assert_array_equal(a.astype("float32"), b.astype("float32"))
    resumed.set_weights(best.weights)
    assert best.epoch == 2 and best.weights[0].dtype == "float32"


class Counting(keras.layers.Layer):
    """A layer that calls itself stateful, with a state of its own kind."""

    stateful, states = True, [0]

    def call(self, x):
        return x


def test_a_state_that_is_no_variable_is_left_out_and_a_model_without_any_refused(tmp_path):
    model = keras.Sequential([keras.Input((4,)), Counting(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    fit(model, 1, Resume(tmp_path / "state.npz"))
    assert Resume(tmp_path / "state.npz").read()["epoch"] == 1
    resume = Resume(tmp_path / "other.npz")
    resume.set_model(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match="`model` must be built.*keras.Input"):
        resume.on_train_begin()


def test_a_folder_in_place_of_the_checkpoint_and_what_is_no_callback_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`path` must be a file, such as state.npz"):
        Resume(tmp_path)
    for track in (3, None, ["a"]):
        with pytest.raises(ValueError, match="`track` must be callbacks. Received: track="):
            Resume(tmp_path / "state.npz", track)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"path": None}, "`path` must be a path"),
        ({"path": "state.npz", "identity": 3}, "`identity` must be a dictionary"),
    ],
)
def test_settings_of_another_type_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Resume(**settings)


def keras_callbacks():
    """Return Keras's callbacks with state, whose `min_delta` changes its sign in training."""
    return {
        "plateau": keras.callbacks.ReduceLROnPlateau("score", 0.5, 2, mode="min", min_delta=0.5),
        "stop": keras.callbacks.EarlyStopping("score", 0.3, 2, mode="min"),
        "best": keras.callbacks.EarlyStopping(
            "score", patience=5, mode="min", restore_best_weights=True
        ),
    }


class Scores(keras.callbacks.Callback):
    """Add scores to the logs: steps below and above `min_delta`, the best in the second epoch."""

    def on_epoch_end(self, epoch, logs=None):
        logs["score"] = [3.0, 1.0, 0.8, 0.9, 0.95, 0.9, 0.85][epoch]


@slow_elsewhere
@pytest.mark.parametrize("name", keras_callbacks())
@pytest.mark.parametrize("interrupted", [1, 3])
def test_keras_s_callbacks_resume_as_in_an_uninterrupted_training(tmp_path, name, interrupted):
    whole = dropout_model()
    history = fit(whole, 7, Scores(), keras_callbacks()[name])
    model = None
    for epochs in (interrupted, 7):
        model = dropout_model(seed=epochs if model else 0)
        callback = keras_callbacks()[name]
        resume = Resume(tmp_path / "state.npz", [callback])
        if epochs == interrupted:  # as killed: `fit` ends without `on_train_end`
            callback.on_train_end = lambda logs=None: None
        seen = fit(model, epochs, Scores(), callback, resume)
    assert seen == history
    np.testing.assert_equal(model.get_weights(), whole.get_weights())
    assert float(model.optimizer.learning_rate) == float(whole.optimizer.learning_rate)


@slow_elsewhere
def test_a_resumed_training_keeps_the_best_model_and_knows_where_it_stopped(tmp_path):
    best = {"monitor": "score", "mode": "min"}
    for epochs in (5, 7):
        save = keras.callbacks.ModelCheckpoint(
            tmp_path / "best.weights.h5", save_best_only=True, save_weights_only=True, **best
        )
        fit(dropout_model(), epochs, Scores(), save, Resume(tmp_path / "saved.npz", [save]))
        stop = keras.callbacks.EarlyStopping(patience=1, **best)
        fit(dropout_model(), epochs, Scores(), stop, Resume(tmp_path / "stopped.npz", [stop]))
        assert (save.best, stop.stopped_epoch) == (0.8, 3)


@slow_elsewhere
def test_callbacks_forget_the_training_of_another_model():
    best = zoo.callbacks.checkpoint.BestWeights("loss")
    fit(dropout_model(), 3, best)
    model = dropout_model(seed=1)
    x = np.full((4, 4), 9.0, "float32")
    model.fit(x, 100 * x[:, :1], verbose=0, callbacks=[best])  # a larger loss
    np.testing.assert_equal(best.weights, model.get_weights())

    scores = zoo.callbacks.training.Perplexity(1, lambda: 3.0)  # it stalls
    halve = zoo.callbacks.training.HalveOnStall()
    for _ in range(2):
        rates = fit(dropout_model(), 4, scores, halve)["learning_rate"]
        np.testing.assert_allclose(rates, [0.02, 0.02, 0.02, 0.01])
