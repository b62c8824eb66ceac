"""What probes and interventions return: a table with one row a value."""

import collections
import pathlib

import numpy as np

from zoo.io import replace

Row = collections.namedtuple("Row", "probe block stage unit epoch value")


class Table:
    """One row a value: `probe`, `block`, `stage`, `unit`, `epoch`, `value`.

    `block` and `stage` are None where a value is about the whole network, `unit` is the index of a
    value that is one of a block's units and None elsewhere. A table has a length, iterates over
    its rows, prints aligned, and adds to another.

    Args:
        rows: A sequence of `Row`.
        notes: Sentences about what is not in the rows.

    Example:

    >>> table = Table([Row("l2_ratio", "block0", 0, None, None, 0.5)])
    >>> print(table)
    probe     block   stage  unit  epoch  value
    l2_ratio  block0      0                 0.5
    """

    def __init__(self, rows=(), notes=()):
        self.rows, self.notes = list(rows), list(notes)

    @classmethod
    def of(cls, probes, blocks, epoch=None, missing=()):
        """The table of what probes have seen.

        Args:
            probes: `Probe`s.
            blocks: `zoo.blocks.Block`s, which give stages and order.
            epoch: Of all rows.
            missing: Pairs of a name and why it is no block; become notes.
        """
        stages = {block.name: block.stage for block in blocks}
        rows = []
        for probe in probes:
            for block, numbers in probe.result().items():
                for key, value in numbers.items():
                    name = key if key.startswith(probe.name) else f"{probe.name}_{key}"
                    value = np.asarray(value, "float64")
                    units = [None] if value.ndim == 0 else range(value.size)
                    at = (name, block, stages.get(block))
                    rows += (
                        Row(*at, unit, epoch, float(one))
                        for unit, one in zip(units, value.ravel(), strict=True)
                    )
        return cls(rows, [f"{name} is no block: {why}." for name, why in missing])

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def __add__(self, other):
        return Table(self.rows + other.rows, dict.fromkeys(self.notes + other.notes))

    def __str__(self):
        cells = [Row._fields, *(tuple(map(_text, row)) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for i, row in enumerate(cells):
            pairs = zip(row, widths, Row._fields, strict=True)
            left = {"probe", "block"} if i else {*Row._fields} - {"value"}
            lines.append("  ".join(t.ljust(w) if f in left else t.rjust(w) for t, w, f in pairs))
        return "\n".join(line.rstrip() for line in [*lines, *self.notes])

    def of_probe(self, probe):
        """The rows of one probe, as a table.

        Raises:
            ValueError: if there are none.
        """
        rows = [row for row in self.rows if row.probe == probe]
        if not rows:
            raise ValueError(f"Expected one of {self.probes()}. Received: probe={probe!r}")
        return Table(rows)

    def probes(self):
        """The names that the column `probe` has, in order."""
        return [*dict.fromkeys(row.probe for row in self.rows)]

    def values(self, probe, epoch=None):
        """A probe's scalar values by block, in order; of one epoch if that is given.

        Raises:
            ValueError: if there are none.
        """
        rows = self.of_probe(probe)
        return {r.block: r.value for r in rows if r.unit is None and epoch in (None, r.epoch)}

    def array(self, probe):
        """A probe's values by unit: an array of shape `(blocks, units)`, NaN where there is none.

        Raises:
            ValueError: if it has none.
        """
        rows = [row for row in self.of_probe(probe) if row.unit is not None]
        if not rows:
            raise ValueError(f"Probe {probe!r} has one number a block; use `values`.")
        places = {block: i for i, block in enumerate(dict.fromkeys(row.block for row in rows))}
        array = np.full((len(places), 1 + max(row.unit for row in rows)), np.nan)
        for row in rows:
            array[places[row.block], row.unit] = row.value
        return array

    def to_csv(self, path):
        """Writes the rows, with a line of names first; whole or not at all."""
        lines = [Row._fields, *self.rows]
        text = "".join(",".join("" if c is None else str(c) for c in line) + "\n" for line in lines)
        replace(pathlib.Path(path), lambda new: new.write_text(text, encoding="utf-8"))

    @classmethod
    def from_csv(cls, path):
        """The table that `to_csv` wrote.

        Raises:
            ValueError: if the file is not one.
        """
        head, *lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines() or [""]
        if head != ",".join(Row._fields):
            raise ValueError(
                f"Expected a CSV file with the columns {Row._fields}. Received: {path}"
            )
        kinds = (str, str, int, int, int, float)
        split = (line.split(",") for line in lines)
        return cls(
            Row(*(kind(c) if c else None for kind, c in zip(kinds, cells, strict=True)))
            for cells in split
        )

    def plot(self, probes=None, path=None):
        """A figure with one panel a probe: values over blocks, a line for each stage.

        Args:
            probes: Names; `None`: all.
            path: Where to write it as PNG; `None`: nowhere.

        Returns:
            A `matplotlib.figure.Figure`.
        """
        from zoo.callbacks.probes import html as page

        return page.draw(self, probes or self.probes(), path)

    def to_html(self, path, title="Probes"):
        """Writes one page with every probe's figure, numbers and meaning; it needs no server."""
        from zoo.callbacks.probes import html as page

        page.write(self, path, title)


def _text(cell):
    if cell is None:
        return ""
    return f"{cell:.5g}" if isinstance(cell, float) else str(cell)
