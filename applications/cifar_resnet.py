"""Pre-activation residual networks for small images: Jastrzebski et al. (2018), appendix."""

from keras import layers

from zoo.applications import input_and_head
from zoo.initializers import KaimingNormal
from zoo.layers.residual_block import ResidualBlock

UNSHARED = 5  # blocks of a stage with convolutions of their own, before the shared ones
SHARE = {  # what the uses of a shared block have in common, and the gamma that they start with
    "unshared": ((), 0.1),
    "unshared_statistics": (("affine",), 1.0),
    "unshared_affine": (("statistics",), 0.1),
    "shared": (("statistics", "affine"), 1.0),
}


def cifar_resnet(depth=110, classes=10, input_shape=(32, 32, 3), variant="residual", **top):
    """A pre-activation ResNet of 6 n + 2 layers: three stages of n blocks, 16, 32, 64 channels.

    Trainable parameters with 10 and 100 classes: depth 32: 467,946 and 473,796; 38: 565,386 and
    571,236; 56: 857,706 and 863,556; 110: 1,734,666 and 1,740,516 (1,742,762 in all with 10).
    Convolutions have biases. Where channels double a 1 x 1 convolution of the unprocessed input
    is the skip.

    Args:
        depth: 6 n + 2: 8, 14, 20, 32, 38, 44, 56, 110, ...
        classes: How many the classifier tells apart.
        input_shape: `(height, width, channels)`.
        variant: A row of `zoo.FORMS`; "plain" has no skips: the fully-fledged plain network of Yu
            & Tomasi.
        **top: `include_top`, `pooling`, `classifier_activation`, `weights`, `name`.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if `depth` is not 6 n + 2, `variant` is unknown, or `input_shape` too small.

    Example:

    >>> cifar_resnet(20).count_params()
    274442

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 4 and Table 1; He et al. (2016),
    arXiv:1603.05027.
    """
    blocks = blocks_of(depth)
    stages = tuple((width, blocks, 2 if width > 16 else 1) for width in (16, 32, 64))
    top = {"name": f"cifar_resnet{depth}", **top}
    return preactivated(16, stages, classes, input_shape, top, variant)


def resnet110(classes=10, input_shape=(32, 32, 3), **top):
    """`cifar_resnet(110)`: 1,742,762 parameters in all, 1,748,612 with `classes=100`.

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 4.
    """
    return cifar_resnet(110, classes, input_shape, **{"name": "resnet110", **top})


def single_representation_resnet(classes=10, input_shape=(32, 32, 3), **top):
    """Ten blocks of 100 channels, one resolution: 1,829,210 parameters, 1,973,300 for 100 classes.

    The classifier reads 4 x 4 averages of 8 x 8 pixels: 1,600 numbers. Other arguments, result and
    errors are those of `cifar_resnet`.

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 4.
    """
    top = {"name": "single_representation_resnet", **top}
    return preactivated(100, ((100, 10, 1),), classes, input_shape, top)


def avg_pooling_resnet(classes=10, input_shape=(32, 32, 3), **top):
    """Three stages of ten blocks of 150 channels, 2 x 2 averages between: 12,201,310 parameters.

    12,214,900 with `classes=100`. The text says a pool after each stage; with its 8 x 8 average
    before the classifier, and its count, only two fit. Other arguments, result and errors are
    those of `cifar_resnet`.

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 4.
    """
    top = {"name": "avg_pooling_resnet", **top}
    stages = ((150, 10, 1), (150, 10, "pool"), (150, 10, "pool"))
    return preactivated(150, stages, classes, input_shape, top)


def wide_resnet(classes=10, input_shape=(32, 32, 3), **top):
    """4, 5 and 5 blocks of 160, 320 and 640 channels: 45,732,842 parameters.

    45,790,532 with `classes=100`. The text's "four blocks" a stage do not meet its count; 14
    blocks do, and are what its figure shows. Other arguments, result and errors are those of
    `cifar_resnet`.

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 4.
    """
    top = {"name": "wide_resnet", **top}
    stages = ((160, 4, 1), (320, 5, 2), (640, 5, 2))
    return preactivated(16, stages, classes, input_shape, top)


