"""Residual blocks whose branch is several convolutions: basic and bottleneck, gated or not."""

from collections.abc import Collection, Iterator

import keras

from zoo.backend.layers import BatchNormalization, Conv2D
from zoo.checks import as_side, check_integers, require
from zoo.initializers import KaimingNormal
from zoo.layers.batch_norm import UnsharedBatchNormalization, check_use
from zoo.layers.gating import gate
from zoo.layers.skip import GateBias, Skip, with_own_seed
from zoo.types import Initializer, Shape, Tensor


class Branch(keras.layers.Layer):
    """A sequence of layers: H, T, C or the shortcut of a block."""

    def __init__(self, layers: list[keras.layers.Layer], **kwargs) -> None:
        super().__init__(**kwargs)
        self.layers = layers

    def build(self, input_shape: Shape) -> None:
        """Build each layer for the shape that the one before returns."""
        for layer in self.layers:
            layer.build(input_shape)
            input_shape = layer.compute_output_shape(input_shape)

    def call(self, x: Tensor, training: bool | None = None, use: int = 0) -> Tensor:
        """Return the last layer's output."""
        for layer in self.layers:
            if isinstance(layer, UnsharedBatchNormalization):
                x = layer(x, use=use)
            elif self._is_plain(layer, x):
                takes_training = isinstance(layer, keras.layers.BatchNormalization)
                x = layer.call(x, training=training) if takes_training else layer.call(x)
            else:
                x = layer(x)  # Keras passes `training` on
        return x

    def _is_plain(self, layer, x):
        """Return True if `layer.call(x)`, a tenth of a step faster on torch, does what it does."""
        return (
            not isinstance(x, keras.KerasTensor)
            and layer.compute_dtype == self.compute_dtype
            and layer.activity_regularizer is None
            and not getattr(layer, "_forward_hooks", None)  # torch's
            and not getattr(layer, "_forward_pre_hooks", None)
        )

    def steps(self, x: Tensor, use: int = 0) -> Iterator[tuple[keras.layers.Layer, Tensor, Tensor]]:
        """Yield each layer with its input and its output."""
        for layer in self.layers:
            unshared = isinstance(layer, UnsharedBatchNormalization)
            y = layer(x, use=use) if unshared else layer(x)
            yield layer, x, y
            x = y


