"""Keras's 2D max-pooling by `zoo.backend.max_pool2d`."""

import keras

from zoo import backend
from zoo.types import Tensor


@keras.saving.register_keras_serializable("zoo")
class MaxPooling2D(keras.layers.MaxPooling2D):
    """`keras.layers.MaxPooling2D` of the same arguments and values; faster on torch."""

    def call(self, x: Tensor) -> Tensor:
        """Return the maxima over windows."""
        is_float = keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))
        is_symbolic = isinstance(x, keras.KerasTensor)
        if self.data_format != "channels_last" or is_symbolic or not is_float:
            return super().call(x)
        return backend.max_pool2d(x, self.pool_size, self.strides, self.padding)
