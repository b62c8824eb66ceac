"""The models by name, as users of model collections expect to list and create them."""

import difflib
import fnmatch
import inspect
from typing import Any

import keras

from zoo.applications.char_lm import char_lm
from zoo.applications.cifar_resnet import (
    avg_pooling_resnet,
    cifar_resnet,
    resnet110,
    shared_resnet,
    single_representation_resnet,
    wide_resnet,
)
from zoo.applications.highway_cnn import (
    highway_a,
    highway_b,
    highway_c,
    highway_cifar,
    highway_mnist,
)
from zoo.applications.highway_mlp import highway_mlp, plain_mlp
from zoo.applications.resnet50 import highway_full_resnet50, highway_resnet50, resnet50
from zoo.applications.simplified_resnet import (
    simplified_dominant_net,
    simplified_plain_net,
    simplified_residual_net,
)

BUILDERS = {
    builder.__name__: builder
    for builder in (
        *(avg_pooling_resnet, cifar_resnet, resnet110, shared_resnet, wide_resnet),
        *(char_lm, single_representation_resnet),
        *(highway_a, highway_b, highway_c, highway_cifar, highway_mnist, highway_mlp, plain_mlp),
        *(highway_full_resnet50, highway_resnet50, resnet50),
        *(simplified_dominant_net, simplified_plain_net, simplified_residual_net),
    )
}


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the models that match a shell pattern, sorted.

    Args:
        pattern: E.g. "highway*".

    Example:
    >>> list_models("*resnet50")
    ['highway_full_resnet50', 'highway_resnet50', 'resnet50']
    """
    return sorted(fnmatch.filter(BUILDERS, pattern))


def create_model(name: str, **arguments: Any) -> keras.Model:
    """Return the model called `name`.

    Args:
        name: An entry of `list_models()`.
        **arguments: Arguments of its builder.

    Raises:
        ValueError: if there is no such model, or its builder has no such argument; the message
            names the most similar models, or the builder's arguments.

    Example:
    >>> create_model("highway_mnist", width=32).count_params()
    151690
    """
    if name not in BUILDERS:
        similar = difflib.get_close_matches(str(name), BUILDERS) or sorted(BUILDERS)
        raise ValueError(
            f"There is no model {name!r}. Did you mean {', '.join(similar)}? "
            f"zoo.list_models() lists all."
        )
    known = inspect.signature(BUILDERS[name]).parameters
    if unknown := [argument for argument in arguments if argument not in known]:
        raise ValueError(
            f"`{name}` takes {', '.join(known)}. Received: {', '.join(unknown)}. `weights` is "
            f"a name of `zoo.list_weights()` or the path of a .weights.h5 file."
        )
    return BUILDERS[name](**arguments)
