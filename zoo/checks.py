"""Checks of arguments, which are given by their names."""

import difflib
import math
import numbers
import os
import pathlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import keras
import numpy as np

KINDS = {0: "a non-negative integer", 1: "a positive integer"}


def require(valid: Any, expected: str, /, **argument: Any) -> None:
    """Raise a `ValueError` that says what an argument must be, unless it is valid."""
    ((name, value),) = argument.items()
    if not valid:
        raise ValueError(f"`{name}` must be {expected}. Received: {name}={value!r:.200}")


def is_integer(value: Any, minimum: int) -> bool:
    """Return True for an integer of `minimum` or more, NumPy's included; booleans are none."""
    known = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return known and value >= minimum


def check_integers(minimum: int, /, optional: bool = False, **arguments: Any) -> None:
    """Raise a `ValueError` unless each argument is such an integer, or None where `optional`."""
    kind = KINDS.get(minimum, f"an integer of {minimum} or more")
    for name, value in arguments.items():
        valid = is_integer(value, minimum) or optional and value is None
        require(valid, f"{kind} or None" if optional else kind, **{name: value})


def as_integers(minimum: int, /, **argument: Any) -> list[int]:
    """Return one such integer or a sequence of one or more, as a list."""
    (values,) = argument.values()
    found = [*values] if isinstance(values, Iterable) else [values]
    kind = KINDS.get(minimum, f"an integer of {minimum} or more")
    valid = found and all(is_integer(value, minimum) for value in found)
    require(valid, f"{kind}, or a sequence of one or more of these", **argument)
    return found


def generator(seed: Any) -> np.random.Generator:
    """Return NumPy's generator of a seed as it takes them; None is another one each time."""
    known = seed is None or isinstance(seed, np.random.SeedSequence)
    return np.random.default_rng(seed if known else as_integers(0, seed=seed))


def check_numbers(least: float = -math.inf, most: float = math.inf, /, **arguments: Any) -> None:
    """Raise a `ValueError` unless each argument is a real number in the range; NaN is in none."""
    limits = f" from {least} to {most}" if math.isfinite(most) else f" of {least} or more"
    kind = "a number" + limits * math.isfinite(least)
    for name, value in arguments.items():
        is_scalar = np.ndim(value) == 0 and hasattr(value, "__float__")  # also of an array, no text
        require(is_scalar and least <= float(value) <= most, kind, **{name: value})


def check_choice(choices: Collection[Any], /, **argument: Any) -> None:
    """Raise a `ValueError` unless an argument is one of the choices."""
    ((name, value),) = argument.items()
    if value not in [*choices]:
        known = ", ".join(map(repr, choices))
        hint = nearest(value, choices)
        raise ValueError(f"`{name}` must be one of {known}. Received: {name}={value!r}{hint}")


def nearest(name: Any, names: Iterable[Any]) -> str:
    """Return a question with the one of some names that a wrong name resembles most, if any."""
    found = difflib.get_close_matches(str(name), map(str, names), 1)
    return f". Did you mean {found[0]!r}?" if found else ""


def as_names(**argument: Any) -> list[str]:
    """Return one name or a sequence of one or more, as a list."""
    (value,) = argument.values()
    names = [value] if isinstance(value, str) or not isinstance(value, Iterable) else [*value]
    require(names and all(isinstance(v, str) for v in names), "one or more names", **argument)
    return names


def as_side(**argument: Any) -> int:
    """Return a positive integer, or a pair of equal ones, as the integer."""
    ((name, value),) = argument.items()
    is_square = isinstance(value, tuple | list) and len(value) == 2 and value[0] == value[1]
    check_integers(1, **{name: value[0] if is_square else value})
    return int(value[0] if is_square else value)


def fits(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return True if two shapes have the same sizes; None is any."""
    pairs = zip(shape, other, strict=False)
    return len(shape) == len(other) and all(a == b or None in (a, b) for a, b in pairs)


def as_path(**argument: Any) -> pathlib.Path:
    """Return the path of a file or a folder."""
    (path,) = argument.values()
    require(isinstance(path, str | os.PathLike), "a path, such as 'folder/file'", **argument)
    return pathlib.Path(path)


def check_model(model: Any) -> None:
    """Raise a `ValueError` unless an argument is a model of Keras."""
    expected = "a keras.Model. Load that of a file by keras.saving.load_model(path) first, and"
    expected = f"{expected} write a network of another library with Keras layers"
    require(isinstance(model, keras.Model), expected, model=model)
