"""The convolutional highway networks for small images: Srivastava et al. (2015), Tables 1 to 3."""

from collections.abc import Sequence
from typing import NamedTuple, Unpack

import keras
from keras import layers

from zoo.applications.input_and_head import Top, classifier, image_input
from zoo.applications.registry import builder
from zoo.backend.layers import Conv2D, MaxPooling2D
from zoo.initializers import Gaussian, KaimingNormal
from zoo.layers.gating import gate_bias
from zoo.layers.highway import HighwayConv2D
from zoo.types import Shape, Tensor


class Stage(NamedTuple):
    """One stage of a network: a plain convolution, highway layers, a max-pool.

    Attributes:
        width: Number of channels.
        plain: Kernel size and padding of the plain convolution that opens the stage, or `None`.
        kernels: Kernel sizes of the highway layers.
        pool: Side of the max-pool after them, or `None`.
    """

    width: int
    plain: tuple[int, str] | None
    kernels: tuple[int, ...]
    pool: int | None


PLAIN = (3, "same")
NINETEEN = (  # the stages of the networks of 19 layers
    Stage(32, PLAIN, (3,) * 4, 2),
    Stage(80, PLAIN, (3,) * 5, 2),
    Stage(128, PLAIN, (3,) * 5, None),
)


@builder("highway_mnist{width}")
def highway_mnist(
    width: int = 16,
    variant: str = "coupled",
    classes: int = 10,
    input_shape: Shape = (28, 28, 1),
    **top: Unpack[Top],
) -> keras.Model:
    """Nine convolutional layers for MNIST: 38,986 parameters, 151,690 with `width=32`.

    Images are expected in [0, 1), divided by 256 (the authors' code). Dropout stands before the
    first layer (0.2) and after the pools (0.3, 0.4, 0.5); gates start at -1. The paper's "39 K"
    and "151 K" are these counts.

    It needs a larger rate than Adam's default. Test accuracy after two epochs of MNIST-10k (10,000
    images, batches of 128, seed 0): 58.3 % with Adam at 0.001, 91.4 % at 0.003. The authors'
    solver (SGD with momentum, rate 0.01, lowered in two steps) on a shortened schedule: 95.4 %
    after 45 epochs.

    Args:
        width: Channels of every layer: 16 and 32 are the paper's.
        variant: A row of `zoo.FORMS`.
        classes: Number of classes.
        input_shape: `(height, width, channels)`.

    Raises:
        ValueError: if `variant` is unknown or `input_shape` too small.

    Example:
    >>> highway_mnist(16).count_params(), highway_mnist(32).count_params()
    (38986, 151690)

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 1; layers as in
    github.com/flukeskywalker/highway-networks, "mnist-10layers".
    """
    stages = (
        Stage(width, (5, "valid"), (3, 3), 3),
        Stage(width, None, (3, 3, 3), 3),
        Stage(width, None, (3, 3, 3), 2),
    )
    inputs = image_input(input_shape, 12)
    x = trunk(inputs, stages, gate_bias(10), variant, (0.2, 0.3, 0.4, 0.5))
    return classifier(inputs, x, [layers.Flatten()], classes, Gaussian(0.1), top)


@builder()
def highway_a(
    variant: str = "coupled",
    classes: int = 10,
    input_shape: Shape = (32, 32, 3),
    **top: Unpack[Top],
) -> keras.Model:
    """Highway A: 11 layers, 236,328 parameters; the paper says 236 K.

    Assumption: three stages of one plain and two highway layers, 16, 32 and 64 channels, a global
    max-pool, 250 rectified units; the paper gives only the numbers of layers and parameters, and of
    round numbers these alone meet them. Gates start at -1; dropout 0.2 as in `highway_cifar`.

    Args:
        variant: A row of `zoo.FORMS`.
        classes: Number of classes.
        input_shape: `(height, width, channels)`.

    Raises:
        ValueError: if `variant` is unknown or `input_shape` too small.

    Example:
    >>> highway_a().count_params()
    236328

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 2.
    """
    stages = tuple(Stage(width, PLAIN, (3, 3), 2) for width in (16, 32, 64))
    return fitnet(stages, 11, 250, variant, classes, input_shape, top)


@builder()
def highway_b(
    variant: str = "coupled",
    classes: int = 10,
    input_shape: Shape = (32, 32, 3),
    **top: Unpack[Top],
) -> keras.Model:
    """Highway B: 19 layers, 2,277,688 parameters; the paper says 2.3 M.

    `highway_cifar` with a max-pool and 250 rectified units for its 1 x 1 convolution and average;
    the width of that layer is not in the paper. Gates start at -2.

    Arguments and errors are those of `highway_a`.

    Example:
    >>> highway_b().count_params()
    2277688

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 2.
    """
    return fitnet(NINETEEN, 19, 250, variant, classes, input_shape, top)


@builder()
def highway_c(
    variant: str = "coupled",
    classes: int = 10,
    input_shape: Shape = (32, 32, 3),
    **top: Unpack[Top],
) -> keras.Model:
    """Highway C: 32 layers, 1,251,798 parameters; the paper says 1.25 M.

    Assumption, one of several that meet the total: "alternating receptive fields of 3 x 3 and
    1 x 1" in three stages of ten layers with 24, 48 and 96 channels, then 100 rectified units.
    Gates start at -3.

    Arguments and errors are those of `highway_a`.

    Example:
    >>> highway_c().count_params()
    1251798

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 2.
    """
    stages = tuple(Stage(width, PLAIN, (3, 1) * 4 + (3,), 2) for width in (24, 48, 96))
    return fitnet(stages, 32, 100, variant, classes, input_shape, top)


@builder()
def highway_cifar(
    classes: int = 10,
    variant: str = "coupled",
    input_shape: Shape = (32, 32, 3),
    first: float = 1.0,
    **top: Unpack[Top],
) -> keras.Model:
    """The 19 layers of Table 3: 2,256,838 parameters, 2,265,928 with `classes=100`.

    The fully connected layer of Highway B is a 1 x 1 convolution of 100 maps and a global average
    here. Gates start at -2. Dropout 0.2 stands before the first layer, after the two pools and
    before the classifier.

    Args:
        classes: Number of classes.
        variant: A row of `zoo.FORMS`.
        input_shape: `(height, width, channels)`.
        first: Standard deviation of the first convolution's weights. The authors' file says
            `value: 0.05`, which Caffe's Gaussian filler ignores: the effective one is 1, which
            needs globally contrast-normalised images. Their intent was presumably 0.05.

    Raises:
        ValueError: if `variant` is unknown or `input_shape` too small.

    Example:
    >>> highway_cifar(10).count_params(), highway_cifar(100).count_params()
    (2256838, 2265928)

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 3; layers as in
    github.com/flukeskywalker/highway-networks, "cifar10-19layers" and "cifar100-19layers".
    """
    inputs = image_input(input_shape, 4)
    x = trunk(inputs, NINETEEN, gate_bias(19), variant, (0.2, 0.2, 0.2), Gaussian(first))
    x = Conv2D(
        100,
        1,
        activation="relu",
        kernel_initializer=KaimingNormal(),
        data_format="channels_last",
        name="maps",
    )(x)
    head = [layers.GlobalAveragePooling2D(name="avg_pool"), layers.Dropout(0.2, name="dropout3")]
    last = Gaussian(0.05) if classes == 10 else KaimingNormal()  # the two files differ
    return classifier(inputs, x, head, classes, last, top)


def fitnet(
    stages: Sequence[Stage],
    depth: int,
    units: int,
    variant: str,
    classes: int,
    input_shape: Shape,
    top: Top,
) -> keras.Model:
    """Return the stages, one fully connected layer and the classifier: Table 2, after the FitNets.

    `depth`, the number of layers, determines the gates' initial bias.
    """
    inputs = image_input(input_shape, 4)
    stages = (*stages[:-1], stages[-1]._replace(pool=None))
    x = trunk(inputs, stages, gate_bias(depth), variant, (0.2, 0.2, 0.2))
    head = [
        layers.GlobalMaxPooling2D(name="max_pool"),
        layers.Dropout(0.2, name="dropout3"),
        layers.Dense(units, "relu", kernel_initializer=KaimingNormal(), name="units"),
        layers.Dropout(0.2, name="dropout4"),
    ]
    return classifier(inputs, x, head, classes, Gaussian(0.05), top)


def trunk(
    x: Tensor,
    stages: Sequence[Stage],
    bias: float,
    variant: str,
    dropout: Sequence[float],
    first: keras.Initializer | None = None,
) -> Tensor:
    """Apply the convolutions of `stages`, with pools and dropout between them.

    The `dropout` rates are before the first layer and after each pool, `bias` is the initial logit
    of the transform gates, and `first` another initializer for the first convolution.
    """
    x = layers.Dropout(dropout[0], name="dropout0")(x)
    for number, stage in enumerate(stages, 1):
        if stage.plain is not None:
            kernel_size, padding = stage.plain
            x = Conv2D(
                stage.width,
                kernel_size,
                padding=padding,
                activation="relu",
                kernel_initializer=(first if number == 1 else None) or KaimingNormal(),
                data_format="channels_last",
                name=f"stage{number}_plain",
            )(x)
        for i, kernel_size in enumerate(stage.kernels):
            x = HighwayConv2D(
                stage.width,
                kernel_size,
                variant=variant,
                gate_bias=bias,
                stage=number,
                name=f"stage{number}_block{i:02d}",
            )(x)
        if stage.pool is not None:  # "same" at 24 and 12 pixels is Caffe's rounding up
            x = MaxPooling2D(stage.pool, 2, "same", name=f"pool{number}")(x)
            x = layers.Dropout(dropout[number], name=f"dropout{number}")(x)
    return x
