"""Batch normalisation for a block that a network uses more than once."""

import keras
from keras import ops

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
