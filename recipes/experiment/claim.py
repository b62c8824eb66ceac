"""A claim of a paper, with a criterion that was written before its runs.

Those of each paper are in the module `claims` of its folder.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Lines = Sequence[Mapping[str, Any]]  # of results, of one seed's runs
FIVE_SEEDS = "five seeds, after three had left some of these claims undecided"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper, and the comparison that decides it."""

    name: str  # e.g. "S1"
    paper: str  # a key of `records.TITLES`
    section: str  # section, table or figure of the paper
    statement: str  # the claim, in one sentence
    quantity: str  # noun phrase for the measured number
    measure: Callable[[Lines], float]  # from the lines of one seed's runs to that number
    least: float | None = None  # the claim holds if the number is at least this
    most: float | None = None  # the claim holds if the number is at most this
    ratio: bool = False  # the number is positive and averaged by its logarithm
    commands: tuple[str, ...]  # scripts and flags, beside --seed, --run_dir and --runs
    backend: str = "torch"  # that runs it fastest
    figure: str = ""  # its name in the run directory, e.g. "fig1"
    seeds: int = 3  # their number, the first of 0, 1, 2, ...
    changed: str = ""  # change of the measurement after a run, and its cause
    reason: str = ""  # most likely one of a measured number that contradicts the claim

    @property
    def criterion(self) -> str:
        """The criterion as a sentence."""
        side, bound = ("most", self.most) if self.least is None else ("least", self.least)
        return f"{self.quantity}: at {side} {bound:g}"

    def holds(self, value: float) -> bool:
        """Return True if a value fulfills the criterion."""
        if self.least is not None and value < self.least:
            return False
        return self.most is None or value <= self.most


def line(lines: Lines, metric: str, **config: Any) -> Mapping[str, Any]:
    """Return the line of a metric whose model has this configuration.

    Raises:
        ValueError: if there is none.
    """
    for row in lines:
        if row["metric"] == metric and config.items() <= row["config"].items():
            return row
    raise ValueError(f"No line of {metric!r} with {config}; delete the run directory to repeat it.")
