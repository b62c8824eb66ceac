"""Batches of a pass over data, padding, and a loss for each example."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops, tree

from zoo.graph.calls import Graph
from zoo.types import Tensor

LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Loss: TypeAlias = str | keras.losses.Loss | LossFunction | None
Progress: TypeAlias = Callable[[int], object]
ENTROPIES = ("sparse_categorical_crossentropy", "categorical_crossentropy")


def normalizes(graph: Graph) -> bool:
    """Return True if a softmax makes the first output of a `zoo.calls.Graph`."""
    layer = next(call.layer for call in graph.calls if graph.outputs[0] in call.outputs)
    if getattr(layer, "activation", None) is keras.activations.softmax:
        return True
    return type(layer).__name__ == "Softmax"  # the layer, and the operation


def probabilities(outputs: Tensor, normalized: bool) -> Tensor:
    """Return the class probabilities, float32.

    Args:
        outputs: Outputs of the network.
        normalized: True if outputs are probabilities already.

    Raises:
        ValueError: if there is one class only.
    """
    if outputs.shape[-1] == 1:
        raise ValueError(
            "Expected a network of two classes or more, for accuracy and entropy. Received: a "
            "network with one output."
        )
    outputs = ops.cast(outputs, "float32")
    return outputs if normalized else ops.softmax(outputs)


def hits(outputs: Tensor, classes: Tensor) -> Tensor:
    """Return 1 where the largest output is the true class's, 0 elsewhere, NaN where outputs are."""
    predicted = ops.cast(ops.argmax(outputs, axis=-1), "int32")
    hit = ops.cast(predicted == ops.cast(classes, "int32"), "float32")
    return ops.where(ops.all(ops.isfinite(outputs), axis=-1), hit, float("nan"))


def class_indices(labels: Tensor, num_classes: int) -> Tensor:
    """Return labels that are integers or one-hot as integers, `(batch,)`."""
    if len(labels.shape) > 1 and labels.shape[-1] == num_classes:
        return ops.argmax(labels, axis=-1)
    return ops.cast(ops.reshape(labels, (-1,)), "int32")


def example_loss(loss: Loss, normalized: bool) -> LossFunction:
    """Return a function of labels and outputs that computes one loss for each example, float32.

    Cross-entropy of a softmax is computed from the logarithm of its output: Keras clips
    probabilities at 1e-7, and with them the gradients of examples with a smaller loss.

    Args:
        loss: A Keras loss or its name; None: cross-entropy of integer labels.
        normalized: True if outputs are probabilities already.
    """
    function = keras.losses.get(loss or ENTROPIES[0])
    is_object = isinstance(function, keras.losses.Loss)
    config = function.get_config() if is_object else {}
    name = config.get("name", getattr(function, "__name__", None))
    from_logits = config.get("from_logits", loss is None and not normalized)
    entropy = (
        name in ENTROPIES and not config.get("label_smoothing") and (from_logits or normalized)
    )

    def compute(labels, outputs):
        outputs = ops.cast(outputs, "float32")
        if entropy:
            logits = outputs if from_logits else ops.log(ops.maximum(outputs, 1e-37))
            value = getattr(keras.losses, name)(labels, logits, from_logits=True)
        else:
            value = (function.call if is_object else function)(labels, outputs)
        if len(value.shape) == 1:
            return value
        return ops.mean(ops.reshape(value, (ops.shape(value)[0], -1)), axis=1)

    return compute


def batches(data: Any, batch_size: int) -> Iterator[tuple[Any, np.ndarray | None]]:
    """Yield pairs of inputs and labels, as arrays; None for data without labels.

    Args:
        data: As in `zoo.callbacks.run`.
        batch_size: Examples in a batch, where `data` are arrays.

    Raises:
        ValueError: if inputs and labels differ in their numbers of examples.
    """
    is_tuple = isinstance(data, tuple)
    if hasattr(data, "shape") or is_tuple and all(hasattr(v, "shape") for v in tree.flatten(data)):
        x, y = data[:2] if is_tuple and len(data) > 1 else (data, None)
        _check_lengths(x, y)
        for start in range(0, len(tree.flatten(x)[0]), batch_size):
            rows = slice(start, start + batch_size)
            yield _to_numpy(x, rows), None if y is None else _to_numpy(y, rows)
        return
    indexed = isinstance(data, keras.utils.PyDataset)
    for batch in (data[i] for i in range(len(data))) if indexed else data:
        x, y = batch[:2] if isinstance(batch, (tuple, list)) and len(batch) > 1 else (batch, None)
        x = x[0] if isinstance(x, (tuple, list)) and len(x) == 1 else x
        _check_lengths(x, y)
        yield _to_numpy(x), None if y is None else _to_numpy(y)


def _check_lengths(x, y):
    lengths = [array.shape[0] for array in tree.flatten((x, y)) if getattr(array, "shape", ())]
    if len({*lengths}) > 1:
        raise ValueError(
            f"Expected as many labels as inputs, and as many of each input. Received: arrays of "
            f"{lengths} examples. Cut them to the same examples."
        )


def _to_numpy(structure, rows=slice(None)):  # noqa: B008  # a constant
    return tree.map_structure(lambda v: ops.convert_to_numpy(v[rows]), structure)


def padded_batches(
    data: Any, batch_size: int, progress: Progress | None = None, multiple: int = 1
) -> Iterator[tuple[Any, np.ndarray | None, np.ndarray]]:
    """Yield inputs, labels or None, and a mask of the examples that are no padding.

    Batches are padded to the size of the largest one before, so that compiled functions see one
    shape.

    Args:
        data: As in `batches`.
        batch_size: As in `batches`.
        progress: A function called with the number of examples so far, after each batch.
        multiple: A number that sizes must be a multiple of.

    Raises:
        ValueError: if there is no example.
    """
    size = 0
    seen = 0
    for x, y in batches(data, batch_size):
        count = len(tree.flatten(x)[0])
        size = max(size, -(-count // multiple) * multiple)
        yield _pad(x, size), None if y is None else _pad(y, size), np.arange(size) < count
        seen += count
        if progress:
            progress(seen)
    if not seen:
        raise ValueError("Expected at least one example. Received: data without any.")


def _pad(structure, size):
    """Repeat the last example up to `size` examples."""
    return tree.map_structure(
        lambda v: np.concatenate([v, np.repeat(v[-1:], size - len(v), axis=0)]), structure
    )


def masked_sum(v: Tensor, mask: Tensor) -> Tensor:
    """Return the sum over the examples where `mask` is True."""
    mask = ops.reshape(mask, (-1, *[1] * (len(v.shape) - 1)))
    return ops.sum(ops.where(mask, ops.cast(v, "float32"), 0.0), axis=0)
