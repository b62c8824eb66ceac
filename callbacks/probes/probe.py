"""Probes of blocks, their base class, and the table of values that probes and sweeps return.

Those of gates and weights: Srivastava, Greff, Schmidhuber (2015), section 4, Figs 2 and 3.
"""

import csv
import html
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from zoo.callbacks.probes.objective import (
    TINY,
    average,
    class_indices,
    correct,
    flat,
    in_range,
    norm,
    scale,
    zero_masked,
)
from zoo.checks import as_path, check_choice, check_integers, check_numbers, is_integer, require
from zoo.graph.blocks import Block
from zoo.io import replace
from zoo.types import PathLike, Tensor

GRADIENTS = ("dx", "dinput", "dh", "dx_classifier")  # keys of a block that need a backward pass
LABELED = {*GRADIENTS, "labels", "loss"}  # keys that need labels
MASKED = ("input", "x", "f", "y", "h", "t", "c", *GRADIENTS)  # keys that a Keras mask applies to
CLASSIFIERS = {"network": "dx", "block": "dx_classifier"}  # keys of a block, by `classifier`


class Parts(dict):
    """The tensors of block `info` by key, see `Probe.needs`.

    `use` counts those of a shared layer from 0; the inputs and outputs of `layers` are `steps`.
    """

    def __init__(
        self, info: Block, parts: Mapping[str, Any], use: int = 0, layers: Sequence[Any] = ()
    ) -> None:
        mask = parts.get("mask")
        super().__init__({k: zero_masked(v, mask) if k in MASKED else v for k, v in parts.items()})
        self.info = info
        self.use = use
        self.layers = layers

    def average(self, v: Tensor) -> Tensor:
        """Return the mean over an example's positions, `(batch, ...)` to `(batch,)`."""
        return average(v, self.get("weights"))

    def by_unit(self, v: Tensor) -> Tensor:
        """Return the mean over positions: `(batch, ..., units)` to `(batch, units)`, float32."""
        v = ops.cast(v, "float32")
        v = ops.mean(ops.reshape(v, (ops.shape(v)[0], -1, v.shape[-1])), axis=1)
        mask = self.get("mask")  # `v` is 0 where it hides
        return v if mask is None else v / ops.maximum(ops.mean(flat(mask), axis=1), TINY)[:, None]


