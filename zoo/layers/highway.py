"""The fully connected and the convolutional highway layer."""

from typing import Any

import keras

from zoo.backend.layers import Conv2D
from zoo.checks import as_side, check_integers, require
from zoo.initializers import KaimingNormal
from zoo.layers.gating import gate
from zoo.layers.skip import GateBias, Skip, with_own_seed
from zoo.types import Activation, Initializer, Shape, Tensor


class Highway(Skip):
    """Base of `HighwayDense` and `HighwayConv2D`: H, T and C are one layer each."""

    size: str  # the argument for the width
    remedy: str  # the layer of Keras that changes a width

    def __init__(
        self,
        activation: Activation,
        variant: str,
        gate_bias: float,
        kernel_initializer: Initializer,
        bias_initializer: Initializer,
        **kwargs,
    ) -> None:
        super().__init__(variant, gate_bias, **kwargs)
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape: Shape) -> None:
        """Build the branches for the input's width."""
        width = getattr(self, self.size)
        known = input_shape[-1] is not None and width in (None, input_shape[-1])
        expected = f"the last axis of the input's shape {tuple(input_shape)}, as the skip is the "
        expected += f"identity. Put a {self.remedy}({width or self.size}) before it"
        require(known, expected, **{self.size: width})
        self.width = input_shape[-1]
        super().build(input_shape)

    def call(self, x: Tensor) -> Tensor:
        """Return H(x) · T(x) + x · C(x); a variant leaves terms out."""
        h = self.transform(x)
        t = self.transform_gate(x) if self.transform_gate else None
        c = self.carry_gate(x) if self.carry_gate else None
        return self.form.mix(h, x, t, c, self.compute_dtype)

    def branch_options(self, name: str, bias: float | None) -> dict[str, Any]:
        """Return the arguments that Keras's layers for H, T and C have in common."""
        initializer = with_own_seed(self.bias_initializer, name)
        return {
            "activation": self.activation if bias is None else gate,
            "kernel_initializer": with_own_seed(self.kernel_initializer, name),
            "bias_initializer": initializer if bias is None else GateBias(bias, initializer),
            **self.regularizers(),
            "dtype": self.branch_policy(name),
            "name": name,
        }


@keras.saving.register_keras_serializable("zoo")
class HighwayDense(Highway):
    """A fully connected layer that learns which features to transform and which to carry.

    y = H(x) · T(x) + x · C(x), elementwise, with H(x) = activation(x W_H + b_H), the gates
    T(x) = sigmoid(x W_T + b_T) and C(x) = sigmoid(x W_C + b_C), and the terms that `variant`
    leaves out equal to one: see `zoo.layers.gating.FORMS`. A mask is passed on.

    Args:
        units: Width, in features; equal to the input's last axis, because the skip is the
            identity. `None` takes the input's.
        activation: Activation of H; the gates are sigmoids.
        variant: "plain", "residual", "t_only", "c_only", "coupled" or "full".
        gate_bias: Initial bias of T, a logit: -2 opens T to 0.12. C starts at `-gate_bias`.
        kernel_initializer: Initializer of the kernels of H, T and C; an integer seed becomes three.
        bias_initializer: Initializer of H's bias; a gate's bias is a sample plus its logit.
        **kwargs: `stage`, regularizers (see `Skip`), `name`, `dtype`.

    Input and output shape: `(batch, ..., units)`.

    Raises:
        ValueError: if `variant` is unknown, or if `units` differs from the input's width.

    Example:
    >>> layer = HighwayDense(gate_bias=-100.0)  # closed gates carry
    >>> keras.ops.convert_to_numpy(layer(keras.ops.array([[1.0, -2.0, 3.0]]))).tolist()
    [[1.0, -2.0, 3.0]]

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, equations 2 and 3;
    Greff et al. (2017), arXiv:1612.07771, Table 1a.
    """

    size, remedy = "units", "Dense"

    def __init__(
        self,
        units: int | None = None,
        activation: Activation = "relu",
        variant: str = "coupled",
        gate_bias: float = -2.0,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs,
    ) -> None:
        super().__init__(
            activation, variant, gate_bias, kernel_initializer, bias_initializer, **kwargs
        )
        check_integers(1, units=units, optional=True)
        self.units = units
        self.supports_masking = True

    def branch(self, name: str, bias: float | None) -> keras.layers.Layer:
        """Return a `Dense` layer; see `Skip.branch`."""
        return keras.layers.Dense(self.width, **self.branch_options(name, bias))


@keras.saving.register_keras_serializable("zoo")
class HighwayConv2D(Highway):
    """A convolution that learns which features to transform and which to carry.

    y = H(x) · T(x) + x · C(x), elementwise; T and C are convolutions with H's kernel size,
    because 1 x 1 gates stall training (Greff et al. 2017, section 5.1). Zero padding keeps
    height and width.

    Args:
        filters: Channels; equal to the input's, because the skip is the identity. `None` takes
            the input's.
        kernel_size: Side of the receptive field of H, T and C, in pixels, or a pair of equal ones.
        kernel_initializer: Initializer of the kernels of H, T and C; `None` is `KaimingNormal()`,
            as in the authors' code.
        **kwargs: `stage`, regularizers, `name`, `dtype`; all other arguments are `HighwayDense`'s.

    Input and output shape: `(batch, height, width, filters)`.

    Raises:
        ValueError: if `variant` is unknown, or if `filters` differs from the input's channels.

    Example:
    >>> layer = HighwayConv2D(gate_bias=-100.0)  # closed gates carry
    >>> x = keras.ops.reshape(keras.ops.arange(4.0), (1, 2, 2, 1))
    >>> keras.ops.convert_to_numpy(layer(x)).ravel().tolist()
    [0.0, 1.0, 2.0, 3.0]

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, section 2.1.
    """

    size, remedy = "filters", "Conv2D"

    def __init__(
        self,
        filters: int | None = None,
        kernel_size: int | tuple[int, int] = 3,
        activation: Activation = "relu",
        variant: str = "coupled",
        gate_bias: float = -2.0,
        kernel_initializer: Initializer | None = None,
        bias_initializer: Initializer = "zeros",
        **kwargs,
    ) -> None:
        kernels = kernel_initializer or KaimingNormal()
        super().__init__(activation, variant, gate_bias, kernels, bias_initializer, **kwargs)
        check_integers(1, filters=filters, optional=True)
        self.filters = filters
        self.kernel_size = as_side(kernel_size=kernel_size)

    def branch(self, name: str, bias: float | None) -> keras.layers.Layer:
        """Return a `Conv2D` layer; see `Skip.branch`."""
        options = {"padding": "same", "data_format": "channels_last"}
        options |= self.branch_options(name, bias)
        return Conv2D(self.width, self.kernel_size, **options)
