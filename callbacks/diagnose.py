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
from zoo.checks import check_choice, check_integers, require
from zoo.graph.blocks import Grain, Network
from zoo.types import PathLike

RULES = (  # verdict, number, sign, threshold: the first that holds decides
    ("explodes", "norm_growth", ">", 30.0),  # ours: four such blocks in a row leave float16
    ("idle", "lesion_kl", "<", 0.01),  # nats; ours: about the KL of p = 0.5 from 0.43
    ("idle", "lesion_change", "<", 0.05),  # ours
    ("undoes", "cosine_loss", ">", 0.05),  # sign: Jastrzebski et al. (2018), 4.1; size: ours
    ("undoes", "cosine_input", "<", -0.5),  # ours: f takes away at least half of |f| along x
    ("replaces", "l2_ratio", ">=", 1.0),  # Jastrzebski et al. (2018), section 4.2: new features
    ("refines", "l2_ratio", "<", 1.0),
)
SIGNS = {">": operator.gt, "<": operator.lt, ">=": operator.ge}
IDLE_SHARE = 0.1  # of the blocks' mean lesion effect; ours: untrained, all effects are small
NEGLIGIBLE = {"lesion_kl": 1e-8, "lesion_change": 1e-4}  # ours; whatever the mean
LESION_EXAMPLES = 64  # ours: lesions of n blocks take n / 2 forward passes
FEW = 32  # ours: examples whose mean has a standard error of 18 % of their deviation
VERDICTS = {  # and their colors, on light and dark pages
    "refines": "#2a9d5c",
    "replaces": "#3b7dd8",
    "idle": "#888888",
    "undoes": "#d97706",
    "explodes": "#dc2626",
}
LEGEND = """<details open style="flex:1 1 24em">
<summary>Legend: the first verdict that fits decides</summary><table>
<tr><th scope="row">explodes<td>y is far longer than x, or numbers are not finite
<tr><th scope="row">idle<td>the output hardly changes without it, a tenth of the mean or less
<tr><th scope="row">undoes<td>f moves up the loss, or takes away from x
<tr><th scope="row">replaces<td>f is as long as x or longer, or there is no skip input
<tr><th scope="row">refines<td>f is shorter than x
<tr><th scope="row">x, y, f<td>skip input and output of the block, and f = y - x; |x| is a norm
<tr><th scope="row">cos, dL<td>cosine, gradient of the loss at x; influence: 1 - cos(x,y)
<tr><th scope="row">lesion<td>block left out; KL divergence (nats) or relative change of the output
<tr><th scope="row">stage<td>number of the blocks between two changes of the shape
</table></details>"""
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
    data: str = "x"  # code of what `depth_plan` needs
    options: str = ""  # code of further arguments
    cautions: Sequence[str] = ()  # reasons not to rely on the verdicts

    def blocks(self, verdict: str) -> list[str]:
        """Return the names of the blocks with one verdict; raise ValueError if it is unknown."""
        check_choice(VERDICTS, verdict=verdict)
        return [row.block for row in self.verdicts if row.verdict == verdict]

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.table.notes)
        return f"<h3>{html.escape(self.title)}</h3>{self._to_html()}{notes}"

    def __str__(self) -> str:
        text = aligned(self._lines(), left=(0, 1, 2))
        head = [f"{self.title}. {self._summary()}", *(f"Caution: {v}" for v in self.cautions)]
        return "\n".join([*head, text, *self.table.notes, " ".join(self._advice()).strip()])

    def _summary(self):
        counts = [f"{v} {len(names)}" for v in VERDICTS if (names := self.blocks(v))]
        count = len(self.verdicts)
        names = {"lesion_accuracy": "accuracy", "lesion_loss": "loss"}
        intact = [row for row in self.table if row.block is None and row.probe in names]
        numbers = ", ".join(f"{names[row.probe]} {row.value:.3g}" for row in intact)
        whole = f" Intact network, on the examples of the lesions: {numbers}." if intact else ""
        return f"{count} block{'s' * (count > 1)}: {', '.join(counts)}.{whole}"

    def _advice(self):
        """Return what to do, and the code for it."""
        idle = self.blocks("idle")
        lesioned = [r.value for r in self.table if r.probe in ("lesion_kl", "lesion_change")]
        if not np.isfinite(lesioned).any():
            return "No lesion was measured: whether a block is idle is not known.", ""
        if not idle and len(self.verdicts) < 4:  # of these a plan that keeps 0.75 removes none
            return "No block was found to be idle.", ""
        if idle:
            code = f"zoo.graph.prune_blocks(model, {idle}{self.options})"
            return "Remove the idle blocks, then train on:", code
        code = f"zoo.callbacks.depth_plan(model, {self.data}, keep=0.75{self.options})"
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
        texts = [html.escape(self._summary())]
        texts += [f"<mark>Caution</mark> {html.escape(text)}" for text in self.cautions]
        texts.append(f"{advice} <code>{code}</code>" if code else advice)
        rows = ['<tr><th scope="row">' + "<td>".join(map(html.escape, v)) for v in self._lines()]
        rows[0] = rows[0].replace("row", "col").replace("<td>", '<th scope="col">')
        for i, row in enumerate(self.verdicts, 1):
            dot = f'<span aria-hidden="true" style="color:{VERDICTS[row.verdict]}">●</span>'
            rows[i] = rows[i].replace(f"<td>{row.verdict}", f"<td>{dot}&nbsp;{row.verdict}", 1)
        return (
            f"{''.join(f'<p>{text}</p>' for text in texts)}"
            '<div style="display:flex;flex-wrap:wrap;gap:0 3em">'
            f'<div tabindex="0" style="max-width:100%"><table>{"".join(rows)}</table></div>'
            f"{LEGEND}</div>"
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

    One pass for the probes, one over random examples for the lesions. docs/any_model.md has the
    verdicts' rules. With labels, look at the intact network's accuracy first: verdicts are
    worthless where x is not prepared as in training.

    `x` are inputs, or data with or without labels as in `zoo.callbacks.run`, and `y` labels, where
    `x` is an array or a dictionary of arrays. `lesion_examples` is the number of examples for the
    lesions, which take longest, `seed` the random seed of their choice. Other arguments are those
    of `zoo.callbacks.run`; without `progress`, a `PassProgress` prints the time left.

    Raises:
        ValueError: before any work, if the data have NaN or infinity, there is no block, labels and
            loss do not fit, or `batch_size` or `lesion_examples` is invalid.

    Example:
    >>> inputs = keras.Input((4,))
    >>> f = keras.layers.Dense(4, kernel_initializer="zeros", name="branch")(inputs)
    >>> model = keras.Model(inputs, keras.layers.Add(name="sum")([inputs, f]))
    >>> diagnose(model, np.ones((8, 4), "float32")).blocks("idle")
    ['sum']
    """
    check_integers(1, lesion_examples=lesion_examples)
    data = repeatable(x if y is None else (x, y))
    selected, count = sample(_finite(data, batch_size), lesion_examples, seed)
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
    means = {name: float(np.mean([v[b] for b in v if b])) for name, v in values.items()}
    verdicts = []
    for block in network.blocks:
        numbers = {name: v[block.name] for name, v in values.items() if block.name in v}
        verdicts.append(Verdict(block.name, block.stage, *judge(numbers, means), numbers))
    data = "(x,)" if y is not None and isinstance(x, list) else "x"
    options = "" if blocks is None else f", blocks={[block.name for block in network.blocks]}"
    options += "" if grain == "sum" else f", grain={grain!r}"
    cautions = _cautions(table, network.graph.model, selected, min(count, lesion_examples))
    return Diagnosis(table.title, verdicts, table, data, options, cautions)


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
    close = ""
    for verdict, name, sign, bound in RULES:
        value = numbers.get(name, math.nan)
        if not SIGNS[sign](value, bound):
            continue
        reason = f"{SCREEN[name]} {_compared(value, sign, bound)}"
        if verdict != "idle":
            return verdict, reason + close
        tenth = IDLE_SHARE * (means or {}).get(name, math.inf)
        if value < NEGLIGIBLE[name]:
            return verdict, f"{SCREEN[name]} {_compared(value, sign, NEGLIGIBLE[name])}"
        if value <= tenth:
            limit = "" if tenth == math.inf else f", <= {tenth:.3g} (mean / 10)"
            return verdict, reason + limit
        close = f"; {SCREEN[name]} {_compared(value, '>', tenth)} (mean / 10)"
    return "replaces", f"no skip input{close}"


def _compared(value, sign, bound):
    """Return an inequality with as many digits, three or more, as tell its sides apart."""
    n = next((n for n in range(3, 17) if f"{value:.{n}g}" != f"{bound:.{n}g}"), 3)
    return f"{value:.{n}g} {sign} {bound:.{n}g}"


def _finite(data, batch_size):
    """Yield the batches of data; raise ValueError for one with NaN or infinity."""
    for batch in batches(data, batch_size):
        parts = {name: part for name, part in zip("xy", batch, strict=True) if part is not None}
        for path, values in keras.tree.flatten_with_path(parts):
            values = keras.ops.convert_to_numpy(values)  # also of a GPU
            valid = values.dtype.kind != "f" or np.isfinite(values).all()
            expected = "finite. Leave out these examples, or replace the values"
            require(valid, expected, **{".".join(map(str, path)): "NaN or infinity"})
        yield tuple(parts.values())


def _cautions(table, model, selected, count):
    """Return reasons not to rely on verdicts: few examples, an accuracy as by guessing."""
    cautions = []
    if count < FEW:
        cautions.append(
            f"Only {count} example{'s' * (count > 1)}: the standard error of a mean is "
            f"{count**-0.5:.0%} of the standard deviation. Give {FEW}: others may change verdicts."
        )
    if any(row.block is None and not np.isfinite(row.value) for row in table):
        cautions.append("Outputs or loss are not finite: look for NaN in the network's weights.")
    is_flat = len(keras.tree.flatten(model.output)[0].shape) == 2  # else some may not count
    if is_flat and "lesion_accuracy" in table.probes() and isinstance(selected, tuple):
        labels = keras.tree.flatten(selected[1])[0].reshape(count, -1)
        guess = np.unique(labels, axis=0, return_counts=True)[1].max() / count
        limit = guess + 2 * math.sqrt(guess * (1 - guess) / count)
        if table.values("lesion_accuracy")[None] < limit:
            cautions.append(
                f"The accuracy is not clearly above {guess:.3g}, that of always naming the most "
                f"frequent class: the network is untrained, or x is not prepared as in training."
            )
    return cautions


def _varies(values):
    """True if the examples of arrays, in any structure, are not all the same."""
    return any((v != v[:1]).any() for v in keras.tree.flatten(values))