class Probe:
    """Base of measurements of every block.

    A subclass writes `measure`, which returns per-example values. `zoo.callbacks.run` sums them
    over examples, and `summarize` turns the averages into numbers, so that none depends on the
    batch size. The protocol is that of a `keras.metrics.Metric`.

    Class attributes:
        needs: Keys that a block must have to be measured. Always there: `y`, the output. `x`, the
            skip input (the shortcut's end where the shape changes), and `f = y - x`, except in a
            plain block that changes the shape. `h`, `t`, `c` in the zoo's layers that have them.
            `input`, the block's input. All are channels last, whatever the block's `data_format`.
            With labels also `dx`, `dinput` and `dh`, the gradients of an example's loss at `x`,
            `input` and `h`; `labels`; and in the last stage the early readout: `probabilities` and
            `loss` of the classifier applied to `y`, and `dx_classifier`, the gradient at `x` of
            that loss. Of outputs such as `(batch, steps, classes)` these have a value for each
            position, of which `block.average` is an example's. `network`: logarithms of the
            network's own probabilities. `steps`: of a sum's residual branch, the input and output
            of each of `block.layers`, those with one of each.
        reads_labels: True if it uses labels where there are some, but does not need them.

    `name` is that of its values; `None`: the class's name in snake case.

    Example:
    >>> class Sparsity(Probe):
    ...     def measure(self, block, stage):
    ...         return {"sparsity": ops.mean(flat(block["y"]) == 0, axis=1)}
    """

    needs: tuple[str, ...] = ()
    reads_labels = False
    blocks: Sequence[Block] = ()  # of the network, set when a pass begins

    def __init__(self, name: str | None = None) -> None:
        self.name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()
        self.reset_state()

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor] | Tensor:
        """Return per-example values of one block, of shape `(batch, ...)`, by key.

        One number for each example, `(batch,)`, may be returned as it is; the results are its mean
        and its standard deviation, `std`. `stage` has the blocks of its stage, in order, including
        itself.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `measure`.")

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
                shapes = {np.shape(value), np.shape(totals.get(key, value))}
                expected = f"of one shape, for {self.name}. Pad or sort the examples"
                require(len(shapes) == 1, expected, examples=shapes)
                totals[key] = totals.get(key, 0.0) + np.asarray(value, "float64")

    def result(self) -> dict[str | None, dict[str, Any]]:
        """Return numbers by key, by block; None is the key of those about the whole network."""
        result: dict[str | None, dict[str, Any]] = {}
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


def deviation(mean: Any, square: Any) -> Any:
    """Return the standard deviation that follows from a mean and a mean square."""
    return np.sqrt(np.maximum(square - np.square(mean), 0.0))


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """Return the cosine of each example, `(batch,)`; 0 where one of the two is zero."""
    u, v = flat(u), flat(v)
    lengths = ops.stack([ops.norm(u, axis=1), ops.norm(v, axis=1)])
    return ops.cond(
        in_range(lengths),
        lambda: ops.sum(u * v, axis=1) / (lengths[0] * lengths[1]),
        lambda: ops.sum(unit(u) * unit(v), axis=1),
    )


def unit(v: Tensor) -> Tensor:
    """Return `v`, float32, of length 1 along its last axis; 0 stays."""
    v = ops.cast(v, "float32")
    v = v / scale(v)
    return v / ops.maximum(ops.norm(v, axis=-1, keepdims=True), TINY)


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

    `notes` are sentences about what is not in the rows, `title` names model, data and number of
    examples.

    Raises:
        ValueError: in `of_probe`, `values` and `array`, if there are no such values; in `from_csv`,
            if the file is none that `to_csv` wrote.

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

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self) -> str:
        rows = [[*cells, f"{value:.5g}"] for *cells, value in self.rows]
        lines = [
            ["" if cell is None else str(cell) for cell in row] for row in (Row._fields, *rows)
        ]
        return "\n".join([aligned(lines, left=(0, 1)), *self.notes])

    def of_probe(self, probe: str) -> "Table":
        """Return the rows of one probe."""
        check_choice(self.probes(), probe=probe)
        return Table(row for row in self.rows if row.probe == probe)

    def probes(self) -> list[str]:
        """Return the names in the column `probe`, in order."""
        return [*dict.fromkeys(row.probe for row in self.rows)]

    def values(self, probe: str, epoch: int | None = None) -> dict[str | None, float]:
        """Return a probe's scalar values by block, in order, of one epoch, or the last ones."""
        rows = self.of_probe(probe)
        return {r.block: r.value for r in rows if r.unit is None and epoch in (None, r.epoch)}

    def array(self, probe: str) -> np.ndarray:
        """Return a probe's values by unit, of shape `(blocks, units)`, NaN where there is none."""
        cells = [r for r in self.of_probe(probe) if r.unit is not None]
        require(cells, "one with several numbers a block. Of others use `values`", probe=probe)
        blocks = [*dict.fromkeys(row.block for row in cells)]
        array = np.full((len(blocks), 1 + max(row.unit or 0 for row in cells)), np.nan)
        for row in cells:
            array[blocks.index(row.block), row.unit] = row.value
        return array

    def to_csv(self, path: PathLike) -> None:
        """Write the rows below a line of column names, atomically."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([Row._fields, *self.rows])
        replace(path, lambda new: new.write_text(text.getvalue(), encoding="utf-8", newline=""))

    @classmethod
    def from_csv(cls, path: PathLike) -> "Table":
        """Return the table that `to_csv` wrote."""
        with open(as_path(path=path), encoding="utf-8", newline="") as file:
            head, *lines = [*csv.reader(file)] or [[]]
        require(tuple(head) == Row._fields, f"a CSV file with columns {Row._fields}", path=path)
        types: tuple[Callable[[str], Any], ...] = (str, str, int, int, int, float)
        return cls(
            Row._make(kind(cell) if cell else None for kind, cell in zip(types, line, strict=True))
            for line in lines
        )


def titled(model: Any, count: int) -> str:
    """Return the title of a table: the name of a model and its number of examples."""
    return f"{model.name} on {count} example{'s' * (count != 1)}"


def aligned(lines: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """Return lines of cells with aligned columns, of which `left` are text, others numbers."""
    columns = []
    for i, column in enumerate(zip(*lines, strict=True)):
        width = max(map(len, column))
        columns.append([v.ljust(width) if i in left else v.rjust(width) for v in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


class Ratio(Probe):
    """Base of probes of ratios of norms: mean and deviation over the examples that have one.

    `dead`: the share of the others, whose denominator is zero; only given if there are any.
    """

    def averages(self, ratios: Tensor, alive: Tensor) -> dict[str, Tensor]:
        """Return each example's means of ratios, `(batch, ratios)`, 0 where not `alive`, 0 or 1."""
        values = {"mean": ratios, "alive": alive, "square": ops.square(ratios)}
        return {key: ops.mean(v, axis=1) for key, v in values.items()}

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return mean, deviation, the share of dead examples, and what else a probe averages."""
        with np.errstate(invalid="ignore"):  # all dead: NaN
            living = {key: v / mean["alive"] for key, v in mean.items() if key != "alive"}
        numbers = super().summarize({key: living.pop(key) for key in ("mean", "square")})
        dead = 1 - mean["alive"]
        return {**numbers, **({"dead": dead} if dead else {}), **living}


class BlockInfluence(Probe):
    """Mean of 1 - cos(x, y) between a block's skip input and its output, at each position.

    Near 0: the block may be removed. The last axis is that of features, all others are positions.
    0 where x and y are both zero, 1/2 where one of them is: where many positions are blank, as the
    margins of digits, a block that adds little has a large influence, too. Men et al. (2024),
    arXiv:2403.03853, equation 1.
    """

    needs = ("x", "y")

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the mean over each example's positions."""
        # of unit vectors: without the cancellation of 1 - cos
        square = ops.square(unit(block["x"]) - unit(block["y"]))
        return block.by_unit(ops.sum(square, axis=-1, keepdims=True))[:, 0] / 2


