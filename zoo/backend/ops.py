"""Operations whose Keras version is slower or lacks a static shape."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from zoo.backend.runtime import BACKEND
from zoo.types import Tensor


def with_gradient(forward: Callable, backward: Callable) -> Callable:
    """Return a function of tensors whose gradient is written out.

    `forward` returns the outputs and what `backward` needs; from that and the gradient at the
    outputs `backward` computes the gradient at each input, None at integers.
    """
    convert = ops.convert_to_tensor
    if BACKEND == "jax":
        import jax

        function = jax.custom_vjp(lambda *inputs: forward(*inputs)[0])
        function.defvjp(forward, backward)
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        convert = tf.convert_to_tensor  # that of Keras returns variables as they are

        @tf.custom_gradient
        def function(*inputs):
            y, saved = forward(*inputs)
            return y, lambda *dy: backward(saved, dy if len(dy) > 1 else dy[0])
    else:

        @ops.custom_gradient
        def function(*inputs):
            y, saved = forward(*inputs)
            return y, lambda *inputs, upstream: backward(saved, upstream)

    return lambda *inputs: function(*map(convert, inputs))


def unique(ids: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the distinct values of `ids`, in a shape that a compiler knows.

    `ops.take(values, inverse) == ids` holds whenever `count <= size`. `keras.ops.unique` has a
    dynamic shape inside on TensorFlow, which XLA refuses, and does not count what it truncates.

    Return `values`, `(size,)`, sorted, padded with the smallest id, on torch as many as there are;
    `inverse`, `(n,)`, the index in `values` of each of the n integers; and `count`, the number of
    distinct ids: if it exceeds `size`, `values` is truncated.
    """
    if BACKEND == "torch":
        values, inverse = ops.unique(ids, return_inverse=True)
        return values, inverse, values.shape[0]
    order = ops.argsort(ids)
    ranked = ops.take(ids, order)
    starts = ops.cast(ranked[1:] != ranked[:-1], "int32")
    rank = ops.cumsum(ops.concatenate([ops.zeros((1,), "int32"), starts]))
    inverse = ops.scatter_update(ops.zeros_like(rank), order[:, None], rank)
    slots = ops.minimum(rank, size)[:, None]  # one slot more than `size` collects the overflow
    values = ops.scatter_update(ops.broadcast_to(ranked[0], (size + 1,)), slots, ranked)
    return values[:size], inverse, rank[-1] + 1


