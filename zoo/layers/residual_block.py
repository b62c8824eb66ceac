"""Residual blocks whose branch is several convolutions: basic and bottleneck, gated or not."""

import keras

from zoo.initializers import KaimingNormal
from zoo.layers.batch_norm import UnsharedBatchNormalization
from zoo.layers.gating import gate
from zoo.layers.skip import GateBias, Skip


class Branch(keras.layers.Layer):
    """Layers in a row: H, T, C or the shortcut of a block.

    Args:
        layers: Keras layers; those that normalise are told which `use` it is.
        **kwargs: `name`, `dtype`.
    """

    def __init__(self, layers, **kwargs):
        super().__init__(**kwargs)
        self.layers = layers

    def build(self, input_shape):
        for layer in self.layers:
            layer.build(input_shape)
            input_shape = layer.compute_output_shape(input_shape)

    def call(self, x, training=None, use=0):
        *_, (_, _, y) = self.steps(x, use)
        return y

    def steps(self, x, use=0):
        """Yields each layer, what it reads and what it makes of that."""
        for layer in self.layers:
            normalizes = isinstance(layer, UnsharedBatchNormalization)
            y = layer(x, use=use) if normalizes else layer(x)  # Keras passes `training` on
            yield layer, x, y
            x = y


@keras.saving.register_keras_serializable("zoo")
class ResidualBlock(Skip):
    """y = combine(F(x), P(x), T(x), C(x)): two or three convolutions around a skip.

    F is conv k3, conv k3 (basic) or conv k1, conv k3, conv k1 with four times the channels
    (bottleneck); each convolution follows its batch normalisation and ReLU (pre-activation, He et
    al. 2016) or comes before them (He et al. 2015), and then the last one has no ReLU: He v1's
    ReLU after the sum is a layer of the network. T and C are made as F is, with a sigmoid at the
    end. P is the identity, or a 1 x 1 convolution of the unprocessed input where stride or
    channels change; in a post-activation block it is normalised as well.

    Args:
        filters: Channels of the branch's convolutions; a bottleneck's output has four times them.
        strides: Of the branch's first convolution and of P, in pixels.
        bottleneck: Three convolutions (1, 3, 1) instead of two (3, 3).
        preactivation: Whether normalisation and ReLU come before each convolution.
        variant: A row of `zoo.layers.gating.FORMS`; "plain" leaves the skip out.
        gate_bias: Initial logit of T: the last normalisation's beta, or the last bias where
            nothing is normalised after it. C starts at `-gate_bias`.
        batch_norm: Whether there is any.
        use_bias: Whether convolutions have biases; `None`: if `batch_norm` is false.
        closing_relu: Whether H, post-activation, ends in a ReLU too ("Highway-Full").
        uses: How many times the network calls this block; see `UnsharedBatchNormalization`.
        share: What the uses' normalisations share; see `UnsharedBatchNormalization`.
        gamma: Initial gamma of the normalisations.
        kernel_initializer: Of all convolutions; `None` is `KaimingNormal()`.
        last_initializer: Of H's last convolution; `None` is `kernel_initializer`.
        **kwargs: `stage` (see `Skip`), `name`, `dtype`.

    Call arguments:
        x: Features.
        training: As in `keras.layers.BatchNormalization`.
        use: Which occurrence of the block it is, from 0.

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
    >>> block.count_params()  # 2 convolutions, 1 projection, 4 x (16 + 32) of normalisation
    14528

    Reference: He et al. (2015), arXiv:1512.03385; He et al. (2016), arXiv:1603.05027; the gated
    ones: Greff et al. (2017), arXiv:1612.07771, section 5.1.
    """

    def __init__(
        self,
        filters,
        strides=1,
        bottleneck=False,
        preactivation=True,
        variant="residual",
        gate_bias=-1.0,
        batch_norm=True,
        use_bias=None,
        closing_relu=False,
        uses=1,
        share=(),
        gamma=1.0,
        kernel_initializer=None,
        last_initializer=None,
        **kwargs,
    ):
        super().__init__(variant=variant, gate_bias=gate_bias, **kwargs)
        for name, value in (("filters", filters), ("strides", strides), ("uses", uses)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}")
        self.filters, self.strides = filters, strides
        self.bottleneck, self.preactivation = bottleneck, preactivation
        self.batch_norm, self.closing_relu = batch_norm, closing_relu
        self.use_bias = not batch_norm if use_bias is None else use_bias
        self.uses, self.share, self.gamma = uses, tuple(share), gamma
        self.kernel_initializer = keras.initializers.get(kernel_initializer or KaimingNormal())
        self.last_initializer = keras.initializers.get(last_initializer or self.kernel_initializer)
        self.width = 4 * filters if bottleneck else filters

    def build(self, input_shape):
        if len(input_shape) != 4 or input_shape[-1] is None:
            raise ValueError(
                f"`ResidualBlock` needs images, (batch, height, width, channels), and to know "
                f"their channels. Received: input shape={tuple(input_shape)}"
            )
        self.opens_stage = self.strides > 1 or input_shape[-1] != self.width
        if self.opens_stage and self.uses > 1:
            raise ValueError(
                f"A block that is used {self.uses} times must keep its input's shape. Received: "
                f"input shape={tuple(input_shape)}, strides={self.strides}, output channels="
                f"{self.width}. Put a block with uses=1 before it."
            )
        super().build(input_shape)

    def branch(self, name, bias):
        if name == "shortcut":
            layers = [self.convolution("conv", self.width, 1, self.strides)]
            if self.batch_norm and not self.preactivation:
                layers.append(self.normalization("norm"))
            return Branch(layers, dtype=self.dtype_policy, name=name)
        kernels = (1, 3, 1) if self.bottleneck else (3, 3)
        layers = []
        for i, kernel in enumerate(kernels, 1):
            first, last = i == 1, i == len(kernels)
            after = self.batch_norm and not self.preactivation  # a bias of conv would be lost in it
            conv = self.convolution(
                f"conv{i}",
                self.width if last else self.filters,
                kernel,
                self.strides if first else 1,
                bias if last and not after else None,
                self.last_initializer if last and bias is None else self.kernel_initializer,
            )
            relu = keras.layers.Activation("relu", dtype=self.dtype_policy, name=f"relu{i}")
            beta = bias if last and after and bias is not None else 0.0
            norm = [self.normalization(f"norm{i}", beta)] if self.batch_norm else []
            if self.preactivation:
                layers += [*norm, relu, conv]
            else:
                closes = not last or (self.closing_relu and bias is None)
                layers += [conv, *norm, *([relu] if closes else [])]
        if bias is not None:
            sigmoid = keras.layers.Activation(gate, dtype=self.dtype_policy, name="sigmoid")
            layers.append(sigmoid)
        return Branch(layers, dtype=self.dtype_policy, name=name)

    def convolution(self, name, filters, kernel, strides, bias=None, initializer=None):
        """A convolution; one with a gate's logit `bias` has a bias in any case."""
        return keras.layers.Conv2D(
            filters,
            kernel,
            strides,
            padding="same",
            data_format="channels_last",
            use_bias=self.use_bias or bias is not None,
            kernel_initializer=(initializer or self.kernel_initializer).clone(),
            bias_initializer="zeros" if bias is None else GateBias(bias),
            dtype=self.dtype_policy,
            name=name,
        )

    def normalization(self, name, beta=0.0):
        """Batch normalisation: Keras's, or one with its own numbers for each use."""
        if self.uses > 1:
            return UnsharedBatchNormalization(
                self.uses, self.share, self.gamma, beta, dtype=self.dtype_policy, name=name
            )
        return keras.layers.BatchNormalization(
            gamma_initializer=keras.initializers.Constant(self.gamma),
            beta_initializer=keras.initializers.Constant(beta),
            dtype=self.dtype_policy,
            name=name,
        )

    def call(self, x, training=None, use=0):
        if not 0 <= use < self.uses:
            raise ValueError(
                f"`use` must be one of this block's {self.uses} uses, counted from 0. "
                f"Received: use={use}."
            )
        return self.parts(x, training=training, use=use)["y"]

    def compute_output_shape(self, input_shape):
        sides = (None if side is None else -(-side // self.strides) for side in input_shape[1:3])
        return (input_shape[0], *sides, self.width)

    def get_config(self):
        own = {
            "filters": self.filters,
            "strides": self.strides,
            "bottleneck": self.bottleneck,
            "preactivation": self.preactivation,
            "batch_norm": self.batch_norm,
            "use_bias": self.use_bias,
            "closing_relu": self.closing_relu,
            "uses": self.uses,
            "share": self.share,
            "gamma": self.gamma,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "last_initializer": keras.initializers.serialize(self.last_initializer),
        }
        return {**super().get_config(), **own}
