"""A loop over stacked weights that compiles once, whatever its depth."""

import functools
from collections.abc import Callable, Sequence

from keras import ops

from zoo.backend.ops import BACKEND
from zoo.types import Tensor


def scan_layers(step: Callable, x: Tensor, weights: Sequence[Tensor], depth: int) -> Tensor:
    """Apply `depth` layers: x = step(x, slices), once for each slice of the stacked `weights`.

    The loop is compiled once instead of `depth` times and differentiable, under XLA too (the
    gradient of `keras.ops.scan` is not on TensorFlow). Where nothing is compiled, on torch and for
    values that JAX does not trace, Python loops over the slices, and each operation gives exactly
    the bits that it gives outside of a loop.

    Args:
        step: A function from a state and a list of slices, one of each weight and without its
            first axis, to the next state, of the same shape and dtype.
        x: The first state.
        weights: Tensors or variables of shape `(depth, ...)`.
        depth: Number of layers.

    Returns:
        The last state.

    Example:
    >>> factors = ops.array([2.0, 3.0, 5.0])
    >>> ops.convert_to_numpy(scan_layers(lambda x, w: x * w[0], ops.array([7.0]), [factors], 3))
    array([210.], dtype=float32)
    """
    weights = [ops.convert_to_tensor(weight) for weight in weights]
    x = ops.convert_to_tensor(x)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.foldl(step, weights, x)  # XLA makes its gradient six times faster than a scan's
    if BACKEND == "torch":
        # Indexing slice by slice would make a gradient of the whole stack for each.
        return functools.reduce(step, zip(*[w.unbind() for w in weights], strict=True), x)
    import jax

    if not any(isinstance(v, jax.core.Tracer) for v in (x, *weights)):
        return functools.reduce(step, zip(*weights, strict=True), x)
    return jax.lax.scan(lambda x, slices: (step(x, slices), None), x, weights, length=depth)[0]
