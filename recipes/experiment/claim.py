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
    """A claim of a paper, and the comparison that decides it.

    Attributes:
        name: E.g. "S1".
        paper: A key of `records.TITLES`.
        section: Section, table or figure of the paper.
        statement: The claim, in one sentence.
        quantity: Noun phrase for the measured number.
        measure: Function from the lines of one seed's runs to that number.
        least: The claim holds if the number is at least this; or None.
        most: The claim holds if the number is at most this; or None.
        ratio: True if the number is positive and averaged by its logarithm.
        commands: Scripts and flags of the miniatures, beside --seed, --run_dir and --runs.
        backend: Keras backend that runs it fastest.
        figure: Name of the figure in the run directory, e.g. "fig1"; "": none.
        seeds: Number of seeds, the first of 0, 1, 2, ...
        changed: Change of the measurement after a run, and its cause; "": none.
        reason: Most likely reason of a measured number that contradicts the claim; "": none.
    """

    name: str
    paper: str
    section: str
    statement: str
    quantity: str
    measure: Callable[[Lines], float]
    least: float | None = None
    most: float | None = None
    ratio: bool = False
    commands: tuple[str, ...]
    backend: str = "torch"
    figure: str = ""
    seeds: int = 3
    changed: str = ""
    reason: str = ""

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
