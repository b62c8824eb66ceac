"""An LSTM for contiguous streams of text."""

import keras
from keras import ops

from zoo import backend


@keras.saving.register_keras_serializable("zoo")
class CarryLSTM(keras.layers.Layer):
    """An LSTM whose state at the end of a batch is its state at the start of the next.

    Row b of a batch must continue row b of the batch before (`zoo.datasets.text.streams`
    makes such batches; `shuffle=False` keeps them). The state is a variable, so it is carried
    in `fit`, `evaluate` and `predict` on every backend; gradients stop at it. No peepholes,
    one bias vector, no forget-gate offset. Saved models hold the weights and not the state,
    so that they load into a model of another batch size; `zoo.Resume` keeps both. Where replicas
    split a batch, each reads and writes its rows, and the variable is the state of all.

    Args:
        units: Size of the state.
        kernel_initializer: Of the input's kernel.
        recurrent_initializer: Of the state's kernel.
        bias_initializer: Of the bias, in the gate order i, f, g, o.

    Input shape: `(batch, steps, features)`; the batch size must be known when it is built.
    Output shape: `(batch, steps, units)`.

    Raises:
        ValueError: if the layer is built without a batch size, or called with another one.

    Reference: Kim et al. (2016), arXiv:1508.06615, section 2.1 and `main.lua` of its code, where
    the state is carried over batches and epochs.
    """

    def __init__(
        self,
        units,
        kernel_initializer="glorot_uniform",
        recurrent_initializer="orthogonal",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = units
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape):
        batch, _, features = input_shape
        if batch is None:
            raise ValueError(
                f"`CarryLSTM` keeps a state for each row of a batch, so it needs the batch size. "
                f"Received: input shape={tuple(input_shape)}. Use "
                f"keras.Input(batch_shape=(batch, steps, ...))."
            )
        wide = 4 * self.units
        initializers = self.kernel_initializer, self.recurrent_initializer, self.bias_initializer
        shapes = (features, wide), (self.units, wide), (wide,)
        names = "kernel", "recurrent_kernel", "bias"
        for name, shape, initializer in zip(names, shapes, initializers, strict=True):
            weight = self.add_weight(shape=shape, initializer=initializer, name=name)
            setattr(self, name, weight)
        state = {"shape": (batch, self.units), "initializer": "zeros", "trainable": False}
        # Without `autocast=False`, torch in mixed precision would assign to a copy.
        self.h, self.c = (self.add_weight(**state, autocast=False, name=name) for name in "hc")

    def run(self, x, h, c):
        """Outputs `(batch, steps, units)` and last state from the state `h`, `c`, any batch."""
        weights = self.kernel, self.recurrent_kernel, self.bias
        h, c, *weights = (ops.cast(v, x.dtype) for v in (h, c, *weights))
        return backend.lstm(x, h, c, *weights)

    def call(self, x):
        rows = self.h.shape[0] // backend.num_replicas()
        if x.shape[0] not in (None, rows):
            raise ValueError(
                f"This `CarryLSTM` carries the state of {rows} rows. "
                f"Received: {x.shape[0]} rows. Drop the last, smaller batch, or use "
                f"`ExplicitState`."
            )
        # TensorFlow may learn the batch size at run time only, and would broadcast the state.
        x = ops.reshape(x, (rows, ops.shape(x)[1], x.shape[-1]))
        # A copy, because torch would see the variable it differentiates change in place.
        state = (backend.local_shard(ops.stop_gradient(ops.copy(v))) for v in (self.h, self.c))
        y, h, c = self.run(x, *state)
        for variable, value in ((self.h, h), (self.c, c)):
            value = backend.gather_shards(ops.stop_gradient(value))
            variable.assign(ops.cast(value, variable.dtype))
        return y

    def compute_output_shape(self, input_shape):
        return (*input_shape[:2], self.units)

    def reset_state(self):
        """Zeroes the state, as before an unrelated text."""
        for variable in (self.h, self.c):
            variable.assign(ops.zeros(variable.shape, variable.dtype))

    def save_own_variables(self, store):
        for name in ("kernel", "recurrent_kernel", "bias"):
            store[name] = getattr(self, name).numpy()

    def load_own_variables(self, store):
        for name in ("kernel", "recurrent_kernel", "bias"):
            getattr(self, name).assign(store[name])

    def get_config(self):
        own = {
            "units": self.units,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "recurrent_initializer": keras.initializers.serialize(self.recurrent_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("zoo")
class ExplicitState(keras.layers.Layer):
    """A `CarryLSTM`'s weights in a layer whose state is an argument, for any batch size.

    Args:
        lstm: The built `CarryLSTM`; its own state is neither read nor written.

    Call arguments:
        x: `(batch, steps, features)`.
        h, c: `(batch, units)`.

    Returns:
        Outputs `(batch, steps, units)`, h and c.
    """

    def __init__(self, lstm, **kwargs):
        super().__init__(**kwargs)
        self.lstm = lstm

    def build(self, x_shape, h_shape, c_shape):
        if not self.lstm.built:
            self.lstm.build((1, *x_shape[1:]))

    def call(self, x, h, c):
        return self.lstm.run(x, h, c)

    def compute_output_shape(self, x_shape, h_shape, c_shape):
        return (*x_shape[:2], self.lstm.units), h_shape, c_shape

    def get_config(self):
        lstm = keras.saving.serialize_keras_object(self.lstm)
        return {**super().get_config(), "lstm": lstm}

    @classmethod
    def from_config(cls, config):
        lstm = keras.saving.deserialize_keras_object(config["lstm"])
        return cls(**{**config, "lstm": lstm})
