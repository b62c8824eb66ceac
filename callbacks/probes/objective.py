"""Batches of data with labels, and the loss and class probabilities of each example."""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
from absl import logging
from keras import ops, tree

from zoo.backend import STATIC_SHAPES, keras_private
from zoo.checks import check_integers, fits, generator, require
from zoo.graph.blocks import Block
from zoo.graph.calls import Call, Graph, activation_of, calls_before, infer, reads
from zoo.types import Shape, Tensor

Check: TypeAlias = Callable[[Any], Any]
Progress: TypeAlias = Callable[[int], object]
Loss: TypeAlias = str | keras.losses.Loss | Callable[[Tensor, Tensor], Tensor] | None

SPARSE = (keras.losses.sparse_categorical_crossentropy, keras.losses.SparseCategoricalCrossentropy)
ONE_HOT = (keras.losses.categorical_crossentropy, keras.losses.CategoricalCrossentropy)
BINARY = (keras.losses.binary_crossentropy, keras.losses.BinaryCrossentropy)
OTHER_SHAPES = (keras.losses.ctc, keras.losses.CTC, keras.losses.circle, keras.losses.Circle)
ENTROPIES = {"softmax": SPARSE + ONE_HOT, "sigmoid": BINARY, None: ()}  # by the final activation
MEASURES = ("accuracy", "loss", "kl", "variation", "agreement", "change")  # of modified networks
TINY = 1e-37  # a probability whose logarithm float32 has


class Labels(NamedTuple):
    """Labels and their sample weights, both with a value for each position of an output."""

    values: Any
    weights: Any


