"""A layer that applies other layers again and again, with the same weights."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from zoo.backend import keras_private
from zoo.checks import check_integers
from zoo.layers.configured import Configured
from zoo.types import Shape, Tensor


@keras.saving.register_keras_serializable("zoo")
class Loop(Configured):
    """The same layers `times` times, one after the other: x <- g(x), weights shared.

    A layer whose call takes `use` gets the index of the use, from 0, such as an
    `UnsharedBatchNormalization(uses=times)`, or a `ResidualBlock` with as many `uses`.

    Args:
        layers: A Keras layer (or model), or a list of them, which returns a tensor of its input's
            shape.
        times: Number of uses. The attribute may be assigned at any time; on TensorFlow and JAX,
            call `model.compile` afterwards.

    Input and output shape: that of the layers.

    Raises:
        ValueError: if `times` is not positive, or the layers change the shape.

    Example:
    >>> double = keras.layers.Dense(1, use_bias=False)
    >>> loop = Loop(double, times=3)
    >>> loop.build((None, 1))
    >>> double.set_weights([keras.ops.array([[2.0]])])
    >>> keras.ops.convert_to_numpy(loop(keras.ops.ones((1, 1)))).tolist()
    [[8.0]]

    Reference: Dehghani et al. (2018), "Universal Transformers", arXiv:1807.03819.
    """

    def __init__(
        self,
        layers: keras.layers.Layer | Sequence[keras.layers.Layer],
        times: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.layers = [layers] if isinstance(layers, keras.layers.Layer) else [*layers]
        self.times = times
        self.supports_masking = True

    @property
    def times(self) -> int:
        """Number of uses."""
        return self._times

    @times.setter
    def times(self, times: int) -> None:
        check_integers(1, times=times)
        self._times = times

    def build(self, input_shape: Shape) -> None:
        """Build the layers."""
        shape = input_shape
        for layer in self.layers:
            if not layer.built:
                layer.build(shape)
            shape = layer.compute_output_shape(shape)
        if tuple(shape) != tuple(input_shape):
            raise ValueError(
                f"A loop's layers must return their input's shape. Received: {self.name}, from "
                f"{tuple(input_shape)} to {tuple(shape)}. Put what changes the shape before it."
            )

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        """Return the last use's output."""
        for use in range(self.times):
            for layer in self.layers:
                x = layer(x, use=use) if takes_use(layer) else layer(x)  # Keras passes `training`
            x = ops.cast(x, self.compute_dtype)  # the layers may have policies of their own
        return x

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the input's shape."""
        return input_shape

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Loop":
        """Return a layer of copies of the serialized layers; earlier files have two keys more."""
        known = {name: v for name, v in config.items() if name not in ("random", "seed")}
        return super().from_config(known)


def takes_use(layer: keras.layers.Layer) -> bool:
    """Return True if a layer's call takes the index of the use."""
    return "use" in keras_private.call_parameters(layer)
