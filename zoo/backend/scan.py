"""A loop over stacked weights that compiles once, whatever its depth."""

import functools
import itertools
from collections.abc import Callable, Sequence

import keras
from keras import ops

from zoo.types import Tensor


def scan_layers(
    step: Callable,
    x: Tensor,
    weights: Sequence[Tensor],
    depth: int,
    with_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
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
        with_states: If True, return every state. On TensorFlow with XLA it costs six times.

    Returns:
        The last state; if `with_states`, it and all states but the first, `(depth, *x.shape)`.

    Example:
    >>> factors = ops.array([2.0, 3.0, 5.0])
    >>> last, states = scan_layers(lambda x, w: x * w[0], ops.array([7.0]), [factors], 3, True)
    >>> ops.convert_to_numpy(states)[:, 0].tolist()
    [14.0, 42.0, 210.0]
    """
    body = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    stacks = [ops.convert_to_tensor(weight) for weight in weights]
    return body(step, ops.convert_to_tensor(x), stacks, depth, with_states)


def _tensorflow(step, x, weights, depth, with_states):
    import tensorflow as tf

    if not with_states:  # a fold, whose gradient XLA makes six times faster than a scan's
        return tf.foldl(step, weights, x)
    states = tf.scan(step, weights, x)
    return states[-1], states


def _jax(step, x, weights, depth, with_states):
    import jax

    if not any(isinstance(v, jax.core.Tracer) for v in (x, *weights)):
        return _loop(step, x, [list(w) for w in weights], with_states)

    def body(x, slices):
        x = step(x, slices)
        return x, x if with_states else None

    last, states = jax.lax.scan(body, x, weights, length=depth)
    return (last, states) if with_states else last


def _torch(step, x, weights, depth, with_states):
    # Indexing slice by slice would make a gradient of the whole stack for each.
    return _loop(step, x, [w.unbind() for w in weights], with_states)


def _loop(step, x, weights, with_states):
    slices = zip(*weights, strict=True)
    if not with_states:
        return functools.reduce(step, slices, x)
    states = [*itertools.accumulate(slices, step, initial=x)][1:]
    return states[-1], ops.stack(states)
