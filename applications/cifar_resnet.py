"""Residual networks for small images: He et al. (2015) and Jastrzebski et al. (2018), section 4."""

from collections.abc import Sequence
from typing import Any, Unpack

import keras
from keras import layers, ops

from zoo.applications.registry import CIFAR, Top, builder, classifier, image_input
from zoo.backend.layers import BatchNormalization, Conv2D
from zoo.checks import check_choice, is_integer, require
from zoo.initializers import KaimingNormal
from zoo.layers.residual_block import ResidualBlock
from zoo.types import Shape

UNSHARED = 5  # blocks of a stage with convolutions of their own, before the shared ones
SHARE = {  # parts of normalization that the uses of a shared block share, and initial gamma
    "unshared": ((), 0.1),
    "unshared_statistics": (("affine",), 1.0),
    "unshared_affine": (("statistics",), 0.1),
    "shared": (("statistics", "affine"), 1.0),
}


@builder("cifar_resnet{depth}")
def cifar_resnet(
    depth: int = 110,
    classes: int = 10,
    input_shape: Shape = CIFAR,
    variant: str = "residual",
    **top: Unpack[Top],
) -> keras.Model:
    """A pre-activation ResNet of 6 n + 2 layers: three stages of n blocks, 16, 32, 64 channels.

    Trainable parameters with 10 and 100 classes: depth 32: 467,946 and 473,796; 38: 565,386 and
    571,236; 56: 857,706 and 863,556; 110: 1,734,666 and 1,740,516 (1,742,762 in all with 10).
    Convolutions have biases. Where the channels double, the skip is a 1 x 1 convolution of the
    unprocessed input.

    Args:
        depth: 6 n + 2: 8, 14, 20, 32, 38, 44, 56, 110, ...

    Raises:
        ValueError: if `depth` is not 6 n + 2, `variant` is unknown, or `input_shape` too small.

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 4 and Table 1; He et al. (2016),
    arXiv:1603.05027.
    """
    return preactivated(16, three_stages(blocks_of(depth)), classes, input_shape, top, variant)


@builder("he_resnet{depth}")
def he_resnet(
    depth: int = 56, classes: int = 10, input_shape: Shape = CIFAR, **top: Unpack[Top]
) -> keras.Model:
    """The first ResNet for CIFAR-10: post-activation blocks whose skips have no parameters.

    Trainable parameters with 10 classes: depth 20: 269,722; 32: 464,154; 44: 658,586; 56: 853,018;
    110: 1,727,962. Where the channels double, the skip takes every second pixel and pads with zero
    channels, as many before as after (option A). ReLU follows each sum. All layers are Keras's.

    Raises:
        ValueError: if `depth` is not 6 n + 2, or `input_shape` too small.

    Reference: He et al. (2015), arXiv:1512.03385, section 4.2.
    """
    stages = enumerate(three_stages(blocks_of(depth)), 1)
    inputs = image_input(input_shape, 4)
    x = layers.ReLU(name="stem_relu")(_normalized(inputs, 16, 1, "stem"))
    for stage, (width, blocks, strides) in stages:
        for i in range(blocks):
            name = f"stage{stage}_block{i:02d}"
            first = strides if i == 0 else 1
            f = layers.ReLU(name=f"{name}_relu1")(_normalized(x, width, first, f"{name}_1"))
            f = _normalized(f, width, 1, f"{name}_2")
            if first > 1:
                x = layers.AveragePooling2D(1, first, name=f"{name}_every_second")(x)
                new = (width - x.shape[-1]) // 2
                x = ops.pad(x, [[0, 0], [0, 0], [0, 0], [new, new]])
            x = layers.ReLU(name=f"{name}_relu2")(layers.Add(name=name)([x, f]))
    head = [layers.GlobalAveragePooling2D(name="avg_pool")]
    return classifier(inputs, x, head, classes, KaimingNormal(), top)


def _normalized(x, width, strides, name):
    """Return a 3 x 3 convolution, padded as PyTorch pads it, with batch normalization."""
    options = {"kernel_initializer": KaimingNormal(), "use_bias": False, "name": f"{name}_conv"}
    if strides > 1:
        x = layers.ZeroPadding2D(1, name=f"{name}_pad")(x)
    x = layers.Conv2D(width, 3, strides, "same" if strides == 1 else "valid", **options)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)


@builder()
def single_representation_resnet(
    classes: int = 10, input_shape: Shape = CIFAR, **top: Unpack[Top]
) -> keras.Model:
    """Ten blocks of 100 channels, one resolution: 1,829,210 parameters, 1,973,300 for 100 classes.

    The classifier reads 4 x 4 averages of 8 x 8 pixels: 1,600 numbers. Errors and reference
    are those of `cifar_resnet`.
    """
    return preactivated(100, ((100, 10, 1),), classes, input_shape, top)


@builder()
def avg_pooling_resnet(
    classes: int = 10, input_shape: Shape = CIFAR, **top: Unpack[Top]
) -> keras.Model:
    """Three stages of ten blocks of 150 channels, 2 x 2 averages between: 12,201,310 parameters.

    12,214,900 with `classes=100`. The text says a pool after each stage; with its 8 x 8 average
    before the classifier, and its count, only two fit. Errors and reference are those of
    `cifar_resnet`.
    """
    stages = ((150, 10, 1), (150, 10, "pool"), (150, 10, "pool"))
    return preactivated(150, stages, classes, input_shape, top)


