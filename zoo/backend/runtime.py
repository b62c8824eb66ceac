"""Random numbers that do not depend on the backend."""

import random
import sys

import keras
import numpy as np

_STATE = {"stream": np.random.default_rng()}


def seed_everything(seed):
    """Seeds Python, NumPy, Keras layers and torch, and starts the stream of initial weights.

    Unlike `keras.utils.set_random_seed` it does not import TensorFlow on the other backends
    and does not freeze TensorFlow's shuffling (`tf.random.set_seed` would repeat one
    permutation in every epoch). Dropout masks still differ from backend to backend.

    Args:
        seed: A non-negative integer.

    Raises:
        ValueError: if `seed` is not one.

    Example:

    >>> seed_everything(3435)
    """
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"`seed` must be a non-negative integer. Received: seed={seed!r}")
    random.seed(seed)  # Keras draws the seeds of unseeded dropout layers from it
    np.random.seed(seed % 2**32)
    _STATE["stream"] = np.random.default_rng(seed)
    if keras.backend.backend() == "torch":
        sys.modules["torch"].manual_seed(seed)


def stream():
    """The NumPy generator that unseeded zoo initializers draw from."""
    return _STATE["stream"]
