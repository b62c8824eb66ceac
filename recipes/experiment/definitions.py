"""Definitions of an experiment module: settings at each scale, measurement, artifacts, claims."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scipy import stats

FEWEST = 3  # seeds of a verdict
PRECISIONS = ("float32", "float64", "mixed_bfloat16", "mixed_float16")

# What `measure` returned: numbers, texts, lists of these, NumPy arrays, and dictionaries of all.
Measured = Mapping[str, Any]


def setting(default: Any, text: str, choices: Sequence[str] = ()) -> Any:
    """Return a dataclass field with the help text of its flag.

    Args:
        default: Value of the field.
        text: Help text, one sentence that names the source of the default: "section 4", "ours".
        choices: All valid values of a string; none: any. An integer is at least 1.
    """
    return dataclasses.field(default=default, metadata={"help": text, "choices": choices})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of any experiment; a subclass adds its own as fields made by `setting`.

    A check in `__post_init__` raises ValueError, which ends a command before any work is lost.
    """

    precision: str = setting("float32", "Dtype policy of the layers.", PRECISIONS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSettings(Settings):
    """Settings of an experiment that trains classifiers of images."""

    data: str = setting("mnist", "Data set: mnist, cifar10, cifar100, or any name in --data_dir.")
    train_examples: int | None = setting(None, "Train on the first N images only; none: all.")
    test_examples: int | None = setting(None, "Test on the first N images only; none: all.")
    epochs: int = setting(10, "Number of epochs.")
    batch: int = setting(100, "Images in a batch.")


def difference(settings: Settings, reference: Settings) -> list[str]:
    """Return how settings differ from a paper's, a phrase each; of fields that both have.

    Example:
    >>> difference(ImageSettings(epochs=3), ImageSettings(epochs=400))
    ['epochs 3 (the paper: 400)']
    """
    values = dataclasses.asdict(settings)
    return [
        f"{name.replace('_', ' ')} {value_text(values[name])} (the paper: {value_text(paper)})"
        for name, paper in dataclasses.asdict(reference).items()
        if name in values and values[name] != paper
    ]


def value_text(value: Any) -> str:
    """Return the value of a setting as a text."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "all" if value is None else f"{value}"


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A table or figure of a paper.

    Attributes:
        name: Its name in the paper, such as "fig2" or "table1a".
        title: Noun phrase for what is shown.
        make: From the measurements of all seeds to a matplotlib `Figure`, or to the rows of a
            table, dictionaries with the same keys. A column "paper" has the paper's number.
    """

    name: str
    title: str
    make: Callable[[Sequence[Measured]], Any]


def interval(values: Sequence[float], ratio: bool) -> tuple[float, float] | None:
    """Return the ends of Student's 95 % interval of the mean over seeds; None below three.

    That of a ratio is taken of its logarithm. None, too, where a value is not finite, or a ratio
    not positive.
    """
    if len(values) < FEWEST or not all(map(math.isfinite, values)):
        return None
    if ratio and min(values) <= 0:
        return None
    shown = [math.log(value) for value in values] if ratio else [*values]
    half = stats.sem(shown) * stats.t.ppf(0.975, len(shown) - 1)
    low, high = statistics.fmean(shown) - half, statistics.fmean(shown) + half
    return (math.exp(low), math.exp(high)) if ratio else (float(low), float(high))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper, and the comparison that decides it, written before its runs.

    Attributes:
        name: Letter of the paper and number, such as "S1".
        section: Section, table or figure of the paper.
        statement: The claim, in one sentence.
        quantity: Noun phrase for the measured number.
        measure: From the measurements of one seed, one for each experiment of `needs`, to the
            number.
        at_least: The claim holds if the number is at least this.
        at_most: The claim holds if the number is at most this.
        ratio: True if the number is positive and averaged by its logarithm.
        needs: Names of the experiments; none: the one that lists the claim.
        seeds: Number of seeds: 0, 1, 2, ...
        figure: Name of the artifact that shows it.
        changed: Change of the measurement after a run, and its cause.
        reason: Most likely reason why the claim was contradicted.
    """

    name: str
    section: str
    statement: str
    quantity: str
    measure: Callable[..., float]
    at_least: float | None = None
    at_most: float | None = None
    ratio: bool = False
    needs: tuple[str, ...] = ()
    seeds: int = 3
    figure: str = ""
    changed: str = ""
    reason: str = ""

    @property
    def criterion(self) -> str:
        """The criterion as a phrase."""
        side, bound = ("most", self.at_most) if self.at_least is None else ("least", self.at_least)
        return f"{self.quantity}: at {side} {bound:g}"

    def holds(self, value: float) -> bool:
        """Return True if a value fulfills the criterion."""
        if self.at_least is not None and value < self.at_least:
            return False
        return self.at_most is None or value <= self.at_most

    def verdict(self, values: Sequence[float]) -> str:
        """Return the verdict on the values of the seeds, one a seed.

        It is "shown" if the whole `interval` fulfills the criterion, "contradicted" if none of it
        does, else "undecided", as with fewer than three seeds.
        """
        ends = interval(values, self.ratio)
        held = {self.holds(end) for end in ends} if ends else set()
        if len(held) != 1:
            return "undecided"
        return "shown" if held == {True} else "contradicted"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that the driver knows of an experiment.

    Attributes:
        name: Folder and file below recipes/, such as "srivastava2015/gates".
        scales: Settings by name of the scale: "smoke" (seconds), "miniature" (minutes, what the
            claims are tested on) and "full", the paper's.
        measure: From settings and a `Run` to what was measured. It uses neither flags nor global
            state, so it can be called from a notebook.
        artifacts: Tables and figures, functions of what was measured.
        claims: Claims that are decided by what was measured.
        deviations: How the scale "full" deviates from the paper, and choices that the paper
            leaves open, a phrase each.
        seeds: Default seeds.
    """

    name: str
    scales: Mapping[str, Settings]
    measure: Callable[[Any, Any], Measured]
    artifacts: Sequence[Artifact] = ()
    claims: Sequence[Claim] = ()
    deviations: Sequence[str] = ()
    seeds: tuple[int, ...] = (0,)

    @property
    def paper(self) -> str:
        """Folder of the paper, such as "srivastava2015"."""
        return self.name.split("/")[0]
