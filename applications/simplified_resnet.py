"""The simplified networks of Yu & Tomasi (2019): one convolution a block, no normalisation."""

from keras import layers

from zoo.applications import input_and_head
from zoo.initializers import HardtMa, KaimingNormal, Uniform
from zoo.layers.dominant import SimplifiedDominant
from zoo.layers.simplified import SimplifiedPlain, SimplifiedResidual


def simplified_plain_net(
    depth=20, classes=10, input_shape=(32, 32, 3), identity="pad", initializer=None, **top
):
    """The plain network of 3 n + 2 layers: 269,034 parameters at depth 20.

    463,018 at 32 and 657,002 at 44. A convolution of 16 channels, three groups of n blocks
    ReLU(conv(x) + b) with 16, 32 and 64, averages, a classifier; every kernel 3 x 3, padded
    symmetrically. Its fully-fledged counterpart, with normalisation and two convolutions a
    block, is `cifar_resnet(depth, variant="plain")`.

    Args:
        depth: 3 n + 2: 20, 32 and 44 in the paper.
        classes: How many the classifier tells apart.
        input_shape: `(height, width, channels)`.
        identity: Which identity its doubling kernels contain, "pad" or "duplicate"; see
            `zoo.SimplifiedResidual`.
        initializer: Of all convolutions; `None` is the paper's KWI, `KaimingNormal()`.
        **top: `include_top`, `pooling`, `classifier_activation`, `weights`, `name`.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if `depth` is not 3 n + 2, or `input_shape` too small.

    Example:

    >>> [simplified_plain_net(depth).count_params() for depth in (20, 32, 44)]
    [269034, 463018, 657002]

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise
    Stability", section 4 and Fig. 4.
    """
    top = {"name": f"simplified_plain_net{depth}", **top}
    start = initializer or KaimingNormal()
    return simplified(SimplifiedPlain, depth, classes, input_shape, identity, start, top)


def simplified_residual_net(
    depth=20, classes=10, input_shape=(32, 32, 3), identity="pad", initializer=None, **top
):
    """`simplified_plain_net` with an identity around each block: ReLU(S(x) + conv(x) + b).

    As many parameters, and the same functions: adding one to the entries of each kernel that an
    identity would have makes the plain network of it. `initializer=None` is the paper's HMWI,
    `HardtMa()`, for the first convolution too. Its fully-fledged counterpart is `cifar_resnet`.
    Other arguments, result and errors are those of `simplified_plain_net`.

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise
    Stability", section 4 and Fig. 4.
    """
    top = {"name": f"simplified_residual_net{depth}", **top}
    start = initializer or HardtMa()
    return simplified(SimplifiedResidual, depth, classes, input_shape, identity, start, top)


def simplified_dominant_net(depth=20, classes=10, input_shape=(32, 32, 3), initializer=None, **top):
    """`simplified_plain_net` whose kernels keep only what leads from a channel to its own.

    7,818 parameters at depth 20, 12,298 at 32 and 16,778 at 44. The first convolution and the
    classifier are whole. Other arguments, result and errors are those of `simplified_plain_net`.

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise
    Stability", appendix D.3, Table 5.
    """
    top = {"name": f"simplified_dominant_net{depth}", **top}
    start = initializer or HardtMa()
    return simplified(SimplifiedDominant, depth, classes, input_shape, "duplicate", start, top)


def simplified(block, depth, classes, input_shape, identity, initializer, top):
    """The network of 3 n + 2 layers whose 3 n inner ones are `block`s."""
    if not isinstance(depth, int) or depth < 5 or (depth - 2) % 3:
        raise ValueError(
            f"`depth` must be 3 n + 2, as three groups of n convolutions and two more layers "
            f"have: 5, 8, ..., 20, 32, 44. Received: depth={depth!r}"
        )
    inputs = input_and_head.image_input(input_shape, 32)
    conv = {"activation": "relu", "padding": "same", "data_format": "channels_last"}
    first = layers.Conv2D(16, 3, kernel_initializer=initializer.clone(), name="stem_conv", **conv)
    x = first(inputs)
    for stage, width in enumerate((16, 32, 64), 1):
        for i in range((depth - 2) // 3):
            x = block(
                width,
                strides=2 if stage > 1 and i == 0 else 1,
                identity=identity,
                kernel_initializer=initializer,
                stage=stage,
                name=f"stage{stage}_block{i:02d}",
            )(x)
    head = [layers.AveragePooling2D(8, name="avg_pool"), layers.Flatten(name="flatten")]
    return input_and_head.classifier(inputs, x, head, classes, Uniform(None), **top)
