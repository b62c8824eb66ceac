"""Matrix products whose kernel or precision Keras does not choose."""

import functools

import keras
from keras import ops

from zoo.types import Tensor


def dense(x: Tensor, kernel: Tensor, bias: Tensor | None = None, products: str = "") -> Tensor:
    """Compute x K + b, optionally with products in bfloat16 and sums in float32.

    On a CPU, torch multiplies by a library that uses half of the width of the vector units of
    processors by AMD; here it multiplies by oneDNN, as in its convolutions. With `products`
    "bfloat16", the factors of the product and of both of its gradients are rounded to bfloat16;
    weights, bias and gradients keep their dtype. JAX returns the sums in float32; TensorFlow and
    torch round a product to bfloat16 before the bias is added.

    Args:
        x: `(..., features)`.
        kernel: `(features, units)`.
        bias: `(units,)`, or None.
        products: "bfloat16", of float32 factors only, or "" for the dtype of `x`.

    Example:
    >>> x, kernel = ops.array([[1.0, 2.0]]), ops.array([[1.0], [1.001]])  # 1 in bfloat16
    >>> float(dense(x, kernel, products="bfloat16")[0, 0])
    3.0
    """
    if keras.backend.backend() == "torch":
        return _torch_dense(x, kernel, bias, products)
    y = _low_product(x, kernel) if products else ops.matmul(x, kernel)
    return y if bias is None else ops.add(y, bias)


def _low_product(x, kernel):
    rows = ops.reshape(x, (-1, x.shape[-1]))
    product = {"tensorflow": _tensorflow, "jax": _jax}[keras.backend.backend()]()
    y = product(rows, ops.convert_to_tensor(kernel))
    return ops.reshape(y, (*ops.shape(x)[:-1], kernel.shape[-1]))


@functools.cache
def _tensorflow():
    import tensorflow as tf

    def low(x, y, **transposed):
        x, y = tf.cast(x, tf.bfloat16), tf.cast(y, tf.bfloat16)
        return tf.cast(tf.matmul(x, y, **transposed), tf.float32)

    @tf.custom_gradient
    def product(x, kernel):
        def backward(dy):
            # The casts of `dy` are one operation: TensorFlow merges equal ones.
            return low(dy, kernel, transpose_b=True), low(x, dy, transpose_a=True)

        return low(x, kernel), backward

    return product


@functools.cache
def _jax():
    import jax
    import jax.numpy as jnp

    def low(x, y):
        x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
        return jnp.matmul(x, y, preferred_element_type=jnp.float32)

    product = jax.custom_vjp(low)
    product.defvjp(
        lambda x, kernel: (low(x, kernel), (x, kernel)),
        lambda saved, dy: (low(dy, saved[1].T), low(saved[0].T, dy)),
    )
    return product


def _torch_dense(x, kernel, bias, products):
    import torch

    x, kernel = ops.convert_to_tensor(x), ops.convert_to_tensor(kernel)
    bias = None if bias is None else ops.convert_to_tensor(bias)
    one_dnn = (
        x.dtype == kernel.dtype == torch.float32
        and x.device.type == "cpu"
        and _has_one_dnn()
        and not torch.jit.is_tracing()
        and not torch.compiler.is_compiling()  # exporters do not know the operation
    )
    if one_dnn or products:
        y = _torch_product().apply(x.reshape(-1, x.shape[-1]), kernel, bias, products)
        return y.reshape(*x.shape[:-1], kernel.shape[-1])
    y = torch.matmul(x, kernel)
    return y if bias is None else y + bias


@functools.cache
def _has_one_dnn():
    import torch

    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@functools.cache
def _torch_product():
    import torch

    def multiply(x, kernel, bias, products):
        if products:
            y = torch.mm(x.to(torch.bfloat16), kernel.to(torch.bfloat16)).float()
            return y if bias is None else y.add_(bias)
        return torch.ops.mkldnn._linear_pointwise(x, kernel.T, bias, "none", [], "")

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, kernel, bias, products) -> Tensor:
            ctx.save_for_backward(x, kernel)
            ctx.products = products
            return multiply(x, kernel, bias, products)

        @staticmethod
        def backward(ctx, dy) -> tuple[Tensor | None, ...]:
            x, kernel = ctx.saved_tensors
            of_x, of_kernel, of_bias, _ = ctx.needs_input_grad
            apply = Product.apply  # which has a gradient in turn
            rounded = dy.to(torch.bfloat16) if ctx.products else dy  # once for both
            return (
                apply(rounded, kernel.T, None, ctx.products) if of_x else None,
                apply(x.T, rounded, None, ctx.products) if of_kernel else None,
                dy.sum(0) if of_bias else None,
                None,
            )

    return Product
