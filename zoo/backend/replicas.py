"""The share of a batch that one of several replicas computes, and what all of them made."""

import keras


def num_replicas():
    """Replicas that split the batch which is being computed; 1 outside of them.

    Only TensorFlow has replicas: with JAX's `keras.distribution` a program sees the whole batch.

    Example:

    >>> num_replicas()
    1
    """
    context = _context()
    return context.num_replicas_in_sync if context else 1


def own_rows(rows):
    """Of what has a row for each example of the whole batch, the rows of this replica.

    Args:
        rows: A tensor `(batch, ...)`; its first axis is a multiple of `num_replicas()`.

    Returns:
        A tensor `(batch / num_replicas(), ...)`.
    """
    num = num_replicas()
    if num == 1:
        return rows
    own = rows.shape[0] // num
    start = _context().replica_id_in_sync_group * own
    return rows[start : start + own]


def all_rows(rows):
    """The rows of all replicas in their order, on each of them: `own_rows` undone.

    Args:
        rows: A tensor `(own, ...)`.

    Returns:
        A tensor `(own * num_replicas(), ...)`.
    """
    return rows if num_replicas() == 1 else _context().all_gather(rows, axis=0)


def _context():
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    return tf.distribute.get_replica_context()
