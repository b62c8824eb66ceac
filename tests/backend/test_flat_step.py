"""`zoo.fast` trains as Keras does, bit for bit, or says why it does not."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from zoo.backend.flat_step import FlatStep

IMAGES, CLASSES = (8, 8, 3), 4
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
RNG = np.random.default_rng(0)
X, Y = RNG.random((11, *IMAGES), "float32"), RNG.integers(0, CLASSES, 11)


# pytest.warns warns again of what it did not expect, from this module
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


@pytest.fixture(autouse=True)
def on_torch(backend):
    """Skip the tests where `fast` does nothing."""
    if backend != "torch":
        pytest.skip("TensorFlow and JAX compile Keras's step")


def convolutional():
    inputs = keras.Input(IMAGES)
    x = zoo.ResidualBlock(8, strides=2)(layers.Conv2D(8, 3, padding="same")(inputs))
    x = zoo.HighwayConv2D(8, activity_regularizer=keras.regularizers.L2(1e-3))(x)
    x = layers.BatchNormalization()(layers.Dropout(0.3)(x))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(CLASSES, kernel_regularizer="l2")(x))


def highway():
    inputs = keras.Input(IMAGES)
    x = zoo.HighwayDense(6)(layers.Dense(6)(layers.Flatten()(inputs)))
    return keras.Model(inputs, layers.Dense(CLASSES)(zoo.HighwayDenseStack(3)(x)))


def masked():
    inputs = keras.Input(IMAGES)
    x = layers.Masking(0.0)(layers.ReLU(threshold=0.99)(layers.Reshape((3, 64))(inputs)))
    x = layers.LSTM(5)(layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x))
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


def attention():
    inputs = keras.Input(IMAGES)
    x = layers.Reshape((8, 24))(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4, dropout=0.2)(x, x))
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.Flatten()(x)))


def rematerialized():
    inputs = keras.Input(IMAGES)
    x = zoo.ResidualBlock(3)(zoo.ResidualBlock(3)(inputs))
    return zoo.graph.remat(keras.Model(inputs, layers.Dense(CLASSES)(layers.Flatten()(x))))


def seeded():
    inputs = keras.Input(IMAGES)
    x = layers.Dropout(0.5, seed=1)(layers.Flatten()(inputs))
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


class Symmetric(layers.Layer):
    """A sum whose terms lie in the same memory: it cannot overwrite one of them."""

    def call(self, x):
        y = 2 * x
        return y + ops.swapaxes(y, 1, 2)


def symmetric():
    inputs = keras.Input(IMAGES)
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.Flatten()(Symmetric()(inputs))))


class Deciding(layers.Layer):
    def call(self, x):
        return x if float(ops.sum(x)) > 0 else -x


class Distinct(layers.Layer):
    def call(self, x):
        return x + ops.cast(ops.unique(ops.round(2 * x)).shape[0], x.dtype)


class Leaving(layers.Layer):
    def call(self, x):
        return x + ops.convert_to_tensor(ops.convert_to_numpy(x))


def compiled(make, precision="float32", **options):
    """Return a compiled model of always the same initial values."""
    zoo.seed_everything(3)
    keras.config.set_dtype_policy(precision)
    model = make()
    keras.config.set_dtype_policy("float32")
    options = {"optimizer": keras.optimizers.SGD(0.05, 0.9), "metrics": ["accuracy"]} | options
    model.compile(loss=LOSS, **options)
    zoo.seed_everything(4)
    return model


def steps(model, epochs=2, **options):
    """Train six steps an epoch, the last on one image; return the metrics by epoch."""
    return model.fit(X, Y, batch_size=2, epochs=epochs, verbose=0, **options).history


def many_steps(model):
    return steps(model, epochs=9)


def assert_trained_alike(make, after=0, fit=steps, **options):
    model = compiled(make, **options)
    history = fit(model)
    quick = zoo.fast(compiled(make, **options), after=after)
    assert fit(quick) == history
    for a, b in zip(quick.variables, model.variables, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(a), ops.convert_to_numpy(b))
    return quick


@pytest.fixture
def traces(monkeypatch):
    """The batches that were traced: none means that these tests compare Keras with itself."""
    found = []
    trace = FlatStep._traced

    def recorded(self, data, leaves):
        found.append(data)
        return trace(self, data, leaves)

    monkeypatch.setattr(FlatStep, "_traced", recorded)
    return found


class Masked(layers.Dense):
    """A dense layer whose kernel a constant tensor masks, as after pruning."""

    def build(self, shape):
        super().build(shape)
        self.mask = ops.convert_to_tensor(np.arange(4, dtype="float32") % 2)

    def call(self, x):
        return ops.matmul(x, self.mask * self.kernel) + self.bias


def penalized():
    inputs = keras.Input(IMAGES)
    x = layers.Dense(4, kernel_regularizer="l1", activity_regularizer="l1")(inputs)
    x = layers.Dense(4, kernel_regularizer=keras.regularizers.OrthogonalRegularizer())(x)
    return keras.Model(inputs, Masked(4)(layers.Flatten()(x)))


@pytest.mark.parametrize("make", [highway, masked, attention, rematerialized, symmetric, penalized])
def test_steps_equal_those_of_keras(make, traces):
    assert_trained_alike(make)
    assert [len(x) for x, *_ in traces] == [2, 1]


def test_steps_with_dropout_and_normalization_equal_those_of_keras(traces):
    assert_trained_alike(convolutional, fit=many_steps)  # 54


def test_steps_in_bfloat16_equal_those_of_keras(traces):
    assert_trained_alike(convolutional, precision="mixed_bfloat16")
    assert len(traces) == 2


def test_steps_of_adam_with_weighted_samples_equal_those_of_keras(traces):
    weights = np.linspace(0.0, 2.0, 11)
    optimizer = keras.optimizers.AdamW(0.01, global_clipnorm=0.5, loss_scale_factor=8.0)
    options = {"weighted_metrics": ["accuracy"], "optimizer": optimizer}

    def fit(model):
        model.optimizer = keras.optimizers.AdamW.from_config(optimizer.get_config())
        return steps(model, sample_weight=weights)

    assert_trained_alike(convolutional, fit=fit, **options)
    assert len(traces) == 2


def test_metrics_leave_out_masked_steps_of_the_output(traces):
    def labelled():
        inputs = keras.Input(IMAGES)
        x = layers.Masking(0.0)(layers.ReLU(threshold=0.99)(layers.Reshape((3, 64))(inputs)))
        return keras.Model(inputs, layers.Dense(CLASSES)(x))

    def fit(model):
        return model.fit(X, np.stack([Y] * 3, axis=1), batch_size=2, verbose=0).history

    assert_trained_alike(labelled, fit=fit)
    assert len(traces) == 2


def test_a_constant_of_the_loss_is_not_overwritten():
    weight = ops.convert_to_tensor(np.float32(0.5))

    def fit(model):
        model.compile("sgd", lambda y, y_pred: weight * ops.mean(y_pred**2))
        model = zoo.fast(model, after=0) if isinstance(model.train_step, FlatStep) else model
        return steps(model)

    assert_trained_alike(highway, fit=fit)
    assert float(weight) == 0.5


def test_the_same_shape_in_another_order_of_memory_and_an_input_that_is_none_train(traces):
    inputs = {"a": keras.Input((3,), optional=True, name="a"), "b": keras.Input((4, 6), name="b")}
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(inputs["b"])))
    model.compile("sgd", "mse")
    quick = zoo.fast(model, after=0)
    x, y = ops.convert_to_tensor(RNG.random((8, 4, 6), "float32")), np.ones((8, 3), "float32")
    for value in (x, x.permute(2, 1, 0).contiguous().permute(2, 1, 0)):
        assert np.isfinite(float(quick.train_on_batch({"a": None, "b": value}, y)))
    assert len(traces) == 2


def test_a_distillation_trains_alike():
    def distiller():
        inner = keras.distillation.Distiller(
            compiled(convolutional),
            compiled(highway),
            distillation_losses=keras.distillation.LogitsDistillation(
                temperature=2.0, loss=keras.losses.KLDivergence()
            ),
        )
        inner.build((None, *IMAGES))
        return inner

    assert_trained_alike(distiller)


def test_keras_trains_the_first_batches_of_each_shape(traces):
    assert_trained_alike(highway, after=20, fit=many_steps)
    assert [len(x) for x, *_ in traces] == [2]  # 45 batches of two images, 9 of one


def test_compile_traces_anew():
    def fit(model):
        first = steps(model)
        model.layers[2].trainable = False
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        labels = np.eye(CLASSES)[Y]
        return first, model.fit(X, labels, verbose=0, epochs=2).history

    assert_trained_alike(convolutional, fit=fit)


def test_only_eight_shapes_are_traced(traces):
    def fit(model):
        return [model.train_on_batch(X[:size], Y[:size]) for size in range(1, 11)]

    assert_trained_alike(highway, fit=fit)
    assert [len(x) for x, *_ in traces] == [*range(1, 9)]


@pytest.mark.parametrize("layer", [Deciding, Distinct, Leaving])
def test_what_depends_on_values_trains_by_keras_with_a_warning(layer):
    def make():
        inputs = keras.Input(IMAGES)
        return keras.Model(inputs, layers.Dense(CLASSES)(layer()(layers.Flatten()(inputs))))

    with pytest.warns(UserWarning, match="Keras's own step"):
        assert_trained_alike(make)


def test_seeded_dropout_trains_by_keras_with_a_warning():
    with pytest.warns(UserWarning, match="a layer with a seed of its own"):
        assert_trained_alike(seeded)


def test_a_stateful_rnn_trains_by_keras_with_a_warning():
    def make():
        inputs = keras.Input(batch_shape=(2, *IMAGES))
        x = layers.SimpleRNN(5, stateful=True)(layers.Reshape((8, 24))(inputs))
        return keras.Model(inputs, layers.Dense(CLASSES)(x))

    def fit(model):
        return model.fit(X[:10], Y[:10], batch_size=2, epochs=2, verbose=0).history

    with pytest.warns(UserWarning, match="variables that the model does not track"):
        assert_trained_alike(make, fit=fit)


def test_an_input_that_was_its_own_label_in_the_traced_step_has_others_later(traces):
    def fit(model):
        model.compile("sgd", "mse")
        clean = ops.convert_to_tensor(X[:2])
        return [model.train_on_batch(x, clean) for x in (clean, clean + 1)]

    def make():
        inputs = keras.Input(IMAGES)
        return keras.Model(inputs, layers.Dense(3)(inputs))

    assert_trained_alike(make, fit=fit)
    assert len(traces) == 1


def test_what_traces_but_does_not_run_trains_by_keras_with_a_warning(traces):
    def native():
        inputs = keras.Input(batch_shape=(2, *IMAGES))
        x = zoo.CarryLSTM(5)(layers.Reshape((8, 24))(inputs))
        return keras.Model(inputs, layers.Dense(CLASSES)(layers.Flatten()(x)))

    def fit(model):
        return model.fit(X[:10], Y[:10], batch_size=2, epochs=2, verbose=0).history

    with pytest.warns(UserWarning, match="Keras's own step"):
        assert_trained_alike(native, fit=fit)
    assert len(traces) == 1


def test_refusals():
    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    inputs = keras.Input((4,))
    own = Own(inputs, layers.Dense(2)(inputs))
    with pytest.raises(ValueError, match="must be compiled"):
        zoo.fast(own)
    own.compile("sgd", "mse")
    with pytest.raises(ValueError, match="`after` must be a number of 0 or more"):
        zoo.fast(own, after="a")
    never = zoo.fast(compiled(highway), after=float("inf"))
    never.fit(X, Y, verbose=0)
    assert not never.train_step._programs
    with pytest.raises(ValueError, match="class Own has its own"):
        zoo.fast(own)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    with pytest.raises(ValueError, match="unscaled loss.*LossScaleOptimizer"):
        zoo.fast(compiled(highway, optimizer=scaled))
    later = zoo.fast(compiled(highway))
    later.compile(scaled, LOSS)
    with pytest.raises(ValueError, match="unscaled loss.*LossScaleOptimizer"):
        later.fit(X, Y, verbose=0)
