"""Operations whose Keras version lacks a static shape or takes more passes over memory."""

import functools

import keras
from keras import ops

from zoo.types import Tensor


def unique(ids: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the distinct values of `ids`, in a shape that a compiler knows.

    `ops.take(values, inverse) == ids` holds whenever `count <= size`. `keras.ops.unique` has a
    dynamic shape inside on TensorFlow, which XLA refuses, and does not count what it truncates.

    Args:
        ids: Integers of shape `(n,)`.
        size: Length of `values` on TensorFlow and JAX, where shapes must be static; torch
            returns exactly `count` values.

    Returns:
        values: `(size,)`, sorted, padded with the smallest id.
        inverse: `(n,)`, the index in `values` of each input.
        count: Scalar, the number of distinct ids; if it exceeds `size`, `values` is truncated.

    Example:
    >>> values, inverse, count = unique(ops.array([7, 3, 7]), size=2)
    >>> ops.convert_to_numpy(values).tolist(), ops.convert_to_numpy(inverse).tolist(), int(count)
    ([3, 7], [1, 0, 1], 2)
    """
    if keras.backend.backend() == "torch":
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

    The backward pass is written out: softmax minus one-hot. The probabilities of the forward pass
    are kept instead of their logarithms, and on torch they become the gradient in place; the
    losses of torch and TensorFlow fill and read two more buffers of the logits' size.

    Args:
        logits: `(n, classes)`.
        targets: Integers `(n,)`.

    Example:
    >>> float(nll(ops.array([[0.0, 0.0]]), ops.array([1]))[0])  # log 2
    0.6931471824645996
    """
    body = {"tensorflow": _tensorflow_nll, "jax": _jax_nll, "torch": _torch_nll}
    function = body[keras.backend.backend()]()
    return function(ops.convert_to_tensor(logits), ops.cast(targets, "int32"))


def _nll(logits, targets, p):
    """Compute the negative log-likelihood from the logits and their softmax `p`.

    log sum exp(logits) = logits[k] - log p[k] for any k; for the largest, p does not underflow.
    """
    log_sum = ops.max(logits, axis=-1) - ops.log(ops.max(p, axis=-1))
    return log_sum - ops.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]


@functools.cache
def _tensorflow_nll():
    import tensorflow as tf

    @tf.custom_gradient
    def nll(logits, targets):
        p = tf.nn.softmax(logits)

        def backward(upstream):
            places = tf.stack([tf.range(tf.shape(targets)[0]), targets], axis=1)
            return tf.tensor_scatter_nd_sub(p * upstream[:, None], places, upstream), None

        return _nll(logits, targets, p), backward

    return nll


@functools.cache
def _jax_nll():
    import jax
    import jax.numpy as jnp

    def forward(logits, targets):
        log_sum = jax.nn.logsumexp(logits, axis=-1)
        own = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
        return log_sum - own, (logits, targets, log_sum)

    def backward(saved, upstream):
        logits, targets, log_sum = saved
        p = jnp.exp(logits - log_sum[:, None])
        one_hot = jnp.arange(logits.shape[-1]) == targets[:, None]
        return jnp.where(one_hot, p - 1, p) * upstream[:, None], None

    nll = jax.custom_vjp(lambda *args: forward(*args)[0])
    nll.defvjp(forward, backward)
    return nll


@functools.cache
def _torch_nll():
    import torch

    class NLL(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, targets) -> Tensor:
            p = torch.softmax(logits, -1)
            targets = targets.long()
            ctx.save_for_backward(p, targets)
            ctx.consumed = False
            return _nll(logits, targets, p)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, upstream) -> tuple[Tensor, None]:
            p, targets = ctx.saved_tensors
            if ctx.consumed:
                raise RuntimeError("`zoo.backend.nll` overwrote its buffer: one backward only.")
            ctx.consumed = True
            upstream = upstream[:, None]
            p.mul_(upstream)  # a new buffer would cost more than the arithmetic
            return p.scatter_add_(1, targets[:, None], -upstream), None

    return NLL.apply
