"""Fully connected networks of any depth: Srivastava et al. (2015), section 3.1."""

import keras

from zoo.applications import input_and_head
from zoo.initializers import GlorotUniform, KaimingNormal
from zoo.layers.highway import HighwayDense
from zoo.layers.highway_stack import HighwayDenseStack


def highway_mlp(
    depth=50,
    units=50,
    activation="relu",
    variant="coupled",
    gate_bias=-2.0,
    classes=10,
    input_shape=(784,),
    stacked=None,
    **top,
):
    """One plain layer, `depth` - 1 highway layers of one width, a classifier.

    `highway_mlp(10)` has 85,660 parameters, depth 20: 136,660, 50: 289,660, 100: 544,660; CIFAR-100
    (`highway_mlp(50, input_shape=(3072,), classes=100)`): 408,650.

    Weights start as He et al. draw them for ReLU and as Glorot and Bengio do for other
    activations, which is how the paper's "normalized initialization" is read here.

    Args:
        depth: Layers, without the classifier.
        units: Width.
        activation: Of the first layer and of H.
        variant: A row of `zoo.FORMS`; "plain" makes `plain_mlp`.
        gate_bias: Initial logit of T; the paper searches -1 to -10.
        classes: How many the classifier tells apart.
        input_shape: Without the batch; flattened.
        stacked: Whether the layers are one scanned `HighwayDenseStack` instead of `depth` - 1
            `HighwayDense`, which Keras's graphs hold some 900 of. `None`: from depth 200.
        **top: `include_top`, `classifier_activation`, `weights`, `name`.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if `depth` is less than 2.

    Example:

    >>> highway_mlp(10).count_params()
    85660

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, section 3.1, Figs 1 to 4.
    """
    if not isinstance(depth, int) or depth < 2:
        raise ValueError(
            f"`depth` counts the plain first layer and at least one more, so it must be an integer "
            f"of 2 or more. Received: depth={depth!r}"
        )
    initializer = KaimingNormal() if activation == "relu" else GlorotUniform()
    inputs = keras.Input(tuple(input_shape), name="inputs")
    x = keras.layers.Flatten(name="flatten")(inputs)
    first = {"kernel_initializer": initializer.clone(), "name": "first"}
    x = keras.layers.Dense(units, activation, **first)(x)
    block = {"variant": variant, "gate_bias": gate_bias, "stage": 1}
    block["kernel_initializer"] = initializer
    if stacked or (stacked is None and depth >= 200):
        x = HighwayDenseStack(depth - 1, units, activation, name="stage1_stack", **block)(x)
    else:
        for i in range(depth - 1):
            x = HighwayDense(units, activation, name=f"stage1_block{i:02d}", **block)(x)
    top = {"name": f"highway_mlp{depth}", **top}
    return input_and_head.classifier(inputs, x, (), classes, initializer.clone(), **top)


def plain_mlp(depth=50, units=71, activation="relu", classes=10, input_shape=(784,), **top):
    """`depth` plain layers of one width and a classifier: what `highway_mlp` is compared with.

    71 units make a layer as large as a highway layer of 50. `plain_mlp(10)` has 102,463
    parameters, depth 20: 153,583, 50: 306,943, 100: 562,543.

    Args:
        depth: Layers, without the classifier.
        units: Width.
        activation: Of all of them.
        classes: How many the classifier tells apart.
        input_shape: Without the batch; flattened.
        **top: `stacked` of `highway_mlp`, `include_top`, `classifier_activation`, `weights`,
            `name`.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if `depth` is less than 2.

    Example:

    >>> plain_mlp(10).count_params()
    102463

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, section 3.1, Fig. 1.
    """
    top = {"name": f"plain_mlp{depth}", **top}
    return highway_mlp(depth, units, activation, "plain", 0.0, classes, input_shape, **top)
