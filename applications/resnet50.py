"""The 50-layer networks for ImageNet, residual and highway: Greff et al. (2017), section 5.1."""

from collections.abc import Sequence
from typing import Unpack

import keras
from keras import layers

from zoo.applications.registry import Top, builder, classifier, image_input
from zoo.backend.layers import BatchNormalization, Conv2D, MaxPooling2D
from zoo.checks import as_integers, require
from zoo.initializers import KaimingNormal, Uniform
from zoo.layers.residual_block import ResidualBlock
from zoo.types import Shape

BLOCKS = (3, 4, 6, 3)
RESNET = (64, 128, 256, 512)
HIGHWAY = (48, 88, 192, 376)  # as many parameters, multiples of 8


@builder()
def resnet50(
    classes: int = 1000,
    input_shape: Shape = (224, 224, 3),
    batch_norm: bool = True,
    widths: Sequence[int] = RESNET,
    blocks: Sequence[int] = BLOCKS,
    **top: Unpack[Top],
) -> keras.Model:
    """ResNet-50 (v1): 25,557,032 trainable parameters, 25,530,472 without batch normalization.

    Convolutions have no biases where they are normalized; `keras.applications.ResNet50` has, and
    so counts 25,636,712 in all. The stride of a stage is in the first 1 x 1 convolution of its
    first block. ReLU follows each sum.

    Args:
        batch_norm: False gives convolutions biases and initializes the last one of each branch
            with 1 / sqrt(16) of the scale, 16 being the number of blocks: ours, as the paper does
            not say.
        widths: Channels of a block's 3 x 3 convolution, stage by stage.
        blocks: Number of blocks of each stage.

    Raises:
        ValueError: if images are smaller than 32 x 32, or `blocks` are not positive, one a width.

    Reference: He et al. (2015), arXiv:1512.03385, Table 1; Greff, Srivastava, Schmidhuber (2017),
    arXiv:1612.07771, section 5.1 and Table 1b.
    """
    return _bottlenecks("residual", False, classes, input_shape, batch_norm, widths, blocks, top)


@builder()
def highway_resnet50(
    classes: int = 1000,
    input_shape: Shape = (224, 224, 3),
    batch_norm: bool = True,
    widths: Sequence[int] = HIGHWAY,
    blocks: Sequence[int] = BLOCKS,
    **top: Unpack[Top],
) -> keras.Model:
    """50 layers with coupled gates, as many parameters as `resnet50`: 25,560,216 trainable.

    y = ReLU(H(x) · T(x) + P(x) · (1 - T(x))), with H and T whole bottleneck branches of the same
    receptive field. The paper reduces the feature maps to match ResNet-50's parameters and gives
    no widths; 48, 88, 192 and 376 do so to 0.01 % and are multiples of 8. Assumptions: the ReLU
    after the sum stays, and where a stage begins the projected input is the skip. Gates start at
    -1, in the beta of T's last normalization. Errors are those of `resnet50`.

    Reference: Greff, Srivastava, Schmidhuber (2017), arXiv:1612.07771, section 5.1, Table 1b.
    """
    return _bottlenecks("coupled", False, classes, input_shape, batch_norm, widths, blocks, top)


@builder()
def highway_full_resnet50(
    classes: int = 1000,
    input_shape: Shape = (224, 224, 3),
    batch_norm: bool = True,
    widths: Sequence[int] = HIGHWAY,
    blocks: Sequence[int] = BLOCKS,
    **top: Unpack[Top],
) -> keras.Model:
    """`highway_resnet50` whose H ends in a third ReLU: the paper's "Highway-Full".

    Errors, number of parameters and reference are those of `highway_resnet50`.
    """
    return _bottlenecks("coupled", True, classes, input_shape, batch_norm, widths, blocks, top)


def _bottlenecks(variant, closing_relu, classes, input_shape, batch_norm, widths, blocks, top):
    """Return stem, stages of bottleneck blocks of the given widths, average and classifier."""
    widths = as_integers(1, widths=widths)
    expected = f"positive numbers, one for each of the {len(widths)} widths"
    blocks = as_integers(1, blocks=blocks)
    require(len(blocks) == len(widths), expected, blocks=blocks)
    inputs = image_input(input_shape, 32)
    initializer = KaimingNormal("out")  # fb.resnet.torch
    x = layers.ZeroPadding2D(3, name="stem_pad")(inputs)  # Keras's "same" would be off by one
    options = {"use_bias": not batch_norm, "kernel_initializer": initializer.clone()}
    x = Conv2D(widths[0], 7, strides=2, **options, name="stem_conv")(x)
    if batch_norm:
        x = BatchNormalization(name="stem_norm")(x)
    x = layers.ReLU(name="stem_relu")(x)
    x = MaxPooling2D(3, 2, "same", name="stem_pool")(x)  # Caffe's rounding up
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True), 1):
        for i in range(count):
            x = ResidualBlock(
                width,
                strides=2 if stage > 1 and i == 0 else 1,
                bottleneck=True,
                preactivation=False,
                variant=variant,
                batch_norm=batch_norm,
                closing_relu=closing_relu,
                kernel_initializer=initializer,
                last_initializer=None if batch_norm else KaimingNormal("out", sum(blocks) ** -0.5),
                stage=stage,
                name=f"stage{stage}_block{i:02d}",
            )(x)
            x = layers.ReLU(name=f"stage{stage}_relu{i:02d}")(x)
    head = [layers.GlobalAveragePooling2D(name="avg_pool")]
    return classifier(inputs, x, head, classes, Uniform(None), top)
