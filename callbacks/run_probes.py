"""Probes while a network trains."""

import pathlib
from collections.abc import Sequence
from typing import Any

import keras

from zoo.callbacks.probes.engine import Observer, probe_list
from zoo.callbacks.probes.probe import Probe
from zoo.callbacks.probes.table import Table
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
            0, as with `Resume`, the rows of earlier epochs are read from it.
        blocks: Names of the blocks to measure; `None`: all.
        log: "summary": add one number for each probe to `logs`. "all": add every block's, such as
            `cosine_loss/block1`.

    Attributes:
        table: A `Table` of all passes; its epochs count from 1.

    Raises:
        ValueError: if there is no probe, or `every` or `log` has another value; when training
            starts, as `zoo.callbacks.run` does.
    """

    def __init__(
        self,
        probes: Sequence[Probe],
        data: Any,
        every: int = 1,
        batch_size: int = 128,
        loss: Any = None,
        path: PathLike | None = None,
        blocks: Sequence[str] | None = None,
        log: str = "summary",
    ) -> None:
        super().__init__()
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"`every` must be a positive integer. Received: every={every!r}")
        if log not in ("summary", "all"):
            raise ValueError(f"`log` must be 'summary' or 'all'. Received: log={log!r}")
        self.probes = probe_list(probes)
        self.data = data
        self.every = every
        self.batch_size = batch_size
        self.loss = loss
        self.path = None if path is None else pathlib.Path(path)
        self.blocks = blocks
        self.log = log
        self.table = Table()

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Build the probes' pass and check that it runs."""
        self._observer = Observer(self.probes, self.model, self.loss, self.blocks)
        self._observer.check(self.data, self.batch_size)
        self._first_epoch = True

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Read the rows of earlier epochs when training resumes."""
        resumes = self._first_epoch and epoch > 0 and not len(self.table)
        self._first_epoch = False
        if resumes and self.path is not None and self.path.exists():
            rows = Table.from_csv(self.path)
            self.table = Table(row for row in rows if row.epoch and row.epoch <= epoch)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Run the probes if they are due."""
        if (epoch + 1) % self.every:
            return
        self.model  # noqa: B018  # on JAX, attaches the trained values to the variables
        table = self._observer.run(self.data, self.batch_size, epoch=epoch + 1)
        self.table += table
        if logs is not None and self.log == "summary":
            logs.update({probe.name: probe.summary() for probe in self.probes})
        elif logs is not None:
            for row in table:
                if row.unit is None:
                    logs["/".join(filter(None, (row.probe, row.block)))] = row.value
        if self.path is not None:
            self.table.to_csv(self.path)
