"""An LSTM for contiguous streams of text."""

from typing import Any

import keras
from keras import ops

from zoo import backend
from zoo.checks import check_integers, require
from zoo.layers.configured import Configured
from zoo.layers.gating import HALF
from zoo.types import Initializer, Shape, Tensor

WEIGHTS = ("kernel", "recurrent_kernel", "bias")


@keras.saving.register_keras_serializable("zoo")
class CarryLSTM(Configured):
    """An LSTM whose state at the end of a batch is its state at the start of the next.

    Row b of a batch must continue row b of the batch before (`zoo.datasets.text.streams`
    makes such batches; `shuffle=False` keeps them). Gradients stop at the carried state. Saved
    models hold the weights only; `checkpoint.Resume` saves the state too. Each of several
    replicas reads and writes its rows of the state.

    `units` is the size of the state, and the weights are in the gate order i, f, g, o.

    Input shape: `(batch, steps, features)`; the batch size must be known when it is built.
    Output shape: `(batch, steps, units)`.

    Raises:
        ValueError: if the layer is built without a batch size, or called with another one.

    Reference: Kim et al. (2016), arXiv:1508.06615, section 2.1 and `main.lua` of its code, where
    the state is carried over batches and epochs.
    """

    def __init__(
        self,
        units: int,
        kernel_initializer: Initializer = "glorot_uniform",
        recurrent_initializer: Initializer = "orthogonal",
        bias_initializer: Initializer = "zeros",
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        check_integers(1, units=units)
        self.units = units
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape: Shape) -> None:
        """Create the weights and the state, for a known batch size."""
        known = len(input_shape) == 3 and input_shape[0] is not None
        expected = "(batch, steps, features), as each row of a batch has a state. Use keras.Input("
        require(known, f"{expected}batch_shape=...)", input_shape=tuple(input_shape))
        batch, _, features = input_shape
        gates = 4 * self.units
        self.kernel = self.add_weight((features, gates), self.kernel_initializer, name="kernel")
        self.recurrent_kernel = self.add_weight(
            (self.units, gates), self._sample_recurrent, name="recurrent_kernel"
        )
        self.bias = self.add_weight((gates,), self.bias_initializer, name="bias")
        # With `autocast=True`, torch in mixed precision would assign to a copy.
        options = {"initializer": "zeros", "trainable": False, "autocast": False}
        self.h = self.add_weight((batch, self.units), **options, name="h")
        self.c = self.add_weight((batch, self.units), **options, name="c")

    def _sample_recurrent(self, shape, dtype=None):
        wide = "float32" if dtype in HALF else dtype  # torch and JAX have no orthogonal one in half
        return ops.cast(self.recurrent_initializer(shape, dtype=wide), dtype)

    def run(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs `(batch, steps, units)` and the last state, for any batch size."""
        tensors = (h, c, self.kernel, self.recurrent_kernel, self.bias)
        return backend.lstm(x, *(ops.cast(v, x.dtype) for v in tensors))

    def call(self, x: Tensor) -> Tensor:
        """Return the outputs, and update the state."""
        rows = self.h.shape[0] // backend.num_replicas()
        expected = f"{rows}, whose state it carries: drop the last, smaller batch, or use "
        require(x.shape[0] in (None, rows), f"{expected}`ExplicitState`", rows=x.shape[0])
        # TensorFlow may know the batch size at run time only, and would broadcast the state.
        x = ops.reshape(x, (rows, ops.shape(x)[1], x.shape[-1]))
        # A copy, because torch would see the variable it differentiates change in place.
        h, c = (backend.local_shard(ops.stop_gradient(ops.copy(v))) for v in (self.h, self.c))
        y, h, c = self.run(x, h, c)
        for variable, value in ((self.h, h), (self.c, c)):
            value = backend.gather_shards(ops.stop_gradient(value))
            variable.assign(ops.cast(value, variable.dtype))
        return y

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the output's shape."""
        return (*input_shape[:2], self.units)

    def reset_state(self) -> None:
        """Set the state to zero, as before an unrelated text."""
        for variable in (self.h, self.c):
            variable.assign(ops.zeros(variable.shape, variable.dtype))

    def save_own_variables(self, store: Any) -> None:
        """Save the weights and not the state."""
        for name in WEIGHTS:
            store[name] = getattr(self, name).numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load the weights; the state stays."""
        for name in WEIGHTS:
            getattr(self, name).assign(store[name])


@keras.saving.register_keras_serializable("zoo")
class ExplicitState(Configured):
    """A layer with a built `CarryLSTM`'s weights whose state is an argument, for any batch size.

    The `CarryLSTM`'s own state is neither read nor written. Called on x, `(batch, steps,
    features)`, h and c, `(batch, units)`, it returns outputs `(batch, steps, units)`, h and c.
    """

    def __init__(self, lstm: CarryLSTM, **kwargs) -> None:
        super().__init__(**kwargs)
        require(isinstance(lstm, CarryLSTM), "a `CarryLSTM`", lstm=lstm)  # a saved model names it
        self.lstm = lstm

    def build(self, x_shape: Shape, h_shape: Shape, c_shape: Shape) -> None:
        """Build the LSTM if it is not built yet."""
        if not self.lstm.built:
            self.lstm.build((1, *x_shape[1:]))

    def call(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs and the last state."""
        return self.lstm.run(x, h, c)

    def compute_output_shape(self, x_shape: Shape, h_shape: Shape, c_shape: Shape) -> list[Shape]:
        """Return the shapes of the outputs and of the last state."""
        return [(*x_shape[:2], self.lstm.units), h_shape, c_shape]