def shared_resnet(
    depth=110, batch_norm="unshared", classes=10, input_shape=(32, 32, 3), gamma=None, **top
):
    """`cifar_resnet` whose stages use one set of convolutions from their sixth block on.

    Five blocks of a stage have convolutions of their own, the rest are one block used again and
    again. Trainable parameters, unshared normalisation, with 10 and 100 classes: depth 110:
    570,762 and 576,612; 146: 573,450 and 579,300; 182: 576,138 and 581,988; "shared": those of
    `cifar_resnet(38)`.

    Args:
        depth: 6 n + 2 with n of 7 or more.
        batch_norm: "unshared": each use has statistics, gamma and beta of its own, gamma starting
            at 0.1; "unshared_statistics" and "unshared_affine": only those are its own (gamma 1
            and 0.1); "shared": none (gamma 1), the naive sharing of the paper.
        classes: How many the classifier tells apart.
        input_shape: `(height, width, channels)`.
        gamma: Initial gamma of the shared blocks' normalisations; `None` is as above.
        **top: `include_top`, `pooling`, `classifier_activation`, `weights`, `name`.

    Returns:
        A `keras.Model`. Its layer `stage1_shared` is called once for each block it stands for.

    Raises:
        ValueError: if `depth` or `batch_norm` is unknown, or `input_shape` too small.

    Example:

    >>> model = shared_resnet(110)
    >>> len(model.get_layer("stage3_shared")._inbound_nodes)
    13

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 5, Table 1 and Figs 8 and 9.
    """
    blocks = blocks_of(depth)
    if blocks < UNSHARED + 2:
        raise ValueError(
            f"`depth` must be at least {6 * (UNSHARED + 2) + 2}: the first {UNSHARED} blocks of a "
            f"stage are not shared. Received: depth={depth}. Take cifar_resnet({depth})."
        )
    if batch_norm not in SHARE:
        raise ValueError(
            f"`batch_norm` must be one of {', '.join(map(repr, SHARE))}. "
            f"Received: batch_norm={batch_norm!r}"
        )
    share, start = SHARE[batch_norm]
    gamma = start if gamma is None else gamma
    stages = tuple((width, UNSHARED, 2 if width > 16 else 1) for width in (16, 32, 64))
    again = {"uses": blocks - UNSHARED, "share": share, "gamma": gamma}
    top = {"name": f"shared_resnet{depth}_{batch_norm}", **top}
    return preactivated(16, stages, classes, input_shape, top, again=again)


def blocks_of(depth):
    """n of a network of 6 n + 2 layers."""
    if not isinstance(depth, int) or depth < 8 or (depth - 2) % 6:
        raise ValueError(
            f"`depth` must be 6 n + 2, as three stages of n blocks of two convolutions and two "
            f"more layers have: 8, 14, 20, 26, 32, 38, 44, 56, 110. Received: depth={depth!r}"
        )
    return (depth - 2) // 6


def preactivated(stem, stages, classes, input_shape, top, variant="residual", again=None):
    """Stem, stages, one more normalisation and ReLU, averages of 8 x 8, classifier.

    Args:
        stem: Channels of the first convolution.
        stages: `(channels, blocks, strides)` each; "pool" for strides averages 2 x 2 before it.
        classes: How many the classifier tells apart.
        input_shape: `(height, width, channels)`.
        top: Arguments of `ends.classifier`.
        variant: A row of `zoo.FORMS`.
        again: Arguments of the block that each stage ends in and uses `again["uses"]` times.
    """
    inputs = input_and_head.image_input(
        input_shape, 8 * 2 ** sum(stage[2] != 1 for stage in stages)
    )
    conv = {"padding": "same", "data_format": "channels_last", "name": "stem_conv"}
    x = layers.Conv2D(stem, 3, kernel_initializer=KaimingNormal(), **conv)(inputs)
    for stage, (width, blocks, strides) in enumerate(stages, 1):
        block = {"variant": variant, "use_bias": True, "stage": stage}
        if strides == "pool":
            x, strides = layers.AveragePooling2D(2, name=f"stage{stage}_pool")(x), 1
        for i in range(blocks):
            name = f"stage{stage}_block{i:02d}"
            x = ResidualBlock(width, strides if i == 0 else 1, name=name, **block)(x)
        if again is not None:
            shared = ResidualBlock(width, name=f"stage{stage}_shared", **block, **again)
            for use in range(again["uses"]):
                x = shared(x, use=use)
    x = layers.BatchNormalization(name="last_norm")(x)
    x = layers.ReLU(name="last_relu")(x)
    head = [layers.AveragePooling2D(8, name="avg_pool"), layers.Flatten(name="flatten")]
    return input_and_head.classifier(inputs, x, head, classes, KaimingNormal(), **top)
