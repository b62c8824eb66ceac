"""The six functional forms of a skip layer: Greff et al. (2017), Table 1a.

In the formulas h = H(x) is the transform, x the input, t = T(x) and c = C(x) the transform
and carry gates.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

HALF = ("float16", "bfloat16")


class Form(NamedTuple):
    """A functional form.

    Attributes:
        gates: The letters of the gates it has.
        combine: Its formula, of h, x, t and c.
    """

    gates: str
    combine: Callable

    def mix(self, h, x, t, c, dtype):
        """`combine`; where there are gates, in their precision, rounded to `dtype` at the end."""
        if not self.gates or dtype not in HALF:
            return self.combine(h, x, t, c)
        h, x = ops.cast(h, "float32"), ops.cast(x, "float32")
        return ops.cast(self.combine(h, x, t, c), dtype)


def gate(x):
    """The sigmoid of a gate, in single precision at least.

    In bfloat16 1 - T is 1 for every T below 0.002, and a deep network's gates start there.

    Args:
        x: A tensor of logits.

    Returns:
        float32 of half precision, else x's dtype.

    Example:

    >>> 1 - float(gate(ops.cast([-7.0], "bfloat16"))[0]) < 1
    True
    """
    if keras.backend.standardize_dtype(x.dtype) in HALF:
        x = ops.cast(x, "float32")
    return keras.activations.sigmoid(x)


# fmt: off
FORMS = {
    # variant        gates  y =
    "plain":    Form("",   lambda h, x, t, c: h),
    "residual": Form("",   lambda h, x, t, c: h + x),
    "t_only":   Form("t",  lambda h, x, t, c: h * t + x),
    "c_only":   Form("c",  lambda h, x, t, c: h + x * c),
    "coupled":  Form("t",  lambda h, x, t, c: h * t + x * (1 - t)),
    "full":     Form("tc", lambda h, x, t, c: h * t + x * c),
}
# fmt: on


def form(variant):
    """The `Form` named `variant`.

    Raises:
        ValueError: if there is no such form.

    Example:

    >>> form("coupled").combine(h=4.0, x=2.0, t=0.25, c=None)
    2.5
    """
    if variant not in FORMS:
        raise ValueError(
            f"`variant` must be one of {', '.join(map(repr, FORMS))} "
            f"(Greff et al. 2017, Table 1a). Received: variant={variant!r}"
        )
    return FORMS[variant]


def gate_bias(depth):
    """The initial bias of T for a network of `depth` layers: -1, -2, -3 at 10, 20, 30.

    Args:
        depth: Layers, at least one.

    Returns:
        A logit.

    Raises:
        ValueError: if `depth` is not positive.

    Example:

    >>> [gate_bias(depth) for depth in (9, 19, 32)]
    [-1.0, -2.0, -3.0]

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, section 2.2.
    """
    if depth < 1:
        raise ValueError(f"`depth` must be at least 1. Received: depth={depth!r}")
    return -max(1.0, float(round(depth / 10)))
