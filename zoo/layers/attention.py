"""Causal self-attention of given projections."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from zoo.checks import check_integers, require
from zoo.layers.configured import Configured
from zoo.layers.skip import build_inner
from zoo.types import Shape, Tensor


@keras.saving.register_keras_serializable("zoo")
class CausalAttention(Configured):
    """Self-attention in which a position sees itself and those before it.

    Args:
        heads: Number of heads.
        query, key, projection: Layers from features to queries, to keys, and from the heads'
            outputs to the output, such as `keras.layers.Dense`.
        value: Layer from features to values; None: `call` gets the values.

    Call arguments, beside the features:
        value: Further values, of all heads, `(batch, steps, heads * size)`.
        shares: Factors of the further values and of the layer's own; None: the further ones alone.
        sources: Features that keys and values are made of; None: those of the queries.

    Input and output shape: `(batch, steps, d)`.

    Raises:
        ValueError: if there are neither `value` nor values in the call, or `heads` do not divide
            the queries.

    Example:
    >>> attention = CausalAttention(2, *[keras.layers.Dense(4) for _ in range(4)])
    >>> tuple(attention(keras.ops.ones((1, 3, 4))).shape)
    (1, 3, 4)

    Reference: Vaswani et al. (2017), arXiv:1706.03762, section 3.2; `value`: Zhou et al. (2024),
    arXiv:2410.17897.
    """

    def __init__(
        self,
        heads: int,
        query: keras.layers.Layer,
        key: keras.layers.Layer,
        projection: keras.layers.Layer,
        value: keras.layers.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_integers(1, heads=heads)
        self.heads = heads
        self.query = query
        self.key = key
        self.projection = projection
        self.value: Any = value

    def build(self, input_shape: Shape) -> None:
        """Build the projections."""
        build_inner(self, (self.query, self.key, self.value), input_shape)
        width = self.query.compute_output_shape(input_shape)[-1]
        divides = width % self.heads == 0
        require(divides, f"a divisor of the queries' {width} features", heads=self.heads)
        build_inner(self, [self.projection], (*input_shape[:-1], width))

    def call(
        self,
        x: Tensor,
        value: Tensor | None = None,
        shares: Sequence[float] | Tensor | None = None,
        sources: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Return the projected outputs of all heads."""
        of_keys, of_values = sources or (x, x)
        if value is None:
            value = self._own_values(of_values)
        elif shares is not None:
            value = value * shares[0] + self._own_values(of_values) * shares[1]
        tensors = [self._by_head(v) for v in (self.query(x), self.key(of_keys), value)]
        y = ops.dot_product_attention(*tensors, is_causal=True)
        return self.projection(ops.reshape(y, (*ops.shape(y)[:2], -1)))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the output's shape."""
        width = self.query.compute_output_shape(input_shape)[-1]
        return self.projection.compute_output_shape((*input_shape[:-1], width))

    def _own_values(self, x):
        if self.value is None:
            raise ValueError("Expected a layer `value`, or values in the call. Received none.")
        return self.value(x)

    def _by_head(self, v):
        return ops.reshape(v, (*ops.shape(v)[:2], self.heads, v.shape[-1] // self.heads))
