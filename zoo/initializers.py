"""Initial weights that the papers name, drawn by NumPy: one seed, one model, on every backend."""

import keras
import numpy as np

from zoo.backend import seeding


@keras.saving.register_keras_serializable("zoo")
class Uniform(keras.initializers.Initializer):
    """U(-limit, limit), the same numbers on every backend.

    Args:
        limit: Half the width of the interval.
        seed: An integer makes every call draw the same values. `None` draws the next values
            of the stream that `zoo.seed_everything` started.

    Example:

    >>> weights = Uniform(0.05, seed=0)((2, 3))
    >>> float(abs(np.asarray(weights)).max()) < 0.05
    True

    Reference: Kim et al. (2016), arXiv:1508.06615, section 4.2 (limit 0.05).
    """

    def __init__(self, limit=0.05, seed=None):
        self.limit, self.seed = limit, seed

    def __call__(self, shape, dtype=None):
        generator = seeding.stream() if self.seed is None else np.random.default_rng(self.seed)
        draw = generator.uniform(-self.limit, self.limit, shape)
        return keras.ops.convert_to_tensor(draw, dtype=dtype or keras.config.floatx())

    def get_config(self):
        return {"limit": self.limit, "seed": self.seed}
