"""Fully connected networks of any depth: Srivastava et al. (2015), section 3.1."""

from collections.abc import Callable
from typing import Any, Unpack

import keras

from zoo.applications.input_and_head import Top, classifier
from zoo.applications.registry import builder
from zoo.checks import check_integers, is_integer
from zoo.initializers import GlorotUniform, KaimingNormal
from zoo.layers.highway import HighwayDense
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
    (`highway_mlp(50, input_shape=(3072,), classes=100)`): 408,650.

    Weights are initialized after He et al. for ReLU and after Glorot and Bengio for other
    activations: our assumption about the paper's "normalized initialization".

    Args:
        depth: Number of layers, without the classifier.
        units: Width.
        activation: Activation of the first layer and of H.
        variant: A row of `zoo.FORMS`; "plain" makes `plain_mlp`.
        gate_bias: Initial logit of T; the paper searches -1 to -10.
        classes: Number of classes.
        input_shape: Shape of an example; flattened.
        stacked: True makes the highway layers one scanned `HighwayDenseStack`, False `depth` - 1
            `HighwayDense`, of which a Keras graph can hold about 900. `None`: from depth 200.

    Raises:
        ValueError: if `depth` is less than 2.

    Example:
    >>> highway_mlp(10).count_params()
    85660

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, section 3.1, Figs 1 to 4.
    """
    if not is_integer(depth, 2):
        raise ValueError(
            f"`depth` counts the plain first layer and at least one more, so it must be an integer "
            f"of 2 or more. Received: depth={depth!r}"
        )
    check_integers(1, units=units)
    initializer = KaimingNormal() if activation == "relu" else GlorotUniform()
    inputs = keras.Input(tuple(input_shape), name="inputs")
    x = keras.layers.Flatten(name="flatten")(inputs)
    first = keras.layers.Dense(
        int(units), activation, kernel_initializer=initializer.clone(), name="first"
    )
    x = first(x)
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


@builder("plain_mlp{depth}")
def plain_mlp(
    depth: int = 50,
    units: int = 71,
    activation: str | Callable = "relu",
    classes: int = 10,
    input_shape: Shape = (784,),
    stacked: bool | None = None,
    **top: Unpack[Top],
) -> keras.Model:
    """`depth` plain layers of one width and a classifier: the baseline of `highway_mlp`.

    71 units make a layer as large as a highway layer of 50. `plain_mlp(10)` has 102,463
    parameters, depth 20: 153,583, 50: 306,943, 100: 562,543. Arguments and errors are those of
    `highway_mlp`.

    Example:
    >>> plain_mlp(10).count_params()
    102463

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, section 3.1, Fig. 1.
    """
    return highway_mlp(depth, units, activation, "plain", 0.0, classes, input_shape, stacked, **top)
