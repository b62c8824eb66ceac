"""A verdict for each block of a network: refines, replaces, idle, undoes or explodes."""

import dataclasses
import html
import math
import operator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from zoo.callbacks.charts import write_html
from zoo.callbacks.probes import probe as probes
from zoo.callbacks.probes.engine import run
from zoo.callbacks.probes.objective import Loss, Progress, batches, repeatable, sample
from zoo.callbacks.probes.probe import Probe, Table, aligned
from zoo.callbacks.probes.sweep import lesions
from zoo.callbacks.training import PassProgress
from zoo.checks import check_choice, check_integers
from zoo.graph.blocks import Grain, Network
from zoo.types import PathLike

REPLACES = 1.0  # |f| / |x|; Jastrzebski et al. (2018), section 4.2: such a block makes new features
EXPLODES = 30.0  # |y| / |x|; ours: four such blocks in a row leave the range of float16
# cosine of f and dL/dx; the sign: Jastrzebski et al. (2018), section 4.1; the size: ours
UNDOES = 0.05
ERASES = -0.5  # cosine of f and x; ours: f takes away at least half of |f| along x
UNUSED_KL = 0.01  # nats; ours: about the KL of p = 0.5 from 0.43
UNUSED_CHANGE = 0.05  # norm of the change over the norm of the output; ours
UNUSED_SHARE = 0.1  # of the blocks' mean lesion effect; ours: untrained, all effects are small
LESION_EXAMPLES = 64  # ours: lesions of n blocks take n / 2 forward passes
RULES = (  # after "explodes" and "idle": verdict, number, sign, threshold
    ("undoes", "cosine_loss", ">", UNDOES),
    ("undoes", "cosine_input", "<", ERASES),
    ("replaces", "l2_ratio", ">=", REPLACES),
    ("refines", "l2_ratio", "<", REPLACES),
)
SIGNS = {">": operator.gt, "<": operator.lt, ">=": operator.ge}
VERDICTS = ("refines", "replaces", "idle", "undoes", "explodes")
SCREEN = {  # columns of numbers: headings by name
    "l2_ratio": "|f|/|x|",
    "block_influence": "influence",
    "cosine_input": "cos(f,x)",
    "norm_growth": "|y|/|x|",
    "cosine_loss": "cos(f,dL)",
    "lesion_kl": "lesion KL",
    "lesion_change": "lesion change",
}


