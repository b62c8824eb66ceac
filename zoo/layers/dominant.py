"""The simplified block that has dominant kernel entries only."""

from typing import Any

import keras
import numpy as np
from keras import ops

from zoo.initializers import HardtMa
from zoo.layers.simplified import Simplified, SymmetricConv2D
from zoo.types import Initializer, Shape, Tensor

LOWER = ("diagonal", "full")


class DominantConv2D(keras.layers.Layer):
    """A convolution whose output channel i reads input channel i modulo the channels alone.

    Args:
        filters, kernel_size, strides: See `SimplifiedDominant`.
        kernel_initializer: Initializer of the full kernel, of which the diagonal is taken; 1 is
            added at its centre.
        weight_options: Regularizers and constraints; see `Skip.weight_options`.
        lower: See `SimplifiedDominant`.
        **kwargs: `name`, `dtype`.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        strides: int,
        kernel_initializer: keras.initializers.Initializer,
        weight_options: dict[str, Any],
        lower: str = "diagonal",
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = filters
        self.kernel_size = kernel_size
        self.strides = strides
        self.kernel_initializer = kernel_initializer
        self.weight_options = weight_options
        self.lower = lower
        self.rest: keras.layers.Layer | None = None

    def build(self, input_shape: Shape) -> None:
        """Create a kernel `(side, side, channels, diagonals)` and a bias, and the rest if any."""
        channels = input_shape[-1]
        side = self.kernel_size
        diagonals = 1 if self.lower == "full" else self.filters // channels

        def diagonal(shape, dtype=None):
            full = self.kernel_initializer((side, side, channels, self.filters), dtype=dtype)
            groups = ops.split(full, self.filters // channels, axis=-1)[:diagonals]
            entries = [ops.diagonal(group, axis1=2, axis2=3) for group in groups]
            centre = np.zeros(shape)
            centre[side // 2, side // 2] = 1
            return ops.stack(entries, axis=-1) + ops.cast(centre, full.dtype)

        def lower(shape, dtype=None):
            full = self.kernel_initializer((side, side, channels, self.filters), dtype=dtype)
            return full[..., self.filters - shape[-1] :]

        shape = (side, side, channels, diagonals)
        self.kernel = self._add_weight("kernel", shape, diagonal)
        self.bias = self._add_weight("bias", (diagonals * channels,), "zeros")
        left = self.filters - diagonals * channels
        if left:
            self.rest = SymmetricConv2D(
                left,
                side,
                self.strides,
                padding="same" if self.strides == 1 else "valid",
                data_format="channels_last",
                kernel_initializer=lower,
                **self.weight_options,
                dtype=self.dtype_policy,
                name="rest",
            )
            self.rest.build(input_shape)

    def _add_weight(self, name, shape, initializer):
        regularizer = self.weight_options[f"{name}_regularizer"]
        constraint = self.weight_options[f"{name}_constraint"]
        return self.add_weight(
            shape, initializer, regularizer=regularizer, constraint=constraint, name=name
        )

    def call(self, x: Tensor) -> Tensor:
        """Return the convolution of the symmetrically padded input."""
        side = (self.kernel_size // 2,) * 2
        padded = ops.pad(x, [(0, 0), side, side, (0, 0)])
        groups = [
            ops.depthwise_conv(
                padded,
                self.kernel[..., i : i + 1],
                self.strides,
                "valid",
                data_format="channels_last",
            )
            for i in range(self.kernel.shape[-1])
        ]
        y = ops.concatenate(groups, axis=-1) + self.bias
        return y if self.rest is None else ops.concatenate([y, self.rest(x)], axis=-1)


@keras.saving.register_keras_serializable("zoo")
class SimplifiedDominant(Simplified):
    """y = ReLU(conv(x) + b) with kernel entries from each channel to its own only.

    They are the dominant entries, around the identity of the equivalent residual block.

    Args:
        filters: Channels of the output, the input's or a multiple.
        kernel_size: Side of the kernel, in pixels; odd, so that it has a center.
        strides: Stride, in pixels.
        identity: "duplicate", the only identity whose kernel entries are all diagonal.
        kernel_initializer: Initializer of the full kernel, of which the diagonal is taken, with 1
            added at its centre; `None` is `HardtMa()`.
        lower: Entries to outputs beyond the number of input channels: "diagonal", or "full": a
            whole kernel, to which no 1 is added (below Table 5: "each entry is defined by HMWI").
        **kwargs: `stage`, regularizers and constraints (see `Skip`), `name`, `dtype`.

    Input shape: `(batch, height, width, channels)`.
    Output shape: `(batch, ceil(height / strides), ceil(width / strides), filters)`.

    Raises:
        ValueError: for an even kernel, `filters` that are no multiple of the channels, or an
            unknown `lower`.

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise
    Stability", appendix D.3, Table 5.
    """

    arguments = (*Simplified.arguments, "lower")
    default_variant = "plain"
    default_initializer = HardtMa

    def __init__(
        self,
        filters: int,
        kernel_size: int = 3,
        strides: int = 1,
        identity: str = "duplicate",
        kernel_initializer: Initializer | None = None,
        lower: str = "diagonal",
        **kwargs,
    ) -> None:
        super().__init__(filters, kernel_size, strides, identity, kernel_initializer, **kwargs)
        if identity != "duplicate":
            raise ValueError(
                f"Both halves of a doubling dominant kernel are diagonal, which is "
                f"identity='duplicate'. Received: identity={identity!r}"
            )
        if lower not in LOWER:
            raise ValueError(f"`lower` must be one of {LOWER}. Received: lower={lower!r}")
        self.lower = lower

    def branch(self, name: str, bias: float | None) -> keras.layers.Layer:
        """Return the convolution; see `Skip.branch`."""
        return DominantConv2D(
            self.filters,
            self.kernel_size,
            self.strides,
            self.kernel_initializer.clone(),
            self.weight_options(),
            self.lower,
            dtype=self.dtype_policy,
            name=name,
        )
