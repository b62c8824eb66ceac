"""Batch normalization of blocks that a network uses more than once, and by batches."""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from zoo.backend import compiled, kept_random_state, keras_private
from zoo.backend.layers import BatchNormalization
from zoo.checks import check_integers, require
from zoo.layers.configured import Configured
from zoo.layers.skip import build_inner
from zoo.types import Shape, Tensor

CAN_SHARE = ("statistics", "affine")


@keras.saving.register_keras_serializable("zoo")
class UnsharedBatchNormalization(Configured):
    """Batch normalization with separate statistics and scales for each use of a shared block.

    y = gamma_u (x - mean_u) / sqrt(variance_u + epsilon) + beta_u in use u.

    Args:
        uses: Number of times the block occurs.
        share: Variables that the uses share: any of "statistics" (moving mean and variance) and
            "affine" (gamma and beta). Batch statistics in training are always the use's own.
        gamma: Initial gamma.
        beta: Initial beta.
        momentum: Share of a moving average that an update keeps.

    Call arguments:
        x: Features.
        training: As in `keras.layers.BatchNormalization`.
        use: Index of the occurrence, from 0.

    Input and output shape: `(batch, ..., channels)`.

    Raises:
        ValueError: if `uses` is not positive, `share` names something else, or `use` is too large.

    Example:
    >>> layer = UnsharedBatchNormalization(uses=13, gamma=0.1)
    >>> layer.build((None, 8, 8, 64))
    >>> len(layer.trainable_variables), len(layer.non_trainable_variables)
    (26, 26)

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 4.5; gamma 0.1 is theirs.
    """

    def __init__(
        self,
        uses: int = 1,
        share: Collection[str] = (),
        gamma: float = 1.0,
        beta: float = 0.0,
        momentum: float = 0.99,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        check_integers(1, uses=uses)
        known = isinstance(share, Collection) and {*share} <= {*CAN_SHARE}
        require(known, f"a collection of any of {CAN_SHARE}", share=share)
        self.uses = uses
        self.share = tuple(sorted(share))
        self.gamma = gamma
        self.beta = beta
        self.momentum = momentum

    def build(self, input_shape: Shape) -> None:
        """Create statistics, gammas and betas, one per use or one for all."""
        channels = input_shape[-1]
        num_statistics = 1 if "statistics" in self.share else self.uses
        num_affine = 1 if "affine" in self.share else self.uses
        options = {"momentum": self.momentum, "center": False, "scale": False}
        options["dtype"] = self.dtype_policy
        names = [f"use{use:02d}" for use in range(num_statistics)]
        self.statistics = [BatchNormalization(**options, name=name) for name in names]
        build_inner(self, self.statistics, input_shape)
        gamma = keras.initializers.Constant(self.gamma)
        beta = keras.initializers.Constant(self.beta)
        uses = range(num_affine)
        self.gammas = [self.add_weight((channels,), gamma, name=f"gamma{u}") for u in uses]
        self.betas = [self.add_weight((channels,), beta, name=f"beta{u}") for u in uses]

    def call(self, x: Tensor, training: bool | None = None, use: int = 0) -> Tensor:
        """Return normalized features."""
        check_use(use, self.uses)
        gamma = ops.cast(self.gammas[use % len(self.gammas)], self.compute_dtype)
        beta = ops.cast(self.betas[use % len(self.betas)], self.compute_dtype)
        statistics = self.statistics[use % len(self.statistics)]
        return statistics(x, training=training) * gamma + beta

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the output's shape."""
        return input_shape


def check_use(use: int, uses: int) -> None:
    """Raise a `ValueError` unless a block that occurs `uses` times has the occurrence `use`."""
    require(0 <= use < uses, f"one of {uses} uses, from 0. Make a block of more `uses`", use=use)


@contextlib.contextmanager
def batch_statistics(model: keras.Model, x: Any) -> Iterator[None]:
    """Within the context, set the moving averages to what training on one batch converges to.

    An untrained network can then be evaluated; initial averages of 0 and 1 do not describe data.
    Averages that several uses share become the mean over the uses, weighted by momentum.
    """

    def counted(layer, call, *args, **kwargs):
        uses[id(layer)] += 1
        return call(*args, **kwargs)

    def train(x):
        uses.clear()
        trainable = [v.value for v in model.trainable_variables]
        non_trainable = [v.value for v in model.non_trainable_variables]
        return model.stateless_call(trainable, non_trainable, x, training=True)[1]

    batch = keras.tree.map_structure(ops.convert_to_tensor, x)
    variables = model.non_trainable_variables
    before = [ops.convert_to_numpy(v).copy() for v in variables]
    uses: Counter[int] = Counter()  # calls of each normalization, by id
    layers = keras_private.batch_normalizations(model)
    with _calling(counted, layers), kept_random_state():  # dropout draws
        after = [ops.convert_to_numpy(v) for v in compiled(train, model)(batch)]
    values = {id(v): pair for v, *pair in zip(variables, before, after, strict=True)}
    try:
        for layer in layers:
            decay = layer.momentum ** max(uses[id(layer)], 1)  # share of the old average
            for variable, least in ((layer.moving_mean, -np.inf), (layer.moving_variance, 0.0)):
                old, new = (value.astype("float64") for value in values[id(variable)])
                variable.assign(np.maximum((new - decay * old) / (1 - decay), least))
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


@contextlib.contextmanager
def normalized_by_batches(model: keras.Model) -> Iterator[None]:
    """Within the context, normalize by the statistics of each batch, in inference, too.

    A network that lost blocks has other statistics than its moving averages, to which healing
    adapts them. Frozen layers do not change. Functions that are compiled within the context keep
    this; nobody else may call the model meanwhile. Li et al. (2020), EagleEye, arXiv:2007.02491,
    section 3.3 (adaptive batch normalization).
    """

    def by_batch(_, call, *args, **kwargs):
        return call(*args, **{**kwargs, "training": True})

    with _calling(by_batch, keras_private.batch_normalizations(model)):
        yield


@contextlib.contextmanager
def _calling(function: Callable[..., Any], layers: Sequence[keras.layers.Layer]) -> Iterator[None]:
    """Within the context, replace calls by a function of layer, call and its arguments."""
    for layer in layers:
        layer.call = functools.partial(function, layer, layer.call)
    try:
        yield
    finally:
        for layer in layers:
            del layer.call
