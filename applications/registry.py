"""Shared by the builders: their names, input and classifier, and the loading of weights."""

import fnmatch
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypedDict

import keras
from keras import layers

from zoo.applications import weights
from zoo.applications.weights import BUILDERS
from zoo.checks import check_choice, check_integers, is_integer, nearest, require
from zoo.initializers import Uniform
from zoo.layers.gating import HALF
from zoo.types import PathLike, Shape, Tensor

P = ParamSpec("P")


class Top(TypedDict, total=False):
    """Arguments of `keras.applications` that every builder of an image network takes.

    Attributes:
        include_top: False ends the model in the last features.
        classifier_activation: "softmax", or `None` for logits.
        weights: Path of a `.weights.h5` file, a name of `zoo.list_weights()`, the address
            "hf://OWNER/REPOSITORY" of a model on the Hugging Face Hub, or `None`.
        name: Name of the model.
    """

    include_top: bool
    classifier_activation: str | None
    weights: PathLike | None
    name: str | None


SHARED = """
    variant: A row of `zoo.FORMS`.
    classes: Number of classes.
    input_shape: `(height, width, channels)`.
"""
CIFAR = (32, 32, 3)  # shape of an image
ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n     .*)*)", re.MULTILINE)  # of a section `Args:`
ARGUMENTS: dict[str, dict[str, str]] = {}  # their descriptions, by module of the builders
DEFAULTS = {"include_top": True, "classifier_activation": "softmax"}  # the others: None


def builder(name: str = "") -> Callable[[Callable[P, keras.Model]], Callable[P, keras.Model]]:
    """Make a function a builder of `list_models`, whose `weights` are loaded into its model.

    Its `**top: Unpack[Top]` becomes the keyword arguments that `Top` lists. Its docstring lists all
    arguments: also those that `SHARED`, `Top` or an earlier builder of its module describes.

    Args:
        name: Default name of the model, with other arguments in braces; else the function's.
    """

    def decorate(function: Callable[P, keras.Model]) -> Callable[P, keras.Model]:
        signature, docstring = _with_options(function)

        @functools.wraps(function)
        def build(*args: P.args, **kwargs: P.kwargs) -> keras.Model:
            for key in kwargs.keys() - signature.parameters.keys():
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {key!r}. It has "
                    f"{', '.join(signature.parameters)}{nearest(key, signature.parameters)}"
                )
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            file = given["weights"]
            if file is not None:
                file = weights.path_for(file, function.__name__, given)
            if given.get("name", "") is None:
                given["name"] = (name or function.__name__).format(**given)
            model = function(**given)  # type: ignore[call-arg]
            if file is not None:
                weights.load(model, file)
            return model

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
    for key, kind in typing.get_type_hints(Top).items():
        keyword = inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
        parameters.append(keyword.replace(default=DEFAULTS.get(key)))
    head, _, rest = docstring.partition("\nArgs:\n")
    own, _, rest = rest.partition("\n\n")
    shared = SHARED + inspect.getdoc(Top).partition("\nAttributes:\n")[2]
    own, shared = (dict(ARGUMENT.findall(section)) for section in (own, shared))
    known = ARGUMENTS.setdefault(function.__module__, {})
    known |= own
    texts = {**known, **shared, **own}
    args = "\n".join(f"    {parameter.name}: {texts[parameter.name]}" for parameter in parameters)
    docstring = f"{head.rstrip()}\n\nArgs:\n{args}\n\n{rest}".rstrip()
    return signature.replace(parameters=parameters), docstring


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the models that match a shell pattern, such as "highway*", sorted.

    Example:
    >>> list_models("*resnet50")
    ['highway_full_resnet50', 'highway_resnet50', 'resnet50']
    """
    return sorted(fnmatch.filter(BUILDERS, pattern))


def create_model(name: str, /, **arguments: Any) -> keras.Model:
    """Return the model called `name`, an entry of `list_models()`, of its builder's arguments.

    Raises:
        ValueError: if there is no such model.
        TypeError: if its builder has no such argument.

    Example:
    >>> create_model("highway_mnist", width=32).count_params()
    151690
    """
    check_choice(list_models(), name=name)
    return BUILDERS[name](**arguments)


def image_input(input_shape: Shape, smallest: int) -> Tensor:
    """Return the input of a network that needs images of at least `smallest` pixels a side.

    The shape is `(height, width, channels)`, where None is a side that may vary.
    """
    order = keras.config.image_data_format()
    expected = "'channels_last': call keras.config.set_image_data_format before you build a network"
    require(order == "channels_last", expected, image_data_format=order)
    shape = tuple(input_shape) if isinstance(input_shape, Iterable) else ()
    sides_fit = all(side is None or is_integer(side, 1) for side in shape[:2])
    valid = len(shape) == 3 and is_integer(shape[2], 1) and sides_fit
    require(valid, "(height, width, channels), channels last and known", input_shape=input_shape)
    large = all(side is None or side >= smallest for side in shape[:2])
    expected = f"at least {smallest} x {smallest} pixels, channels last, which are downsampled. "
    expected += f"Enlarge the images, as by keras.layers.Resizing({smallest}, {smallest})"
    require(large, expected, input_shape=shape)
    return keras.Input(shape, name="images")


def classifier(
    inputs: Tensor,
    x: Tensor,
    head: Sequence[keras.Layer],
    classes: int,
    initializer: keras.Initializer,
    top: Top,
    uniform_bias: bool = False,
) -> keras.Model:
    """Return the model from `inputs` to class probabilities, or to features.

    `head` are the layers between `x`, the last features, `(batch, height, width, channels)`, and
    the classifier, whose kernel `initializer` starts. With `uniform_bias` its biases start as those
    of PyTorch's linear layers do, from U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)), instead of at zero.
    In mixed precision the classifier is float32, as a sum over classes follows.

    Raises:
        ValueError: if the sides of `x` are unknown where the head needs them, or are not covered by
            the windows of an average.
    """
    if top.get("include_top", True):
        check_integers(1, classes=classes)
        for layer in head:
            windows = getattr(layer, "pool_size", ())
            pairs = zip(x.shape[1:], windows, strict=False)  # of layers without windows none
            covered = not any(side and side % window for side, window in pairs)
            expected = f"such that windows of {windows} pixels, averaged before the classifier, "
            expected += f"cover the last features, here {tuple(x.shape[1:])}. Resize the images"
            require(covered, expected, input_shape=tuple(inputs.shape[1:]))
            x = layer(x)
        expected = "of known sides, as the classifier reads each position, or include_top=False"
        require(x.shape[-1] is not None, expected, input_shape=tuple(inputs.shape[1:]))
        x = layers.Dense(
            int(classes),
            top.get("classifier_activation", "softmax"),
            kernel_initializer=initializer,
            bias_initializer=Uniform(x.shape[-1] ** -0.5) if uniform_bias else "zeros",
            dtype=full_precision(),
            name="predictions",
        )(x)
    return keras.Model(inputs, x, name=top.get("name"))


def full_precision() -> Any:
    """Return the dtype policy of a layer that a sum over classes follows: float32 for half ones."""
    policy = keras.config.dtype_policy()
    return "float32" if policy.compute_dtype in HALF else policy
