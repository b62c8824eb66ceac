"""Batch normalisation for a block that a network uses more than once."""

import contextlib

import keras
import numpy as np
from keras import ops

from zoo.backend import compiled

CAN_SHARE = ("statistics", "affine")


@keras.saving.register_keras_serializable("zoo")
class UnsharedBatchNormalization(keras.layers.Layer):
    """Batch normalisation with its own numbers for each use of a shared block.

    y = gamma_u (x - mean_u) / sqrt(variance_u + epsilon) + beta_u in use u. A shared network
    overfits and explodes if its uses share them (Jastrzebski et al., Figs 8 and 9).

    Args:
        uses: How many times the block occurs.
        share: What the uses have in common: any of "statistics" (moving mean and variance) and
            "affine" (gamma and beta). Batch statistics in training are always the use's own.
        gamma: Initial gamma.
        beta: Initial beta.
        **kwargs: `name`, `dtype`.

    Call arguments:
        x: Features.
        training: Whether to normalise with the batch's statistics, and to move the averages.
        use: Which occurrence it is, from 0.

    Input shape: `(batch, ..., channels)`.
    Output shape: `(batch, ..., channels)`.

    Raises:
        ValueError: if `uses` is not positive, `share` names something else, or `use` is too large.

    Example:

    >>> layer = UnsharedBatchNormalization(uses=13, gamma=0.1)
    >>> layer.build((None, 8, 8, 64))
    >>> len(layer.trainable_variables), len(layer.non_trainable_variables)
    (26, 26)

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 5; gamma 0.1 is theirs.
    """

    def __init__(self, uses=1, share=(), gamma=1.0, beta=0.0, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(uses, int) or uses < 1:
            raise ValueError(f"`uses` must be a positive integer. Received: uses={uses!r}")
        if isinstance(share, str) or not set(share) <= set(CAN_SHARE):
            raise ValueError(
                f"`share` must be a sequence of any of {CAN_SHARE}. Received: share={share!r}"
            )
        self.uses, self.share, self.gamma, self.beta = uses, tuple(share), gamma, beta

    def build(self, input_shape):
        channels = input_shape[-1]
        num_statistics, num_affine = (1 if part in self.share else self.uses for part in CAN_SHARE)
        self.statistics = [
            keras.layers.BatchNormalization(
                center=False, scale=False, dtype=self.dtype_policy, name=f"use{use:02d}"
            )
            for use in range(num_statistics)
        ]
        for layer in self.statistics:
            layer.build(input_shape)
        self.gammas, self.betas = (
            [
                self.add_weight((channels,), keras.initializers.Constant(value), name=f"{name}{u}")
                for u in range(num_affine)
            ]
            for name, value in (("gamma", self.gamma), ("beta", self.beta))
        )

    def call(self, x, training=None, use=0):
        if not 0 <= use < self.uses:
            raise ValueError(
                f"`use` must be one of this layer's {self.uses} uses, counted from 0. "
                f"Received: use={use}. Make the block with more `uses`."
            )
        gamma, beta = (weights[use % len(weights)] for weights in (self.gammas, self.betas))
        statistics = self.statistics[use % len(self.statistics)]
        gamma, beta = (ops.cast(weight, self.compute_dtype) for weight in (gamma, beta))
        return statistics(x, training=training) * gamma + beta

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        own = {"uses": self.uses, "share": self.share, "gamma": self.gamma, "beta": self.beta}
        return {**super().get_config(), **own}


@contextlib.contextmanager
def settled(model, x):
    """Within it, `model` has the moving averages that training on `x` without steps ends with.

    So an untrained network can be looked at as at test: its averages of 0 and 1 are of nothing. The
    averages that uses share become the mean over the uses, weighted by momentum.

    Args:
        model: A built `keras.Model`.
        x: One batch, an array; its statistics are what the averages become.
    """
    before = {id(v): ops.convert_to_numpy(v).copy() for v in model.non_trainable_variables}

    def train(x):
        groups = model.trainable_variables, model.non_trainable_variables
        values = ([v.value for v in group] for group in groups)
        return model.stateless_call(*values, x, training=True)[1]

    after = compiled(train, model)(ops.convert_to_tensor(x))
    pairs = zip(model.non_trainable_variables, after, strict=True)
    after = {id(v): ops.convert_to_numpy(value) for v, value in pairs}
    try:
        for layer, uses in _averages(model):
            kept = layer.momentum**uses  # of the old average; the rest is the batch's
            for variable, least in ((layer.moving_mean, -np.inf), (layer.moving_variance, 0.0)):
                old, new = (a[id(variable)].astype("float64") for a in (before, after))
                variable.assign(np.maximum((new - kept * old) / (1 - kept), least))
        yield
    finally:
        for variable in model.non_trainable_variables:
            variable.assign(before[id(variable)])


def _averages(model):
    """Pairs: a normalisation of Keras's, and how many uses move its averages."""
    layers, uses = [*model._flatten_layers()], {}
    for layer in layers:
        if isinstance(layer, UnsharedBatchNormalization):
            share = layer.uses // len(layer.statistics)
            uses |= {id(one): share for one in layer.statistics}
    normalizations = (x for x in layers if isinstance(x, keras.layers.BatchNormalization))
    return [(layer, uses.get(id(layer), 1)) for layer in normalizations]
