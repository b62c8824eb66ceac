"""Batches whose order and augmentation depend on nothing but the seed and the epoch."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from zoo.checks import check_integers
from zoo.datasets.imagenet import Records
from zoo.datasets.preprocessing import RowSamples, is_per_image

Batch = tuple[np.ndarray, np.ndarray]


def part_of(batches: keras.utils.PyDataset, index: int, number: int, parts: int) -> Any:
    """Return one of equal parts of a batch, as `numpy.array_split` cuts it.

    A dataset with a method `part` prepares only this part of the batch; any other is read whole.

    Args:
        batches: The dataset.
        index: Index of the batch.
        number: Index of the part, from 0.
        parts: Number of parts.

    Example:
    >>> batches = Batches(np.arange(4.0), np.arange(4), batch_size=4, shuffle=False)
    >>> x, y = part_of(batches, 0, number=1, parts=2)
    >>> x.tolist()
    [2.0, 3.0]
    """
    if hasattr(batches, "part"):
        return batches.part(index, number, parts)

    def cut(values):
        return np.array_split(np.asarray(values), parts)[number]

    return tuple(keras.tree.map_structure(cut, values) for values in batches[index])


class Part(keras.utils.PyDataset):
    """One of equal parts of each batch of a dataset: what one of several processes reads.

    Args:
        batches: A dataset of whole batches.
        number: Index of the part, from 0.
        parts: Number of parts.

    Example:
    >>> batches = Batches(np.arange(4.0), np.arange(4), batch_size=2, shuffle=False)
    >>> [x.tolist() for x, y in Part(batches, 1, 2)]
    [[1.0], [3.0]]
    """

    def __init__(self, batches: keras.utils.PyDataset, number: int, parts: int) -> None:
        super().__init__()
        self.batches = batches
        self.number = number
        self.parts = parts

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return part_of(self.batches, index, self.number, self.parts)

    def on_epoch_end(self) -> None:
        """Tell the dataset."""
        self.batches.on_epoch_end()


class Batches(keras.utils.PyDataset):
    """Batches of arrays: (seed, epoch) fix their order, (seed, epoch, index) their augmentation.

    Every backend therefore sees the same images, and a training that `Resume` resumes at any
    epoch sees the same data as an uninterrupted one. `fit` needs the callback
    `zoo.callbacks.training.Epochs`, which sets the epoch, and `shuffle=False`, because Keras would
    shuffle the batches.

    There are no `workers`: Keras's threads hand batches that they fetched at the end of an epoch
    to the next one. `zoo.datasets.prefetch.Ahead` prepares batches in advance.

    Args:
        x: Array of examples.
        y: Array of labels, as long as `x`.
        batch_size: Examples in a batch.
        seed: Random seed, 0 or more.
        augment: `None`, or a function of a batch of `x` and a `numpy.random.Generator`, such as
            `zoo.datasets.preprocessing.Preprocessing.augment`. One of several processes augments
            only its own images if it is marked, see `zoo.datasets.preprocessing.per_image`.
        shuffle: If `True`, every epoch has its own order.
        drop_remainder: If `True`, an incomplete last batch is left out; with `shuffle` the
            examples left out differ from epoch to epoch.

    Raises:
        ValueError: If the lengths of `x` and `y` differ, or they do not fill a batch.
        RuntimeError: On access to a batch that depends on the epoch before the epoch is set.

    Example:
    >>> batches = Batches(np.arange(5.0), np.arange(5), batch_size=2, seed=0)
    >>> batches.set_epoch(0)
    >>> [y.tolist() for x, y in batches]
    [[2, 4], [3, 0], [1]]
    >>> batches.set_epoch(1)
    >>> [y.tolist() for x, y in batches]
    [[1, 4], [3, 0], [2]]
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        batch_size: int,
        seed: int = 0,
        augment: Callable[[np.ndarray, np.random.Generator], np.ndarray] | None = None,
        shuffle: bool = True,
        drop_remainder: bool = False,
    ) -> None:
        super().__init__()
        check_integers(1, batch_size=batch_size)
        check_integers(0, seed=seed)
        length = len(x) // batch_size if drop_remainder else -(-len(x) // batch_size)
        if len(x) != len(y) or length < 1:
            raise ValueError(
                "`x` and `y` must have the same length and fill a batch. Received: "
                f"{len(x)} and {len(y)} examples, batch_size={batch_size}, "
                f"drop_remainder={drop_remainder}"
            )
        self.x = x
        self.y = y
        self.batch_size = batch_size
        self.seed = seed
        self.augment = augment
        self.shuffle = shuffle
        self.epoch: int | None = None
        last = min(batch_size, len(x) - (length - 1) * batch_size)
        self.batch_sizes = {min(batch_size, len(x)), last}
        self._length = length
        self._order = np.arange(len(x))

    def set_epoch(self, epoch: int) -> None:
        """Select the batches of `epoch`, counted from 0."""
        if epoch != self.epoch and self.shuffle:
            self._order = self._generator(epoch, 0).permutation(len(self.x))
        self.epoch = epoch

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Batch:
        return self.part(index, 0, 1)

    def part(self, index: int, number: int, parts: int) -> Batch:
        """Return one of equal parts of a batch, see `part_of`.

        Only its own images are read and, if the augmentation is marked as `per_image`, augmented.
        """
        _check_index(index, len(self))
        if self.epoch is None and (self.shuffle or self.augment):
            raise RuntimeError(
                "`Batches` that are shuffled or augmented depend on the epoch. Pass "
                "`callbacks=[Epochs(batches)]` to `fit`, or call `batches.set_epoch(0)`."
            )
        rows = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        picked = np.array_split(np.arange(len(rows)), parts)[number]
        y = self.y[rows[picked]]
        if self.augment is None:
            return self.x[rows[picked]], y
        samples = self._generator(self.epoch, index + 1)
        if not is_per_image(self.augment):
            return self.augment(self.x[rows], samples)[picked], y
        if parts > 1:
            samples = RowSamples(samples, picked, len(rows))
        return self.augment(self.x[rows[picked]], samples), y

    def _generator(self, epoch, stream):
        # Stream 0 samples the order, stream index + 1 a batch: NumPy's samples for [a, b] and
        # [a, b, 0] are equal, so without the 1 the order and batch 0 would not be independent.
        return np.random.default_rng([self.seed, epoch, stream])


