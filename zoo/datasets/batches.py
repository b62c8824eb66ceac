"""Batches of arrays whose order and augmentation are functions of the seed and the epoch."""

import keras
import numpy as np


class Batches(keras.utils.PyDataset):
    """Batches in an order that (seed, epoch) decide, augmented as (seed, epoch, index) decide.

    So every backend sees the same pictures, and a training that `zoo.checkpoint.Resume` takes up
    again at any epoch sees what the uninterrupted one would. `fit` has to say which epoch it is,
    by the callback `Epochs`; and pass `shuffle=False` to `fit`, lest Keras shuffle the batches.

    Args:
        x: Array of examples.
        y: Array of as many labels.
        batch_size: Examples in a batch.
        seed: A whole number from 0.
        augment: None, or a function of a batch of `x` and a `numpy.random.Generator`, such as
            `zoo.datasets.preprocessing.Preprocessing.augment`.
        shuffle: Whether each epoch has an order of its own.
        drop_remainder: Whether to leave out the last batch if it is incomplete; in training,
            the examples left out are others in each epoch.

    There are no `workers` to augment ahead: what Keras's threads have fetched when an epoch ends,
    they give to the next one (or to the first, after JAX's look at a batch).

    Raises:
        ValueError: if the lengths of `x` and `y` differ, or there is not a single batch.
        RuntimeError: when a batch is asked for before the epoch is known, if it matters.

    Example:

    >>> batches = Batches(np.arange(5.0), np.arange(5), batch_size=2, seed=0)
    >>> batches.set_epoch(0)
    >>> [y.tolist() for x, y in batches]
    [[2, 4], [3, 0], [1]]
    >>> batches.set_epoch(1)
    >>> [y.tolist() for x, y in batches]
    [[1, 4], [3, 0], [2]]
    """

    def __init__(self, x, y, batch_size, seed=0, augment=None, shuffle=True, drop_remainder=False):
        super().__init__()
        for argument, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0)):
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"`{argument}` must be a whole number from {least}. Received: {value!r}"
                )
        num_batches = len(x) // batch_size if drop_remainder else -(-len(x) // batch_size)
        if len(x) != len(y) or num_batches < 1:
            raise ValueError(
                "`x` and `y` must be as long as each other, and fill a batch. Received: "
                f"{len(x)} and {len(y)} examples, batch_size={batch_size}, "
                f"drop_remainder={drop_remainder}"
            )
        self.x, self.y, self.batch_size, self.seed = x, y, batch_size, seed
        self.augment, self.shuffle = augment, shuffle
        self.epoch, self._order, self._length = None, np.arange(len(x)), num_batches

    def set_epoch(self, epoch):
        """From now on the batches are those of `epoch`, counted from 0."""
        if epoch != self.epoch and self.shuffle:
            self._order = self._generator(epoch, 0).permutation(len(self.x))
        self.epoch = epoch

    def __len__(self):
        return self._length

    @property
    def batch_sizes(self):
        """The numbers of examples that a batch may have."""
        return {min(self.batch_size, len(self.x) - i * self.batch_size) for i in (0, len(self) - 1)}

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(f"There are batches 0 to {len(self) - 1}. Received: {index}")
        if self.epoch is None and (self.shuffle or self.augment):
            raise RuntimeError(
                "`Batches` that are shuffled or augmented must know the epoch. Pass "
                "`callbacks=[Epochs(batches)]` to `fit`, or call `batches.set_epoch(0)`."
            )
        chosen = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        x, y = self.x[chosen], self.y[chosen]
        if self.augment:
            x = self.augment(x, self._generator(self.epoch, index + 1))
        return x, y

    def _generator(self, epoch, stream):
        # Stream 0 is the order's and index + 1 a batch's: NumPy draws the same from [a, b] and
        # from [a, b, 0], so the order and batch 0 would not be independent.
        return np.random.default_rng([self.seed, epoch, stream])


