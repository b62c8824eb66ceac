"""The simplified networks of Yu & Tomasi (2019): one convolution a block, no normalization."""

from collections.abc import Sequence
from typing import Unpack

import keras
from keras import layers

from zoo.applications.registry import CIFAR, Top, builder, classifier, image_input
from zoo.backend.layers import Conv2D
from zoo.checks import as_integers, is_integer, require
from zoo.initializers import Uniform
from zoo.layers.simplified import SimplifiedDominant, SimplifiedPlain, SimplifiedResidual
from zoo.types import Shape

WIDTHS = (16, 32, 64)


@builder("simplified_plain_net{depth}")
def simplified_plain_net(
    depth: int = 20,
    classes: int = 10,
    input_shape: Shape = CIFAR,
    identity: str = "pad",
    *,
    widths: Sequence[int] = WIDTHS,
    **top: Unpack[Top],
) -> keras.Model:
    """The plain network of 3 n + 2 layers: 269,034 parameters at depth 20.

    463,018 at 32 and 657,002 at 44. A convolution of 16 channels, three groups of n blocks
    ReLU(conv(x) + b) with 16, 32 and 64 channels, averages of 8 x 8 pixels (or of all, where fewer
    are left), a classifier. Every kernel is 3 x 3, padded symmetrically, and starts at the paper's
    KWI, `KaimingNormal()`. The classifier's weights and biases start at U(-1/8, 1/8), as PyTorch's
    linear layers do: that gives the loss of 2.305 with which Table 4 starts; zero biases would
    give 2.303.

    Args:
        depth: 3 n + 2: 20, 32 and 44 in the paper.
        identity: That in the kernels that double the channels; see `zoo.SimplifiedResidual`.
        widths: Channels of the groups; of the first convolution, too.

    Raises:
        ValueError: if `depth` is not 3 n + 2, `widths` are not three that grow, or `input_shape` is
            too small.

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise
    Stability", section 2, appendix A and Fig. 4.
    """
    return _simplified(SimplifiedPlain, depth, classes, input_shape, identity, widths, top)


@builder("simplified_residual_net{depth}")
def simplified_residual_net(
    depth: int = 20,
    classes: int = 10,
    input_shape: Shape = CIFAR,
    identity: str = "pad",
    *,
    widths: Sequence[int] = WIDTHS,
    **top: Unpack[Top],
) -> keras.Model:
    """`simplified_plain_net` with an identity around each block: ReLU(S(x) + conv(x) + b).

    It has as many parameters and represents the same functions: adding one to the entries of each
    kernel that an identity would have makes it the plain network. All convolutions, the first one
    too, start at the paper's HMWI, `HardtMa()`. Errors and reference are those of
    `simplified_plain_net`.
    """
    return _simplified(SimplifiedResidual, depth, classes, input_shape, identity, widths, top)


@builder("simplified_dominant_net{depth}")
def simplified_dominant_net(
    depth: int = 20,
    classes: int = 10,
    input_shape: Shape = CIFAR,
    *,
    widths: Sequence[int] = WIDTHS,
    **top: Unpack[Top],
) -> keras.Model:
    """`simplified_plain_net` whose kernels keep only the paths from a channel to its own.

    7,818 parameters at depth 20, 12,298 at 32 and 16,778 at 44. The first convolution and the
    classifier are whole. Kernels start at `HardtMa()`. Errors are those of
    `simplified_plain_net`. Reference: ibid., appendix D.3, Table 5.
    """
    return _simplified(SimplifiedDominant, depth, classes, input_shape, "duplicate", widths, top)


def _simplified(block, depth, classes, input_shape, identity, widths, top):
    """Return the network of 3 n + 2 layers whose 3 n inner ones are `block`s."""
    expected = "3 n + 2, as three groups of n convolutions and two more layers have: 5, 8, ..., 20"
    require(is_integer(depth, 5) and depth % 3 == 2, expected, depth=depth)
    expected = "the channels of three groups, none fewer than before"
    require(len(as_integers(1, widths=widths)) == 3, expected, widths=widths)
    inputs = image_input(input_shape, 4)
    start = {"activation": "relu", "kernel_initializer": block.default_initializer()}
    x = Conv2D(widths[0], 3, padding="same", **start, name="stem_conv")(inputs)
    for stage, width in enumerate(widths, 1):
        for i in range((depth - 2) // 3):
            name = f"stage{stage}_block{i:02d}"
            strides = 2 if stage > 1 and i == 0 else 1
            x = block(width, strides=strides, identity=identity, stage=stage, name=name)(x)
    window = [min(8, side or 8) for side in x.shape[1:3]]
    head = [layers.AveragePooling2D(window, name="avg_pool"), layers.Flatten(name="flatten")]
    return classifier(inputs, x, head, classes, Uniform(None), top, uniform_bias=True)
