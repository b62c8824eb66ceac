"""The fully connected skip layer."""

import keras

from zoo.layers.highway import Highway


@keras.saving.register_keras_serializable("zoo")
class HighwayDense(Highway):
    """A fully connected layer that learns which features to rewrite and which to carry.

    y = H(x) · T(x) + x · C(x), elementwise, with H(x) = activation(x W_H + b_H), the gates
    T(x) = sigmoid(x W_T + b_T) and C(x) = sigmoid(x W_C + b_C), and the terms that `variant`
    leaves out equal to one: `plain`, `residual`, `t_only`, `c_only`, `coupled` (C = 1 - T),
    `full`.

    Args:
        units: Width, in features; equal to the input's last axis, because the carry path is
            the identity. `None` takes the input's.
        activation: Of H; the gates are sigmoids.
        variant: A row of `zoo.layers.gating.FORMS`.
        gate_bias: Initial bias of T, a logit: -2 opens T to 0.12; C starts at `-gate_bias`.
        kernel_initializer: Of H, T and C.
        bias_initializer: Of H's bias; the gates' biases start at it plus their logit.
        **kwargs: `kernel_initializer` and `bias_initializer` (see above), `stage` (see `Skip`),
            `name`, `dtype`.

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

    width_argument, before = "units", "Dense"

    def __init__(self, units=None, activation="relu", variant="coupled", gate_bias=-2.0, **kwargs):
        super().__init__(units, activation, variant, gate_bias, **kwargs)
        self.units = units

    def branch(self, name, bias):
        return keras.layers.Dense(self.width, **self.of_branch(name, bias))