class RecordBatches(keras.utils.PyDataset):
    """The augmented batches of TFRecords, for `fit`, which must take them in order.

    Each epoch's are a function of (seed, epoch); what is read ahead is tf.data's affair. See
    `Batches` for `Epochs` and `shuffle=False`.

    Args:
        records: A `zoo.datasets.imagenet.Records`.
        batch_size: Images in a batch.
        steps: Batches of an epoch.
        image_size: Side of the images, in pixels.
        seed: A whole number from 0.

    Raises:
        RuntimeError: when a batch is asked for before the epoch is known.
    """

    def __init__(self, records, batch_size, steps, image_size=224, seed=0):
        super().__init__()
        self.records, self.arguments = records, (batch_size, steps, image_size, seed)
        self.epoch, self._stream, self._next = None, None, 0

    def set_epoch(self, epoch):
        """From now on the batches are those of `epoch`, counted from 0."""
        if epoch != self.epoch:
            self._stream = None
        self.epoch = epoch

    def __len__(self):
        return self.arguments[1]

    @property
    def batch_sizes(self):
        """The numbers of examples that a batch may have."""
        return {self.arguments[0]}

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(f"There are batches 0 to {len(self) - 1}. Received: {index}")
        if self.epoch is None:
            raise RuntimeError("Pass `callbacks=[Epochs(batches)]` to `fit`, or `set_epoch(0)`.")
        if self._stream is None or index < self._next:
            self._stream = iter(self.records.train(*self.arguments, first_epoch=self.epoch))
            self._next = 0
        while self._next <= index:
            x, y = next(self._stream)
            self._next += 1
        return x.numpy(), y.numpy()


class MicroBatches(keras.utils.PyDataset):
    """Each batch of `batches` in `parts` pieces, for an optimizer that accumulates.

    The examples, their order and their augmentation are those of the whole batches, so that the
    mean of the pieces' gradients is the whole batch's (batch normalisation apart), and an epoch
    ends with a whole batch. See `zoo.optimizers.accumulating`.

    Args:
        batches: `Batches` or `RecordBatches`.
        parts: Pieces of a batch; must divide its size.

    Raises:
        ValueError: if `parts` is not positive, or does not divide a batch.

    Example:

    >>> batches = Batches(np.arange(4.0), np.arange(4), batch_size=4, shuffle=False)
    >>> [x.tolist() for x, y in MicroBatches(batches, 2)]
    [[0.0, 1.0], [2.0, 3.0]]
    """

    def __init__(self, batches, parts):
        super().__init__()
        if not isinstance(parts, int) or parts < 1:
            raise ValueError(f"`parts` must be a positive integer. Received: parts={parts!r}")
        self.batches, self.parts = batches, parts
        self._at, self._batch = None, None

    def set_epoch(self, epoch):
        """From now on the batches are those of `epoch`, counted from 0."""
        self.batches.set_epoch(epoch)
        self._at = None

    def __len__(self):
        return self.parts * len(self.batches)

    @property
    def batch_sizes(self):
        """The numbers of examples that a piece may have."""
        return {size // self.parts for size in self.batches.batch_sizes}

    def __getitem__(self, index):
        whole, part = divmod(index, self.parts)
        if whole != self._at:
            self._at, self._batch = whole, self.batches[whole]
        num = len(self._batch[0])
        if num % self.parts:
            raise ValueError(
                f"`parts` must divide every batch. Received: parts={self.parts}, a batch of {num}. "
                f"Choose a divisor of the batch, and `drop_remainder=True`."
            )
        each = num // self.parts
        return tuple(v[part * each : (part + 1) * each] for v in self._batch)


class Epochs(keras.callbacks.Callback):
    """Tells batches the epoch, whichever `fit` starts with: `Resume` may come before or after.

    Args:
        batches: The `Batches` or `RecordBatches` that `fit` trains on.

    Raises:
        ValueError: when training starts, if an epoch is not one pass over the batches.
    """

    def __init__(self, batches):
        super().__init__()
        self.batches = batches
        batches.set_epoch(0)  # JAX and torch look at a batch before training begins

    def on_train_begin(self, logs=None):
        if self.params["steps"] != len(self.batches):
            raise ValueError(
                f"An epoch must be one pass over the {len(self.batches)} batches, because the "
                f"order belongs to the epoch. Received: {self.params['steps']} steps in an epoch. "
                "Leave `steps_per_epoch` out."
            )

    def on_epoch_begin(self, epoch, logs=None):
        self.batches.set_epoch(epoch)