def nll(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the negative log-likelihood: log sum exp(logits) - logits[target], in nats.

    The logits are `(n, classes)`, the targets integers `(n,)`; NaN, on torch an error, for others.
    On torch the probabilities of the forward pass are kept instead of their logarithms and become
    the gradient in place; torch's own loss fills and reads two more buffers of the logits' size.
    """
    logits = ops.convert_to_tensor(logits)
    targets = ops.cast(targets, "int32")
    if BACKEND == "torch":
        return _torch_nll().apply(logits, targets)
    return with_gradient(_nll, _nll_gradient)(logits, targets)


def _nll(logits, targets):
    p = ops.softmax(logits)
    # log sum exp(logits) = logits[k] - log p[k]; for the largest, p does not underflow
    log_sum = ops.max(logits, axis=-1) - ops.log(ops.max(p, axis=-1))
    index = ops.clip(targets, 0, logits.shape[-1] - 1)  # backends differ in what is beyond
    loss = log_sum - ops.take_along_axis(logits, index[:, None], axis=-1)[:, 0]
    return ops.where(index == targets, loss, float("nan")), (p, targets)


def _nll_gradient(saved, upstream):
    p, targets = saved
    is_target = ops.arange(p.shape[-1], dtype="int32") == targets[:, None]
    return ops.where(is_target, p - 1.0, p) * upstream[:, None], None


@functools.cache
def _torch_nll() -> Any:
    import torch

    class NLL(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, targets) -> Tensor:
            p = torch.softmax(logits, -1)
            targets = targets.long()
            ctx.save_for_backward(p, targets)
            log_sum = logits.amax(-1) - torch.log(p.amax(-1))
            return log_sum - logits.gather(1, targets[:, None])[:, 0]

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, upstream) -> tuple[Tensor, None]:
            p, targets = ctx.saved_tensors
            upstream = upstream[:, None]
            # A new buffer would cost more than the arithmetic; torch refuses a second backward.
            p.mul_(upstream)
            return p.scatter_add_(1, targets[:, None], -upstream), None

    return NLL


def dense(x: Tensor, kernel: Tensor, bias: Tensor | None = None, products: str = "") -> Tensor:
    """Compute x K + b, optionally with products in bfloat16.

    On a CPU, torch multiplies by a library that uses half of the width of the vector units of
    processors by AMD; here it multiplies by oneDNN, as in its convolutions. With `products`
    "bfloat16", the factors of the product and of both of its gradients are rounded to bfloat16,
    from float32 only, and so is each product, except on JAX; weights, bias and gradients keep
    their dtype. JAX has no forward-mode derivative of it. `x` is `(..., features)`, the kernel
    `(features, units)`, the bias `(units,)`.
    """
    x, kernel = ops.convert_to_tensor(x), ops.convert_to_tensor(kernel)
    if products and BACKEND == "jax" and not isinstance(x, keras.KerasTensor):
        rows = ops.reshape(x, (-1, x.shape[-1]))
        y = with_gradient(_jax_product, _jax_product_gradient)(rows, kernel)
        y = ops.reshape(y, (*ops.shape(x)[:-1], kernel.shape[-1]))
    elif products:
        y = ops.cast(ops.matmul(ops.cast(x, products), ops.cast(kernel, products)), "float32")
    elif BACKEND == "torch" and _runs_one_dnn(x, kernel):
        bias = None if bias is None else ops.convert_to_tensor(bias)
        y = _one_dnn().apply(x.reshape(-1, x.shape[-1]), kernel, bias)
        return y.reshape(*x.shape[:-1], kernel.shape[-1])
    else:
        y = ops.matmul(x, kernel)
    return y if bias is None else ops.add(y, bias)


def _jax_product(x, kernel):
    """Multiply factors rounded to bfloat16: x `(n, features)` and the kernel."""
    factors = [_row_major(ops.cast(factor, "bfloat16")) for factor in (x, kernel)]
    return _sum_in_float32(*factors), factors


def _jax_product_gradient(factors, dy):
    x, kernel = factors
    dy = _row_major(ops.cast(dy, "bfloat16"))
    return _sum_in_float32(dy, kernel, axis=1), _sum_in_float32(_row_major(x.T), dy)


def _sum_in_float32(a, b, axis=0):
    """Sum the products over a's last axis and an axis of b, both of bfloat16, in float32.

    XLA has a fast kernel for that on a CPU, if both are in row-major order. It fails where a
    producer or consumer, such as a transposition, gives a matrix another order.
    """
    import jax

    axes = (((1,), (axis,)), ((), ()))
    return _row_major(jax.lax.dot_general(a, b, axes, preferred_element_type="float32"))


def _row_major(x):
    """Return a matrix that XLA stores row by row, whatever its producers and consumers want."""
    import jax

    return jax.lax.optimization_barrier(x.reshape(-1)).reshape(x.shape)


def _runs_one_dnn(x, kernel):
    import torch

    return (
        x.dtype == kernel.dtype == torch.float32
        and x.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and not torch.jit.is_tracing()
        and not torch.compiler.is_compiling()  # exporters do not know the operation
        and x.numel() > 0  # oneDNN refuses the product of the kernel's gradient
    )


@functools.cache
def _one_dnn() -> Any:
    import torch

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, kernel, bias) -> Tensor:
            ctx.save_for_backward(x, kernel)
            return torch.ops.mkldnn._linear_pointwise(x, kernel.T, bias, "none", [], "")

        @staticmethod
        def backward(ctx, dy) -> tuple[Tensor | None, ...]:
            x, kernel = ctx.saved_tensors
            of_x, of_kernel, of_bias = ctx.needs_input_grad
            return (  # by `Product`, which has a gradient in turn
                Product.apply(dy, kernel.T, None) if of_x else None,
                Product.apply(x.T, dy, None) if of_kernel else None,
                dy.sum(0) if of_bias else None,
            )

    return Product
