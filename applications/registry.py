"""The models by name, as users of model zoos expect to list and make them."""

import difflib
import fnmatch
import inspect

from zoo import applications


def builders():
    """The functions of `zoo.applications` that make a model, by name."""
    found = vars(applications).items()
    return {k: v for k, v in found if inspect.isfunction(v) and v.__module__ != __name__}


def list_models(pattern="*"):
    """Names of the models that match a shell pattern, sorted.

    Args:
        pattern: E.g. "highway*".

    Example:

    >>> list_models("*resnet50")
    ['highway_full_resnet50', 'highway_resnet50', 'resnet50']
    """
    return sorted(fnmatch.filter(builders(), pattern))


def create_model(name, **arguments):
    """The model called `name`.

    Args:
        name: One of `list_models()`.
        **arguments: Of its builder.

    Raises:
        ValueError: if there is no such model; the message names the most similar ones.

    Example:

    >>> create_model("highway_mnist", width=32).count_params()
    151690
    """
    known = builders()
    if name not in known:
        similar = difflib.get_close_matches(str(name), known) or sorted(known)
        raise ValueError(
            f"There is no model {name!r}. Did you mean {', '.join(similar)}? "
            f"zoo.list_models() lists all."
        )
    return known[name](**arguments)
