"""What every pass over data needs: batches, their filling up, a loss for each example."""

import keras
import numpy as np
from keras import ops


def normalizes(graph):
    """Whether the first output of a `zoo.calls.Graph` is made by a softmax."""
    maker = next(call for call in graph.calls if graph.outputs[0] in call.outputs)
    if getattr(maker.layer, "activation", None) is keras.activations.softmax:
        return True
    return type(maker.layer).__name__ == "Softmax"  # the layer, and the operation


def probabilities(outputs, normalized):
    """Of the classes, float32.

    Raises:
        ValueError: if there is one class only.
    """
    if outputs.shape[-1] == 1:
        raise ValueError(
            "Accuracy and entropy are of two classes or more. Received: a network with one output."
        )
    outputs = ops.cast(outputs, "float32")
    return outputs if normalized else ops.softmax(outputs)


def hits(outputs, classes):
    """1 where the largest output is the true class's, 0 elsewhere, NaN where outputs are."""
    found = ops.cast(ops.argmax(outputs, axis=-1), "int32")
    hit = ops.cast(found == ops.cast(classes, "int32"), "float32")
    return ops.where(ops.all(ops.isfinite(outputs), axis=-1), hit, float("nan"))


def example_loss(loss, normalized):
    """A function of labels and outputs that returns one loss for each example, float32.

    Cross-entropy of a softmax is taken of the logarithm of its output: Keras cuts probabilities off
    at 1e-7, and with them the gradients of examples that the network is sure of.

    Args:
        loss: A Keras loss or its name; None: cross-entropy of integer labels.
        normalized: Whether outputs are probabilities already.
    """
    names = ("sparse_categorical_crossentropy", "categorical_crossentropy")
    own = keras.losses.get(loss or names[0])
    config = own.get_config() if isinstance(own, keras.losses.Loss) else {}
    name = config.get("name", getattr(own, "__name__", None))
    logits = config.get("from_logits", loss is None and not normalized)
    entropy = name in names and not config.get("label_smoothing") and (logits or normalized)

    def each(labels, outputs):
        outputs = ops.cast(outputs, "float32")
        if entropy:
            outputs = outputs if logits else ops.log(ops.maximum(outputs, 1e-37))
            value = getattr(keras.losses, name)(labels, outputs, from_logits=True)
        else:
            value = (own.call if isinstance(own, keras.losses.Loss) else own)(labels, outputs)
        if len(value.shape) == 1:
            return value
        return ops.mean(ops.reshape(value, (ops.shape(value)[0], -1)), axis=1)

    return each


def batches(data, batch_size):
    """Pairs of inputs and labels, or None for the labels.

    Args:
        data: As in `run`.
        batch_size: Of arrays.
    """
    arrays = isinstance(data, tuple) and all(hasattr(v, "shape") for v in keras.tree.flatten(data))
    if hasattr(data, "shape") or arrays:
        x, y = data[:2] if isinstance(data, tuple) and len(data) > 1 else (data, None)
        for start in range(0, len(keras.tree.flatten(x)[0]), batch_size):
            cut = slice(start, start + batch_size)
            yield tuple(map(_as_arrays, (_map(lambda v: v[cut], x), y if y is None else y[cut])))  # noqa: B023
        return
    indexed = isinstance(data, keras.utils.PyDataset)
    for batch in (data[i] for i in range(len(data))) if indexed else data:
        x, y = batch[:2] if isinstance(batch, (tuple, list)) and len(batch) > 1 else (batch, None)
        x = x[0] if isinstance(x, (tuple, list)) and len(x) == 1 else x
        yield _as_arrays(x), _as_arrays(y)


def _as_arrays(v):
    return None if v is None else _map(ops.convert_to_numpy, v)


def filled(x, size):
    """Arrays with their last example repeated up to `size` examples."""
    return _map(lambda v: np.concatenate([v, np.repeat(v[-1:], size - len(v), axis=0)]), x)


_map = keras.tree.map_structure


def masked_sum(v, mask):
    """Sum over the examples that `mask` has."""
    mask = ops.reshape(mask, (-1, *[1] * (len(v.shape) - 1)))
    return ops.sum(ops.where(mask, ops.cast(v, "float32"), 0.0), axis=0)
