"""Normalization, convolution and pooling by fused kernels, on channels-last features."""

from collections.abc import Sequence

import keras
from keras import ops

from zoo.types import Tensor

SAME, VALID = "same", "valid"


def batch_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    epsilon: float,
    mean: Tensor | None = None,
    variance: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize the last axis: gamma (x - mean) / sqrt(variance + epsilon) + beta.

    Keras composes it on torch of ten operations over the features in training, each of which reads
    and writes all of them; half precision it converts to float32 first.

    Args:
        x: `(batch, ..., channels)`, float32 or half precision, whose statistics are float32.
        gamma: Scale, `(channels,)`, as the following float32; tensors or variables.
        beta: Offset, `(channels,)`.
        epsilon: Added to the variance.
        mean: `(channels,)`, or `None` for the batch's own mean and (biased) variance.
        variance: `(channels,)`, given if `mean` is.

    Returns:
        The normalized features, of x's shape and dtype; the mean and the variance used, which
        have no gradient on torch.

    Example:
    >>> x = ops.array([[1.0], [3.0]])
    >>> y, mean, variance = batch_norm(x, ops.ones((1,)), ops.zeros((1,)), 0.0)
    >>> ops.convert_to_numpy(y).ravel().tolist(), float(mean[0]), float(variance[0])
    ([-1.0, 1.0], 2.0, 1.0)
    """
    body = {"tensorflow": _tensorflow_norm, "jax": _keras_norm, "torch": _torch_norm}
    gamma, beta = ops.convert_to_tensor(gamma), ops.convert_to_tensor(beta)
    if mean is not None:
        mean, variance = ops.convert_to_tensor(mean), ops.convert_to_tensor(variance)
    return body[keras.backend.backend()](x, gamma, beta, epsilon, mean, variance)


def _keras_norm(x, gamma, beta, epsilon, mean, variance):
    dtype = x.dtype
    x = ops.cast(x, gamma.dtype)
    if mean is None:
        mean, variance = ops.moments(x, axes=[*range(len(x.shape) - 1)])
    y = ops.batch_normalization(x, mean, variance, -1, beta, gamma, epsilon)
    return ops.cast(y, dtype), mean, variance


def _tensorflow_norm(x, gamma, beta, epsilon, mean, variance):
    import tensorflow as tf

    if len(x.shape) != 4:  # which the kernel does not take
        return _keras_norm(x, gamma, beta, epsilon, mean, variance)
    training = mean is None
    y, batch_mean, unbiased, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x,
        scale=gamma,
        offset=beta,
        mean=[] if training else mean,
        variance=[] if training else variance,
        epsilon=epsilon,
        is_training=training,
    )
    if not training:
        return y, mean, variance
    count = tf.cast(tf.size(x) // tf.shape(x)[-1], unbiased.dtype)
    return y, batch_mean, unbiased * ((count - 1) / count)


def _torch_norm(x, gamma, beta, epsilon, mean, variance):
    import torch

    training = mean is None
    count = x.numel() // x.shape[-1]
    if training and count == 1:  # which torch refuses
        return _keras_norm(x, gamma, beta, epsilon, mean, variance)
    if training:  # a momentum of 1 keeps nothing of these
        mean = torch.zeros(gamma.shape, dtype=gamma.dtype, device=gamma.device)
        variance = torch.zeros_like(mean)
    y = torch.batch_norm(
        x.movedim(-1, 1), gamma, beta, mean, variance, training, 1.0, epsilon, cudnn_enabled=True
    )
    if training:
        variance = variance * ((count - 1) / count)  # torch's is unbiased
    return y.movedim(1, -1), mean, variance


def conv2d(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    strides: Sequence[int] = (1, 1),
    padding: str | int = VALID,
    dilation_rate: Sequence[int] = (1, 1),
) -> Tensor:
    """Convolve images whose channels are last.

    Keras copies the images twice on torch, to channels first and back, before each convolution,
    though its result has the layout that it began with; and adds the bias apart.

    Args:
        x: `(batch, height, width, channels)`.
        kernel: `(height, width, channels / groups, filters)`.
        bias: `(filters,)` or `None`.
        strides: Of height and width, in pixels.
        padding: "same" or "valid", as in `keras.ops.conv`; or zeros on each side, in pixels.
        dilation_rate: Of height and width, in pixels.

    Returns:
        `(batch, new height, new width, filters)`.

    Example:
    >>> y = conv2d(ops.ones((1, 4, 4, 2)), ops.ones((3, 3, 2, 5)), padding=1)
    >>> tuple(y.shape)
    (1, 4, 4, 5)
    """
    body = {"tensorflow": _tensorflow_conv, "jax": _keras_conv, "torch": _torch_conv}
    return body[keras.backend.backend()](x, kernel, bias, strides, padding, dilation_rate)


def _keras_conv(x, kernel, bias, strides, padding, dilation_rate):
    if isinstance(padding, int):
        x = ops.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
        padding = VALID
    y = ops.conv(x, kernel, [*strides], padding, "channels_last", [*dilation_rate])
    return y if bias is None else ops.add(y, bias)


def _tensorflow_conv(x, kernel, bias, strides, padding, dilation_rate):
    import tensorflow as tf

    y = _keras_conv(x, kernel, None, strides, padding, dilation_rate)
    return y if bias is None else tf.nn.bias_add(y, ops.convert_to_tensor(bias))


def _torch_conv(x, kernel, bias, strides, padding, dilation_rate):
    import torch
    from torch.nn import functional

    x = x.permute(0, 3, 1, 2)  # a view; in memory channels stay last
    kernel = ops.convert_to_tensor(kernel).permute(3, 2, 0, 1)  # autocast, if it is a variable
    kernel = kernel.contiguous(memory_format=torch.channels_last)
    bias = None if bias is None else ops.convert_to_tensor(bias)
    pads = [padding, padding] if isinstance(padding, int) else [0, 0]
    if padding == SAME:
        sizes = [
            (size - 1) * rate + 1
            for size, rate in zip(kernel.shape[2:], dilation_rate, strict=True)
        ]
        x, pads = _pad_to_same(x, sizes, strides, 0.0)
    groups = x.shape[1] // kernel.shape[1]
    y = functional.conv2d(x, kernel, bias, tuple(strides), pads, tuple(dilation_rate), groups)
    return y.permute(0, 2, 3, 1)


def _pad_to_same(x, sizes, strides, value):
    """Return `(batch, channels, height, width)` and the padding that is left to the kernel.

    Where "same" pads the end more than the beginning, `value` is padded here, and none is left.
    """
    from torch.nn import functional

    sides = zip(x.shape[2:], sizes, strides, strict=True)
    whole = [
        max(0, (-(-side // stride) - 1) * stride + size - side) for side, size, stride in sides
    ]
    pads = [pad // 2 for pad in whole]
    odd = [pad % 2 for pad in whole]
    if not any(odd):
        return x, pads
    x = functional.pad(x, (pads[1], pads[1] + odd[1], pads[0], pads[0] + odd[0]), value=value)
    return x, [0, 0]


def max_pool2d(
    x: Tensor, pool_size: Sequence[int], strides: Sequence[int], padding: str = VALID
) -> Tensor:
    """Return the maxima over windows of images whose channels are last.

    Keras copies the images to channels first on torch and returns the gradient in that layout, so
    that everything before it, up to the next convolution, mixes both layouts.

    Args:
        x: `(batch, height, width, channels)`.
        pool_size: Of height and width, in pixels.
        strides: Of height and width, in pixels.
        padding: "same" or "valid".

    Returns:
        `(batch, new height, new width, channels)`.

    Example:
    >>> y = max_pool2d(ops.reshape(ops.arange(4.0), (1, 2, 2, 1)), (2, 2), (2, 2))
    >>> float(y[0, 0, 0, 0])
    3.0
    """
    if keras.backend.backend() != "torch":
        return ops.max_pool(x, pool_size, strides, padding, "channels_last")
    from torch.nn import functional

    x = x.permute(0, 3, 1, 2)  # a view
    x, pads = _pad_to_same(x, pool_size, strides, -float("inf")) if padding == SAME else (x, 0)
    y = functional.max_pool2d(x, tuple(pool_size), tuple(strides), pads)
    return y.permute(0, 2, 3, 1)