@keras.saving.register_keras_serializable("zoo")
class ResidualBlock(Skip):
    """y = form(F(x), P(x), T(x), C(x)): two or three convolutions around a skip.

    F is conv k3, conv k3 (basic) or conv k1, conv k3, conv k1 with four times the channels
    (bottleneck); each convolution follows its batch normalization and ReLU (pre-activation, He et
    al. 2016) or comes before them (He et al. 2015), and then the last one has no ReLU: He v1's
    ReLU after the sum is a layer of the network. T and C are built like F, with a sigmoid at the
    end. P is the identity, or a 1 x 1 convolution of the unprocessed input where stride or
    channels change; in a post-activation block it is normalized as well.

    Args:
        filters: Channels of the branch's convolutions; a bottleneck's output has four times them.
        strides: Stride of the branch's first convolution and of P, in pixels.
        bottleneck: Three convolutions (1, 3, 1) instead of two (3, 3).
        preactivation: Normalization and ReLU before each convolution, not after it.
        variant: See `Skip`; "plain" leaves the skip out.
        gate_bias: Initial logit of T: the last normalization's beta, or the last bias where
            nothing is normalized after it. C starts at `-gate_bias`.
        batch_norm: Use batch normalization.
        use_bias: Give convolutions biases; `None`: if `batch_norm` is false.
        closing_relu: End H, in a post-activation block, in a ReLU too ("Highway-Full").
        uses: Number of uses of the block in a network, see `UnsharedBatchNormalization`.
        share: Parts of the normalizations that all uses share, see there.
        gamma: Initial value of the normalizations' gamma.
        momentum: Momentum of the moving averages.
        kernel_initializer: Initializer of all convolutions; `None` is `KaimingNormal()`.
        last_initializer: Initializer of H's last convolution; `None` is `kernel_initializer`.
        **kwargs: `stage`, regularizers (see `Skip`), `name`, `dtype`.

    The call's argument `use` is the index of the occurrence of the block, from 0.

    Input shape: `(batch, height, width, channels)`.
    Output shape: `(batch, ceil(height / strides), ceil(width / strides), filters)`, or four times
    the filters for a bottleneck.

    Raises:
        ValueError: if `variant` is unknown, an argument is not positive, or a block that is used
            more than once would change the shape.

    Example:
    >>> block = ResidualBlock(32, strides=2)
    >>> block.compute_output_shape((None, 32, 32, 16))
    (None, 16, 16, 32)
    >>> block.build((None, 32, 32, 16))
    >>> block.count_params()  # 2 convolutions, 1 projection, 4 x (16 + 32) of normalization
    14528

    Reference: He et al. (2015), arXiv:1512.03385; He et al. (2016), arXiv:1603.05027; the gated
    ones: Greff et al. (2017), arXiv:1612.07771, section 5.1.
    """

    def __init__(  # noqa: PLR0913 (each is a choice that one of the papers' blocks makes)
        self,
        filters: int,
        strides: int | tuple[int, int] = 1,
        bottleneck: bool = False,
        preactivation: bool = True,
        variant: str = "residual",
        gate_bias: float = -1.0,
        batch_norm: bool = True,
        use_bias: bool | None = None,
        closing_relu: bool = False,
        uses: int = 1,
        share: Collection[str] = (),
        gamma: float = 1.0,
        kernel_initializer: Initializer | None = None,
        last_initializer: Initializer | None = None,
        momentum: float = 0.99,
        **kwargs,
    ) -> None:
        super().__init__(variant=variant, gate_bias=gate_bias, **kwargs)
        check_integers(1, filters=filters, uses=uses)
        self.filters = filters
        self.strides = as_side(strides=strides)
        self.bottleneck = bottleneck
        self.preactivation = preactivation
        self.batch_norm = batch_norm
        self.use_bias = not batch_norm if use_bias is None else use_bias
        self.closing_relu = closing_relu
        self.uses = uses
        self.share = tuple(sorted(share))
        self.gamma = gamma
        self.momentum = momentum
        self.kernel_initializer = keras.initializers.get(kernel_initializer or KaimingNormal())
        self.last_initializer = keras.initializers.get(last_initializer or self.kernel_initializer)
        self.width = 4 * filters if bottleneck else filters

    def build(self, input_shape: Shape) -> None:
        """Build the branches, and the projection where stride or channels change."""
        known = len(input_shape) == 4 and input_shape[-1] is not None
        expected = "that of images, (batch, height, width, channels), of known channels"
        require(known, expected, input_shape=tuple(input_shape))
        self.opens_stage = self.strides > 1 or input_shape[-1] != self.width
        expected = f"that of the output (strides=1, {self.width} channels), as the block is used "
        expected += f"{self.uses} times: put a block with uses=1 before it"
        require(not self.opens_stage or self.uses == 1, expected, input_shape=tuple(input_shape))
        super().build(input_shape)

    def branch(self, name: str, bias: float | None) -> keras.layers.Layer:
        """Return a `Branch`: F, T, C or the projection P; see `Skip.branch`."""
        if name == "shortcut":
            initializer = with_own_seed(self.kernel_initializer, name)
            layers = [self._convolution("conv", self.width, 1, self.strides, initializer)]
            if self.batch_norm and not self.preactivation:
                layers.append(self._normalization("norm"))
            return Branch(layers, dtype=self.dtype_policy, name=name)
        kernels = (1, 3, 1) if self.bottleneck else (3, 3)
        normalized_after = self.batch_norm and not self.preactivation  # a bias would be lost in it
        is_h = bias is None
        layers = []
        for i, kernel in enumerate(kernels, 1):
            last = i == len(kernels)
            logit = bias if last else None
            initializer = self.last_initializer if last and is_h else self.kernel_initializer
            conv = self._convolution(
                f"conv{i}",
                self.width if last else self.filters,
                kernel,
                self.strides if i == 1 else 1,
                with_own_seed(initializer, name, i),
                None if normalized_after else logit,
            )
            beta = logit if normalized_after and logit is not None else 0.0
            norms = [self._normalization(f"norm{i}", beta)] if self.batch_norm else []
            relu = keras.layers.Activation("relu", dtype=self.dtype_policy, name=f"relu{i}")
            if self.preactivation:
                layers += [*norms, relu, conv]
            elif last and not (self.closing_relu and is_h):
                layers += [conv, *norms]
            else:
                layers += [conv, *norms, relu]
        if bias is not None:
            layers.append(keras.layers.Activation(gate, dtype=self.dtype_policy, name="sigmoid"))
        return Branch(layers, dtype=self.dtype_policy, name=name)

    def _convolution(self, name, filters, kernel, strides, initializer, bias=None):
        return Conv2D(
            filters,
            kernel,
            strides,
            padding="same",
            data_format="channels_last",
            use_bias=self.use_bias or bias is not None,
            kernel_initializer=initializer,
            bias_initializer="zeros" if bias is None else GateBias(bias),
            **self.regularizers(),
            dtype=self.dtype_policy,
            name=name,
        )

    def _normalization(self, name, beta=0.0):
        if self.uses > 1:
            arguments = self.uses, self.share, self.gamma, beta, self.momentum
            return UnsharedBatchNormalization(*arguments, dtype=self.dtype_policy, name=name)
        return BatchNormalization(
            momentum=self.momentum,
            gamma_initializer=keras.initializers.Constant(self.gamma),
            beta_initializer=keras.initializers.Constant(beta),
            dtype=self.dtype_policy,
            name=name,
        )

    def call(self, x: Tensor, training: bool | None = None, use: int = 0) -> Tensor:
        """Return the block's output."""
        check_use(use, self.uses)
        return self.output_of(self.parts(x, training=training, use=use))
