"""The builders by name, and what they have in common: options of the top, and trained weights."""

import difflib
import fnmatch
import functools
import inspect
import pathlib
import typing
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import keras

from zoo import cards
from zoo.applications.input_and_head import DEFAULTS
from zoo.types import PathLike

BUILDERS: dict[str, Callable[..., keras.Model]] = {}
NOT_COMPARED = {  # arguments of a builder that may differ from those of trained weights
    *DEFAULTS,
    "input_shape",  # convolutions fit any; Keras compares the shapes of weights
    *("first", "gamma", "gate_bias", "initializer", "limit"),  # initial values
    *("batch_size", "num_steps", "max_distinct", "products", "vocabulary"),
}
P = ParamSpec("P")


def builder(name: str = "") -> Callable[[Callable[P, keras.Model]], Callable[P, keras.Model]]:
    """Make a function a builder of `list_models`, which loads trained weights by name.

    The function's `**top: Unpack[Top]` becomes the keyword arguments that `Top` lists, in its
    signature and, if it has a section `Args:`, in its docstring. A name of `zoo.list_weights()`
    for `weights` reaches the function as the path of the file, if the arguments are those of the
    trained network.

    Args:
        name: Default name of the model, with other arguments in braces; else the function's.

    Raises:
        ValueError: of the builder, if there are no such weights, or they are of another network.
    """

    def decorate(function: Callable[P, keras.Model]) -> Callable[P, keras.Model]:
        signature, docstring = _with_options(function)

        @functools.wraps(function)
        def build(*args: P.args, **kwargs: P.kwargs) -> keras.Model:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            bound.apply_defaults()
            given = bound.arguments
            if given["weights"] is not None:
                given["weights"] = _weights_file(given["weights"], function.__name__, given)
            if given.get("name", "") is None:
                given["name"] = (name or function.__name__).format(**given)
            return function(**given)  # type: ignore[call-arg]

        build.__doc__ = docstring
        build.__signature__ = signature  # type: ignore[attr-defined]
        BUILDERS[function.__name__] = build
        return build

    return decorate


def _with_options(function):
    """Return a function's signature and docstring with the options of its `**top: Unpack[Top]`."""
    signature, docstring = inspect.signature(function), inspect.getdoc(function) or ""
    *parameters, last = signature.parameters.values()
    if last.kind is not inspect.Parameter.VAR_KEYWORD:
        return signature, docstring
    (top,) = typing.get_args(last.annotation)
    for key, kind in typing.get_type_hints(top).items():
        keyword = inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
        parameters.append(keyword.replace(default=DEFAULTS[key]))
    signature = signature.replace(parameters=parameters)
    head, args, rest = docstring.partition("\nArgs:\n")
    if not args:
        return signature, docstring
    own, blank, rest = rest.partition("\n\n")
    shared = inspect.getdoc(top).partition("\nAttributes:\n")[2]
    return signature, f"{head}{args}{own}\n{shared}{blank}{rest}"


def _weights_file(weights: PathLike, name: str, given: Mapping[str, Any]) -> pathlib.Path:
    """Return the file of trained weights for the network of a builder's arguments."""
    if str(weights).endswith(cards.SUFFIX) and pathlib.Path(weights).is_file():
        return pathlib.Path(weights)
    if not isinstance(weights, str) or weights.endswith(cards.SUFFIX):
        raise ValueError(
            f"`weights` must be None, a name of `zoo.list_weights()` or the path of a "
            f"{cards.SUFFIX} file. Received: weights={str(weights)!r}, which is no such file."
        )
    card = cards.card(weights)
    different = _differences(card, given)
    if name != card.builder or different:
        arguments = ", ".join(f"{key}={value!r}" for key, value in card.arguments.items())
        raise ValueError(
            f"`weights` must be those of this very network. Received: weights={weights!r}, of "
            f"zoo.{card.builder}({arguments}), for zoo.{name}({', '.join(different)}). "
            f"zoo.weights.build({weights!r}) makes the network of these weights."
        )
    return cards.path(weights)


def _differences(card, given):
    """Return the arguments in which a network differs from that of trained weights."""
    parameters = inspect.signature(BUILDERS[card.builder]).parameters
    expected = {key: parameter.default for key, parameter in parameters.items()} | card.arguments
    ignored = NOT_COMPARED | (set() if given.get("include_top", True) else {"classes"})
    values = {key: value for key, value in given.items() if key not in ignored}
    lists = {key: [*value] if isinstance(value, tuple) else value for key, value in values.items()}
    different = [key for key, value in lists.items() if value != expected.get(key)]
    words = given.get("vocabulary")
    if words is not None and words.fingerprint != cards.vocabulary(card).fingerprint:
        different.append("vocabulary")
    return [f"{key}={given[key]!r}" for key in different]


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
        ValueError: if there is no such model; the message names the most similar ones.
        TypeError: if its builder has no such argument.

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
    return BUILDERS[name](**arguments)
