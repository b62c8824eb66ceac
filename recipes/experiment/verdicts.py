"""Verdicts on the papers' claims: intervals over seeds against criteria.

The interval is Student's, of 95 %, over seeds; that of a ratio is taken of its logarithm. A claim
is "shown" if the whole interval fulfills the criterion, "contradicted" if none of it does, else
"undecided", as with fewer than three seeds.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from zoo.recipes.experiment import catalog
from zoo.recipes.experiment.definitions import Claim, Experiment, Measured

FEWEST = 3  # seeds of a verdict


def interval(values: Sequence[float], ratio: bool) -> tuple[float, float] | None:
    """Return the ends of Student's 95 % interval of the mean over seeds; None below three.

    None, too, where a value is not finite, or a ratio not positive.
    """
    if len(values) < FEWEST or not all(map(math.isfinite, values)):
        return None
    if ratio and min(values) <= 0:
        return None
    shown = [math.log(value) for value in values] if ratio else [*values]
    half = stats.sem(shown) * stats.t.ppf(0.975, len(shown) - 1)
    low, high = statistics.fmean(shown) - half, statistics.fmean(shown) + half
    return (math.exp(low), math.exp(high)) if ratio else (float(low), float(high))


def verdict(claim: Claim, values: Sequence[float]) -> str:
    """Return "shown", "contradicted" or "undecided"; see the module."""
    ends = interval(values, claim.ratio)
    if ends is None:
        return "undecided"
    held = {claim.holds(end) for end in ends}
    if len(held) > 1:
        return "undecided"
    return "shown" if held == {True} else "contradicted"


def evaluate(
    experiment: Experiment,
    claim: Claim,
    measured: Sequence[Sequence[Measured]],
    facts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return a claim's line of claims.jsonl.

    Args:
        experiment: The experiment that lists the claim.
        claim: The claim.
        measured: By seed, the measurements of the experiments that it needs.
        facts: Provenance of all runs.
    """
    values = [float(claim.measure(*one)) for one in measured]
    is_ratio = claim.ratio and min(values) > 0  # one that is 0 has no logarithm
    mean = statistics.geometric_mean(values) if is_ratio else statistics.fmean(values)
    ends = interval(values, claim.ratio)
    seeds = sorted({one["seed"] for one in facts})
    listed = ",".join(map(str, seeds))
    origin = {
        key: ", ".join(dict.fromkeys(str(one[key]) for one in facts))
        for key in ("commit", "backend", "hardware", "data", "scale")
    }
    return {
        "claim": claim.name,
        "paper": f"{catalog.TITLES[experiment.paper]}, {claim.section}",
        "statement": claim.statement,
        "criterion": claim.criterion,
        "value": float(f"{mean:.4g}"),
        "interval": ends and [float(f"{end:.4g}") for end in ends],
        "values": [float(f"{value:.4g}") for value in values],
        "seeds": seeds,
        "verdict": verdict(claim, values),
        "command": f"KERAS_BACKEND={facts[0]['backend']} python recipes/reproduce.py claims "
        f"{claim.name} --seeds {listed} --data_dir DATA",
        **origin,
        "seconds": round(sum(one["seconds"] for one in facts), 1),
        "deviations": [*dict.fromkeys(text for one in facts for text in one["deviations"])],
        "changed": claim.changed,
        "reason": claim.reason,
        "figure": claim.figure and f"{experiment.name}/{facts[0]['scale']}/{claim.figure}",
    }
