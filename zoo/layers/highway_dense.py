"""The fully connected skip layer."""

import keras

from zoo.layers.skip import GateBias, Skip


@keras.saving.register_keras_serializable("zoo")
class HighwayDense(Skip):
    """A fully connected layer that learns which features to rewrite and which to carry.

    y = H(x) · T(x) + x · C(x), elementwise, with H(x) = activation(x W_H + b_H), the gates
    T(x) = sigmoid(x W_T + b_T) and C(x) = sigmoid(x W_C + b_C), and the terms that `variant`
    leaves out equal to one: `plain`, `residual`, `t_only`, `c_only`, `coupled` (C = 1 - T),
    `full`.

    Args:
        units: Width, in features; equal to the input's last axis, because the carry path is
            the identity. `None` takes the input's.
        activation: Of H; the gates are sigmoids.
        variant: A row of `zoo.gating.FORMS`.
        gate_bias: Initial bias of T, a logit: -2 opens T to 0.12; C starts at `-gate_bias`.
        kernel_initializer: Of H, T and C.
        bias_initializer: Of H's bias; the gates' biases start at it plus their logit.
        **kwargs: `stage` (see `Skip`), `name`, `dtype`.

    Input shape: `(batch, ..., units)`.
    Output shape: `(batch, ..., units)`.

    Raises:
        ValueError: if `variant` is unknown, or if `units` differs from the input's width.

    Example:

    >>> import numpy as np
    >>> layer = HighwayDense(gate_bias=-100.0)  # closed gates carry
    >>> x = np.array([[1.0, -2.0, 3.0]], "float32")
    >>> keras.ops.convert_to_numpy(layer(x)).tolist()
    [[1.0, -2.0, 3.0]]

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, equations 2 and 3;
    Greff et al. (2017), arXiv:1612.07771, Table 1a.
    """

    def __init__(
        self,
        units=None,
        activation="relu",
        variant="coupled",
        gate_bias=-2.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(variant=variant, gate_bias=gate_bias, **kwargs)
        if units is not None and (not isinstance(units, int) or units < 1):
            raise ValueError(
                f"`units` must be a positive integer, or None for the input's width. "
                f"Received: units={units!r}"
            )
        self.units = units
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.width = units

    def build(self, input_shape):
        width = input_shape[-1]
        if width is None or self.units not in (None, width):
            raise ValueError(
                f"`HighwayDense` keeps its width, so `units` must equal the input's last axis. "
                f"Received: units={self.units}, input shape={tuple(input_shape)}. "
                f"Put a Dense({self.units or 'units'}) before it."
            )
        self.width = width
        super().build(input_shape)

    def branch(self, name, bias):
        draw = self.bias_initializer.clone()
        return keras.layers.Dense(
            self.width,
            activation=self.activation if bias is None else "sigmoid",
            kernel_initializer=self.kernel_initializer.clone(),
            bias_initializer=draw if bias is None else GateBias(bias, draw),
            dtype=self.dtype_policy,
            name=name,
        )

    def get_config(self):
        own = {
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }
        return {**super().get_config(), **own}
