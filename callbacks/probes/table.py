"""The table of values that probes and sweeps return, one value a row."""

import csv
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
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


class Table:
    """Values with the columns `probe`, `block`, `stage`, `unit`, `epoch` and `value`.

    `block` and `stage` are None for a value of the whole network; `unit` is None except for the
    values of a block's single units. A table has a length, iterates over its rows, prints aligned,
    and adds to another. `zoo.callbacks.plot` and `zoo.callbacks.write_html` draw it.

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
        lines = [[*Row._fields], *([_text(cell) for cell in row] for row in self.rows)]
        return "\n".join([aligned(lines, left=(0, 1)), *self.notes])

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
                csv.writer(file, lineterminator="\n").writerows([Row._fields, *self.rows])

        replace(pathlib.Path(path), write)

    @classmethod
    def from_csv(cls, path: PathLike) -> "Table":
        """Return the table that `to_csv` wrote.

        Raises:
            ValueError: if the file is not one.
        """
        with open(path, encoding="utf-8", newline="") as file:
            head, *lines = [*csv.reader(file)] or [[]]
        if tuple(head) != Row._fields:
            raise ValueError(
                f"Expected a CSV file with the columns {Row._fields}. Received: {path}"
            )
        types: tuple[Callable[[str], Any], ...] = (str, str, int, int, int, float)
        rows = []
        for line in lines:
            cells = zip(types, line, strict=True)
            values: list[Any] = [convert(cell) if cell else None for convert, cell in cells]
            rows.append(Row(*values))
        return cls(rows)


def aligned(lines: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """Return lines of cells with aligned columns, of which `left` are text, others numbers."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        for i in left:
            cells[i] = line[i].ljust(widths[i])
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def _text(cell):
    if cell is None:
        return ""
    return f"{cell:.5g}" if isinstance(cell, float) else str(cell)
