"""Keras's 2D convolution by `zoo.backend.conv2d`."""

import keras

from zoo import backend
from zoo.types import Tensor


@keras.saving.register_keras_serializable("zoo")
class Conv2D(keras.layers.Conv2D):
    """`keras.layers.Conv2D` of the same arguments, values and weights; faster on torch."""

    def call(self, x: Tensor) -> Tensor:
        """Return the activated convolution."""
        if self.data_format != "channels_last" or isinstance(x, keras.KerasTensor):
            return super().call(x)
        bias = self.bias if self.use_bias else None
        y = backend.conv2d(x, self.kernel, bias, self.strides, self.pads(), self.dilation_rate)
        return y if self.activation is None else self.activation(y)

    def pads(self) -> str | int:
        """Return the padding as `zoo.backend.conv2d` takes it."""
        return self.padding
