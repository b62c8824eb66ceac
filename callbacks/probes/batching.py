"""Batches of a pass over data, and padding."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
from keras import ops, tree

from zoo.backend import STATIC_SHAPES
from zoo.backend.replicas import spread_shards
from zoo.checks import check_integers
from zoo.types import Tensor

Check: TypeAlias = Callable[[Any], None]
Progress: TypeAlias = Callable[[int], object]


class Labels(NamedTuple):
    """Labels and their sample weights, both with a value for each position of an output."""

    values: Any
    weights: Any


def batches(
    data: Any, batch_size: int, check: Check | None = None, weighted: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of inputs and labels, as arrays; None for data without labels.

    Args:
        data: As in `zoo.callbacks.run`.
        batch_size: Examples in a batch, where `data` are arrays.
        check: A function that raises an error if it does not accept labels. All of them, where
            `data` are arrays, or a batch's.
        weighted: Yield `Labels` where data have sample weights of positions; else they, and always
            weights of whole examples, are left out.

    Raises:
        ValueError: if data are no arrays, inputs and labels differ in their numbers of examples, or
            `batch_size` is no positive integer.
    """
    check_integers(1, batch_size=batch_size)
    if isinstance(data, (tuple, dict)) or hasattr(data, "shape"):
        x, y = _unpack(data, weighted)
        _check(x, y, check)
        for start in range(0, len(tree.flatten(x)[0]), batch_size):
            rows = slice(start, start + batch_size)
            yield _to_numpy(x, rows), None if y is None else _to_numpy(y, rows)
        return
    indexed = isinstance(data, keras.utils.PyDataset)
    for batch in (data[i] for i in range(len(data))) if indexed else data:
        x, y = _unpack(batch, weighted)
        _check(x, y, check)
        yield _to_numpy(x), None if y is None else _to_numpy(y)


def repeatable(data: Any) -> Any:
    """Return data that can be read again: of an iterator, a list of its batches."""
    return [*data] if isinstance(data, Iterator) else data


def first(data: Any, count: int, batch_size: int) -> list[tuple[Any, ...]]:
    """Return the first `count` examples, or all if there are fewer, in batches as of `batches`."""
    found: list[tuple[Any, ...]] = []
    for x, y in batches(data, min(batch_size, count), weighted=True):
        labels = y if isinstance(y, Labels) else (y,)
        parts = [part for part in (x, *labels) if part is not None]
        found.append(tuple(_to_numpy(part, slice(count)) for part in parts))
        count -= len(tree.flatten(found[-1][0])[0])
        if count == 0:
            break
    return found


def _unpack(batch, weighted):
    """Return inputs and labels of x, `(x, y)` or `(x, y, sample_weight)`."""
    if not isinstance(batch, (tuple, list)) or len(batch) == 1:
        return batch[0] if isinstance(batch, (tuple, list)) else batch, None
    x, y, weights = (*batch, None)[:3]
    x = x[0] if isinstance(x, (tuple, list)) and len(x) == 1 else x
    if weighted and y is not None and len(getattr(weights, "shape", ())) > 1:
        y = Labels(y, weights)
    return x, y


def _check(x, y, check):
    arrays = tree.flatten(x if y is None else (x, y))
    strange = [v for v in arrays if not len(getattr(v, "shape", ()))]  # a number has none
    if strange:
        raise ValueError(
            f"Expected arrays x, or (x, y), or batches of these. Received: "
            f"{type(strange[0]).__name__} {strange[0]!r} in place of an array. Convert lists with "
            f"numpy.asarray."
        )
    lengths = [array.shape[0] for array in arrays]
    if len({*lengths}) > 1:
        raise ValueError(
            f"Expected as many labels as inputs, and as many of each input. Received: arrays of "
            f"{lengths} examples. Cut them to the same examples."
        )
    if check and y is not None:
        check(_to_numpy(y))


def _to_numpy(structure, rows=slice(None)):  # noqa: B008  # a constant
    return tree.map_structure(lambda v: ops.convert_to_numpy(v[rows]), structure)


def to_tensors(structure: Any) -> Any:
    """Return a structure of arrays as one of tensors."""
    return tree.map_structure(ops.convert_to_tensor, structure)


def padded_batches(
    data: Any,
    batch_size: int,
    progress: Progress | None = None,
    multiple: int = 1,
    check: Check | None = None,
) -> Iterator[tuple[Any, Any, np.ndarray]]:
    """Yield inputs, labels, `Labels` or None, and a mask of the examples, `(batch,)`.

    The mask is 0 for padding, 1 for examples, and NaN for those whose inputs have NaN: layers such
    as a ReLU may drop it, measured values must not. Batches are padded to the size of the largest
    one before, so that compiled functions see one shape, and to a `multiple`; where nothing is
    compiled, on PyTorch, the mask has the examples only. `progress` is called with the number of
    examples so far, after each batch; the others are those of `batches`.

    Raises:
        ValueError: if there is no example.
    """
    size = 0
    seen = 0
    for x, y in batches(data, batch_size, check, weighted=True):
        count = len(tree.flatten(x)[0])
        size = max(size, -(-count // multiple) * multiple)
        mask = np.pad(nan_mask(x), (0, size - count if STATIC_SHAPES else 0))
        yield _pad(x, size), None if y is None else _pad(y, size), mask
        seen += count
        if progress:
            progress(seen)
    if not seen:
        raise ValueError("Expected at least one example. Received: data without any.")


def nan_mask(x: Any) -> np.ndarray:
    """Return 1, or NaN where one of an example's inputs has NaN, `(batch,)`, float32."""
    inputs = tree.flatten(x)
    mask = np.ones(len(inputs[0]), "float32")
    for values in inputs:
        if np.issubdtype(values.dtype, np.floating):
            mask[np.isnan(values).reshape(len(values), -1).any(axis=1)] = np.nan
    return mask


def _pad(structure, size):
    """Repeat the last example up to `size` examples."""
    return tree.map_structure(
        lambda v: np.concatenate([v, np.repeat(v[-1:], size - len(v), axis=0)]), structure
    )


def masked_sum(v: Tensor, mask: Tensor) -> Tensor:
    """Return the sum over examples; see `padded_batches` for the mask."""
    return ops.sum(_without_padding(v, mask, 0.0), axis=0)


def masked_extreme(v: Tensor, mask: Tensor, kind: str) -> Tensor:
    """Return the smallest ("min") or largest ("max") value over each replica's examples.

    Of shape `(replicas, ...)`, so that the sum over replicas has them all.
    """
    if kind == "min":
        value = ops.min(_without_padding(v, mask, np.inf), axis=0, keepdims=True)
    else:
        value = ops.max(_without_padding(v, mask, -np.inf), axis=0, keepdims=True)
    return spread_shards(value)


def _without_padding(v, mask, replacement):
    if not STATIC_SHAPES:
        return ops.cast(v[: mask.shape[0]], "float32")
    mask = ops.reshape(mask, (-1, *[1] * (len(v.shape) - 1)))
    return ops.where(mask == 0, replacement, ops.cast(v, "float32"))


def to_arrays(sums: Any, mask: np.ndarray) -> Any:
    """Return a structure of tensors as arrays, NaN if an example of the batch has NaN."""
    nan_or_zero = 0.0 * mask.sum()
    return tree.map_structure(lambda v: ops.convert_to_numpy(v) + nan_or_zero, sums)
