"""Definitions of an experiment module: settings at each scale, measurement, artifacts, claims."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, ClassVar, dataclass_transform

import numpy as np
from scipy import stats

# Numbers of seeds at which a verdict is taken, and its probability of error. They add up to 5 %.
LOOKS = {3: 0.025, 4: 0.0125, 5: 0.00625, 8: 0.00625}
# Seeds of the scales that repeat a miniature: each has one verdict, of all of them.
REPLICATIONS = {"replication": tuple(range(200, 210)), "replication60": tuple(range(300, 360))}
LEVELS = LOOKS | {len(seeds): 0.05 for seeds in REPLICATIONS.values()}
PRECISIONS = ("float32", "float64", "mixed_bfloat16", "mixed_float16")

# What `measure` returned: numbers, texts, lists of these, NumPy arrays, and dictionaries of all.
Measured = Mapping[str, Any]


def setting(
    default: Any,
    text: str,
    choices: Sequence[str] = (),
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """Return a dataclass field; `text` is the help of its flag, and names the default's source.

    `choices` are the valid values of a string; empty: any value. Numbers are from `least`, None: 1
    for integers and 0 for others, to `most`.
    """
    metadata = {"help": text, "choices": choices, "least": least, "most": most}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of any experiment; a subclass, a dataclass too, adds fields made by `setting`.

    A check in `__post_init__` raises ValueError, which ends a command before any work is lost.
    `looks` are the seeds of each look at a claim; see `Experiment.looks`.
    """

    looks: ClassVar[Sequence[tuple[int, ...]]] = [tuple(range(number)) for number in LOOKS]
    precision: str = setting("float32", "Dtype policy of the layers.", PRECISIONS)

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)


class ImageSelection(Settings):
    """Settings of an experiment with images, which may not train."""

    data: str = setting("mnist", "Data set: mnist, cifar10, cifar100, or any name in --data_dir.")
    train_examples: int | None = setting(None, "Train on N images, drawn by the seed; none: all.")
    test_examples: int | None = setting(None, "Test on the first N images only; none: all.")
    batch: int = setting(100, "Images in a batch.")


class ImageSettings(ImageSelection):
    """Settings of an experiment that trains classifiers of images."""

    epochs: int = setting(10, "Number of epochs.")


def difference(
    settings: Settings, reference: Settings, name: str = "the paper", known: Container[str] = ()
) -> list[str]:
    """Return how settings differ from those of `name`, a phrase each; of fields that both have.

    Fields in `known` are left out.

    Example:
    >>> difference(ImageSettings(epochs=3), ImageSettings(epochs=400))
    ['epochs 3 (the paper: 400)']
    """
    values = dataclasses.asdict(settings)
    return [
        f"{key.replace('_', ' ')} {value_text(values[key])} ({name}: {value_text(other)})"
        for key, other in dataclasses.asdict(reference).items()
        if key in values and key not in known and values[key] != other
    ]


def value_text(value: Any) -> str:
    """Return the value of a setting as a text."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "all" if value is None else f"{value}"


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A table or figure of a paper.

    Attributes:
        name: Its name in the paper, such as "fig2" or "table1a".
        title: Noun phrase for what is shown.
        make: From the measurements of all seeds to a matplotlib `Figure`, or to an iterable of a
            table's rows, dictionaries with the same keys. A column "paper" has the paper's number.
    """

    name: str
    title: str
    make: Callable[[Sequence[Measured]], Any]


def interval(values: Sequence[float], ratio: bool) -> tuple[float, float] | None:
    """Return the ends of Student's interval of the mean over seeds, at the level of `LEVELS`.

    Of a ratio, it is that of the logarithm. None with fewer than three seeds, if a value is not
    finite, or if a ratio is not positive.
    """
    shown = _samples(values, ratio)
    if shown is None:
        return None
    quantile = 1 - LEVELS[len(shown)] / 2
    half = float(stats.sem(shown) * stats.t.ppf(quantile, len(shown) - 1))
    low, high = statistics.fmean(shown) - half, statistics.fmean(shown) + half
    return (math.exp(low), math.exp(high)) if ratio else (low, high)


def looked_at(values: Sequence[float]) -> Sequence[float]:
    """Return the values of the first seeds, of the largest number in `LEVELS` that there is."""
    return values[: max((number for number in LEVELS if number <= len(values)), default=0)]


def _samples(values, ratio):
    """Return the values whose mean is normal, or None if there is no interval of it."""
    values = looked_at(values)
    if not len(values) or not all(map(math.isfinite, values)) or ratio and min(values) <= 0:
        return None
    return [math.log(value) for value in values] if ratio else [*values]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's method.

    Example:
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    adjusted = np.minimum(1, np.maximum.accumulate(np.array(p_values)[order] * factors))
    return adjusted[np.argsort(order)].tolist()


@dataclasses.dataclass(frozen=True)
class Control:
    """A case in which the claim should not hold, a noun phrase, and its `Claim.value`."""

    text: str
    value: Callable[..., float]


