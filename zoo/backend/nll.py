"""The loss of a large softmax, in as few passes over the logits as the backend allows."""

import functools

import keras


def nll(logits, targets):
    """Negative log-likelihood of `targets`: log sum exp(logits) - logits[target], in nats.

    On torch the backward pass is written out (softmax minus one-hot, in place): its own loss
    fills and reads two more buffers of the logits' size, a quarter of a step of the small
    language model. TensorFlow's kernel is fused already, and XLA fuses JAX's.

    Args:
        logits: `(n, classes)`. targets: Integers `(n,)`.

    Returns:
        `(n,)`.

    Example:

    >>> float(nll(keras.ops.array([[0.0, 0.0]]), keras.ops.array([1]))[0])  # log 2
    0.6931471824645996
    """
    if keras.backend.backend() == "torch":
        return _torch_nll().apply(logits, targets)
    return keras.ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)


@functools.cache
def _torch_nll():
    import torch

    class NLL(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, targets):
            log_p = torch.log_softmax(logits, -1)
            rows = targets.long()[:, None]
            ctx.save_for_backward(log_p, rows)
            ctx.consumed = False
            return -log_p.gather(1, rows)[:, 0]

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, gradient):
            log_p, rows = ctx.saved_tensors
            if ctx.consumed:
                raise RuntimeError("`zoo.backend.nll` overwrote its buffer: one backward only.")
            ctx.consumed, gradient = True, gradient[:, None]
            p = log_p.exp_().mul_(gradient)  # a new buffer would cost more than the arithmetic
            return p.scatter_add_(1, rows, -gradient), None

    return NLL