def batches(data: Any, batch_size: int, check: Check | None = None) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of inputs and labels, as arrays; None for data without labels.

    `data` and `batch_size` are those of `zoo.callbacks.run`. Labels with sample weights of
    positions are `Labels`; those of whole examples are left out, with a warning. `check` gets
    labels (all of them, where `data` are arrays, or a batch's) and returns those to use, or raises
    an error.

    Raises:
        ValueError: if data are no arrays, inputs and labels differ in their numbers of examples, or
            `batch_size` is no positive integer.
    """
    check_integers(1, batch_size=batch_size)
    if isinstance(data, keras.utils.PyDataset):
        data = map(data.__getitem__, range(len(data)))
    arrays = isinstance(data, (tuple, dict, str)) or hasattr(data, "shape")
    arrays = arrays or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__"))
    seen = 0
    for part in [data] if arrays else data:
        part = part if isinstance(part, (tuple, list)) else (part,)
        x, y, weights = (*part, None, None, None)[:3]
        x = x[0] if len(part) > 1 and isinstance(x, (tuple, list)) and len(x) == 1 else x
        if y is not None and any(np.prod(np.shape(w)[1:]) > 1 for w in tree.flatten(weights)):
            y = Labels(y, weights)
        elif weights is not None and not seen:
            logging.warning("Weights of whole examples are not used: all examples count alike.")
        y, count = _check(x, y, check)
        size = batch_size if arrays else max(count, 1)
        for start in range(0, count, size):
            rows = slice(start, start + size)
            yield _to_numpy(x, rows), None if y is None else _to_numpy(y, rows)
            seen += size
    if not seen:
        raise ValueError("Expected at least one example. Received: data without any.")


def repeatable(data: Any) -> Any:
    """Return data that can be read repeatedly; an iterator is read into a list."""
    return [*data] if isinstance(data, Iterator) else data


def sample(data: Any, count: int, seed: int = 0) -> tuple[Any, int]:
    """Return `count` random examples, or all if there are fewer, and the number of all.

    The choice keeps the order of the data and does not depend on the batches. It is returned as a
    tuple of arrays, or as a list of tuples if batches differ in the shape of an example.
    """
    rng = generator(seed)
    total = 0
    pieces: list[tuple[np.ndarray, Any]] = []  # of random keys, of which the lowest stay
    for x, y in batches(data, sys.maxsize):
        labels = y if isinstance(y, Labels) else (y,)
        parts = tuple(part for part in (x, *labels) if part is not None)
        pieces.append((rng.random(len(tree.flatten(x)[0])), parts))
        total += len(pieces[-1][0])
        limit = np.sort(np.concatenate([keys for keys, _ in pieces]))[:count][-1]
        chosen = [(keys <= limit, keys, parts) for keys, parts in pieces]
        pieces = [(keys[rows], _to_numpy(parts, rows)) for rows, keys, parts in chosen if any(rows)]
    found = [parts for _, parts in pieces]
    if len({tuple(v.shape[1:] for v in tree.flatten(parts)) for parts in found}) == 1:
        return tree.map_structure(lambda *v: np.concatenate(v), *found), total
    return found, total


def _check(x, y, check):
    """Return labels and number of examples; raise an error unless x and y are arrays of as many."""
    arrays = tree.flatten(x if y is None else (x, y))
    strange = [v for v in arrays if not len(getattr(v, "shape", ()))]  # a number has none
    if strange or not arrays:
        other = [*strange, x][0]
        raise ValueError(
            f"Expected arrays x, or (x, y), or batches of these. Received: {type(other).__name__} "
            f"{other!r} in place of an array. Convert lists with numpy.asarray; those of a name, "
            f"such as 'mnist', are in zoo.datasets.images.load(name)."
        )
    lengths = [array.shape[0] for array in arrays]
    expected = "the same: as many labels as inputs, and as many of each input"
    require(len({*lengths}) == 1, expected, numbers_of_examples=lengths)
    if check and y is not None:
        y = check(_to_numpy(y, slice(None)))
    return y, lengths[0]


def _to_numpy(structure, rows):
    return tree.map_structure(lambda v: ops.convert_to_numpy(v[rows]), structure)


def padded_batches(
    data: Any, batch_size: int, progress: Progress | None = None, check: Check | None = None
) -> Iterator[tuple[Any, Any, np.ndarray]]:
    """Yield inputs, labels that were checked, and a mask of the examples, `(batch,)`.

    The labels are a tuple of one tensor or `Labels`, or without labels or a `check` empty. The mask
    is 0 for padding, 1 for examples, and NaN for those whose inputs have NaN: layers such as a ReLU
    may drop it, measured values must not. Batches are padded to the size of the largest one before,
    so that compiled functions see one shape; where nothing is compiled, on PyTorch, the mask has
    the examples only. `progress` is called with the number of examples so far, after each batch.
    """
    require(progress is None or callable(progress), "a function of a number", progress=progress)
    size = 0
    seen = 0
    for x, y in batches(data, batch_size, check):
        mask = nan_mask(x)
        seen += len(mask)
        size = max(size, len(mask))
        padded = np.pad(mask, (0, size - len(mask) if STATIC_SHAPES else 0))
        rows = np.minimum(np.arange(size), len(mask) - 1)  # the last example again and again
        labels = () if y is None or check is None else (_to_numpy(y, rows),)
        yield _to_numpy(x, rows), tree.map_structure(ops.convert_to_tensor, labels), padded
        if progress:
            progress(seen)


def nan_mask(x: Any) -> np.ndarray:
    """Return 1, or NaN where one of an example's inputs has NaN, `(batch,)`, float32."""
    inputs = tree.flatten(x)
    mask = np.ones(len(inputs[0]), "float32")
    for values in inputs:
        if np.issubdtype(values.dtype, np.floating):
            mask[np.isnan(values).reshape(len(values), -1).any(axis=1)] = np.nan
    return mask


def masked_sum(v: Tensor, mask: Tensor) -> Tensor:
    """Return the sum over examples; see `padded_batches` for the mask."""
    if not STATIC_SHAPES:
        return ops.sum(ops.cast(v[: mask.shape[0]], "float32"), axis=0)
    mask = ops.reshape(mask, (-1, *[1] * (len(v.shape) - 1)))
    return ops.sum(ops.where(mask == 0, 0.0, ops.cast(v, "float32")), axis=0)


def flat(v: Tensor) -> Tensor:
    """Return `(batch, ...)` as `(batch, features)`, float32: squares of float16 overflow."""
    return ops.cast(ops.reshape(v, (ops.shape(v)[0], -1)), "float32")


def norm(v: Tensor) -> Tensor:
    """Return the Euclidean norm of each example, `(batch,)`."""
    v = flat(v)
    length = ops.norm(v, axis=1)

    def scaled():
        size = scale(v)
        return ops.norm(v / size, axis=1) * size[:, 0]

    return ops.cond(in_range(length), lambda: length, scaled)


def in_range(lengths: Tensor) -> Tensor:
    """Return True if no square that was summed for a norm can have overflowed or vanished."""
    return ops.all((lengths > 1e-15) & (lengths < 1e15))  # float32 is 1e-38 to 3e38


def scale(v: Tensor) -> Tensor:
    """Return the largest size along the last axis, by which squares neither overflow nor vanish."""
    largest = ops.max(ops.abs(v), axis=-1, keepdims=True)
    # 1 of zeros: XLA may divide by the product of two divisors, and TINY TINY is 0
    return ops.where(largest == 0, 1.0, ops.clip(largest, TINY, 1 / TINY))


def zero_masked(v: Tensor, mask: Tensor | None) -> Tensor:
    """Return `v` with zeros where a mask of its first axes is False."""
    if mask is None or tuple(v.shape[1 : len(mask.shape)]) != tuple(mask.shape[1:]):
        return v
    mask = ops.reshape(mask, (*ops.shape(mask), *[1] * (len(v.shape) - len(mask.shape))))
    return ops.where(mask, v, ops.zeros_like(v))


def zero_masked_by_keras(v: Tensor) -> Tensor:
    """Return `v` with zeros where its own Keras mask is False."""
    return zero_masked(v, keras_private.get_keras_mask(v))


def to_arrays(sums: Any, mask: np.ndarray) -> Any:
    """Return a structure of tensors as arrays, NaN if an example of the batch has NaN."""
    nan_or_zero = 0.0 * mask.sum()
    return tree.map_structure(lambda v: ops.convert_to_numpy(v) + nan_or_zero, sums)


class Objective:
    """Loss and class probabilities of each example, computed from the network's logits.

    Where a softmax or sigmoid makes the first output, `apply` runs the network up to the logits,
    and a cross-entropy is computed from these: from probabilities, float32 has no gradient of a
    confident mistake, and Keras clips them at 1e-7. Outputs have one class distribution (or value)
    for each position, such as `(batch, steps, classes)`. Several sigmoids, unless the loss is
    categorical, are independent labels of two classes each, `(batch, ..., labels, 2)`: measures
    are averaged over labels, KL divergences summed. Graph, model and loss are those of
    `zoo.callbacks.run`, which tells how an example's positions are averaged.
    """

    def __init__(self, graph: Graph, model: keras.Model, loss: Loss = None) -> None:
        slot = graph.outputs[0]
        self._last = next((call for call in graph.calls if slot in call.outputs), None)
        self._activation = activation_of(self._last)
        read_again = any(slot in call.sources for call in graph.calls)
        self._removed = not read_again and _is_removable(self._last)
        self._graph = graph
        self._shape = tuple(graph.model.outputs[0].shape)
        expected = "(batch, ..., values). Add an axis: keras.layers.Reshape((1,))"
        require(len(self._shape) > 1, expected, output_shape=self._shape)
        expected = "of a known number of values. Measure keras.Model(model.inputs, another output)"
        require(self._shape[-1] is not None, expected, output_shape=self._shape)
        self._num_outputs = len(graph.outputs)
        output = graph.model.output
        self._name = min(output) if isinstance(output, dict) else graph.model.output_names[0]
        loss = self._of_first(loss or getattr(model, "loss", None))
        try:
            self._given = keras.losses.get(loss)
        except ValueError:
            require(False, "a loss of Keras, its name, such as 'mse', or a function", loss=loss)
        entropy = _kind(self._given) in SPARSE + ONE_HOT + BINARY
        if entropy and self._activation is None and not getattr(self._given, "from_logits", False):
            self._activation = "sigmoid" if _kind(self._given) in BINARY else "softmax"
        one_class = self._activation == "softmax" or _kind(self._given) in SPARSE + ONE_HOT
        binary = self._activation == "sigmoid" or _kind(self._given) in BINARY
        self._binary = binary and not one_class
        several = self._shape[-1] > 1
        self._known = self._binary or several and bool(entropy or self._activation)
        self._labels = self._shape[-1] if self._binary else 1

    def _of_first(self, given):
        """Return what is given for the first output, of a list or dictionary for all outputs."""
        if isinstance(given, dict):
            return given.get(self._name)
        several = isinstance(given, (list, tuple)) and len(given) == self._num_outputs
        return given[0] if several else given

    def check_blocks(self, blocks: Sequence[Block]) -> None:
        """Raise ValueError for blocks that do not lead to the first output."""
        first = self._graph.outputs[0]
        leading = {first} | reads(calls_before(first, self._graph.calls))
        aside = [block.name for block in blocks if block.y not in leading]
        expected = f"some that lead to the first output, {self._name!r}, whose loss is measured. "
        expected += "Name others, or measure keras.Model(model.inputs, another output)"
        require(not aside, expected, blocks=aside)

    def apply(self, call: Call, *args: Any, **kwargs: Any) -> Any:
        """Call a layer in inference mode, the last one without its softmax or sigmoid."""
        if not self._removed or call is not self._last:
            return infer(call, *args, **kwargs)
        x = args[0]
        layer = call.layer
        if not isinstance(layer, keras.layers.Dense):
            return x
        dtype = layer.compute_dtype
        y = ops.matmul(ops.cast(x, dtype), ops.cast(layer.kernel, dtype))
        y = y if layer.bias is None else ops.add(y, ops.cast(layer.bias, y.dtype))
        return self._graph.keep_mask(x, y)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits, float32, from what `apply` returned for the first output."""
        logits = ops.cast(outputs, "float32")
        if not self._removed and self._activation is not None:
            p = logits
            logits = ops.log(ops.maximum(p, TINY))
            if self._activation == "sigmoid":
                logits = logits - ops.log(ops.maximum(1 - p, TINY))
        return self._graph.keep_mask(outputs, logits)

    def losses(self, labels: Tensor | Labels, logits: Tensor) -> Tensor:
        """Return the loss of each example, `(batch,)`."""
        return average(self.position_losses(labels, logits), self.weights(labels, logits))

    def position_losses(self, labels: Tensor | Labels, logits: Tensor) -> Tensor:
        """Return the loss of each position, `(batch, ...)`, without weights; see the class."""
        labels = values_of(labels)
        if len(labels.shape) == len(logits.shape) - 1 and logits.shape[-1] == 1:
            labels = ops.expand_dims(labels, -1)  # as `fit` does; else they are broadcast
        loss = self._given or self._default(labels.shape)
        if _kind(loss) not in SPARSE:
            labels = ops.cast(labels, "float32")  # as `fit` does
        at_logits = _kind(loss) in ENTROPIES[self._activation] or self._given is None
        by_label = self._labels > 1 and _kind(loss) in BINARY
        if by_label:
            labels, logits = (ops.expand_dims(v, -1) for v in (labels, logits))
        if not isinstance(loss, keras.losses.Loss):
            function = functools.partial(loss, from_logits=True) if at_logits else loss
        elif at_logits and not loss.from_logits:
            function = type(loss).from_config({**loss.get_config(), "from_logits": True}).call
        else:
            function = loss.call
        if not at_logits and self._activation is not None:
            logits = getattr(ops, self._activation)(logits)
        losses = function(labels, logits)
        expected = "one with a value for each example, and not one for the batch"
        require(len(losses.shape), expected, loss=_kind(loss))
        return ops.expand_dims(losses, -1) if self._labels > 1 and not by_label else losses

    def weights(self, labels: Tensor | Labels | None, logits: Tensor) -> Tensor | None:
        """Return the share of each position in its example's mean, `(batch, ...)`.

        None if all have the same. NaN where an example has no position that counts.
        """
        mask = keras_private.get_keras_mask(logits) if self._graph.masked else None
        counts = [] if mask is None else [mask]
        if isinstance(labels, Labels):
            counts.append(labels.weights)
        ignored = getattr(self._given, "ignore_class", None)
        if ignored is not None and labels is not None:
            counts.append(class_indices(values_of(labels), self._shape) != ignored)
        if len(self._shape) < 3 or not counts:
            return None
        share = functools.reduce(ops.multiply, [ops.cast(v, "float32") for v in counts])
        return share / ops.sum(share, axis=[*range(1, len(share.shape))], keepdims=True)

    def log_probabilities(self, logits: Tensor, labels: Any = None) -> Tensor:
        """Return logarithms of class probabilities, `(batch, ..., classes)`; of one sigmoid, two.

        Raise ValueError if the network does not classify.
        """
        expected = "a distribution over classes: after a softmax or sigmoid, with class indices as "
        expected += "labels, or a cross-entropy as loss. Give the loss, or compile the model with "
        expected += "it, such as keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
        require(self.classifies(labels), expected, linear_outputs=self._shape)
        if self._binary:
            pair = ops.log_sigmoid(ops.stack([-logits, logits], axis=-1))
            return pair if self._labels > 1 else ops.squeeze(pair, axis=-2)
        return ops.log_softmax(ops.log_sigmoid(logits) if self._activation == "sigmoid" else logits)

    def classifies(self, labels: Any = None) -> bool:
        """Return True if the outputs are a distribution over classes.

        After a softmax or sigmoid, with a cross-entropy as loss, or with class indices as labels:
        integers, where another loss is given.
        """
        if self._known or labels is None:
            return self._known
        labels = values_of(labels)
        is_integer = "int" in keras.backend.standardize_dtype(labels.dtype)
        return self._is_index(labels.shape) and (is_integer or self._given is None)

    def scores(
        self, outputs: list[Tensor], intact: list[Tensor], labels: Tensor | Labels | None = None
    ) -> dict[str, Tensor]:
        """Return those of `MEASURES` that a modified network has, each `(batch,)`.

        `outputs` are its outputs, `intact` those of the unmodified one, the first as logits.
        """
        scores = {} if labels is None else self.measured(labels, outputs[0])
        if self.classifies(labels):
            p, q = (self.log_probabilities(v[0], labels) for v in (intact, outputs))
            return scores | self.compare(p, q, self.weights(labels, outputs[0]))
        pair = outputs, intact
        flat_pair = [[flat(zero_masked_by_keras(v)) for v in tensors] for tensors in pair]
        new, old = (ops.concatenate(vectors, axis=1) for vectors in flat_pair)
        size = norm(old)
        change = norm(new - old) / ops.where(size == 0, 1.0, size)
        return scores | {"change": ops.where(size == 0, 0.0, change)}

    def measured(self, labels: Tensor | Labels, logits: Tensor) -> dict[str, Tensor]:
        """Return each example's loss and, if the network classifies, accuracy, `(batch,)`.

        The accuracy is the share of positions whose most probable class is the true one; without
        positions 1 or 0, and NaN where a logit is not finite.
        """
        numbers = {"loss": self.losses(labels, logits)}
        if self.classifies(labels):
            hit = correct(self.log_probabilities(logits, labels), values_of(labels))
            numbers["accuracy"] = average(hit, self.weights(labels, logits))
        return numbers

    def compare(
        self, intact: Tensor, other: Tensor, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return KL divergence, in nats, total variation and agreement, each `(batch,)`.

        `intact` and `other` are logarithms of probabilities.
        """
        difference = other - intact
        # p log(p / q) + q - p, whose sum is the same: no term is negative, and equal ones are 0
        terms = ops.exp(intact) * (ops.expm1(difference) - difference)
        kl = ops.sum(ops.where(intact < np.log(TINY), ops.exp(other), terms), axis=-1)
        agreement = average(hits(other, ops.argmax(intact, axis=-1)), weights)
        moved = ops.sum(ops.abs(ops.exp(other) - ops.exp(intact)), axis=-1) / 2
        return {
            "kl": average(kl, weights) * self._labels,
            "variation": average(moved, weights),
            "agreement": agreement,
        }

    def check(self, labels: Any) -> Any:
        """Return the first output's labels, ones that the loss is defined for.

        Raises:
            ValueError: if a label of a cross-entropy is out of range or NaN, the loss is not known
                or takes labels of another shape, all positions of an example are left out, or the
                first output has no labels.
        """
        given = labels if isinstance(labels, Labels) else (labels, None)
        labels, weights = map(self._of_first, given)
        valid = hasattr(labels, "shape") and labels.dtype.kind not in "OSU"  # objects and texts
        expected = f"those of the first output, {self._name!r} of shape {self._shape}: an array of "
        expected += "numbers (encode names of classes), or a list or dictionary for all outputs"
        require(valid, expected, labels=labels)
        if np.ndim(weights) == len(self._shape) and weights.shape[-1] == 1:
            weights = weights[..., 0]  # as `fit` does
        positions = np.prod(np.shape(weights)[1:]) if len(self._shape) > 2 else 1
        checked = Labels(labels, weights) if positions > 1 else labels
        loss = self._given or self._default(labels.shape)
        ignored = getattr(loss, "ignore_class", None)
        counts = labels != ignored
        if checked is not labels:
            weights = weights.reshape(*weights.shape, *[1] * (labels.ndim - weights.ndim))
            counts = counts & (weights != 0)
        empty = counts.size and not counts.reshape(len(labels), -1).any(axis=1).all()
        expected = "such that a position of each example counts. Leave out examples whose labels "
        expected += f"are all {ignored} or whose sample weights are all 0"
        require(not empty, expected, labels=labels.shape)
        kind = _kind(loss)
        of_keras = getattr(kind, "__module__", "").startswith("keras.src.losses")
        if not of_keras or kind in OTHER_SHAPES:
            return checked
        size = 1 if kind in SPARSE else self._shape[-1]
        shape = labels.shape if labels.ndim == len(self._shape) else (*labels.shape, 1)
        expected = f"of the shape that {kind.__name__} takes for outputs {self._shape}. For class "
        expected += "indices give loss='sparse_categorical_crossentropy', for one-hot labels "
        expected += "'categorical_crossentropy', for several sigmoids 'binary_crossentropy'"
        require(fits(shape[1:], (*self._shape[1:-1], size)), expected, labels=labels.shape)
        if kind in SPARSE:
            labels = labels[counts]
            largest = self._shape[-1] - 1
            valid = (labels >= 0) & (labels <= largest) & (labels % 1 == 0)
            expected = f"whole numbers from 0 to {largest}, one for each output"
        elif kind in ONE_HOT + BINARY:
            valid = (labels >= 0) & (labels <= 1)
            expected = "from 0 to 1"
        else:
            return checked
        received = labels[~valid].ravel()[:5]
        require(valid.all(), f"{expected}, or the loss another one", labels=received)
        return checked

    def _is_index(self, shape):
        return self._shape[-1] > 1 and (len(shape) == len(self._shape) - 1 or shape[-1] == 1)

    def _default(self, shape):
        if self._activation == "sigmoid":
            return BINARY[0]
        if self._is_index(shape):
            return SPARSE[0]
        if self._activation == "softmax" and shape[-1] == self._shape[-1]:
            return ONE_HOT[0]
        raise ValueError(
            f"Expected a loss, as the last activation and the labels do not tell it. Received: "
            f"outputs of shape {self._shape}, labels of shape {tuple(shape)}. Compile the model, "
            f"or give the loss, such as loss='mean_squared_error' of a regression."
        )


def hits(probabilities: Tensor, classes: Tensor) -> Tensor:
    """Return 1 where the most probable class is the true one, else 0; NaN without probabilities."""
    predicted = ops.cast(ops.argmax(probabilities, axis=-1), "int32")
    hit = ops.cast(predicted == ops.cast(classes, "int32"), "float32")
    return ops.where(ops.all(ops.isfinite(probabilities), axis=-1), hit, float("nan"))


def correct(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return 1 where the most probable class is the label's, else 0, `(batch, ...)`; see `hits`."""
    return hits(probabilities, class_indices(labels, probabilities.shape))


def class_indices(labels: Tensor, shape: Shape) -> Tensor:
    """Return labels that are integers or one-hot as integers, `(batch, ...)`.

    `shape` is that of the outputs, `(batch, ..., classes)`.
    """
    if len(labels.shape) == len(shape) and labels.shape[-1] == shape[-1]:
        return ops.argmax(labels, axis=-1)
    labels = ops.squeeze(labels, axis=-1) if len(labels.shape) == len(shape) else labels
    if "int" in keras.backend.standardize_dtype(labels.dtype):
        return ops.cast(labels, "int32")
    return ops.cast(ops.floor(ops.cast(labels, "float32") + 0.5), "int32")  # 0.9 of a sigmoid is 1


def values_of(labels: Any) -> Any:
    """Return labels without their weights."""
    return labels.values if isinstance(labels, Labels) else labels


def average(v: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean over positions, `(batch, ...)` to `(batch,)`; see `Objective.weights`."""
    if len(v.shape) == 1:
        return v
    if weights is None:
        return ops.mean(flat(v), axis=1)
    labels = [*range(len(weights.shape), len(v.shape))]  # the axes of several sigmoids
    v = ops.mean(v, axis=labels) if labels else v
    v = ops.where(weights == 0, 0.0, v * weights)
    return ops.sum(flat(v), axis=1)


def _kind(loss):
    return type(loss) if isinstance(loss, keras.losses.Loss) else loss


def _is_removable(call):
    """Return True if a call can be left out or, of a `Dense`, repeated without its activation."""
    if activation_of(call) is None or len(call.inputs) != 1:
        return False
    if type(call.layer) is keras.layers.Dense:
        return call.layer.quantization_mode is None
    return type(call.layer).__name__ in ("Activation", "Softmax", "Sigmoid")
