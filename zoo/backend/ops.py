"""The distinct values of a tensor, in a shape that a compiler knows."""

import keras


def distinct(ids, size):
    """Sorted distinct ids, where each input finds its own, and how many there are.

    `ops.take(values, inverse) == ids` holds whenever `count <= size`.

    Args:
        ids: Integers of shape `(n,)`.
        size: Length of `values` on TensorFlow and JAX, where shapes must be static; torch
            returns exactly `count` values.

    Returns:
        values: `(size,)`, padded by a repetition of an id.
        inverse: `(n,)`, positions in `values`.
        count: Scalar, the number of distinct ids; if it exceeds `size`, `values` lacks some.

    Example:

    >>> from keras import ops
    >>> values, inverse, count = distinct(ops.array([7, 3, 7]), size=2)
    >>> ops.convert_to_numpy(values).tolist(), ops.convert_to_numpy(inverse).tolist(), int(count)
    ([3, 7], [1, 0, 1], 2)
    """
    if keras.backend.backend() == "torch":
        import torch

        values, inverse = torch.unique(ids, return_inverse=True)
        return values, inverse, values.shape[0]
    if keras.backend.backend() == "jax":
        import jax.numpy as jnp

        order = jnp.argsort(ids)
        ranked = ids[order]
        rank = jnp.cumsum(jnp.concatenate([jnp.zeros(1, "int32"), jnp.diff(ranked) != 0]))
        rank = rank.astype("int32")
        inverse = jnp.zeros(ids.shape, "int32").at[order].set(rank, unique_indices=True)
        values = jnp.full((size,), ranked[0]).at[rank].set(ranked, mode="drop")
        return values, inverse, rank[-1] + 1
    import tensorflow as tf  # tf.unique has a dynamic shape, which XLA refuses

    order = tf.argsort(ids)
    ranked = tf.gather(ids, order)
    rank = tf.cumsum(tf.concat([[0], tf.cast(ranked[1:] != ranked[:-1], "int32")], 0))
    inverse = tf.tensor_scatter_nd_update(tf.zeros_like(rank), order[:, None], rank)
    slot = tf.minimum(rank, size)  # one slot more than asked for collects the overflow
    values = tf.fill([size + 1], ranked[0])
    values = tf.tensor_scatter_nd_update(values, slot[:, None], ranked)
    return values[:size], inverse, rank[-1] + 1
