"""Weight decay as a penalty of the loss, plain or transferred from the equivalent plain network."""

from typing import Any

import keras
import numpy as np
from keras import ops

from zoo.backend import keras_private
from zoo.checks import check_model, check_numbers
from zoo.layers.simplified import SimplifiedResidual, id_entries
from zoo.types import Tensor

FACTOR = 1e-4 / 256  # Yu & Tomasi: half of 1e-4, over a batch of 128; read off their Table 4


@keras.saving.register_keras_serializable("zoo")
class TransferredL2(keras.regularizers.Regularizer):
    """factor · sum of (w + id)², id being 1 at the kernel's identity entries and 0 elsewhere.

    It is the L2 penalty of the kernel of the equivalent plain block, so that equivalent networks
    have equal costs and gradients ("transferred weight decay").

    `identity` is "pad" or "duplicate": see `zoo.SimplifiedResidual`. `None`: id is 0 everywhere,
    plain L2, of which Keras's own rounds the factor to single precision on TensorFlow.

    Example:
    >>> float(TransferredL2(0.5)(ops.zeros((3, 3, 4, 4))))  # four entries of 1
    2.0

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise
    Stability", section 4.1.
    """

    def __init__(self, factor: float = FACTOR, identity: str | None = "pad") -> None:
        self.factor = factor
        self.identity = identity

    def __call__(self, w: Tensor) -> Tensor:
        """Return the penalty of a kernel."""
        if self.identity is not None:
            ones = np.zeros(tuple(w.shape))
            ones[id_entries(ones, self.identity)] = 1
            w = w + ops.convert_to_tensor(ones, w.dtype)
        return self.factor * ops.sum(ops.square(w))

    def get_config(self) -> dict[str, Any]:
        """Return the regularizer's configuration."""
        return {"factor": self.factor, "identity": self.identity}


def penalize(model: keras.Model, factor: float = FACTOR, transferred: bool = False) -> keras.Model:
    """Add factor · |w|² of every kernel to the loss of `model`, and return it.

    It takes the place of a kernel's own regularizer. Metrics exclude the penalty. Like `compile` it
    concerns training: a saved model does not store it. With `transferred`, the kernel of each
    `SimplifiedResidual` has `TransferredL2` instead.

    Raises:
        ValueError: if `factor` is negative.
    """
    check_model(model)
    check_numbers(0, factor=factor)
    for variable in model.trainable_variables:
        if variable.path.endswith("kernel"):  # of a stack "..._kernel"
            variable.regularizer = TransferredL2(factor, None)
    for layer in keras_private.inner_layers(model):
        if transferred and isinstance(layer, SimplifiedResidual):
            layer.transform.kernel.regularizer = TransferredL2(factor, layer.identity)
    return model
