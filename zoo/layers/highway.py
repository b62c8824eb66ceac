"""What the skip layers with one weighted layer a branch share."""

import keras

from zoo.layers.gating import gate
from zoo.layers.skip import GateBias, Skip


class Highway(Skip):
    """A `Skip` of which each branch is one layer that keeps the input's width.

    A subclass names its width argument in `width_argument` and makes its layers in `branch` from
    what `of_branch` returns.

    Args:
        width: Of the last axis, or `None` for the input's.
        activation: Of H; the gates are sigmoids.
        variant: A row of `zoo.layers.gating.FORMS`.
        gate_bias: See `Skip`.
        kernel_initializer: Of H, T and C.
        bias_initializer: Of H's bias; the gates' biases start at it plus their logit.
        **kwargs: `stage` (see `Skip`), `name`, `dtype`.

    Raises:
        ValueError: if `variant` is unknown, or if the width is not the input's.
    """

    width_argument = before = None  # e.g. "units", and the layer that would change the width

    def __init__(
        self,
        width=None,
        activation="relu",
        variant="coupled",
        gate_bias=-2.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(variant=variant, gate_bias=gate_bias, **kwargs)
        if width is not None and (not isinstance(width, int) or width < 1):
            raise ValueError(
                f"`{self.width_argument}` must be a positive integer, or None for the input's "
                f"width. Received: {self.width_argument}={width!r}"
            )
        self.asked = self.width = width
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape):
        width = input_shape[-1]
        if width is None or self.asked not in (None, width):
            name, asked = self.width_argument, self.asked
            raise ValueError(
                f"`{type(self).__name__}` keeps its width, so `{name}` must equal the input's "
                f"last axis. Received: {name}={asked}, input shape={tuple(input_shape)}. "
                f"Put a {self.before}({asked or name}) before it."
            )
        self.width = width
        super().build(input_shape)

    def of_branch(self, name, bias):
        """The arguments that Keras's layers for every branch share; see `Skip.branch`."""
        draw = self.bias_initializer.clone()
        return {
            "activation": self.activation if bias is None else gate,
            "kernel_initializer": self.kernel_initializer.clone(),
            "bias_initializer": draw if bias is None else GateBias(bias, draw),
            "dtype": self.dtype_policy,
            "name": name,
        }

    def get_config(self):
        own = {
            self.width_argument: self.asked,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }
        return {**super().get_config(), **own}