class RecordBatches(keras.utils.PyDataset):
    """Augmented batches of TFRecords for `fit`, to be read in order.

    (seed, epoch) determine the batches of an epoch; tf.data prefetches them. `fit` needs `Epochs`
    and `shuffle=False`, see `Batches`.

    Args:
        records: A `zoo.datasets.imagenet.Records`.
        batch_size: Images in a batch.
        steps: Batches in an epoch.
        image_size: Side of the images, in pixels.
        seed: Random seed, 0 or more.

    Raises:
        RuntimeError: On access to a batch before the epoch is set.
    """

    def __init__(
        self, records: Records, batch_size: int, steps: int, image_size: int = 224, seed: int = 0
    ) -> None:
        super().__init__()
        self.records = records
        self.batch_size = batch_size
        self.steps = steps
        self.image_size = image_size
        self.seed = seed
        self.epoch: int | None = None
        self.batch_sizes = {batch_size}
        self._stream: Any = None
        self._part = (0, 1)
        self._next = 0

    def set_epoch(self, epoch: int) -> None:
        """Select the batches of `epoch`, counted from 0."""
        if epoch != self.epoch:
            self._stream = None
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> Batch:
        return self.part(index, 0, 1)

    def part(self, index: int, number: int, parts: int) -> Batch:
        """Return one of equal parts of a batch, see `part_of`; no other images are decoded."""
        _check_index(index, len(self))
        if self.epoch is None:
            raise RuntimeError("Pass `callbacks=[Epochs(batches)]` to `fit`, or `set_epoch(0)`.")
        if self._stream is None or index < self._next or self._part != (number, parts):
            self._part = number, parts
            self._stream = iter(self._dataset())
            self._next = 0
        while self._next <= index:
            x, y = next(self._stream)
            self._next += 1
        return x.numpy(), y.numpy()

    def _dataset(self):
        return self.records.train(
            self.batch_size, self.steps, self.image_size, self.seed, self.epoch, self._part
        )


class RecordValidation(RecordBatches):
    """Batches of the first images of TFRecords for validation, in their order.

    Args:
        records: A `zoo.datasets.imagenet.Records`.
        batch_size: Images in a batch; the last may be smaller.
        count: Number of images.
        image_size: Side of the images, in pixels.
    """

    def __init__(
        self, records: Records, batch_size: int, count: int, image_size: int = 224
    ) -> None:
        super().__init__(records, batch_size, -(-count // batch_size), image_size)
        self.epoch = 0
        self.count = count
        self.batch_sizes = {min(batch_size, count), count - (self.steps - 1) * batch_size}

    def _dataset(self):
        return self.records.validation(self.batch_size, self.image_size, self.count, self._part)


class MicroBatches(keras.utils.PyDataset):
    """Every batch of `batches` cut into micro-batches, for an optimizer that accumulates gradients.

    Examples, order and augmentation are those of the whole batches. The mean of the micro-batches'
    gradients is the whole batch's gradient (batch normalization apart), and an epoch ends with a
    whole batch. See `zoo.optimizers.accumulating`.

    Args:
        batches: `Batches` or `RecordBatches`.
        parts: Micro-batches in a batch; must divide its size.

    Raises:
        ValueError: If `parts` is not positive, or does not divide a batch.

    Example:
    >>> batches = Batches(np.arange(4.0), np.arange(4), batch_size=4, shuffle=False)
    >>> [x.tolist() for x, y in MicroBatches(batches, 2)]
    [[0.0, 1.0], [2.0, 3.0]]
    """

    def __init__(self, batches: Batches | RecordBatches, parts: int) -> None:
        super().__init__()
        check_integers(1, parts=parts)
        self.batches = batches
        self.parts = parts
        self.batch_sizes = {size // parts for size in batches.batch_sizes}
        self._index: int | None = None
        self._batch: Any = None

    def set_epoch(self, epoch: int) -> None:
        """Select the batches of `epoch`, counted from 0."""
        self.batches.set_epoch(epoch)
        self._index = None

    def __len__(self) -> int:
        return self.parts * len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        whole, part = divmod(index, self.parts)
        if whole != self._index:
            self._index = whole
            self._batch = self.batches[whole]
        x, y = self._batch
        if len(x) % self.parts:
            raise ValueError(
                f"`parts` must divide every batch. Received: parts={self.parts}, a batch of "
                f"{len(x)}. Choose a divisor of the batch, and `drop_remainder=True`."
            )
        size = len(x) // self.parts
        rows = slice(part * size, (part + 1) * size)
        return x[rows], y[rows]


def _check_index(index, length):
    if not 0 <= index < length:
        raise IndexError(f"There are batches 0 to {length - 1}. Received: {index}")
