"""The table of values that probes and interventions return, one value a row."""

import csv
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from zoo.io import replace
from zoo.types import PathLike


class Row(NamedTuple):
    """One value of a `Table`."""

    probe: str
    block: str | None
    stage: int | None
    unit: int | None
    epoch: int | None
    value: float
    step: int | None = None


class Table:
    """Values with the columns `probe`, `block`, `stage`, `unit`, `epoch`, `value` and `step`.

    `block` and `stage` are None for a value of the whole network; `unit` is None except for the
    values of a block's single units. `step` is the number of training steps where that was asked
    for; a table without it neither prints nor saves the column. A table has a length, iterates
    over its rows, prints aligned, and adds to another. `zoo.callbacks.plot` and
    `zoo.callbacks.write_html` draw it.

    Args:
        rows: A sequence of `Row`.
        notes: Sentences about what is not in the rows.
        title: Model, data and number of examples.

    Example:
    >>> table = Table([Row("l2_ratio", "block0", 0, None, None, 0.5)])
    >>> print(table)
    probe     block   stage  unit  epoch  value
    l2_ratio  block0      0                 0.5
    """

    def __init__(
        self, rows: Iterable[Row] = (), notes: Iterable[str] = (), title: str = ""
    ) -> None:
        self.rows = list(rows)
        self.notes = list(notes)
        self.title = title

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __add__(self, other: "Table") -> "Table":
        notes = dict.fromkeys(self.notes + other.notes)
        return Table(self.rows + other.rows, notes, self.title or other.title)

    def __str__(self) -> str:
        padded = []
        for column, name in enumerate(self._columns()):
            cells = [_text(row[column]) for row in self.rows]
            width = max(map(len, [name, *cells]))
            head = name.rjust(width) if name == "value" else name.ljust(width)
            pad = str.ljust if name in ("probe", "block") else str.rjust
            padded.append([head, *(pad(cell, width) for cell in cells)])
        lines = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
        return "\n".join([*lines, *self.notes])

    def _columns(self):
        steps = any(row.step is not None for row in self.rows)
        return Row._fields if steps else Row._fields[:-1]

    def of_probe(self, probe: str) -> "Table":
        """Return the rows of one probe.

        Raises:
            ValueError: if there are none.
        """
        rows = [row for row in self.rows if row.probe == probe]
        if not rows:
            raise ValueError(f"Expected one of {self.probes()}. Received: probe={probe!r}")
        return Table(rows)

    def probes(self) -> list[str]:
        """Return the names in the column `probe`, in order."""
        return [*dict.fromkeys(row.probe for row in self.rows)]

    def values(self, probe: str, epoch: int | None = None) -> dict[str | None, float]:
        """Return a probe's scalar values by block, in order.

        Args:
            probe: Name of the values.
            epoch: Epoch of the values; `None`: any.

        Raises:
            ValueError: if there are none.
        """
        rows = self.of_probe(probe)
        return {r.block: r.value for r in rows if r.unit is None and epoch in (None, r.epoch)}

    def array(self, probe: str) -> np.ndarray:
        """Return a probe's values by unit, of shape `(blocks, units)`, NaN where there is none.

        Raises:
            ValueError: if it has none.
        """
        cells = [r for r in self.of_probe(probe) if r.unit is not None]
        if not cells:
            raise ValueError(f"Probe {probe!r} has one number a block; use `values`.")
        blocks = [*dict.fromkeys(row.block for row in cells)]
        array = np.full((len(blocks), 1 + max(row.unit or 0 for row in cells)), np.nan)
        for row in cells:
            array[blocks.index(row.block), row.unit] = row.value
        return array

    def to_csv(self, path: PathLike) -> None:
        """Write the rows below a line of column names, atomically."""

        def write(temporary):
            with open(temporary, "w", encoding="utf-8", newline="") as file:
                head = self._columns()
                rows = (row[: len(head)] for row in self.rows)
                csv.writer(file, lineterminator="\n").writerows([head, *rows])

        replace(pathlib.Path(path), write)

    @classmethod
    def from_csv(cls, path: PathLike) -> "Table":
        """Return the table that `to_csv` wrote.

        Raises:
            ValueError: if the file is not one.
        """
        with open(path, encoding="utf-8", newline="") as file:
            head, *lines = [*csv.reader(file)] or [[]]
        if tuple(head) not in (Row._fields, Row._fields[:-1]):
            raise ValueError(
                f"Expected a CSV file with the columns {Row._fields}. Received: {path}"
            )
        types: tuple[Callable[[str], Any], ...] = (str, str, int, int, int, float, int)
        rows = []
        for line in lines:
            cells = zip(types[: len(head)], line, strict=True)
            values: list[Any] = [convert(cell) if cell else None for convert, cell in cells]
            rows.append(Row(*values))
        return cls(rows)


def _text(cell):
    if cell is None:
        return ""
    return f"{cell:.5g}" if isinstance(cell, float) else str(cell)
