"""Caffe's SGD."""

from typing import Any

import keras
from keras.optimizers.schedules import LearningRateSchedule

from zoo.backend import keras_private
from zoo.types import Tensor


@keras.saving.register_keras_serializable("zoo")
class CaffeSGD(keras.optimizers.SGD):
    """Momentum SGD as in a Caffe solver: coupled decay of kernels, biases twice as fast.

    The gradient of a kernel w becomes g + decay · w before momentum sees it, as by a penalty
    decay / 2 · w², which the reported loss excludes.

    Args:
        decay: Weight decay of kernels.
        last_decay: Weight decay of the kernel of the layer called "predictions".
        bias_rate: Factor of the learning rate for biases, those of gates too.
        decay_all: If True, biases and normalizations decay as well, by `decay`.
        **kwargs: Arguments of `keras.optimizers.SGD`, as are those before `decay`.

    Example:
    >>> optimizer = CaffeSGD(0.1, momentum=0.0, nesterov=False, decay=0.5)
    >>> kernel = keras.Variable([2.0], name="kernel")
    >>> optimizer.apply([keras.ops.array([1.0])], [kernel])  # 2 - 0.1 (1 + 0.5 · 2)
    >>> round(float(keras.ops.convert_to_numpy(kernel)[0]), 6)
    1.8

    Reference: github.com/flukeskywalker/highway-networks, the solver and train_test files of
    Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228.
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.01,
        momentum: float = 0.9,
        nesterov: bool = True,
        decay: float = 0.001,
        last_decay: float = 0.01,
        bias_rate: float = 2.0,
        decay_all: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, momentum, nesterov, **kwargs)
        self.decay = decay
        self.last_decay = last_decay
        self.bias_rate = bias_rate
        self.decay_all = decay_all

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
        """Update one variable."""
        layer, _, name = keras_private.path_of(self, variable).rpartition("/")
        is_kernel = name.endswith("kernel")  # of a stack "..._kernel"
        if name.endswith("bias"):
            learning_rate = self.bias_rate * learning_rate
        if is_kernel or self.decay_all:
            is_last = is_kernel and layer.endswith("predictions")
            decay = self.last_decay if is_last else self.decay
            gradient = gradient + decay * keras.ops.cast(variable, gradient.dtype)
        super().update_step(gradient, variable, learning_rate)

    def get_config(self) -> dict[str, Any]:
        """Return the optimizer's configuration."""
        names = "decay", "last_decay", "bias_rate", "decay_all"
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
