"""Shards of the global batch, one for each of several replicas."""

from collections.abc import Sequence

import keras
import numpy as np

from zoo.types import Tensor


def num_replicas() -> int:
    """Return the number of replicas that split the current batch; 1 outside of a replica.

    Only TensorFlow has replicas: with JAX's `keras.distribution` a program sees the global batch.
    """
    context = _context()
    return context.num_replicas_in_sync if context else 1


def local_shard(rows: Tensor) -> Tensor:
    """Return this replica's shard of a tensor whose first axis is the global batch."""
    num = num_replicas()
    if num == 1:
        return rows
    size = rows.shape[0] // num
    start = _context().replica_id_in_sync_group * size
    return rows[start : start + size]


def gather_shards(rows: Tensor) -> Tensor:
    """Concatenate the shards of all replicas on each of them: the inverse of `local_shard`."""
    return rows if num_replicas() == 1 else _context().all_gather(rows, axis=0)


def _context():
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    return tf.distribute.get_replica_context()


def whole_values(variables: Sequence[keras.Variable]) -> list[np.ndarray]:
    """Return values of variables, also where several processes of JAX divide them.

    All processes must call it, because they exchange the parts. Types that NumPy has no file format
    for, such as bfloat16, become float32, which has all their values.
    """
    values = [keras.ops.convert_to_numpy(_readable(variable.value)) for variable in variables]
    return [np.array(v, "float32" if v.dtype.kind == "V" else v.dtype) for v in values]


def _readable(value):
    on_jax = keras.backend.backend() == "jax"
    if not on_jax or value.is_fully_addressable or value.is_fully_replicated:
        return value
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(value, tiled=True)
