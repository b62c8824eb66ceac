"""Highway networks for small images: Srivastava et al. (2015), sections 3 and 4."""

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import keras
from keras import layers

from zoo.applications.registry import CIFAR, Top, builder, classifier, image_input
from zoo.backend.layers import Conv2D, MaxPooling2D
from zoo.checks import as_integers, check_integers
from zoo.initializers import Gaussian, GlorotUniform, KaimingNormal
from zoo.layers import gating
from zoo.layers.highway import HighwayConv2D, HighwayDense
from zoo.layers.highway_stack import HighwayDenseStack
from zoo.types import Shape


@builder("highway_mlp{depth}")
def highway_mlp(
    depth: int = 50,
    units: int = 50,
    activation: str | Callable = "relu",
    variant: str = "coupled",
    gate_bias: float = -2.0,
    classes: int = 10,
    input_shape: Shape = (784,),
    stacked: bool | None = None,
    **top: Unpack[Top],
) -> keras.Model:
    """One plain layer, `depth` - 1 highway layers of one width, a classifier.

    `highway_mlp(10)` has 85,660 parameters, depth 20: 136,660, 50: 289,660, 100: 544,660; CIFAR-100
    (`highway_mlp(50, input_shape=(3072,), classes=100)`): 408,650. The paper's plain networks of
    like size are `highway_mlp(depth, 71, variant="plain")`: 102,463, 153,583, 306,943, 562,543.

    Weights are initialized after He et al. for ReLU and after Glorot and Bengio for other
    activations: our assumption about the paper's "normalized initialization".

    Args:
        depth: Number of layers, without the classifier.
        units: Width.
        activation: Activation of the first layer and of H.
        gate_bias: Initial logit of T; the paper searches -1 to -10.
        input_shape: Shape of an example; flattened.
        stacked: True makes the highway layers one scanned `HighwayDenseStack`, False `depth` - 1
            `HighwayDense`, of which a Keras graph can hold about 900. `None`: from depth 200.

    Raises:
        ValueError: if `depth` is less than 2.

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, section 3.1, Figs 1 to 4.
    """
    check_integers(2, depth=depth)
    check_integers(1, units=units)
    is_relu = keras.activations.get(activation) is keras.activations.relu
    initializer = KaimingNormal() if is_relu else GlorotUniform()
    inputs = keras.Input(as_integers(1, input_shape=input_shape), name="inputs")
    x = layers.Flatten(name="flatten")(inputs)
    first = initializer.clone()
    x = layers.Dense(int(units), activation, kernel_initializer=first, name="first")(x)
    options: dict[str, Any] = {
        "activation": activation,
        "variant": variant,
        "gate_bias": gate_bias,
        "stage": 1,
        "kernel_initializer": initializer,
    }
    if stacked or (stacked is None and depth >= 200):
        x = HighwayDenseStack(depth - 1, units, name="stage1_stack", **options)(x)
    else:
        for i in range(depth - 1):
            x = HighwayDense(units, name=f"stage1_block{i:02d}", **options)(x)
    return classifier(inputs, x, (), classes, initializer.clone(), top)


