"""Keras's layers by faster kernels: same arguments, weights and, within rounding, values.

Each kernel shortens a training step by more than 3 %; docs/performance.md has the measurements.
"""

from typing import Any

import keras
from keras import ops

from zoo.backend.ops import dense
from zoo.backend.runtime import BACKEND
from zoo.checks import check_choice, require
from zoo.types import Tensor


@keras.saving.register_keras_serializable("zoo")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` whose product is `zoo.backend.dense`: faster on torch, or in bfloat16.

    `products="bfloat16"` multiplies in it, in a float32 layer; weights, gradients and output stay
    in float32.

    Raises:
        ValueError: if `products` is something else, or the layer does not compute in float32.
    """

    def __init__(self, units: int, *args, products: str = "", **kwargs) -> None:
        super().__init__(units, *args, **kwargs)
        check_choice(("", "bfloat16"), products=products)
        expected = f'empty where a layer computes in {self.compute_dtype}. Give dtype="float32"'
        require(not products or self.compute_dtype == "float32", expected, products=products)
        self.products = products

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Return activation(inputs K + b)."""
        y = dense(inputs, self.kernel, self.bias, self.products)
        return y if self.activation is None else self.activation(y)

    def quantize(self, mode: Any, type_check: bool = True, config: Any = None) -> None:
        """Quantize the kernel as `keras.layers.Dense` does."""
        super().quantize(mode, type_check=False, config=config)

    def get_config(self) -> dict[str, Any]:
        """Return the layer's configuration."""
        own = {"products": self.products} if self.products else {}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("zoo")
class Conv2D(keras.layers.Conv2D):
    """`keras.layers.Conv2D` in the layout that the features have in memory.

    On torch Keras copies the features to channels first and back, though the result of the kernel
    has the layout of its input.
    """

    def call(self, x: Tensor) -> Tensor:
        """Return the activated convolution."""
        last = self.data_format == "channels_last" and not isinstance(x, keras.KerasTensor)
        if BACKEND != "torch" or not last:
            return super().call(x)
        import torch
        from torch.nn import functional

        x = x.permute(0, 3, 1, 2)  # a view; in memory channels stay last
        kernel = ops.convert_to_tensor(self.kernel).permute(3, 2, 0, 1)
        kernel = kernel.contiguous(memory_format=torch.channels_last)
        bias = ops.convert_to_tensor(self.bias) if self.use_bias else None
        pads = [0, 0]
        if self.padding == "same":
            pairs = zip(self.kernel_size, self.dilation_rate, strict=True)
            sizes = [(size - 1) * rate + 1 for size, rate in pairs]
            x, pads = _pad_to_same(x, sizes, self.strides, 0.0)
        y = functional.conv2d(x, kernel, bias, self.strides, pads, self.dilation_rate, self.groups)
        y = y.permute(0, 2, 3, 1)
        return y if self.activation is None else self.activation(y)


def _pad_to_same(x, sizes, strides, value):
    """Pad torch's features where "same" pads the end more; return them and the padding left."""
    from torch.nn import functional

    axes = zip(x.shape[2:], sizes, strides, strict=True)
    whole = [max(0, (-(-side // step) - 1) * step + size - side) for side, size, step in axes]
    pads = [number // 2 for number in whole]
    odd = [number % 2 for number in whole]
    if not any(odd):
        return x, pads
    x = functional.pad(x, (pads[1], pads[1] + odd[1], pads[0], pads[0] + odd[0]), value=value)
    return x, [0, 0]


@keras.saving.register_keras_serializable("zoo")
class MaxPooling2D(keras.layers.MaxPooling2D):
    """`keras.layers.MaxPooling2D` that keeps channels last in memory on torch.

    Keras copies the features to channels first there and returns the gradient in that layout, so
    that everything before it, up to the next convolution, mixes both layouts.
    """

    def call(self, x: Tensor) -> Tensor:
        """Return the maxima over windows."""
        last = self.data_format == "channels_last" and not isinstance(x, keras.KerasTensor)
        if BACKEND != "torch" or not last or not keras.backend.is_float_dtype(x.dtype):
            return super().call(x)
        from torch.nn import functional

        x = x.permute(0, 3, 1, 2)  # a view
        pads = [0, 0]
        if self.padding == "same":
            x, pads = _pad_to_same(x, self.pool_size, self.strides, -float("inf"))
        y = functional.max_pool2d(x, tuple(self.pool_size), tuple(self.strides), pads)
        return y.permute(0, 2, 3, 1)


@keras.saving.register_keras_serializable("zoo")
class BatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` by the fused kernels of torch and TensorFlow.

    Keras composes it in training of ten operations over the features on torch, each of which
    reads and writes all of them. Masks, renormalization, statistics synchronized over replicas,
    another axis than the last, integers and other weights than float32 are left to Keras's own.
    """

    def call(self, x: Tensor, training: bool | None = None, mask: Tensor | None = None) -> Tensor:
        """Return normalized features."""
        training = bool(training and self.trainable)
        if mask is not None or isinstance(x, keras.KerasTensor) or not self._is_fused(x, training):
            return super().call(x, training=training, mask=mask)
        gamma = self.gamma if self.scale else ops.ones(self.moving_mean.shape, "float32")
        beta = self.beta if self.center else ops.zeros(self.moving_mean.shape, "float32")
        averages = self.moving_mean, self.moving_variance
        vectors = [ops.convert_to_tensor(v) for v in (gamma, beta, *averages)]
        kernel: Any = _torch_norm if BACKEND == "torch" else _tensorflow_norm
        y, *statistics = kernel(x, *vectors, self.epsilon, training)
        if training:
            for average, old, new in zip(averages, vectors[2:], statistics, strict=True):
                average.assign(old * self.momentum + new * (1.0 - self.momentum))
        return ops.cast(y, self.compute_dtype)

    def _is_fused(self, x, training):
        other = self.axis not in (-1, len(x.shape) - 1) or self.renorm or self.synchronized
        known = keras.backend.standardize_dtype(x.dtype) in ("float32", "bfloat16", "float16")
        if other or not known or self.variable_dtype != "float32":
            return False
        if BACKEND == "torch":
            return not training or x.numel() > x.shape[-1]  # torch refuses one value
        return BACKEND == "tensorflow" and len(x.shape) == 4


def _tensorflow_norm(x, gamma, beta, mean, variance, epsilon, training):
    """Return the normalized features, the mean and the biased variance of the batch."""
    import tensorflow as tf

    y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x,
        scale=gamma,
        offset=beta,
        mean=[] if training else mean,
        variance=[] if training else variance,
        epsilon=epsilon,
        is_training=training,
    )
    count = tf.cast(tf.size(x) // tf.shape(x)[-1], variance.dtype)
    return y, mean, variance * ((count - 1) / count)  # TensorFlow's is unbiased


def _torch_norm(x, gamma, beta, mean, variance, epsilon, training):
    import torch

    if training:  # a momentum of 1 keeps nothing of these
        mean, variance = torch.zeros_like(mean), torch.zeros_like(variance)
    y = torch.batch_norm(
        x.movedim(-1, 1), gamma, beta, mean, variance, training, 1.0, epsilon, cudnn_enabled=True
    )
    count = max(x.numel() // x.shape[-1], 1)
    return y.movedim(1, -1), mean, variance * ((count - 1) / count)  # torch's is unbiased
