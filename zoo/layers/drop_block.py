"""A layer that drops a block at random: stochastic depth."""

from typing import Any

import keras
from keras import ops

from zoo.layers.configured import Configured
from zoo.types import Tensor


@keras.saving.register_keras_serializable("zoo")
class DropBlock(Configured):
    """A block's output y in training, or for a random share of the examples its skip input x.

    In inference x + (1 - rate) (y - x), the expected output.

    Args:
        rate: Probability of x, from 0 to 1.
        seed: Random seed.
        **kwargs: `name`, `dtype`.

    Call arguments:
        x: Skip input.
        y: Output, of the same shape.
        training: True to drop.

    Raises:
        ValueError: if `rate` is out of range.

    Reference: Huang et al. (2016), "Deep Networks with Stochastic Depth", arXiv:1603.09382,
    section 3 (where all examples of a batch drop the same blocks).
    """

    arguments = ("rate", "seed")

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= rate <= 1:
            raise ValueError(f"`rate` must be from 0 to 1. Received: rate={rate!r}")
        self.rate = rate
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_masking = True

    def call(self, x: Tensor, y: Tensor, training: bool | None = None) -> Tensor:
        """Return x or y of each example, or their mean."""
        if not training:
            return x + (1 - self.rate) * (y - x)
        shape = (ops.shape(y)[0], *[1] * (len(y.shape) - 1))
        dropped = keras.random.uniform(shape, seed=self.seed_generator) < self.rate
        return ops.where(dropped, x, y)
