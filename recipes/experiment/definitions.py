"""Definitions of an experiment module: its scales, measurement, tables, figures and claims."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zoo.recipes.experiment.settings import Settings

# What `measure` returned: numbers, texts, lists of these, NumPy arrays, and dictionaries of all.
Measured = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A table or figure of a paper.

    Attributes:
        name: Its name in the paper, such as "fig2" or "table1a".
        title: Noun phrase for what is shown.
        paper: What the paper reports, in short.
        make: From the measurements of all seeds to a matplotlib `Figure`, or to the rows of a
            table, dictionaries with the same keys. A column "paper" has the paper's number.
    """

    name: str
    title: str
    paper: str
    make: Callable[[Sequence[Measured]], Any]


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
        options: Defaults of `Options` that differ for this experiment.
        seeds: Default seeds.
    """

    name: str
    scales: Mapping[str, Settings]
    measure: Callable[[Any, Any], Measured]
    artifacts: Sequence[Artifact] = ()
    claims: Sequence[Claim] = ()
    deviations: Sequence[str] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)

    @property
    def paper(self) -> str:
        """Folder of the paper, such as "srivastava2015"."""
        return self.name.split("/")[0]

    def artifact(self, name: str) -> Artifact:
        """Return the table or figure of this name.

        Raises:
            ValueError: if there is none.
        """
        for artifact in self.artifacts:
            if artifact.name == name:
                return artifact
        names = ", ".join(artifact.name for artifact in self.artifacts)
        raise ValueError(f"Expected an artifact of {self.name}, {names}. Received: {name!r}")
