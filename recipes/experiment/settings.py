"""Settings of experiments: dataclasses whose fields are the flags of the command line."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

PRECISIONS = ("float32", "float64", "mixed_bfloat16", "mixed_float16")


def setting(default: Any, text: str, choices: Sequence[str] = (), least: int = 1) -> Any:
    """Return a dataclass field with the help text of its flag.

    Args:
        default: Value of the field.
        text: Help text, one sentence that names the source of the default: "section 4", "ours".
        choices: All valid values of a string; none: any.
        least: Lowest valid value of an integer.
    """
    metadata = {"help": text, "choices": choices, "least": least}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of any experiment; a subclass adds its own as fields made by `setting`.

    A check in `__post_init__` raises ValueError, which ends a command before any work is lost.
    """

    precision: str = setting("float32", "Dtype policy of the layers.", PRECISIONS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSettings(Settings):
    """Settings of an experiment that trains classifiers of images."""

    data: str = setting("mnist", "Data set: mnist, cifar10, cifar100, or any name in --data_dir.")
    train_examples: int | None = setting(None, "Train on the first N images only; none: all.")
    test_examples: int | None = setting(None, "Test on the first N images only; none: all.")
    epochs: int = setting(10, "Number of epochs.")
    batch: int = setting(100, "Images in a batch.")
    accumulate: int = setting(1, "Micro-batches of a batch, whose gradients are accumulated.")
    remat: bool = setting(False, "Recompute the activations of blocks in the backward pass.")


def difference(settings: Settings, reference: Settings) -> list[str]:
    """Return how settings differ from a paper's, a phrase each; of fields that both have.

    Example:
    >>> difference(ImageSettings(epochs=3), ImageSettings(epochs=400))
    ['epochs 3 (the paper: 400)']
    """
    phrases = []
    for field in dataclasses.fields(reference):
        if not hasattr(settings, field.name):
            continue
        value = getattr(settings, field.name)
        paper = getattr(reference, field.name)
        if value != paper:
            name = field.name.replace("_", " ")
            phrases.append(f"{name} {_text(value)} (the paper: {_text(paper)})")
    return phrases


def _text(value):
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "all" if value is None else f"{value}"


def define(values: flags.FlagValues, kind: type, defaults: Mapping[str, Any]) -> None:
    """Define a flag for each field of a dataclass.

    Args:
        values: The flags are added to these; their value is None unless given.
        kind: The dataclass.
        defaults: Instances of it by name of the scale, for the help text.
    """
    for field in dataclasses.fields(kind):
        if field.name in values:  # of another scale's class
            continue
        text = field.metadata["help"] + _defaults(field.name, defaults)
        choices = field.metadata.get("choices")
        item = _item(field.type)
        if isinstance(field.type, types.GenericAlias):
            flags.DEFINE_list(field.name, None, text, flag_values=values)
        elif choices:
            flags.DEFINE_enum(field.name, None, choices, text, flag_values=values)
        elif item is bool:
            flags.DEFINE_bool(field.name, None, text, flag_values=values)
        elif item is int:
            least = field.metadata["least"]
            flags.DEFINE_integer(field.name, None, text, lower_bound=least, flag_values=values)
        elif item is float:
            flags.DEFINE_float(field.name, None, text, flag_values=values)
        else:
            flags.DEFINE_string(field.name, None, text, flag_values=values)


def given(values: flags.FlagValues, kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass whose flags the command line gave.

    Raises:
        ValueError: if an item of a list is invalid.
    """
    found = {}
    for field in dataclasses.fields(kind):
        value = values[field.name].value
        if value is None:
            continue
        if isinstance(field.type, types.GenericAlias):
            item = _item(field.type)
            choices = field.metadata.get("choices")
            try:
                value = tuple(map(item, value))
            except ValueError as error:
                raise ValueError(f"`--{field.name}`: {error}") from error
            if choices and {*value} - {*choices}:
                raise ValueError(
                    f"`--{field.name}` must be of {', '.join(choices)}. Received: {value}"
                )
        found[field.name] = value
    return found


def _item(kind):
    """Return the type of a flag's value, or of the items of its list."""
    if isinstance(kind, types.GenericAlias):
        return typing.get_args(kind)[0]
    if isinstance(kind, types.UnionType):
        return next(one for one in typing.get_args(kind) if one is not type(None))
    return kind


def _defaults(name, defaults):
    by_value: dict[str, list[str]] = {}
    for scale, settings in defaults.items():
        if hasattr(settings, name):
            value = getattr(settings, name)
            by_value.setdefault("none" if value is None else _text(value), []).append(scale)
    if len(by_value) == 1 and len(next(iter(by_value.values()))) == len(defaults):
        return f" Default: {next(iter(by_value))}."
    return " Default: " + ", ".join(f"{v} ({'/'.join(s)})" for v, s in by_value.items()) + "."
