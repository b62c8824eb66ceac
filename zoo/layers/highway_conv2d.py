"""The convolutional skip layer."""

import keras
from keras import ops

from zoo.initializers import KaimingNormal
from zoo.layers.highway import Highway

# H, T and C as one convolution of their joined kernels: in `highway_cifar` 1.05 times as fast in
# training and 1.10 in inference on torch (1.29 and 1.39 on another day), 0.92 and 0.56 on JAX, 0.95
# and 0.93 on TensorFlow, each on two cores (recipes/benchmark.py vision --merge).
JOINED = keras.backend.backend() == "torch"


@keras.saving.register_keras_serializable("zoo")
class HighwayConv2D(Highway):
    """A convolution that learns which features to rewrite and which to carry.

    y = H(x) · T(x) + x · C(x), elementwise; T and C are convolutions with H's kernel size,
    because 1 x 1 gates stall training (Greff et al. 2017, section 5.1). Zeros are padded so that
    height and width stay.

    Args:
        filters: Channels; equal to the input's, as the carry path is the identity. `None` takes
            the input's.
        kernel_size: Side of the receptive field of H, T and C, in pixels.
        activation: Of H; the gates are sigmoids.
        variant: A row of `zoo.layers.gating.FORMS`.
        gate_bias: Initial bias of T, a logit: `zoo.layers.gating.gate_bias(depth)` is the papers'
            guideline for a network of that depth; C starts at `-gate_bias`.
        kernel_initializer: Of H, T and C.
        bias_initializer: Of H's bias; the gates' biases start at it plus their logit.
        **kwargs: `bias_initializer` (see above), `stage` (see `Skip`), `name`, `dtype`.

    Input shape: `(batch, height, width, filters)`.
    Output shape: `(batch, height, width, filters)`.

    Raises:
        ValueError: if `variant` is unknown, or if `filters` differs from the input's channels.

    Example:

    >>> import numpy as np
    >>> layer = HighwayConv2D(gate_bias=-100.0)  # closed gates carry
    >>> x = np.arange(8.0, dtype="float32").reshape(1, 2, 2, 2)
    >>> bool((keras.ops.convert_to_numpy(layer(x)) == x).all())
    True

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, section 2.1.
    """

    width_argument, before = "filters", "Conv2D"

    def __init__(
        self,
        filters=None,
        kernel_size=3,
        activation="relu",
        variant="coupled",
        gate_bias=-2.0,
        kernel_initializer=None,
        **kwargs,
    ):
        kernel_initializer = kernel_initializer or KaimingNormal()  # the papers' own code's
        super().__init__(filters, activation, variant, gate_bias, kernel_initializer, **kwargs)
        if not isinstance(kernel_size, int) or kernel_size < 1:
            raise ValueError(
                f"`kernel_size` must be a positive integer, the side in pixels. "
                f"Received: kernel_size={kernel_size!r}"
            )
        self.filters, self.kernel_size = filters, kernel_size

    def branch(self, name, bias):
        shared = self.of_branch(name, bias)
        return keras.layers.Conv2D(
            self.width, self.kernel_size, padding="same", data_format="channels_last", **shared
        )

    def branches(self, x):
        layers = self.branch_layers()
        if len(layers) == 1 or not JOINED:
            return super().branches(x)
        kernel, bias = (
            ops.concatenate([ops.cast(w, self.compute_dtype) for w in weights], axis=-1)
            for weights in zip(*((v.kernel, v.bias) for v in layers.values()), strict=True)
        )
        y = ops.conv(x, kernel, padding="same", data_format="channels_last") + bias
        pieces = zip(layers.items(), ops.split(y, len(layers), axis=-1), strict=True)
        return {k: layer.activation(piece) for (k, layer), piece in pieces}

    def get_config(self):
        return {**super().get_config(), "kernel_size": self.kernel_size}
