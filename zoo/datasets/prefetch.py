"""Prepare the next batch while the device computes on this one."""

import concurrent.futures
import threading
from typing import Any

import keras

from zoo.datasets.batches import Batch, Batches, MicroBatches, RecordBatches, part_of


class Ahead(keras.utils.PyDataset):
    """The batches of another dataset, each prepared by a thread while its predecessor is in use.

    Batches and order are the same as without: the thread prepares no batch of another epoch,
    unlike Keras's own `workers`, which carry the first batches of an epoch into the next one. A
    batch out of order is prepared on access.

    Example:
    >>> import numpy as np
    >>> ahead = Ahead(Batches(np.arange(4.0), np.arange(4), batch_size=2, shuffle=False))
    >>> [x.tolist() for x, y in ahead]
    [[0.0, 1.0], [2.0, 3.0]]
    """

    def __init__(self, batches: Batches | RecordBatches | MicroBatches) -> None:
        super().__init__()
        self.batches = batches
        self.batch_sizes = batches.batch_sizes
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "batches")
        self._lock = threading.Lock()
        self._wanted: Any = None  # arguments of `part`
        self._next: Any = None  # a Future

    def set_epoch(self, epoch: int) -> None:
        """Select the batches of `epoch`, counted from 0."""
        with self._lock:
            self._discard()
            self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        return self.part(index, 0, 1)

    def part(self, index: int, number: int, parts: int) -> Batch:
        """Return one of equal parts of a batch, see `zoo.datasets.batches.part_of`."""
        with self._lock:  # tf.data reads from threads of its own
            if (index, number, parts) != self._wanted:
                self._discard()
                self._prepare(index, number, parts)
            batch = self._next.result()  # raises the thread's exception
            self._wanted = None
            self._next = None
            if index + 1 < len(self):
                self._prepare(index + 1, number, parts)
            return batch

    def _prepare(self, *wanted):
        self._wanted = wanted
        self._next = self._thread.submit(part_of, self.batches, *wanted)

    def _discard(self):
        if self._next is not None:
            concurrent.futures.wait([self._next])  # it may be reading what is about to change
        self._wanted = None
        self._next = None