def against_untrained(value: Callable[..., float]) -> dict[str, Any]:
    """Return the fields `value` and `control` of a claim: the same of the untrained networks."""

    def of_untrained(*networks: Measured) -> float:
        return value(*(one["untrained"] for one in networks))

    return {"value": value, "control": Control("the untrained network", of_untrained)}


def contrast(value: Callable[..., float], case: Any, other: Any, other_text: str) -> dict[str, Any]:
    """Return the fields `value` and `control` of a claim: `value(one, case)` of two cases."""
    control = Control(other_text, lambda one: value(one, other))
    return {"value": lambda one: value(one, case), "control": control}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper, and the comparison that decides it, written before its runs.

    `value` turns what a run measured into one number, `control.value` into another. `verdict`
    compares the numbers of all seeds with the limits `at_least` and `at_most`.

    Attributes:
        name: First letter of the paper's authors, and a number: "S1".
        section: Section, table or figure of the paper that makes the claim.
        statement: The claim in one sentence.
        quantity: Noun phrase for the number that `value` returns, with its unit.
        value: From what one seed measured to a number. With `needs`, one argument for each of its
            experiments, of the same seed.
        control: Case in which the claim should not hold.
        at_least: The claim holds if the number is at least this.
        at_most: Likewise. With both limits, the claim is that two cases are equivalent.
        ratio: True if the number is a quotient of positive ones, so that 2 and 1/2 deviate equally
            from 1: mean and interval over seeds are then those of its logarithm.
        needs: Names of the experiments whose measurements are the arguments of `value`. Default:
            the one that lists the claim.
        figure: Name of a figure of the claim's subject; docs/claims.md has it with the claim.
        changed: What was changed after a result was known (criterion, control, measurement,
            settings, seeds), and why. The old result stays on record.
        reason: Most likely reason why the claim was contradicted or not told apart.
    """

    name: str
    section: str
    statement: str
    quantity: str
    value: Callable[..., float]
    control: Control
    at_least: float | None = None
    at_most: float | None = None
    ratio: bool = False
    needs: tuple[str, ...] = ()
    figure: str = ""
    changed: str = ""
    reason: str = ""

    @property
    def bounds(self) -> dict[str, float]:
        """The limits that the criterion has, such as {"at least": 50}."""
        limits = {"at least": self.at_least, "at most": self.at_most}
        return {text: limit for text, limit in limits.items() if limit is not None}

    @property
    def limits(self) -> str:
        """The limits as a phrase, such as "at least 50"."""
        return " and ".join(f"{text} {limit:g}" for text, limit in self.bounds.items())

    @property
    def criterion(self) -> str:
        """The criterion as a phrase."""
        return f"{self.quantity}: {self.limits}"

    def decide(self, values: Sequence[float], factor: float = 1.0) -> str:
        """Return what the values of the seeds, one a seed, say of `factor` times the limits.

        "shown" if the whole `interval` meets them, "contradicted" if none of it does, else
        "undecided", as with fewer than three seeds.
        """
        ends = interval(values, self.ratio)
        if ends is None:
            return "undecided"
        low = factor * self.bounds.get("at least", -math.inf)
        high = factor * self.bounds.get("at most", math.inf)
        if low <= ends[0] and ends[1] <= high:
            return "shown"
        return "contradicted" if ends[1] < low or high < ends[0] else "undecided"

    def verdict(self, values: Sequence[float], controls: Sequence[float]) -> str:
        """Return what `decide` does, or "not told apart" if the control does not miss limits."""
        found = self.decide(values)
        if found == "shown" and self.decide(controls) != "contradicted":
            return "not told apart"
        return found

    def is_settled(self, values: Sequence[float], controls: Sequence[float]) -> bool:
        """Return True if the verdict needs no more seeds."""
        found = self.decide(values)
        return found == "contradicted" or found == "shown" and self.decide(controls) != "undecided"

    def p_value(self, values: Sequence[float]) -> float:
        """Return the two-sided p-value of Student's test that the mean is the nearest limit.

        It is multiplied so that it is below 0.05 where it is below that of `LEVELS`, and is 1 if
        there is no interval.
        """
        samples = _samples(values, self.ratio)
        if samples is None:
            return 1.0
        bounds = [math.log(bound) if self.ratio else bound for bound in self.bounds.values()]
        if max(samples) == min(samples):
            return float(samples[0] in bounds)
        p = float(max(stats.ttest_1samp(samples, bound).pvalue for bound in bounds))
        return min(1.0, p * 0.05 / LEVELS[len(samples)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that the driver knows of an experiment.

    Attributes:
        name: Folder and file below recipes/, such as "srivastava2015/gates".
        scales: Settings by name of the scale: "smoke" (seconds), "miniature" (minutes, what the
            claims are tested on) and "full", the paper's.
        measure: From settings and a `Run` to what was measured, without flags and global state.
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

    def looks(self, scale: str) -> Sequence[tuple[int, ...]]:
        """Return the seeds with which a claim is measured, in turn, until it `is_settled`.

        A replication has one verdict, of seeds that are fixed beforehand.
        """
        return [REPLICATIONS[scale]] if scale in REPLICATIONS else self.scales[scale].looks
