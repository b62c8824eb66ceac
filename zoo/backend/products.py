"""Products with a Jacobian, without the Jacobian."""

import keras


def jacobian_product(function, x, v):
    """J v, where J is the Jacobian of `function` at x: the change of its value along v.

    Args:
        function: Of one tensor to one tensor.
        x, v: Tensors of one shape.

    Returns:
        `function(x)` and J v, of its shape.

    Example:

    >>> x, v = keras.ops.array([3.0]), keras.ops.array([1.0])
    >>> y, change = jacobian_product(lambda x: x * x, x, v)
    >>> float(y[0]), float(change[0])
    (9.0, 6.0)
    """
    body = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    return body(function, x, v)


def _tensorflow(function, x, v):
    import tensorflow as tf

    # Twice backwards: d/du of (J' u) v is J v. Forward mode lacks rules for some of its kernels.
    with tf.GradientTape(watch_accessed_variables=False) as outer:
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(x)
            y = function(x)
        u = tf.ones_like(y)
        outer.watch(u)
        back = inner.gradient(y, x, output_gradients=u)
    return y, outer.gradient(back, u, output_gradients=v)


def _jax(function, x, v):
    import jax

    return jax.jvp(function, (x,), (v,))


def _torch(function, x, v):
    import torch

    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = function(x)
        u = torch.ones_like(y, requires_grad=True)
        (back,) = torch.autograd.grad(y, x, u, create_graph=True)
        (product,) = torch.autograd.grad(back, u, v)
    return y.detach(), product
