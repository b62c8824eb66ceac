"""The six functional forms of a skip layer: Greff et al. (2017), Table 1a.

In the formulas h = H(x) is the transform, x the skip input, t = T(x) and c = C(x) the transform
and carry gates.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from zoo.checks import check_integers
from zoo.types import Tensor

HALF = ("float16", "bfloat16")


class Form(NamedTuple):
    """A functional form."""

    gates: str  # "", "t", "c" or "tc"
    combine: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of h, x, t and c

    def mix(
        self,
        h: Tensor,
        x: Tensor | None = None,
        t: Tensor | None = None,
        c: Tensor | None = None,
        dtype: str = "float32",
    ) -> Tensor:
        """Compute `combine`; half precision is rounded once, after a formula with gates."""
        if not self.gates or dtype not in HALF:
            return self.combine(h, x, t, c)
        h, x = ops.cast(h, "float32"), ops.cast(x, "float32")
        return ops.cast(self.combine(h, x, t, c), dtype)


def widened(x: Tensor) -> Tensor:
    """Return x, in float32 if it is half precision."""
    half = keras.backend.standardize_dtype(x.dtype) in HALF
    return ops.cast(x, "float32") if half else x


def gate(x: Tensor) -> Tensor:
    """Compute the sigmoid of logits, in float32 where they are half precision.

    In bfloat16, 1 - T is 1 for every T below 0.002, and a deep network's gates start there.
    """
    return keras.activations.sigmoid(widened(x))


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


def gate_bias(depth: int) -> float:
    """Return the initial bias of T for `depth` layers: -1, -2, -3 at 10, 20, 30.

    Raises:
        ValueError: if `depth` is not positive.

    Example:
    >>> [gate_bias(depth) for depth in (9, 19, 32)]
    [-1.0, -2.0, -3.0]

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, section 2.2.
    """
    check_integers(1, depth=depth)
    return -max(1.0, float(round(depth / 10)))
