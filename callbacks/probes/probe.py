"""The base class of probes, and the table of values that probes and sweeps return."""

import csv
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from zoo.callbacks.probes.objective import average
from zoo.graph.blocks import Block
from zoo.io import replace
from zoo.types import PathLike, Tensor

GRADIENTS = ("dx", "dinput", "dx_classifier")  # keys of a block that need a backward pass


class Parts(dict):
    """A block's tensors by key; see `Probe.needs`.

    Args:
        info: The `zoo.blocks.Block`.
        parts: Tensors by key.
        use: Index of the use of a shared layer, from 0.
        layers: The layers whose inputs and outputs are `steps`.
    """

    def __init__(
        self, info: Block, parts: Mapping[str, Any], use: int = 0, layers: Sequence[Any] = ()
    ) -> None:
        super().__init__(parts)
        self.info = info
        self.use = use
        self.layers = layers

    def average(self, v: Tensor) -> Tensor:
        """Return the mean over an example's positions, `(batch, ...)` to `(batch,)`."""
        return average(v, self.get("weights"))


class Probe:
    """Base of measurements of every block.

    A subclass writes `measure`, which returns per-example values; `zoo.callbacks.run` only sums
    them over examples and replicas; `summarize` turns the averages into numbers. So no value
    depends on the batch size. The protocol is that of a `keras.metrics.Metric`.

    Class attributes:
        needs: Keys that a block must have to be measured. Always there: `y`, the output. `x`, the
            skip input (the shortcut's end where the shape changes), and `f = y - x`, except in a
            plain block that changes the shape. `h`, `t`, `c` in the zoo's layers that have them.
            `input`, the block's input. With labels also `dx` and `dinput`, the gradients of an
            example's loss at `x` and `input`; `labels`; and in the last stage the early readout:
            `probabilities` and `loss` of the classifier applied to `y` (`probabilities_before`,
            `loss_before`: to `x`), and `dx_classifier`, the gradient of `loss_before` at `x`. Of
            outputs such as `(batch, steps, classes)` these have a value for each position, of
            which `block.average` is an example's. `network`: logarithms of the network's own
            probabilities. `steps`: of a sum's residual branch, pairs of the input and the output of
            each of `block.layers`, those that have one of each.
        reads_labels: True if it uses labels where there are some, but does not need them.

    Args:
        name: Name of its values; `None`: the class's name in snake case.

    Example:
    >>> class Sparsity(Probe):
    ...     def measure(self, block, stage):
    ...         return {"sparsity": ops.mean(flat(block["y"]) == 0, axis=1)}
    """

    needs: tuple[str, ...] = ()
    reads_labels = False
    blocks: Sequence[Block] = ()  # of the network, set when a pass begins

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.default_name()
        self.reset_state()

    @classmethod
    def default_name(cls) -> str:
        """Return the class's name in snake case."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    @property
    def labels(self) -> bool:
        """True if the probe needs labels."""
        return bool({*self.needs} & {*GRADIENTS, "labels", "loss", "loss_before"})

    @property
    def inspects(self) -> bool:
        """True if the probe reads weights instead of data."""
        return type(self).inspect is not Probe.inspect

    def notes(self) -> list[str]:
        """Return sentences about what was not measured."""
        return []

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor] | Tensor:
        """Return per-example values of one block, of shape `(batch, ...)`, by key.

        One number for each example, `(batch,)`, may be returned as it is; the results are its mean
        and its standard deviation, `std`. `stage` has the blocks of its stage, in order, including
        itself.
        """
        if self.inspects:
            return {}
        raise NotImplementedError(f"{type(self).__name__} must define `measure`.")

    def inspect(self, info: Block, weights: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return numbers about a block's weights, arrays by path; for probes that read no data."""
        return {}

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return numbers, or arrays with a number for each unit, from averages."""
        if {*mean} == {"mean", "square"}:
            return {self.name: mean["mean"], "std": deviation(mean["mean"], mean["square"])}
        return mean

    def update_state(self, sums: Mapping[str, Mapping[str, Any]], count: int) -> None:
        """Add sums over `count` examples: arrays by key, by block."""
        self.count += count
        for block, members in sums.items():
            totals = self.sums.setdefault(block, {})
            for key, value in members.items():
                totals[key] = totals.get(key, 0.0) + np.asarray(value, "float64")

    def result(self) -> dict[str | None, dict[str, Any]]:
        """Return numbers by key, by block; None is the key of those about the whole network."""
        result: dict[str | None, dict[str, Any]] = {**self.inspected}
        for block, members in self.sums.items():
            result[block] = self.summarize({k: v / self.count for k, v in members.items()})
        return result

    def summary(self) -> float:
        """Return one number for the network: the mean over blocks of the first one of `result`."""
        by_block = [numbers for block, numbers in self.result().items() if block and numbers]
        return float(np.mean([np.mean([*numbers.values()][0]) for numbers in by_block]))

    def reset_state(self) -> None:
        """Forget all sums."""
        self.count = 0
        self.sums: dict[str, dict[str, Any]] = {}
        self.inspected: dict[str | None, dict[str, Any]] = {}  # numbers about weights, by block


def deviation(mean: Any, square: Any) -> Any:
    """Return the standard deviation that follows from a mean and a mean square."""
    return np.sqrt(np.maximum(square - np.square(mean), 0.0))


def flat(v: Tensor) -> Tensor:
    """Return `(batch, ...)` as `(batch, features)`, float32: squares of float16 overflow."""
    return ops.cast(ops.reshape(v, (ops.shape(v)[0], -1)), "float32")


def norm(v: Tensor) -> Tensor:
    """Return the Euclidean norm of each example, `(batch,)`."""
    return ops.norm(flat(v), axis=1)


def by_unit(v: Tensor) -> Tensor:
    """Return the mean over positions: `(batch, ..., units)` to `(batch, units)`, float32."""
    v = ops.cast(v, "float32")
    return ops.mean(ops.reshape(v, (ops.shape(v)[0], -1, v.shape[-1])), axis=1)


def dot(u: Tensor, v: Tensor) -> Tensor:
    """Return the inner product of each example, `(batch,)`."""
    return ops.sum(flat(u) * flat(v), axis=1)


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """Return the cosine of each example, `(batch,)`; 0 where one of the two is zero."""
    lengths = norm(u) * norm(v)
    return ops.where(lengths == 0, 0.0, dot(u, v) / ops.where(lengths == 0, 1.0, lengths))


def is_relu(layer: Any) -> bool:
    """Return True for a layer or operation that is a ReLU."""
    if isinstance(layer, keras.layers.Activation):
        return layer.activation is keras.activations.relu
    return type(layer).__name__ in ("ReLU", "Relu")  # a layer; keras.ops and .activations


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
        """Return a probe's scalar values by block, in order; of one epoch, if it is given.

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
