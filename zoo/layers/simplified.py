"""The pair of blocks that map onto each other exactly: one convolution, with a skip or not."""

from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from zoo.backend.layers import Conv2D
from zoo.checks import as_side, check_choice, check_integers, require
from zoo.initializers import HardtMa, KaimingNormal, copied
from zoo.layers.skip import Skip
from zoo.types import Initializer, Shape, Tensor

IDENTITIES = ("pad", "duplicate")


class Identity(keras.layers.Layer):
    """S(x): every `strides`-th pixel; channels padded with zeros, or repeated, up to `filters`."""

    def __init__(self, filters: int, strides: int, kind: str, **kwargs) -> None:
        super().__init__(**kwargs)
        self.filters = filters
        self.strides = strides
        self.kind = kind

    def call(self, x: Tensor) -> Tensor:
        """Return S(x)."""
        if self.strides > 1:
            x = x[:, :: self.strides, :: self.strides, :]
        num_new = self.filters - x.shape[-1]
        if num_new == 0:
            return x
        if self.kind == "duplicate":
            return ops.concatenate([x] * (self.filters // x.shape[-1]), axis=-1)
        # not ops.pad: TensorFlow 2.21 crashes in the gradient of a pad of a strided slice
        zeros = ops.zeros((*ops.shape(x)[:-1], num_new), x.dtype)
        return ops.concatenate([x, zeros], axis=-1)


class Simplified(Skip):
    """Base of the three blocks: y = ReLU(conv(x) + b [+ S(x)])."""

    # without the variant, which the class determines; those of the constructor are added
    arguments = ("stage", "kernel_regularizer", "bias_regularizer")
    identities: tuple[str, ...] = IDENTITIES
    default_variant: str
    default_initializer: type[keras.initializers.Initializer]

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int] = 3,
        strides: int | tuple[int, int] = 1,
        identity: str | None = None,
        kernel_initializer: Initializer | None = None,
        **kwargs,
    ) -> None:
        super().__init__(variant=self.default_variant, **kwargs)
        check_integers(1, filters=filters)
        self.kernel_size = as_side(kernel_size=kernel_size)
        identity = self.identities[0] if identity is None else identity
        check_choice(self.identities, identity=identity)
        self.width = self.filters = filters
        self.strides = as_side(strides=strides)
        self.identity = identity
        self.activation = keras.activations.relu
        initializer = kernel_initializer or self.default_initializer()
        self.kernel_initializer = keras.initializers.get(initializer)

    def build(self, input_shape: Shape) -> None:
        """Build the convolution, after a check that S exists for the input's channels."""
        channels = self.channels = input_shape[-1]
        id_entries((self.kernel_size, self.kernel_size, channels, self.filters), self.identity)
        self.opens_stage = self.strides > 1 or channels != self.filters
        super().build(input_shape)

    def branch(self, name: str, bias: float | None) -> keras.layers.Layer:
        """Return the convolution or S; see `Skip.branch`."""
        options = {"dtype": self.dtype_policy, "name": name}
        if name == "shortcut":
            return Identity(self.filters, self.strides, self.identity, **options)
        return SymmetricConv2D(
            self.filters,
            self.kernel_size,
            self.strides,
            padding="same" if self.strides == 1 else "valid",
            data_format="channels_last",
            kernel_initializer=copied(self.kernel_initializer),
            **self.regularizers(),
            **options,
        )

    def finish(self, y: Tensor) -> Tensor:
        """Return ReLU(y)."""
        return self.activation(y)


