"""Checks of arguments."""

import numbers
from collections.abc import Collection
from typing import Any

KINDS = {0: "a non-negative integer", 1: "a positive integer"}


def is_integer(value: Any, minimum: int) -> bool:
    """Return True for an integer of `minimum` or more, NumPy's included; booleans are none."""
    known = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return known and value >= minimum


def check_integers(minimum: int, /, **arguments: Any) -> None:
    """Raise a `ValueError` unless each argument, given by its name, is such an integer."""
    kind = KINDS.get(minimum, f"an integer of {minimum} or more")
    for name, value in arguments.items():
        if not is_integer(value, minimum):
            raise ValueError(f"`{name}` must be {kind}. Received: {name}={value!r}")


def check_number(**argument: Any) -> None:
    """Raise a `ValueError` unless an argument, given by its name, is a real number."""
    ((name, value),) = argument.items()
    if not isinstance(value, numbers.Real):
        raise ValueError(f"`{name}` must be a number. Received: {name}={value!r}")


def check_choice(choices: Collection[Any], /, **argument: Any) -> None:
    """Raise a `ValueError` unless an argument, given by its name, is one of the choices."""
    ((name, value),) = argument.items()
    if value not in choices:
        known = ", ".join(map(repr, choices))
        raise ValueError(f"`{name}` must be one of {known}. Received: {name}={value!r}")


def as_side(**argument: Any) -> int:
    """Return a positive integer, given by its name, or as a pair of equal ones."""
    ((name, value),) = argument.items()
    is_square = isinstance(value, tuple | list) and len(value) == 2 and value[0] == value[1]
    check_integers(1, **{name: value[0] if is_square else value})
    return int(value[0] if is_square else value)
