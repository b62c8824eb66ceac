"""Weight decay as a penalty of the loss, and the one that a plain network would pay."""

import keras
import numpy as np
from keras import ops

from zoo.layers.simplified import SimplifiedResidual, id_entries

FACTOR = 1e-4 / 256  # Yu & Tomasi: half of 1e-4, over a batch of 128; read off their Table 4


@keras.saving.register_keras_serializable("zoo")
class TransferredL2(keras.regularizers.Regularizer):
    """factor · sum of (w + id)², id being 1 at the kernel's identity entries and 0 elsewhere.

    It is what the kernel of the plain block that computes the same would pay, so that equivalent
    networks have equal costs and gradients ("transferred weight decay").

    Args:
        factor: Of the sum of squares.
        identity: "pad" or "duplicate": see `zoo.SimplifiedResidual`. `None`: id is 0 everywhere;
            Keras's own L2 has a factor of single precision on TensorFlow.

    Example:

    >>> float(TransferredL2(0.5)(ops.zeros((3, 3, 4, 4))))  # four entries of 1
    2.0

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise
    Stability", section 3.2.
    """

    def __init__(self, factor=FACTOR, identity="pad"):
        self.factor, self.identity = factor, identity

    def __call__(self, w):
        if self.identity is not None:
            ones = np.zeros(tuple(w.shape))
            ones[id_entries(ones, self.identity)] = 1
            w = w + ops.convert_to_tensor(ones, w.dtype)
        return self.factor * ops.sum(ops.square(w))

    def get_config(self):
        return {"factor": self.factor, "identity": self.identity}


def penalize(model, factor=FACTOR, transferred=False):
    """Adds factor · |w|² of every kernel to what `fit` minimises; metrics do not see it.

    Like `compile` it is about training: a saved model does not remember it.

    Args:
        model: A built `keras.Model`.
        factor: Of the sums of squares.
        transferred: Whether the kernel of a `SimplifiedResidual` pays what that of the equal plain
            block would: `TransferredL2`.

    Returns:
        `model`.

    Raises:
        ValueError: if `factor` is negative.
    """
    if factor < 0:
        raise ValueError(f"`factor` must not be negative. Received: factor={factor}")
    plain, moved = TransferredL2(factor, None), {}
    if transferred:
        for layer in model.layers:
            if isinstance(layer, SimplifiedResidual):
                moved[id(layer.transform.kernel)] = TransferredL2(factor, layer.identity)
    for variable in model.trainable_variables:
        if variable.path.split("/")[-1] == "kernel":
            variable.regularizer = moved.get(id(variable), plain)
    return model


def penalty(model):
    """What the penalties of `model` add up to now, a number."""
    return float(sum(float(ops.convert_to_numpy(value)) for value in model.losses))
