"""Probes while a network trains."""

import pathlib

import keras

from zoo.callbacks.probes.engine import Observer
from zoo.callbacks.probes.table import Table


class RunProbes(keras.callbacks.Callback):
    """Runs probes every so many epochs; their values are in `logs`, which History sees, and with
    `every=1` CSVLogger too (it fixes its columns at the first epoch).

    It is called at the end of epochs only, so the steps between cost what they cost without it. The
    pass is compiled once. List it before loggers, and before `Resume`.

    Args:
        probes: A list of `Probe`.
        data: As in `zoo.callbacks.run`; arrays or something that can be read again and again.
        every: Epochs between two passes; the first is after epoch `every`.
        batch_size: Of arrays.
        loss: As in `zoo.callbacks.run`.
        path: A CSV file that is written anew after each pass; `None`: none. When `fit` starts after
            epoch 0, as `Resume` makes it do, the epochs before are read from it.
        blocks: Names of the blocks to take; `None`: all that are found.

    Attributes:
        table: A `Table` of all passes; its epochs count from 1.

    Raises:
        ValueError: when training starts, as `zoo.callbacks.run` does.
    """

    def __init__(self, probes, data, every=1, batch_size=128, loss=None, path=None, blocks=None):
        super().__init__()
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"`every` must be a positive integer. Received: every={every!r}")
        self.probes, self.data, self.every = probes, data, every
        self.batch_size, self.loss, self.path = batch_size, loss, path
        self.blocks = blocks
        self.table, self.observer = Table(), None

    def on_train_begin(self, logs=None):
        self.observer = Observer(self.probes, self.model, self.loss, self.blocks)
        self.observer.check(self.data, self.batch_size)
        self.begins = True

    def on_epoch_begin(self, epoch, logs=None):
        if self.begins:
            self.begins = False
            past = pathlib.Path(self.path) if self.path else None
            if epoch and past and past.exists() and not len(self.table):
                rows = Table.from_csv(past)
                self.table = Table(row for row in rows if row.epoch <= epoch)

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every:
            return
        self.model  # noqa: B018  # on JAX, attaches the trained values to the variables
        table = self.observer.run(self.data, self.batch_size, epoch=epoch + 1)
        self.table += table
        for row in table if logs is not None else ():
            if row.unit is None:
                logs["/".join(filter(None, (row.probe, row.block)))] = row.value
        if self.path is not None:
            self.table.to_csv(self.path)
