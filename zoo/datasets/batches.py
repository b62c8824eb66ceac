"""Batches whose order and augmentation depend on nothing but the seed and the epoch."""

from collections.abc import Callable

import keras
import numpy as np

from zoo.checks import check_integers, require


class Batches(keras.utils.PyDataset):
    """Batches of arrays: (seed, epoch) fix their order, (seed, epoch, index) their augmentation.

    Every backend therefore sees the same images, and a training that `Resume` resumes at any
    epoch sees the same data as an uninterrupted one. `fit` needs the callback
    `zoo.callbacks.training.Epochs`, which sets the epoch, and `shuffle=False`, because Keras would
    shuffle the batches. Leave `workers` at 1: Keras's threads carry the first batches of an epoch
    into the next one.

    Args:
        x: Array of examples.
        y: Array of labels, as long as `x`.
        batch_size: Examples in a batch.
        seed: Random seed, 0 or more.
        augment: `None`, or a function of a batch of `x` and a `numpy.random.Generator`, such as
            `zoo.datasets.preprocessing.Preprocessing.augment`.
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
        sizes = f"{len(x)} and {len(y)} examples, {batch_size=}, {drop_remainder=}"
        require(len(x) == len(y) and length > 0, "equal, and fill a batch", sizes=sizes)
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

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= index < len(self):  # this ends an iteration
            raise IndexError(f"There are batches 0 to {len(self) - 1}. Received: {index}")
        if self.epoch is None and (self.shuffle or self.augment):
            raise RuntimeError(
                "`Batches` that are shuffled or augmented depend on the epoch. Pass "
                "`callbacks=[Epochs(batches)]` to `fit`, or call `batches.set_epoch(0)`."
            )
        rows = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        x = self.x[rows]
        if self.augment is not None:
            x = self.augment(x, self._generator(self.epoch, index + 1))
        return x, self.y[rows]

    def _generator(self, epoch, stream):
        # Stream 0 samples the order, stream index + 1 a batch: NumPy's samples for [a, b] and
        # [a, b, 0] are equal, so without the 1 the order and batch 0 would not be independent.
        return np.random.default_rng([self.seed, epoch, stream])
