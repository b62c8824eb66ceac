"""Initial weights that the papers name, drawn by NumPy: one seed, one model, on every backend."""

import math

import keras
import numpy as np

from zoo.backend import runtime


class Drawn(keras.initializers.Initializer):
    """Initial weights from NumPy; a subclass says in `draw` from which distribution.

    Args:
        seed: An integer makes every call draw the same values. `None` draws the next values
            of the stream that `zoo.seed_everything` started.
    """

    def __init__(self, seed=None):
        self.seed = seed

    def draw(self, generator, shape):
        """An array of `shape` from a `numpy.random.Generator`."""
        raise NotImplementedError(f"{type(self).__name__} must say how its values are drawn.")

    def __call__(self, shape, dtype=None):
        generator = runtime.stream() if self.seed is None else np.random.default_rng(self.seed)
        values = self.draw(generator, tuple(shape))
        return keras.ops.convert_to_tensor(values, dtype=dtype or keras.config.floatx())

    def get_config(self):
        return {"seed": self.seed}


@keras.saving.register_keras_serializable("zoo")
class Uniform(Drawn):
    """U(-limit, limit), the same numbers on every backend.

    Args:
        limit: Half the width of the interval; `None` takes 1 / sqrt(fan_in), torch's default for
            its linear layers.
        seed: See `Drawn`.

    Example:

    >>> weights = Uniform(0.05, seed=0)((2, 3))
    >>> float(abs(np.asarray(weights)).max()) < 0.05
    True

    Reference: Kim et al. (2016), arXiv:1508.06615, section 4.2 (limit 0.05).
    """

    def __init__(self, limit=0.05, seed=None):
        super().__init__(seed)
        self.limit = limit

    def draw(self, generator, shape):
        limit = 1 / math.sqrt(fans(shape)[0]) if self.limit is None else self.limit
        return generator.uniform(-limit, limit, shape)

    def get_config(self):
        return {"limit": self.limit, **super().get_config()}


@keras.saving.register_keras_serializable("zoo")
class GlorotUniform(Drawn):
    """U(-a, a) with a = sqrt(6 / (fan_in + fan_out)), the same numbers on every backend.

    Reference: Glorot, Bengio (2010), equation 16, "normalized initialization".
    """

    def draw(self, generator, shape):
        limit = math.sqrt(6 / sum(fans(shape)))
        return generator.uniform(-limit, limit, shape)


@keras.saving.register_keras_serializable("zoo")
class Gaussian(Drawn):
    """N(0, stddev²), not truncated, the same numbers on every backend.

    Args:
        stddev: Standard deviation.
        seed: See `Drawn`.
    """

    def __init__(self, stddev=1.0, seed=None):
        super().__init__(seed)
        self.stddev = stddev

    def draw(self, generator, shape):
        return generator.normal(0.0, self.stddev, shape)

    def get_config(self):
        return {"stddev": self.stddev, **super().get_config()}


@keras.saving.register_keras_serializable("zoo")
class KaimingNormal(Drawn):
    """N(0, 2 / fan), not truncated (Keras's `he_normal` is), the same on every backend.

    It is what Yu & Tomasi call KWI, and what the highway authors' Caffe fork calls "xavier".

    Args:
        fan: "in", as in those two, or "out", as in fb.resnet.torch.
        scale: Factor of the standard deviation.
        seed: See `Drawn`.

    Raises:
        ValueError: if `fan` is neither.

    Example:

    >>> weights = KaimingNormal(seed=0)((3, 3, 50, 100))
    >>> round(225 * float(keras.ops.var(weights)), 2)  # 2 / (9 · 50)
    1.0

    Reference: He et al. (2015), arXiv:1502.01852, equation 10.
    """

    def __init__(self, fan="in", scale=1.0, seed=None):
        super().__init__(seed)
        if fan not in ("in", "out"):
            raise ValueError(f"`fan` must be 'in' or 'out'. Received: fan={fan!r}")
        self.fan, self.scale = fan, scale

    def draw(self, generator, shape):
        fan = fans(shape)[self.fan == "out"]
        return generator.normal(0.0, self.scale * math.sqrt(2 / fan), shape)

    def get_config(self):
        return {"fan": self.fan, "scale": self.scale, **super().get_config()}


@keras.saving.register_keras_serializable("zoo")
class HardtMa(Drawn):
    """N(0, (1 / (k² c))²) for k x k kernels with c output channels, the same on every backend.

    Yu & Tomasi's HMWI: beside the identity that they are added to, the weights are small.

    Example:

    >>> weights = HardtMa(seed=0)((3, 3, 200, 100))
    >>> round(900 * float(keras.ops.std(weights)), 2)  # 1/(9 · 100)
    1.0

    Reference: Hardt, Ma (2017), arXiv:1611.04231, section 4.
    """

    def draw(self, generator, shape):
        return generator.normal(0.0, 1 / fans(shape)[1], shape)


def fans(shape):
    """What one unit reads and feeds: (fan_in, fan_out) of a kernel `(..., in, out)`.

    >>> fans((3, 3, 16, 32))
    (144, 288)
    """
    field = math.prod(shape[:-2])
    return field * shape[-2], field * shape[-1]