class Stage(NamedTuple):
    """One stage of a convolutional network: a plain convolution, highway layers, a max-pool."""

    width: int
    plain: tuple[int, str] | None  # kernel size and padding
    kernels: tuple[int, ...]  # kernel sizes of the highway layers
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
    first layer (0.2) and after the pools (0.3, 0.4, 0.5); gates start at -1. It needs a larger rate
    than Adam's default: after two epochs of 10,000 images the test accuracy is 58.3 % with 0.001,
    91.4 % with 0.003.

    Args:
        width: Channels of every layer: 16 and 32 are the paper's.

    Raises:
        ValueError: if `variant` is unknown or `input_shape` too small.

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 1; layers as in
    github.com/flukeskywalker/highway-networks, "mnist-10layers".
    """
    stages = (
        Stage(width, (5, "valid"), (3, 3), 3),
        Stage(width, None, (3, 3, 3), 3),
        Stage(width, None, (3, 3, 3), 2),
    )
    inputs = image_input(input_shape, 12)
    x = _trunk(inputs, stages, 10, variant, (0.2, 0.3, 0.4, 0.5))
    return classifier(inputs, x, [layers.Flatten()], classes, Gaussian(0.1), top)


@builder()
def highway_a(
    variant: str = "coupled", classes: int = 10, input_shape: Shape = CIFAR, **top: Unpack[Top]
) -> keras.Model:
    """Highway A: 11 layers, 236,328 parameters; the paper says 236 K.

    Assumption: three stages of one plain and two highway layers, 16, 32 and 64 channels, a global
    max-pool, 250 rectified units; the paper gives only the numbers of layers and parameters, and of
    round numbers these alone meet them. Gates start at -1; dropout 0.2 as in `highway_cifar`.

    Raises:
        ValueError: if `variant` is unknown or `input_shape` too small.

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 2.
    """
    stages = tuple(Stage(width, PLAIN, (3, 3), 2) for width in (16, 32, 64))
    return _fitnet(stages, 11, 250, variant, classes, input_shape, top)


@builder()
def highway_b(
    variant: str = "coupled", classes: int = 10, input_shape: Shape = CIFAR, **top: Unpack[Top]
) -> keras.Model:
    """Highway B: 19 layers, 2,277,688 parameters; the paper says 2.3 M.

    `highway_cifar` with a max-pool and 250 rectified units for its 1 x 1 convolution and average;
    the width of that layer is not in the paper. Gates start at -2. Errors and reference
    are those of `highway_a`.
    """
    return _fitnet(NINETEEN, 19, 250, variant, classes, input_shape, top)


@builder()
def highway_c(
    variant: str = "coupled", classes: int = 10, input_shape: Shape = CIFAR, **top: Unpack[Top]
) -> keras.Model:
    """Highway C: 32 layers, 1,251,798 parameters; the paper says 1.25 M.

    Assumption, one of several that meet the total: "alternating receptive fields of 3 x 3 and
    1 x 1" in three stages of ten layers with 24, 48 and 96 channels, then 100 rectified units.
    Gates start at -3. Errors and reference are those of `highway_a`.
    """
    stages = tuple(Stage(width, PLAIN, (3, 1) * 4 + (3,), 2) for width in (24, 48, 96))
    return _fitnet(stages, 32, 100, variant, classes, input_shape, top)


@builder()
def highway_cifar(
    classes: int = 10, variant: str = "coupled", input_shape: Shape = CIFAR, **top: Unpack[Top]
) -> keras.Model:
    """The 19 layers of Table 3: 2,256,838 parameters, 2,265,928 with `classes=100`.

    The fully connected layer of Highway B is a 1 x 1 convolution of 100 maps and a global average
    here. Gates start at -2. Dropout 0.2 stands before the first layer, after the two pools and
    before the classifier. The weights of the first convolution start at N(0, 1), so that the
    network needs contrast-normalized images.

    Raises:
        ValueError: if `variant` is unknown or `input_shape` too small.

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, Table 3; layers as in
    github.com/flukeskywalker/highway-networks, "cifar10-19layers" and "cifar100-19layers".
    """
    inputs = image_input(input_shape, 4)
    first = Gaussian(1.0)  # the authors' file says `value: 0.05`, which Caffe's filler ignores
    x = _trunk(inputs, NINETEEN, 19, variant, (0.2, 0.2, 0.2), first)
    x = Conv2D(100, 1, activation="relu", kernel_initializer=KaimingNormal(), name="maps")(x)
    head = [layers.GlobalAveragePooling2D(name="avg_pool"), layers.Dropout(0.2, name="dropout3")]
    last = Gaussian(0.05) if classes == 10 else KaimingNormal()  # the two files differ
    return classifier(inputs, x, head, classes, last, top)


def _fitnet(stages, depth, units, variant, classes, input_shape, top):
    """Return the stages, one fully connected layer and the classifier: Table 2, after the FitNets.

    `depth`, the number of layers, determines the gates' initial bias.
    """
    inputs = image_input(input_shape, 4)
    stages = (*stages[:-1], stages[-1]._replace(pool=None))
    x = _trunk(inputs, stages, depth, variant, (0.2, 0.2, 0.2))
    head = [
        layers.GlobalMaxPooling2D(name="max_pool"),
        layers.Dropout(0.2, name="dropout3"),
        layers.Dense(units, "relu", kernel_initializer=KaimingNormal(), name="units"),
        layers.Dropout(0.2, name="dropout4"),
    ]
    return classifier(inputs, x, head, classes, Gaussian(0.05), top)


def _trunk(x, stages, depth, variant, dropout, first=None):
    """Apply the convolutions of `stages`, with pools and dropout between them.

    The `dropout` rates are before the first layer and after each pool, `depth` determines the
    initial logit of the gates, and `first` is another initializer for the first convolution.
    """
    options = {"variant": variant, "gate_bias": gating.gate_bias(depth)}
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
                name=f"stage{number}_plain",
            )(x)
        for i, kernel_size in enumerate(stage.kernels):
            name = f"stage{number}_block{i:02d}"
            x = HighwayConv2D(stage.width, kernel_size, stage=number, name=name, **options)(x)
        if stage.pool is not None:  # "same" at 24 and 12 pixels is Caffe's rounding up
            x = MaxPooling2D(stage.pool, 2, "same", name=f"pool{number}")(x)
            x = layers.Dropout(dropout[number], name=f"dropout{number}")(x)
    return x
