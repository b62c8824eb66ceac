"""The papers' initializers, sampled by NumPy: one seed gives one model on every backend."""

import inspect
import math
from typing import Any

import keras
import numpy as np

from zoo.backend.runtime import GENERATOR
from zoo.checks import check_choice, check_integers, check_numbers, require
from zoo.types import Initializer, Shape, Tensor


class NumpyInitializer(keras.initializers.Initializer):
    """Weights sampled by NumPy.

    A subclass defines `_sample(generator, shape)`. An integer as `seed` makes every call return the
    same values; `None` takes the next values of the stream that `zoo.seed_everything` started.
    """

    def __init__(self, seed: int | None = None) -> None:
        check_integers(0, seed=seed, optional=True)
        self.seed = seed

    def __call__(self, shape: Shape, dtype: str | None = None) -> Tensor:
        """Return a tensor of this shape."""
        generator = GENERATOR if self.seed is None else np.random.default_rng(self.seed)
        values = self._sample(generator, tuple(shape))
        return keras.ops.convert_to_tensor(values, dtype=dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        """Return the initializer's configuration."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}


@keras.saving.register_keras_serializable("zoo")
class Uniform(NumpyInitializer):
    """U(-limit, limit); a limit of `None` is 1 / sqrt(fan_in), as in torch's linear layers.

    Reference: Kim et al. (2016), arXiv:1508.06615, section 4.2 (limit 0.05).
    """

    def __init__(self, limit: float | None = 0.05, seed: int | None = None) -> None:
        super().__init__(seed)
        check_numbers(0, limit=0 if limit is None else limit)
        self.limit = limit

    def _sample(self, generator, shape):
        limit = 1 / math.sqrt(fans(shape)[0]) if self.limit is None else self.limit
        return generator.uniform(-limit, limit, shape)


@keras.saving.register_keras_serializable("zoo")
class GlorotUniform(NumpyInitializer):
    """U(-a, a) with a = sqrt(6 / (fan_in + fan_out)): Glorot, Bengio (2010), equation 16."""

    def _sample(self, generator, shape):
        limit = math.sqrt(6 / sum(fans(shape)))
        return generator.uniform(-limit, limit, shape)


@keras.saving.register_keras_serializable("zoo")
class Gaussian(NumpyInitializer):
    """N(0, stddev²), not truncated."""

    def __init__(self, stddev: float = 1.0, seed: int | None = None) -> None:
        super().__init__(seed)
        self.stddev = stddev

    def _sample(self, generator, shape):
        return generator.normal(0.0, self.stddev, shape)


@keras.saving.register_keras_serializable("zoo")
class KaimingNormal(NumpyInitializer):
    """N(0, 2 / fan), not truncated (Keras's `he_normal` is).

    Yu & Tomasi's KWI, and the "xavier" of the highway authors' Caffe fork.

    `fan` is "in", as in those two, or "out", as in fb.resnet.torch, and `scale` a factor of the
    standard deviation.

    Raises:
        ValueError: if `fan` is neither.

    Reference: He et al. (2015), arXiv:1502.01852, equation 10.
    """

    def __init__(self, fan: str = "in", scale: float = 1.0, seed: int | None = None) -> None:
        super().__init__(seed)
        check_choice(("in", "out"), fan=fan)
        self.fan = fan
        self.scale = scale

    def _sample(self, generator, shape):
        fan_in, fan_out = fans(shape)
        stddev = self.scale * math.sqrt(2 / (fan_in if self.fan == "in" else fan_out))
        return generator.normal(0.0, stddev, shape)


@keras.saving.register_keras_serializable("zoo")
class HardtMa(NumpyInitializer):
    """N(0, (1 / (k² c))²) for k x k kernels with c output channels.

    Yu & Tomasi's HMWI: small weights, as they are added to an identity.

    Reference: Hardt, Ma (2017), arXiv:1611.04231, section 4.
    """

    def _sample(self, generator, shape):
        return generator.normal(0.0, 1 / fans(shape)[1], shape)


def copied(initializer: Initializer) -> Initializer:
    """Return a copy of an initializer; Keras takes functions, too, which have no `clone`."""
    return initializer.clone() if hasattr(initializer, "clone") else initializer


def fans(shape: Shape) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a kernel of shape `(..., in, out)`."""
    require(len(shape) > 1, "that of a kernel, (..., in, out), and not of a bias", shape=shape)
    field = math.prod(shape[:-2])
    return field * shape[-2], field * shape[-1]
