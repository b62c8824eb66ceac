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

    On torch the backward pass is written out (softmax minus one-hot, in place): torch's own loss
    fills and reads two more buffers of the logits' size, a quarter of a step of the small
    language model. TensorFlow's kernel is fused already, and XLA fuses JAX's.

    Args:
        logits: `(n, classes)`.
        targets: Integers `(n,)`.

    Returns:
        `(n,)`.

    Example:
    >>> float(nll(ops.array([[0.0, 0.0]]), ops.array([1]))[0])  # log 2
    0.6931471824645996
    """
    if keras.backend.backend() == "torch":
        return _torch_nll().apply(logits, targets)
    return ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)


@functools.cache
def _torch_nll():
    import torch

    class NLL(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, targets) -> Tensor:
            log_p = torch.log_softmax(logits, -1)
            rows = targets.long()[:, None]
            ctx.save_for_backward(log_p, rows)
            ctx.consumed = False
            return -log_p.gather(1, rows)[:, 0]

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, upstream) -> tuple[Tensor, None]:
            log_p, rows = ctx.saved_tensors
            if ctx.consumed:
                raise RuntimeError("`zoo.backend.nll` overwrote its buffer: one backward only.")
            ctx.consumed = True
            upstream = upstream[:, None]
            p = log_p.exp_().mul_(upstream)  # a new buffer would cost more than the arithmetic
            return p.scatter_add_(1, rows, -upstream), None

    return NLL
