"""Probes while a network trains."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from absl import logging

from zoo.callbacks.probes.engine import Observer, probe_list
from zoo.callbacks.probes.probe import Probe
from zoo.callbacks.probes.table import Table
from zoo.checks import check_integers
from zoo.graph.blocks import Grain
from zoo.types import PathLike


class RunProbes(keras.callbacks.Callback):
    """Run probes every few epochs during `fit`.

    All values are in the attribute `table`. One number for each probe, under its name, is added to
    `logs`: the mean over blocks of its first number. So `History` and the progress bar have it, and
    with `every=1` `CSVLogger` too (it fixes its columns at the first epoch). Steps of training cost
    the same as without it; the probes' pass is compiled once. List it before loggers, and before
    `Resume`.

    Args:
        probes: The probes.
        data: As in `zoo.callbacks.run`; arrays or data that can be read repeatedly.
        every: Epochs between two passes; the first is after epoch `every`.
        batch_size: Batch size of arrays.
        loss: As in `zoo.callbacks.run`.
        path: A CSV file that is rewritten after each pass, or `None`. When `fit` starts after epoch
            0, as with `Resume`, the rows of earlier epochs are read from it; without it they are
            lost, with a warning.
        blocks: Names of the blocks to measure; `None`: all.
        grain: As in `zoo.callbacks.run`.

    Attributes:
        table: A `Table` of all passes; its epochs count from 1.

    Raises:
        ValueError: if there is no probe, `every` is no positive integer, or `data` is an iterator;
            when training starts, as `zoo.callbacks.run` does.
    """

    def __init__(  # noqa: PLR0913 (options by keyword, as of Keras's callbacks)
        self,
        probes: Sequence[Probe],
        data: Any,
        every: int = 1,
        batch_size: int = 128,
        loss: Any = None,
        path: PathLike | None = None,
        blocks: Sequence[str] | None = None,
        grain: Grain = "sum",
    ) -> None:
        super().__init__()
        check_integers(1, every=every)
        if isinstance(data, Iterator):
            raise ValueError(
                f"Expected data that can be read after each epoch. Received: {data!r}, an iterator,"
                f" which can be read once. Give arrays, a list of its batches, or a dataset."
            )
        self.probes = probe_list(probes)
        self.data = data
        self.every = every
        self.batch_size = batch_size
        self.loss = loss
        self.path = None if path is None else pathlib.Path(path)
        self.blocks = blocks
        self.grain = grain
        self.table = Table()

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Build the probes' pass and check that it runs."""
        self._observer = Observer(self.probes, self.model, self.loss, self.blocks, self.grain)
        self._observer.check(self.data, self.batch_size)
        self._first_epoch = True

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Read the rows of earlier epochs when training resumes."""
        resumes = self._first_epoch and epoch > 0 and not len(self.table)
        self._first_epoch = False
        if not resumes:
            return
        if self.path is None or not self.path.exists():
            logging.warning(
                "Probes: the table begins at epoch %d. Rows of earlier epochs are read from `path`,"
                " which is %s.",
                epoch + 1,
                self.path or "not given",
            )
            return
        rows = Table.from_csv(self.path)
        self.table = Table(row for row in rows if row.epoch and row.epoch <= epoch)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Run the probes if they are due."""
        if (epoch + 1) % self.every:
            return
        self.model  # noqa: B018  # on JAX, attaches the trained values to the variables
        self.table += self._observer.run(self.data, self.batch_size, epoch=epoch + 1)
        if self.path is not None:
            self.table.to_csv(self.path)
        if logs is not None:
            logs.update({probe.name: probe.summary() for probe in self.probes})