@builder()
def wide_resnet(classes: int = 10, input_shape: Shape = CIFAR, **top: Unpack[Top]) -> keras.Model:
    """4, 5 and 5 blocks of 160, 320 and 640 channels: 45,732,842 parameters.

    45,790,532 with `classes=100`. The text's "four blocks" a stage do not meet its count; 14
    blocks do, and its figure shows as many. Errors and reference are those of `cifar_resnet`.
    """
    return preactivated(16, ((160, 4, 1), (320, 5, 2), (640, 5, 2)), classes, input_shape, top)


@builder("shared_resnet{depth}_{batch_norm}")
def shared_resnet(
    depth: int = 110,
    batch_norm: str = "unshared",
    classes: int = 10,
    input_shape: Shape = CIFAR,
    gamma: float | None = None,
    **top: Unpack[Top],
) -> keras.Model:
    """`cifar_resnet` whose stages use one set of convolutions from their sixth block on.

    The first five blocks of a stage have convolutions of their own, the rest are one block that is
    used repeatedly: layer `stage1_shared` and so on. Trainable parameters, unshared normalization,
    with 10 and 100 classes: depth 110: 570,762 and 576,612; 146: 573,450 and 579,300; 182: 576,138
    and 581,988; "shared": those of `cifar_resnet(38)`.

    Args:
        depth: 6 n + 2 with n of 7 or more.
        batch_norm: "unshared": each use has its own statistics, gamma and beta, with initial gamma
            0.1; "unshared_statistics" and "unshared_affine": only those are its own (initial gamma
            1 and 0.1); "shared": none (gamma 1), the naive sharing of the paper.
        gamma: Initial gamma of the shared blocks' normalization; `None` is as above.

    Raises:
        ValueError: if `depth` or `batch_norm` is unknown, or `input_shape` too small.

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 4.5, Table 1 and Figs 8 and 9.
    """
    blocks = blocks_of(depth)
    least = 6 * (UNSHARED + 2) + 2
    expected = f"at least {least}, as the first {UNSHARED} blocks of a stage are not shared. Take"
    require(depth >= least, f"{expected} cifar_resnet({depth})", depth=depth)
    check_choice(SHARE, batch_norm=batch_norm)
    share, initial_gamma = SHARE[batch_norm]
    gamma = initial_gamma if gamma is None else gamma
    shared = {"uses": blocks - UNSHARED, "share": share, "gamma": gamma}
    return preactivated(16, three_stages(UNSHARED), classes, input_shape, top, shared=shared)


def blocks_of(depth: int) -> int:
    """Return n of a network of 6 n + 2 layers, or raise a `ValueError`."""
    is_valid = is_integer(depth, 8)
    n = (depth - 2) // 6 if is_valid else 1
    expected = "6 n + 2, as three stages of n blocks of two convolutions and two more layers have"
    expected = f"{expected}, such as {6 * n + 2} or {6 * n + 8}"
    require(is_valid and depth == 6 * n + 2, expected, depth=depth)
    return n


def three_stages(blocks: int) -> tuple[tuple[int, int, int], ...]:
    """Return channels, blocks and strides of three stages of so many blocks each."""
    return (16, blocks, 1), (32, blocks, 2), (64, blocks, 2)


def preactivated(
    stem: int,
    stages: Sequence[tuple[int, int, Any]],
    classes: int,
    input_shape: Shape,
    top: Top,
    variant: str = "residual",
    shared: dict | None = None,
    momentum: float = 0.99,
) -> keras.Model:
    """Return stem, stages, one more normalization and ReLU, averages of 8 x 8 and classifier.

    `stem` are channels, `stages` have `(channels, blocks, strides)` each: "pool" for strides
    averages 2 x 2 before it. `shared` are arguments of a block that each stage ends in and calls
    `shared["uses"]` times, `momentum` is that of the normalizations' moving averages: a short
    training needs a smaller one, as 0.99 keeps 9.5 % of the start after 234 updates.
    """
    halvings = sum(strides != 1 for _, _, strides in stages)
    inputs = image_input(input_shape, 8 * 2**halvings)
    initializer = KaimingNormal()
    x = Conv2D(stem, 3, padding="same", kernel_initializer=initializer, name="stem_conv")(inputs)
    for stage, (width, blocks, strides) in enumerate(stages, 1):
        if strides == "pool":
            x = layers.AveragePooling2D(2, name=f"stage{stage}_pool")(x)
            strides = 1
        options: dict[str, Any] = {"variant": variant, "stage": stage, "momentum": momentum}
        for i in range(blocks):
            name = f"stage{stage}_block{i:02d}"
            first = strides if i == 0 else 1
            x = ResidualBlock(width, first, use_bias=True, name=name, **options)(x)
        if shared is not None:
            name = f"stage{stage}_shared"
            block = ResidualBlock(width, use_bias=True, name=name, **options, **shared)
            for use in range(shared["uses"]):
                x = block(x, use=use)
    x = BatchNormalization(momentum=momentum, name="last_norm")(x)
    x = layers.ReLU(name="last_relu")(x)
    head = [layers.AveragePooling2D(8, name="avg_pool"), layers.Flatten(name="flatten")]
    return classifier(inputs, x, head, classes, initializer.clone(), top)
