"""Gradients at tensors in the middle of a computation, in one backward pass."""

import keras


def gradients_at_marks(function, *arguments):
    """Runs `function(mark, *arguments)` and differentiates its first result at what it marks.

    Args:
        function: Calls `mark(key, tensor)` where a gradient is wanted and goes on with what that
            returns; returns a scalar and anything else. On JAX it is run more than once.
        *arguments: Tensors.

    Returns:
        The second result, and the gradients by key; zeros where the scalar does not depend on a
        marked tensor.

    Example:

    >>> def cube(mark, x):
    ...     y = mark("y", x * x)
    ...     return keras.ops.sum(y * x), None
    >>> _, gradients = gradients_at_marks(cube, keras.ops.array([3.0]))
    >>> float(gradients["y"][0])  # d(y x)/dy
    3.0
    """
    body = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    return body(function, arguments)


def _tensorflow(function, arguments):
    import tensorflow as tf

    marked = {}
    with tf.GradientTape(watch_accessed_variables=False) as tape:

        def mark(key, tensor):
            tape.watch(tensor)
            marked[key] = tensor
            return tensor

        scalar, rest = function(mark, *arguments)
    zero = tf.UnconnectedGradients.ZERO
    return rest, tape.gradient(scalar, marked, unconnected_gradients=zero)


def _jax(function, arguments):
    import jax
    import jax.numpy as jnp

    def record(*arguments):
        marked = {}
        function(lambda key, tensor: marked.setdefault(key, tensor), *arguments)
        return marked

    shapes = jax.eval_shape(record, *arguments)
    taps = {key: jnp.zeros(spec.shape, spec.dtype) for key, spec in shapes.items()}

    def tapped(taps):
        return function(lambda key, tensor: tensor + taps[key], *arguments)

    gradients, rest = jax.grad(tapped, has_aux=True)(taps)
    return rest, gradients


def _torch(function, arguments):
    import torch

    marked = {}

    def mark(key, tensor):
        marked[key] = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        return marked[key]

    with torch.enable_grad():
        scalar, rest = function(mark, *arguments)
        found = torch.autograd.grad(
            scalar, [*marked.values()], allow_unused=True, materialize_grads=True
        )
    return rest, dict(zip(marked, found, strict=True))