class SymmetricConv2D(Conv2D):
    """A convolution whose kernel is centered on pixels 0, s, 2s, ... at stride s.

    Keras's "same" padding of an even side at stride 2 centers it on 1, 3, 5, ..., between which
    and the identity's pixels there is no mapping. So zeros go to both sides.
    """

    def call(self, x: Tensor) -> Tensor:
        """Return the convolution of the symmetrically padded input."""
        if self.padding == "valid":
            side = (self.kernel_size[0] // 2,) * 2
            x = ops.pad(x, [(0, 0), side, side, (0, 0)])
        return super().call(x)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the output's shape: as with the padding "same", whatever the stride."""
        sides = [side and -(-side // self.strides[0]) for side in input_shape[1:3]]
        return (input_shape[0], *sides, self.filters)


@keras.saving.register_keras_serializable("zoo")
class SimplifiedPlain(Simplified):
    """y = ReLU(conv(x) + b): the block that a `SimplifiedResidual` maps onto exactly.

    Arguments, shapes and errors are those of `SimplifiedResidual`, whose S the kernel contains;
    `kernel_initializer=None` is `KaimingNormal()`, the paper's KWI.
    """

    default_variant = "plain"
    default_initializer = KaimingNormal


@keras.saving.register_keras_serializable("zoo")
class SimplifiedResidual(Simplified):
    """y = ReLU(S(x) + conv(x) + b): one convolution around an identity, rectified after the sum.

    Args:
        filters: Channels of the output, at least the input's.
        kernel_size: Side of the kernel, in pixels, or a pair of equal ones; odd, to have a center.
        strides: Stride, likewise; S and the convolution's center take the same pixels.
        identity: S where channels grow: "pad" (`None`) puts x into the first channels and zeros
            into the rest; "duplicate" repeats it.
        kernel_initializer: Initializer of the kernel; `None` is `HardtMa()`, the paper's HMWI.
        **kwargs: `stage`, regularizers (see `Skip`), `name`, `dtype`.

    Input shape: `(batch, height, width, channels)`.
    Output shape: `(batch, ceil(height / strides), ceil(width / strides), filters)`.

    Raises:
        ValueError: for another `identity`, an even kernel, or channels that S cannot reach.

    Example:
    >>> layer = SimplifiedResidual(2, kernel_initializer="zeros")  # then it rectifies S(x) = x
    >>> x = keras.ops.reshape(keras.ops.arange(-4.0, 4.0), (1, 2, 2, 2))
    >>> keras.ops.convert_to_numpy(layer(x)).ravel().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0]

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise
    Stability", section 2 and Fig. 5; the identity's entries: section 3, equation 1.
    """

    default_variant = "residual"
    default_initializer = HardtMa


class DominantConv2D(keras.layers.DepthwiseConv2D):
    """A convolution whose output channel i reads input channel i modulo the channels alone."""

    def call(self, x: Tensor) -> Tensor:
        """Return the convolution of the symmetrically padded input."""
        side = (self.kernel_size[0] // 2,) * 2
        padded = ops.pad(x, [(0, 0), side, side, (0, 0)])
        kernels = [self.kernel[..., i : i + 1] for i in range(self.depth_multiplier)]
        options = {"strides": self.strides, "data_format": "channels_last"}
        groups = [ops.depthwise_conv(padded, kernel, **options) for kernel in kernels]
        return ops.concatenate(groups, axis=-1) + self.bias


@keras.saving.register_keras_serializable("zoo")
class SimplifiedDominant(Simplified):
    """`SimplifiedPlain` in which an output channel reads only the input channel of its index.

    These kernel entries, the index modulo the number of inputs, are the dominant ones: those around
    the identity of the equivalent residual block.

    Arguments, shapes and errors are those of `SimplifiedResidual`, but `filters` must be a multiple
    of the input's channels, `identity` must be "duplicate", whose kernel entries are all diagonal,
    and the kernel is the diagonal of what `kernel_initializer` returns, plus 1 at its center.

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise
    Stability", appendix D.3, Table 5.
    """

    default_variant = "plain"
    default_initializer = HardtMa
    identities = ("duplicate",)

    def branch(self, name: str, bias: float | None) -> keras.layers.Layer:
        """Return the convolution; see `Skip.branch`."""
        return DominantConv2D(
            self.kernel_size,
            self.strides,
            padding="same",
            depth_multiplier=self.filters // self.channels,
            data_format="channels_last",
            depthwise_initializer=diagonal(copied(self.kernel_initializer)),
            depthwise_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            dtype=self.dtype_policy,
            name=name,
        )


def diagonal(initializer: keras.initializers.Initializer) -> Callable:
    """Return an initializer: the diagonal of a full kernel, plus 1 at its center."""

    def sample(shape, dtype=None):
        side, _, channels, groups = shape
        full = initializer((side, side, channels, channels * groups), dtype=dtype)
        parts = ops.split(full, groups, axis=-1)
        entries = [ops.diagonal(part, axis1=2, axis2=3) for part in parts]
        center = np.zeros(shape)
        center[side // 2, side // 2] = 1
        return ops.stack(entries, axis=-1) + ops.cast(center, full.dtype)

    return sample


def id_entries(kernel: np.ndarray | Shape, identity: str = "pad") -> tuple[np.ndarray, ...]:
    """Return the indices of a kernel's identity entries; see `SimplifiedResidual`.

    They are at its center, from each input channel to its own output. The kernel is an array
    `(side, side, channels, filters)`, or that shape.

    Raises:
        ValueError: if the side is even, or channels and filters do not allow the identity.
    """
    shape = tuple(kernel.shape) if hasattr(kernel, "shape") else tuple(kernel)
    check_choice(IDENTITIES, identity=identity)
    valid = len(shape) == 4 and shape[0] == shape[1] and shape[0] % 2 == 1
    require(valid, "(side, side, channels, filters) of an odd side, to have a center", kernel=shape)
    side, _, channels, filters = shape
    enough = channels is not None and filters >= channels
    valid = enough and (identity == "pad" or filters % channels == 0)
    expected = f"as many as the {channels} channels or more, of 'duplicate' a multiple, to hold an "
    require(valid, f"{expected}identity of the kind {identity!r}", filters=filters)
    outputs = np.arange(channels if identity == "pad" else filters)
    center = np.full_like(outputs, side // 2)
    return center, center, outputs % channels, outputs


def plain_kernel(layer: Simplified) -> np.ndarray:
    """Return the kernel of the plain block that computes what a built block computes.

    Example:
    >>> block = SimplifiedResidual(2, kernel_size=1, kernel_initializer="zeros")
    >>> block.build((None, 4, 4, 2))
    >>> plain_kernel(block).tolist()
    [[[[1.0, 0.0], [0.0, 1.0]]]]
    """
    kernel = np.array(ops.convert_to_numpy(layer.transform.kernel))
    if isinstance(layer, SimplifiedResidual):
        kernel[id_entries(kernel, layer.identity)] += 1
    return kernel