class BlockOutputs(Probe):
    """Mean output of each unit over examples (and positions).

    Columns that stay the same from block to block are carried. For one example: Fig. 2, fourth
    column.
    """

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each unit's output."""
        return {"units": block.by_unit(block["y"])}


class EstimationError(Probe):
    """Error of a block's output as an estimate of the last one of its shape in the stage.

    y - y of that block: the mean over examples of each unit, then over units: near 0 if blocks
    estimate without bias, negative if they underestimate. `std`, each unit's deviation over
    examples, then averaged: falls along a stage that refines an estimate. `rectified` compares the
    outputs after a ReLU.
    Greff et al. (2017), section 4.2, Fig. 3.
    """

    def __init__(self, rectified: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        self.rectified = rectified

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each unit's error and its square."""
        last = [part for part in stage if part["y"].shape == block["y"].shape][-1]
        y, last = (ops.cast(part["y"], "float32") for part in (block, last))
        error = ops.relu(y) - ops.relu(last) if self.rectified else y - last
        values = {"error": error, "square": ops.square(error)}
        if block.get("mask") is not None:
            values["share"] = zero_masked(ops.ones_like(error), block["mask"])
        return values

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return averages over units."""
        share = np.broadcast_to(mean.get("share", 1.0), mean["error"].shape)  # of the examples
        error, square = (mean[key][share != 0] / share[share != 0] for key in ("error", "square"))
        return {self.name: error.mean(), "std": deviation(error, square).mean()}


class ResidualMean(Probe):
    """Mean over examples, E[F], of a block's residual function F: 0 if it refines without bias.

    It is taken for each channel, over positions, too. `residual_mean`: the mean over channels;
    `relative`: the norm of E[F] over the root mean square of F, 0 without bias and 1 if F is the
    same for all examples; `units`: each channel's. A batch normalization at the end of F makes it
    that layer's beta, over a training batch in training mode (`batch_statistics`). Greff et al.
    (2017), section 3.2, equation 9.
    """

    needs = ("f",)

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each channel's mean, and the mean square over channels."""
        f = ops.cast(block["f"], "float32")
        return {"units": block.by_unit(f), "square": ops.mean(block.by_unit(ops.square(f)), axis=1)}

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return averages over channels, and each channel's mean."""
        units = mean["units"]
        square = np.square(units).mean()
        with np.errstate(invalid="ignore"):  # F is 0: NaN
            relative = np.sqrt(square / mean["square"])
        return {self.name: units.mean(), "relative": relative, "units": units}


class CosineLoss(Probe):
    """Mean cosine of f and dL/dx, the gradient of each example's loss at the skip input.

    Negative: the block moves its input down the loss, as a step of gradient descent would; 0: it
    moves across it; positive: it undoes the work of others. `classifier` is "network", where L is
    the loss of the whole network, or "block": L is the loss of the early readout of x, in the last
    stage. Jastrzebski et al. (2018), section 4.1, Figs 4, 10; with "block" Figs 13, 15, 18, 19.
    """

    def __init__(self, classifier: str = "network", name: str | None = None) -> None:
        super().__init__(name)
        check_choice(CLASSIFIERS, classifier=classifier)
        self.needs = ("f", CLASSIFIERS[classifier])

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the cosine of each example."""
        return cosine(block["f"], block[self.needs[1]])


class L2Ratio(Ratio):
    """Mean ratio |f| / |x|: the size of a block's change, relative to its skip input.

    Small: it refines; 1 and more: it replaces. Examples whose x is zero have no ratio and are left
    out; `dead`, given where there are any, is their share. Jastrzebski et al. (2018), section 4.2,
    Figs 2, 11.
    """

    needs = ("f", "x")

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return the ratio of each example."""
        length = norm(block["x"])[:, None]
        ratios = ops.where(length != 0, norm(block["f"])[:, None] / length, 0.0)
        return self.averages(ratios, ops.cast(length != 0, ratios.dtype))


class TaylorTerm(CosineLoss):
    """Mean of f . dL/dx: a block's change of the loss, to first order; negative: the loss falls.

    L is the loss of the early readout of x, where `classifier` is "block", or the network's loss;
    as in `CosineLoss`, whose default is the network's. To first order, the sum over the blocks
    after block i is L at the end minus L after block i: Jastrzebski et al. (2018), equations 2
    to 4.
    """

    def __init__(self, classifier: str = "block", name: str | None = None) -> None:
        super().__init__(classifier, name)

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the term of each example."""
        return ops.sum(flat(block["f"]) * flat(block[self.needs[1]]), axis=1)


class CosineInput(Probe):
    """Mean cosine of f and x: negative where a block takes away from its skip input."""

    needs = ("f", "x")

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the cosine of each example."""
        return cosine(block["f"], block["x"])


class NormGrowth(Probe):
    """Mean ratio |y| / |x|: the growth of activations through a block; 0 where x is zero."""

    needs = ("x", "y")

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the ratio of each example."""
        length = norm(block["x"])
        return ops.where(length == 0, 0.0, norm(block["y"]) / length)


class ActivationNorm(Probe):
    """Mean norm |y| of a block's output.

    It grows along the blocks if each adds to the last, and explodes where blocks share
    normalization badly. Jastrzebski et al. (2018), section 4.5, Fig. 8.
    """

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the norm of each example."""
        return norm(block["y"])


class GradientNorm(Probe):
    """Mean norm of the gradient of each example's loss at the input of a block.

    Equal along the blocks: gradients neither vanish nor explode. `first_to_last_stage`: the mean
    norm before the first stage's first block over that before the last stage's; far above 1:
    gradients explode on the way down. Jastrzebski et al. (2018), section 4.5, Fig. 8.

    `at` is "input", or "h", what H of a skip layer, or F of a `zoo.SubLayer`, returns: it can be
    compared between rules whose states differ in size and scale.

    Raises:
        ValueError: if `at` is another word.
    """

    def __init__(self, at: str = "input", name: str | None = None) -> None:
        check_choice(("input", "h"), at=at)
        self.needs = (f"d{at}",)
        super().__init__(name)

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the norm of each example."""
        return norm(block[self.needs[0]])

    def result(self) -> dict[str | None, dict[str, Any]]:
        """Return the norms, and the ratio of the first stage's to the last one's."""
        result = super().result()
        measured = [block for block in self.blocks if block.name in result]
        if measured:
            last = next(block for block in measured if block.stage == measured[-1].stage)
            before, after = (result[block.name][self.name] for block in (measured[0], last))
            result[None] = {"first_to_last_stage": before / after if after else np.nan}
        return result


class IntermediateAccuracy(Probe):
    """Accuracy, and `loss`, of the early readout after each block of the last stage.

    It rises along the blocks if each refines the same representation. Jastrzebski et al. (2018),
    section 4.2, Figs 5, 17.
    """

    needs = ("probabilities", "loss", "labels")

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return correctness and loss of each example."""
        hit = correct(block["probabilities"], block["labels"])
        return {self.name: block.average(hit), "loss": block.average(block["loss"])}


class BorderlineExamples(Probe):
    """Accuracy, loss and entropy of the early readout for three groups of examples.

    The groups are formed at the first of the measured blocks, of outputs such as `(batch, steps,
    classes)` of positions. `borderline`: the true class's probability and the highest other one
    differ by less than `margin`; `correct`: classified correctly, not borderline; `all`. If late
    blocks refine, the borderline ones gain most. `share`: the group's share of all examples; a
    group without examples has no other number. Entropy in nats. Jastrzebski et al. (2018), sections
    4.3, 4.4, Figs 6, 7. `blocks` is the number of the last stage's blocks to measure, `margin` a
    difference of probabilities.
    """

    needs = ("probabilities", "loss", "labels")

    def __init__(self, blocks: int = 5, margin: float = 0.1, name: str | None = None) -> None:
        super().__init__(name)
        check_integers(1, blocks=blocks)
        check_numbers(0, 1, margin=margin)
        self.num_blocks = blocks
        self.margin = margin

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each example's membership of the groups, and the groups' numbers."""
        last_blocks = stage[-self.num_blocks :]
        if not any(block is other for other in last_blocks):
            return {}
        first = last_blocks[0]
        p = first["probabilities"]
        index = ops.expand_dims(class_indices(first["labels"], p.shape), axis=-1)
        true = ops.cast(index == ops.arange(p.shape[-1]), p.dtype)
        difference = ops.abs(ops.sum(p * true, axis=-1) - ops.max(p - 2 * true, axis=-1))
        borderline = ops.cast(difference < self.margin, "float32") + 0 * difference  # NaN stays
        ones = ops.ones_like(borderline)
        others = correct(p, first["labels"]) * (1 - borderline)
        groups = {"borderline": borderline, "correct": others, "all": ones}
        p = block["probabilities"]
        hit = correct(p, block["labels"])
        numbers = {"share": ones, "accuracy": hit, "loss": block["loss"]}
        numbers["entropy"] = -ops.sum(p * ops.log(ops.maximum(p, 1e-30)), axis=-1)
        values = {}
        for group, mask in groups.items():
            for key, value in numbers.items():
                masked = ops.where(mask == 0, 0.0, value * mask)
                values[f"{group}_{key}"] = block.average(masked)
        return values

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return the shares, and the other numbers averaged over each group's examples."""
        numbers = {key: value for key, value in mean.items() if key.endswith("_share")}
        for key, value in mean.items():
            share = mean[key.split("_")[0] + "_share"]
            if key not in numbers and share != 0:
                numbers[key] = value / share
        return numbers


class LogitLens(Probe):
    """Early readout after the blocks of every stage, compared with the network's own output.

    The network's tail (final normalization and classifier) is applied to the output of each block
    that has the last block's shape. `kl`: the KL divergence of the network's distribution from the
    early one's, in nats; `agreement`: the share of positions with the same most probable class;
    with labels also `accuracy` and `loss`, in the last stage those of `IntermediateAccuracy`.
    nostalgebraist (2020), "interpreting GPT: the logit lens"; Belrose et al. (2023),
    arXiv:2303.08112.
    """

    needs = ("network", "lens")  # the latter where the tail can read a block
    reads_labels = True

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each example's numbers."""
        early = block["lens"]
        values = {key: early[key] for key in ("kl", "agreement")}
        if "labels" in block:
            values["accuracy"] = correct(early["probabilities"], block["labels"])
            values["loss"] = early["loss"]
        return {key: block.average(value) for key, value in values.items()}


class GateBias(Probe):
    """Bias of T's logits, negative: the input is carried. `mean` over units, and each unit's own.

    In a gate that ends in a normalization it is that layer's beta. If it fell in training, the
    network learned to carry more. Fig. 2, first column.
    """

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return the bias of the gate's last layer, the same for each example."""
        gate = getattr(block.info.layer, "transform_gate", None)
        weights = getattr(gate, "weights", ())
        biases = [w for w in weights if w.path.endswith(("/bias", "/beta"))]
        examples = ops.ones((ops.shape(block["y"])[0], 1))
        return {"units": examples * ops.cast(biases[-1], "float32")} if biases else {}

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return the mean over units, and each unit's bias."""
        return {"mean": mean["units"].mean(), **mean}


class GateActivity(Probe):
    """Mean activity of the gates, in [0, 1]: T near 0 carries, near 1 rewrites; C the reverse.

    `t`, `c`: over units, positions and examples; `t_std`: over units and examples. `t_units`: each
    unit's mean over examples (and positions), Fig. 2, second column; with data of one example, its
    third column.
    """

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each unit's activity, and the mean square over units."""
        values = {}
        for gate in ("t", "c"):
            if gate in block:
                values[f"{gate}_units"] = units = block.by_unit(block[gate])
                values[f"{gate}_square"] = ops.mean(ops.square(units), axis=1)
        return values

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return mean, deviation and units of each gate."""
        numbers = {}
        for gate in ("t", "c"):
            if f"{gate}_units" in mean:
                units = mean[f"{gate}_units"]
                numbers[gate] = units.mean()
                numbers[f"{gate}_std"] = deviation(units.mean(), mean[f"{gate}_square"])
                numbers[f"{gate}_units"] = units
        return numbers


class ClassGates(Probe):
    """Difference between a class's gates and all: mean T over its examples minus mean T over all.

    `distance` is the mean absolute difference over units: large in blocks that route by class,
    0 where the gates do not depend on it. `of` is the class, an integer below `classes`, and part
    of the name, as in `class_gates_0`. Fig. 3.
    """

    needs = ("t", "labels")

    def __init__(self, of: int, classes: int, name: str | None = None) -> None:
        super().__init__(name or f"class_gates_{of}")
        check_integers(1, classes=classes)
        require(is_integer(of, 0) and of < classes, f"one of {classes} classes, from 0", of=of)
        self.of = of
        self.classes = classes

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each unit's gate, for all examples and for those of the class."""
        labels = block["labels"]
        valid = len(labels.shape) == 1 or labels.shape[-1] in (1, self.classes)
        require(valid, "one class for each example", labels=tuple(labels.shape))
        inside = ops.cast(class_indices(labels, (None, self.classes)) == self.of, "float32")
        units = block.by_unit(block["t"])
        return {"all": units, "inside": units * inside[:, None], "share": inside}

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return the difference of each unit, and its mean absolute value."""
        with np.errstate(divide="ignore", invalid="ignore"):
            units = mean["inside"] / mean["share"] - mean["all"]
        return {"distance": np.abs(units).mean(), "units": units}