OF_BLOCK = ("l2_ratio", "block_influence", "cosine_input", "norm_growth")  # of x, f and y alone


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Verdict on a block: one of `VERDICTS`."""

    block: str
    stage: int
    verdict: str
    reason: str  # the number and the threshold that decided
    numbers: dict[str, float]  # measured values by name


@dataclasses.dataclass
class Diagnosis:
    """Report of `diagnose`; it prints on one screen."""

    title: str  # model, and number of examples
    verdicts: list[Verdict]  # one for each block, in order
    table: Table  # all measured values; its notes say what could not be measured
    grain: Grain = "sum"  # that of the blocks
    named: bool = False  # True if the blocks were given by name
    data: str = "x"  # code of what `depth_plan` needs

    def blocks(self, verdict: str) -> list[str]:
        """Return the names of the blocks with one verdict; raise ValueError if it is unknown."""
        check_choice(VERDICTS, verdict=verdict)
        return [row.block for row in self.verdicts if row.verdict == verdict]

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.table.notes)
        return f"<h3>{html.escape(self.title)}</h3>{self._to_html()}{notes}"

    def __str__(self) -> str:
        text = aligned(self._lines(), left=(0, 1, 2))
        head = f"{self.title}. {self._summary()}"
        return "\n".join([head, text, *self.table.notes, " ".join(self._advice()).strip()])

    def _summary(self):
        counts = [f"{len(names)} {v}" for v in VERDICTS if (names := self.blocks(v))]
        count = len(self.verdicts)
        return f"{count} block{'s' * (count > 1)}: {', '.join(counts)}."

    def _advice(self):
        """Return what to do, and the code for it."""
        idle = self.blocks("idle")
        lesions = {"lesion_kl", "lesion_change"}
        # of fewer than four blocks a plan that keeps 0.75 removes none
        if not idle and (len(self.verdicts) < 4 or lesions.isdisjoint(self.table.probes())):
            return "No block was found to be idle.", ""
        options = "" if self.grain == "sum" else f", grain={self.grain!r}"
        if self.named:
            options = f", blocks={[row.block for row in self.verdicts]}{options}"
        if idle:
            code = f"zoo.graph.prune_blocks(model, {idle}{options})"
            return "Remove the idle blocks, then train on:", code
        code = f"zoo.callbacks.depth_plan(model, {self.data}, keep=0.75{options})"
        return "No block is idle. To remove some and heal the rest by training, make a plan:", code

    def _lines(self):
        names = [name for name in SCREEN if any(name in row.numbers for row in self.verdicts)]
        lines = [["block", "verdict", "reason", "stage", *(SCREEN[name] for name in names)]]
        for row in self.verdicts:
            numbers = [f"{row.numbers[n]:.3g}" if n in row.numbers else "" for n in names]
            lines.append([row.block, row.verdict, row.reason, str(row.stage), *numbers])
        return lines

    def to_html(self, path: PathLike) -> None:
        """Write a page with verdicts, advice and a chart of each measure; it needs no server."""
        write_html(self.table, path, self.title, self._to_html())

    def _to_html(self):
        advice, code = map(html.escape, self._advice())
        rows = ["<tr><th>" + "<td>".join(map(html.escape, line)) for line in self._lines()]
        rows[0] = rows[0].replace("<td>", "<th>")
        return (
            f"<p>{html.escape(self._summary())}</p><p>{advice} <code>{code}</code></p>"
            f'<div tabindex="0"><table>{"".join(rows)}</table></div>'
        )


def diagnose(  # noqa: PLR0913 (options of two passes, by keyword)
    model: keras.Model,
    x: Any,
    y: Any = None,
    loss: Loss = None,
    batch_size: int = 128,
    blocks: Sequence[str] | None = None,
    progress: Progress | None = None,
    *,
    lesion_examples: int = LESION_EXAMPLES,
    seed: int = 0,
    grain: Grain = "sum",
) -> Diagnosis:
    """Return a verdict on each block of a network, with the numbers and thresholds behind it.

    One pass for the probes, one over random examples for the lesions. The first rule that holds
    decides:

    * explodes: |y| / |x| is above 30, or a number of x, f and y is not finite;
    * idle: without it, the KL divergence of the output is below 0.01 nats (or the relative change
      of other outputs below 0.05), and at most a tenth of the blocks' mean;
    * undoes: with labels, the cosine of f and the loss gradient at x is above 0.05; or the cosine
      of f and x is below -0.5;
    * replaces: |f| / |x| is 1 or more, or there is no skip input;
    * refines: none of these.

    `x` are inputs, or data with or without labels as in `zoo.callbacks.run`, and `y` labels, where
    `x` is an array or a dictionary of arrays. `lesion_examples` is the number of examples for the
    lesions, which take longest, `seed` the random seed of their choice. Other arguments are those
    of `zoo.callbacks.run`; without `progress`, a `PassProgress` prints the time left.

    Raises:
        ValueError: if there is no block, labels and loss do not fit, or `batch_size` or
            `lesion_examples` is invalid.

    Example:
    >>> inputs = keras.Input((4,))
    >>> f = keras.layers.Dense(4, kernel_initializer="zeros", name="branch")(inputs)
    >>> model = keras.Model(inputs, keras.layers.Add(name="sum")([inputs, f]))
    >>> diagnose(model, np.ones((8, 4), "float32")).blocks("idle")
    ['sum']
    """
    check_integers(1, lesion_examples=lesion_examples)
    data = repeatable(x if y is None else (x, y))
    selected, count = sample(data, lesion_examples, seed)
    own: list[Probe] = [probes.L2Ratio(), probes.BlockInfluence()]
    own += [probes.CosineInput(), probes.NormGrowth()]
    if next(batches(data, 1), (None, None))[1] is not None:  # labels
        own.append(probes.CosineLoss())
    progress = progress or PassProgress("diagnose", count + min(count, lesion_examples))
    shared: dict[str, Any] = {"loss": loss, "batch_size": batch_size, "progress": progress}
    network = Network.of(model, blocks, grain)
    table = run(own, network, data, **shared)
    try:
        lesioned = lesions(network, selected, **shared)
        if not any(row.value > 0 for row in lesioned.rows if row.probe in SCREEN):
            inputs, _ = next(batches(selected, lesion_examples))
            outputs = model.predict(inputs, batch_size, verbose=0)
            if _varies(inputs) and not _varies(outputs):
                raise ValueError("the output does not depend on x: nothing can be said of blocks.")
        if lesioned.title != table.title:
            table.notes.append(f"Lesions: {lesioned.title}, a random choice (seed {seed}).")
        table += lesioned
    except ValueError as error:  # of blocks that cannot be left out
        table.notes.append(f"No lesions: {error}")
    values = {name: table.values(name) for name in SCREEN if name in table.probes()}
    means = {}
    for name, by_block in values.items():
        by_block.pop(None, None)  # the whole network's
        means[name] = float(np.mean([*by_block.values()]))
    verdicts = []
    for block in network.blocks:
        numbers = {name: v[block.name] for name, v in values.items() if block.name in v}
        verdicts.append(Verdict(block.name, block.stage, *judge(numbers, means), numbers))
    data = "(x,)" if y is not None and isinstance(x, list) else "x"
    return Diagnosis(table.title, verdicts, table, grain, blocks is not None, data)


def judge(numbers: dict[str, float], means: dict[str, float] | None = None) -> tuple[str, str]:
    """Return the verdict on a block and the reason, by the rules of `diagnose`.

    Missing numbers decide nothing; `means` are those over the network's blocks.

    Example:
    >>> judge({"l2_ratio": 1.5, "norm_growth": 1.8})
    ('replaces', '|f|/|x| 1.5 >= 1')
    """
    not_finite = [name for name in OF_BLOCK if not np.isfinite(numbers.get(name, 0.0))]
    if not_finite:
        return "explodes", f"{SCREEN[not_finite[0]]} is not finite"
    growth = numbers.get("norm_growth", 0.0)
    if growth > EXPLODES:
        return "explodes", f"|y|/|x| {_compared(growth, '>', EXPLODES)}"
    close = ""
    for name, bound in (("lesion_kl", UNUSED_KL), ("lesion_change", UNUSED_CHANGE)):
        effect = numbers.get(name, math.inf)
        tenth = UNUSED_SHARE * (means or {}).get(name, math.inf)
        if effect < bound and effect <= tenth:
            limit = "" if tenth == math.inf else f", <= {tenth:.3g} (mean / 10)"
            return "idle", f"{SCREEN[name]} {_compared(effect, '<', bound)}{limit}"
        if effect < bound:
            close = f"; {SCREEN[name]} {_compared(effect, '>', tenth)} (mean / 10)"
    for verdict, name, sign, bound in RULES:
        if name in numbers and SIGNS[sign](numbers[name], bound):
            return verdict, f"{SCREEN[name]} {_compared(numbers[name], sign, bound)}{close}"
    return "replaces", f"no skip input{close}"


def _compared(value, sign, bound):
    """Return an inequality with as many digits, three or more, as tell its sides apart."""
    digits = (n for n in range(3, 17) if f"{value:.{n}g}" != f"{bound:.{n}g}")
    n = next(digits, 3)
    return f"{value:.{n}g} {sign} {bound:.{n}g}"


def _varies(values):
    """True if the examples of arrays, in any structure, are not all the same."""
    return any((v != v[:1]).any() for v in keras.tree.flatten(values))
