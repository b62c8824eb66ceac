"""The simplified block that has dominant kernel entries only."""

import keras
import numpy as np
from keras import ops

from zoo.initializers import HardtMa
from zoo.layers.simplified import Simplified


class DominantConv2D(keras.layers.Layer):
    """A convolution whose output channel i reads input channel i alone, or i - c for i >= c.

    Args:
        filters: Channels of the output, the input's or a multiple.
        kernel_size: Side of the kernel, in pixels; odd.
        strides: In pixels.
        kernel_initializer: Of the full kernel, of which the diagonal is taken; 1 is added at its
            centre.
        **kwargs: `name`, `dtype`.
    """

    def __init__(self, filters, kernel_size, strides, kernel_initializer, **kwargs):
        super().__init__(**kwargs)
        self.filters, self.kernel_size, self.strides = filters, kernel_size, strides
        self.kernel_initializer = kernel_initializer

    def build(self, input_shape):
        channels, side = input_shape[-1], self.kernel_size

        def diagonal(shape, dtype=None):
            full = self.kernel_initializer((side, side, channels, self.filters), dtype=dtype)
            halves = ops.split(full, self.filters // channels, axis=-1)
            halves = [ops.diagonal(half, axis1=2, axis2=3) for half in halves]
            centre = np.zeros(shape)
            centre[side // 2, side // 2] = 1
            return ops.stack(halves, axis=-1) + ops.cast(centre, full.dtype)

        shape = (side, side, channels, self.filters // channels)
        self.kernel = self.add_weight(shape, diagonal, name="kernel")
        self.bias = self.add_weight((self.filters,), "zeros", name="bias")

    def call(self, x):
        side = (self.kernel_size // 2,) * 2
        x = ops.pad(x, [(0, 0), side, side, (0, 0)])
        halves = [
            ops.depthwise_conv(
                x, self.kernel[..., i : i + 1], self.strides, "valid", data_format="channels_last"
            )
            for i in range(self.kernel.shape[-1])
        ]
        return ops.concatenate(halves, axis=-1) + self.bias


@keras.saving.register_keras_serializable("zoo")
class SimplifiedDominant(Simplified):
    """y = ReLU(conv(x) + b) whose kernel has only entries from a channel to its own: the dominant
    ones, around the identity that the equal residual block has.

    Args:
        filters: Channels of the output, the input's or a multiple.
        kernel_size: Side of the kernel, in pixels; odd.
        strides: In pixels; zeros are padded symmetrically.
        kernel_initializer: Of the full kernel, of which the diagonal is taken, with 1 added at its
            centre; `None` is `HardtMa()`.
        **kwargs: `stage` (see `Skip`), `name`, `dtype`.

    Input shape: `(batch, height, width, channels)`.
    Output shape: `(batch, ceil(height / strides), ceil(width / strides), filters)`.

    Raises:
        ValueError: for an even kernel, or `filters` that are no multiple of the channels.

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise
    Stability", appendix D.3, Table 5.
    """

    kind, initial = "plain", HardtMa

    def __init__(self, filters, kernel_size=3, strides=1, identity="duplicate", **kwargs):
        super().__init__(filters, kernel_size, strides, identity, **kwargs)
        if identity != "duplicate":
            raise ValueError(
                f"Both halves of a doubling dominant kernel are diagonal, which is "
                f"identity='duplicate'. Received: identity={identity!r}"
            )

    def branch(self, name, bias):
        return DominantConv2D(
            self.filters,
            self.kernel_size,
            self.strides,
            self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )
