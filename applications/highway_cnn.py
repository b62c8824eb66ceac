"""The convolutional highway networks for small images: Srivastava et al. (2015), Tables 1 to 3."""

from collections import namedtuple

from keras import layers

from zoo.applications import input_and_head
from zoo.initializers import Gaussian, KaimingNormal
from zoo.layers.gating import gate_bias
from zoo.layers.highway import HighwayConv2D

Stage = namedtuple("Stage", "width first kernels pool")
Stage.__doc__ = """`width`: channels; `first`: arguments of the plain convolution that opens the
stage, if one does; `kernels`: of its highway layers; `pool`: side of the max-pool after it."""

PLAIN = {"kernel_size": 3, "padding": "same"}


def highway_mnist(width=16, variant="coupled", classes=10, input_shape=(28, 28, 1), **top):
    """Nine convolutional layers for MNIST: 38,986 parameters, 151,690 with `width=32`.

    Images are expected in [0, 1), divided by 256 (the authors' code). Dropout stands before the
    first layer (0.2) and after the pools (0.3, 0.4, 0.5); gates start at -1. The paper's "39 K"
    and "151 K" are these counts.

    Args:
        width: Channels of every layer: 16 and 32 are the paper's.
        variant: A row of `zoo.FORMS`.
        classes: How many the classifier tells apart.
        input_shape: `(height, width, channels)`.
        **top: `include_top`, `pooling`, `classifier_activation`, `weights`, `name`.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if `variant` is unknown or `input_shape` too small.

    Example:

    >>> highway_mnist(16).count_params(), highway_mnist(32).count_params()
    (38986, 151690)

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 1; layers as in
    github.com/flukeskywalker/highway-networks, "mnist-10layers".
    """
    stages = (
        Stage(width, {"kernel_size": 5, "padding": "valid"}, (3, 3), 3),
        Stage(width, None, (3, 3, 3), 3),
        Stage(width, None, (3, 3, 3), 2),
    )
    inputs = input_and_head.image_input(input_shape, 12)
    x = trunk(inputs, stages, gate_bias(10), variant, (0.2, 0.3, 0.4, 0.5))
    top = {"name": f"highway_mnist{width}", **top}
    return input_and_head.classifier(inputs, x, [layers.Flatten()], classes, Gaussian(0.1), **top)


def highway_a(variant="coupled", classes=10, input_shape=(32, 32, 3), **top):
    """Highway A: 11 layers, 236,328 parameters; the paper says 236 K.

    A reading: three stages of one plain and two highway layers, 16, 32 and 64 channels, a max-pool
    over what is left, 250 rectified units; the paper gives layers and total only, and of round
    numbers these alone meet it. Gates start at -1; dropout 0.2 as in `highway_cifar`.

    Args:
        variant: A row of `zoo.FORMS`.
        classes: How many the classifier tells apart.
        input_shape: `(height, width, channels)`.
        **top: `include_top`, `pooling`, `classifier_activation`, `weights`, `name`.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if `variant` is unknown or `input_shape` too small.

    Example:

    >>> highway_a().count_params()
    236328

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 2.
    """
    stages = tuple(Stage(width, PLAIN, (3, 3), 2) for width in (16, 32, 64))
    return fitnet(stages, 11, 250, variant, classes, input_shape, {"name": "highway_a", **top})


def highway_b(variant="coupled", classes=10, input_shape=(32, 32, 3), **top):
    """Highway B: 19 layers, 2,277,688 parameters; the paper says 2.3 M.

    `highway_cifar` with a max-pool and 250 rectified units for its 1 x 1 convolution and average;
    the width of that layer is not in the paper. Gates start at -2.

    Arguments, result and errors are those of `highway_a`.

    Example:

    >>> highway_b().count_params()
    2277688

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 2.
    """
    return fitnet(NINETEEN, 19, 250, variant, classes, input_shape, {"name": "highway_b", **top})


def highway_c(variant="coupled", classes=10, input_shape=(32, 32, 3), **top):
    """A Highway C: 32 layers, 1,251,798 parameters; the paper says 1.25 M.

    A reading among several that meet the total: "alternating receptive fields of 3 x 3 and 1 x 1"
    in three stages of ten layers with 24, 48 and 96 channels, then 100 rectified units. Gates
    start at -3.

    Arguments, result and errors are those of `highway_a`.

    Example:

    >>> highway_c().count_params()
    1251798

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 2.
    """
    stages = tuple(Stage(width, PLAIN, (3, 1) * 4 + (3,), 2) for width in (24, 48, 96))
    return fitnet(stages, 32, 100, variant, classes, input_shape, {"name": "highway_c", **top})


