"""The next batch is made while the device works on this one."""

import concurrent.futures
import threading

import keras


class Ahead(keras.utils.PyDataset):
    """The batches of another PyDataset, each made by a thread while the one before is in use.

    Same batches, same order: they are functions of epoch and index, and the thread asks for no
    batch of another epoch. A pipeline that is faster than the device then costs it nothing; Keras's
    own `workers` would give the first batches of an epoch to the next one.

    Args:
        batches: `Batches`, `RecordBatches` or `MicroBatches`; a batch that is asked for out of
            order is made when it is asked for.

    Example:

    >>> import numpy as np
    >>> from zoo.datasets.batches import Batches
    >>> ahead = Ahead(Batches(np.arange(4.0), np.arange(4), batch_size=2, shuffle=False))
    >>> [x.tolist() for x, y in ahead]
    [[0.0, 1.0], [2.0, 3.0]]
    """

    def __init__(self, batches):
        super().__init__()
        self.batches = batches
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "batches")
        self._lock, self._index, self._next = threading.Lock(), None, None

    def set_epoch(self, epoch):
        """From now on the batches are those of `epoch`, counted from 0."""
        with self._lock:
            self._forget()
            self.batches.set_epoch(epoch)

    def __len__(self):
        return len(self.batches)

    @property
    def batch_sizes(self):
        """The numbers of examples that a batch may have."""
        return self.batches.batch_sizes

    def __getitem__(self, index):
        with self._lock:  # tf.data asks from threads of its own
            if index != self._index:
                self._forget()
                self._next = self._thread.submit(self.batches.__getitem__, index)
            batch = self._next.result()  # raises what the thread raised
            self._index = self._next = None
            if index + 1 < len(self):
                self._index = index + 1
                self._next = self._thread.submit(self.batches.__getitem__, index + 1)
            return batch

    def _forget(self):
        if self._next is not None:
            concurrent.futures.wait([self._next])  # it may be reading what is about to change
        self._index = self._next = None
