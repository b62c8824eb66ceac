"""What every pass over data needs: batches, their filling up, a loss for each example."""

import keras
import numpy as np
from keras import ops


def example_loss(loss):
    """A function of labels and outputs that returns one loss for each example."""
    loss = keras.losses.get(loss or "sparse_categorical_crossentropy")

    def each(labels, outputs):
        each = loss.call if isinstance(loss, keras.losses.Loss) else loss
        value = each(labels, outputs)
        return (
            value
            if len(value.shape) == 1
            else ops.mean(ops.reshape(value, (ops.shape(value)[0], -1)), axis=1)
        )

    return each


def batches(data, batch_size):
    """Pairs of inputs and labels, or None for the labels.

    Args:
        data: As in `run`.
        batch_size: Of arrays.
    """
    if hasattr(data, "shape") or (
        isinstance(data, tuple) and all(hasattr(v, "shape") for v in keras.tree.flatten(data))
    ):
        x, y = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
        for start in range(0, len(keras.tree.flatten(x)[0]), batch_size):
            cut = slice(start, start + batch_size)
            yield _map(lambda v: v[cut], x), None if y is None else y[cut]  # noqa: B023
        return
    indexed = isinstance(data, keras.utils.PyDataset)
    for batch in (data[i] for i in range(len(data))) if indexed else data:
        x, y = batch[:2] if isinstance(batch, (tuple, list)) and len(batch) > 1 else (batch, None)
        x = x[0] if isinstance(x, (tuple, list)) and len(x) == 1 else x
        yield _map(ops.convert_to_numpy, x), None if y is None else ops.convert_to_numpy(y)


def filled(x, size):
    """Arrays with their last example repeated up to `size` examples."""
    return _map(lambda v: np.concatenate([v, np.repeat(v[-1:], size - len(v), axis=0)]), x)


_map = keras.tree.map_structure


def masked_sum(v, mask):
    """Sum over the examples that `mask` has."""
    mask = ops.reshape(mask, (-1, *[1] * (len(v.shape) - 1)))
    return ops.sum(ops.where(mask, ops.cast(v, "float32"), 0.0), axis=0)