def highway_cifar(classes=10, variant="coupled", input_shape=(32, 32, 3), first=1.0, **top):
    """The 19 layers of Table 3: 2,256,838 parameters, 2,265,928 with `classes=100`.

    The fully connected layer of Highway B is a 1 x 1 convolution of 100 maps and a global average
    here. Gates start at -2. Dropout 0.2 stands before the first layer, after the two pools and
    before the classifier.

    Args:
        classes: How many the classifier tells apart.
        variant: A row of `zoo.FORMS`.
        input_shape: `(height, width, channels)`.
        first: Standard deviation of the first convolution's weights. The authors' file says
            `value: 0.05`, which Caffe's Gaussian filler ignores: the effective one is 1, which
            needs globally contrast-normalised images. Their intent was presumably 0.05.
        **top: `include_top`, `pooling`, `classifier_activation`, `weights`, `name`.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if `variant` is unknown or `input_shape` too small.

    Example:

    >>> highway_cifar(10).count_params(), highway_cifar(100).count_params()
    (2256838, 2265928)

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 3; layers as in
    github.com/flukeskywalker/highway-networks, "cifar10-19layers" and "cifar100-19layers".
    """
    inputs = input_and_head.image_input(input_shape, 4)
    x = trunk(inputs, NINETEEN, gate_bias(19), variant, (0.2, 0.2, 0.2), Gaussian(first))
    one = {"activation": "relu", "kernel_initializer": KaimingNormal(), "name": "maps"}
    x = layers.Conv2D(100, 1, data_format="channels_last", **one)(x)
    head = [layers.GlobalAveragePooling2D(name="avg_pool"), layers.Dropout(0.2, name="dropout3")]
    top = {"name": "highway_cifar", **top}
    last = Gaussian(0.05) if classes == 10 else KaimingNormal()  # the two files differ
    return input_and_head.classifier(inputs, x, head, classes, last, **top)


NINETEEN = (
    Stage(32, PLAIN, (3,) * 4, 2),
    Stage(80, PLAIN, (3,) * 5, 2),
    Stage(128, PLAIN, (3,) * 5, None),
)


def fitnet(stages, depth, units, variant, classes, input_shape, top):
    """A trunk, one fully connected layer and the classifier: Table 2, after the FitNets."""
    inputs = input_and_head.image_input(input_shape, 4)
    stages = (*stages[:-1], stages[-1]._replace(pool=None))
    x = trunk(inputs, stages, gate_bias(depth), variant, (0.2, 0.2, 0.2))
    head = [
        layers.GlobalMaxPooling2D(name="max_pool"),
        layers.Dropout(0.2, name="dropout3"),
        layers.Dense(units, "relu", kernel_initializer=KaimingNormal(), name="units"),
        layers.Dropout(0.2, name="dropout4"),
    ]
    return input_and_head.classifier(inputs, x, head, classes, Gaussian(0.05), **top)


def trunk(x, stages, bias, variant, dropout, first=None):
    """The convolutions of `stages`, with pools and dropout between them.

    Args:
        x: Images.
        stages: `Stage`s.
        bias: Initial logit of the transform gates.
        variant: A row of `zoo.FORMS`.
        dropout: Rates before the first layer and after each pool.
        first: Initializer of the first convolution; `None` is that of all.
    """
    x = layers.Dropout(dropout[0], name="dropout0")(x)
    for number, stage in enumerate(stages, 1):
        if stage.first is not None:
            start = first if first is not None and number == 1 else KaimingNormal()
            settings = {"activation": "relu", "kernel_initializer": start, **stage.first}
            name = f"stage{number}_plain"
            x = layers.Conv2D(stage.width, data_format="channels_last", name=name, **settings)(x)
        for i, kernel in enumerate(stage.kernels):
            block = {"variant": variant, "gate_bias": bias, "stage": number}
            x = HighwayConv2D(stage.width, kernel, name=f"stage{number}_block{i:02d}", **block)(x)
        if stage.pool is not None:  # "same" at 24 and 12 pixels is Caffe's rounding up
            x = layers.MaxPooling2D(stage.pool, 2, "same", name=f"pool{number}")(x)
            x = layers.Dropout(dropout[number], name=f"dropout{number}")(x)
    return x
