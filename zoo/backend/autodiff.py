"""Automatic differentiation: gradients of intermediate tensors, J v, guided backpropagation."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from zoo.types import Tensor


def gradients_at_marks(function: Callable, *arguments: Any) -> tuple[Any, dict]:
    """Run `function(mark, *arguments)` and differentiate its first result at the marked tensors.

    All gradients come from one backward pass.

    Args:
        function: Calls `mark(key, tensor)` where a gradient is needed and continues with the
            returned tensor; returns a scalar and any structure. On JAX it is run more than once.
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
    offsets = {key: jnp.zeros(spec.shape, spec.dtype) for key, spec in shapes.items()}

    def shifted(offsets):
        return function(lambda key, tensor: tensor + offsets[key], *arguments)

    gradients, rest = jax.grad(shifted, has_aux=True)(offsets)
    return rest, gradients


def _torch(function, arguments):
    import torch

    marked = {}

    def mark(key, tensor):
        marked[key] = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        return marked[key]

    with torch.enable_grad():
        scalar, rest = function(mark, *arguments)
        gradients = torch.autograd.grad(
            scalar, [*marked.values()], allow_unused=True, materialize_grads=True
        )
    return rest, dict(zip(marked, gradients, strict=True))


def jacobian_product(
    function: Callable[[Tensor], Tensor], x: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute J v, where J is the Jacobian of `function` at x: the directional derivative.

    Returns:
        `function(x)` and J v, of its shape.

    Example:
    >>> x, v = keras.ops.array([3.0]), keras.ops.array([1.0])
    >>> y, change = jacobian_product(lambda x: x * x, x, v)
    >>> float(y[0]), float(change[0])
    (9.0, 6.0)
    """
    if keras.backend.backend() == "jax":
        import jax

        return jax.jvp(function, (x,), (v,))
    # Forward mode has no rule for loops on TensorFlow and for the native LSTM on torch, and warns
    # of a deprecated compiler there; so two reverse passes: d/du of (J' u) v is J v.
    body = {"tensorflow": _tensorflow_product, "torch": _torch_product}[keras.backend.backend()]
    return body(function, x, v)


def _tensorflow_product(function, x, v):
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as outer:
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(x)
            y = function(x)
        u = tf.ones_like(y)
        outer.watch(u)
        gradient = inner.gradient(y, x, output_gradients=u)
    return y, outer.gradient(gradient, u, output_gradients=v)


def _torch_product(function, x, v):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    # fused attention has no second derivative
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        x = x.detach().requires_grad_()
        y = function(x)
        u = torch.ones_like(y, requires_grad=True)
        (gradient,) = torch.autograd.grad(y, x, u, create_graph=True)
        (product,) = torch.autograd.grad(gradient, u, v)
    return y.detach(), product


def guided_relu(x: Tensor) -> Tensor:
    """Compute ReLU(x), whose backward pass drops negative gradients (guided backpropagation).

    Example:
    >>> def negative_relu(mark, x):
    ...     return -keras.ops.sum(guided_relu(mark("x", x))), None
    >>> _, gradients = gradients_at_marks(negative_relu, keras.ops.array([2.0]))
    >>> abs(float(gradients["x"][0]))  # and not -1
    0.0

    Reference: Springenberg, Dosovitskiy, Brox, Riedmiller (2015), arXiv:1412.6806, section 3.4.
    """
    return _guided_relu(x)


@ops.custom_gradient
def _guided_relu(x):
    def gradient(*inputs, upstream=None):
        if upstream is None:  # torch passes x and the keyword, the others the gradient only
            (upstream,) = inputs
        passes = ops.logical_and(x > 0, upstream > 0)
        return ops.where(passes, upstream, ops.zeros_like(upstream))

    return ops.relu(x), gradient
