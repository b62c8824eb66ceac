"""Checks of arguments."""

import numbers
from typing import Any

KINDS = {0: "a non-negative integer", 1: "a positive integer"}


def is_integer(value: Any, minimum: int) -> bool:
    """Return True for an integer of `minimum` or more, also NumPy's; True and False are none."""
    known = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return known and value >= minimum


def check_integers(minimum: int, /, **arguments: Any) -> None:
    """Raise a `ValueError` unless each argument, given by its name, is such an integer."""
    kind = KINDS.get(minimum, f"an integer of {minimum} or more")
    for name, value in arguments.items():
        if not is_integer(value, minimum):
            raise ValueError(f"`{name}` must be {kind}. Received: {name}={value!r}")
