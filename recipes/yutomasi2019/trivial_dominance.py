"""Yu & Tomasi (2019), Figs 11 and 13: dominant gradient flow where it has a closed form.

    python recipes/yutomasi2019/trivial_dominance.py

Needs neither data nor a network. Fig. 11: the probability that a channel learns mostly from the
feature of its own index, in a network of 1 x 1 convolutions on one pixel, against each of its
parameters: residual and plain networks simulated, and the closed approximation for residual ones.
Fig. 13: P(|X| > |Y|) of two normal variables and its logistic approximation (appendix E). The
paper: it falls with width, depth and deviation, rises with the share of open ReLUs, and does not
depend on the features' gradients; plain networks stay near the value of no dominance, 0.08 at 64
channels.
"""

import dataclasses

import numpy as np

from zoo.callbacks import probability_of_dominance, trivial_dominance
from zoo.recipes import experiment
from zoo.recipes.experiment import Artifact, Claim, Experiment, main, plots, setting

USUAL = {"width": 64, "depth": 5, "sigma": 0.03, "keep": 0.9, "feature_sigma": 1.0}
SWEEPS = {  # ours: the axes of the paper's figure are lost
    "width": (16, 32, 64, 128),
    "depth": (1, 2, 5, 10, 20),
    "sigma": (0.003, 0.01, 0.03, 0.1),
    "feature_sigma": (0.01, 0.1, 1.0, 10.0),
    "keep": (0.5, 0.7, 0.9, 1.0),
}
LABELS = {
    "width": "channels d",
    "depth": "layers n",
    "sigma": "deviation of an entry",
    "feature_sigma": "deviation of a feature's gradient",
    "keep": "share p of open ReLUs",
    "dominance": "P(r > 1)",
    "ratio": "ratio of the deviations",
    "probability": "P(|X| > |Y|)",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(experiment.Settings):
    """Settings of the simulation."""

    samples: int = setting(1000, "Simulated networks for each value of a parameter; ours.")


SCALES = {"smoke": Settings(samples=5), "miniature": Settings(samples=100), "full": Settings()}


def measure(settings, run):
    """Return the probability of dominance by parameter, simulated and approximated."""
    sweeps = {}
    for parameter, values in SWEEPS.items():
        cases = [{**USUAL, parameter: value} for value in values]
        options = {"seed": run.seed, "samples": settings.samples}
        sweeps[parameter] = {
            "value": np.array(values),
            "residual": np.array([trivial_dominance(**case, **options) for case in cases]),
            "plain": np.array(
                [trivial_dominance(**case, residual=False, **options) for case in cases]
            ),
            "approximation": np.array([trivial_dominance(**case) for case in cases]),
        }
        print(f"{LABELS[parameter]}: {len(values)} values, {settings.samples} networks each")
    return sweeps


def simulation_gap(one):
    """Return the difference of simulated and approximated dominance, mean over settings."""
    gaps = [np.abs(sweep["residual"] - sweep["approximation"]) for sweep in one.values()]
    return float(np.mean(np.concatenate(gaps)))


def fig11(seeds):
    """Draw dominance of the trivial case: a panel for each parameter."""
    kinds = {
        "residual": "residual, simulated",
        "plain": "plain, simulated",
        "approximation": "residual, approximated",
    }
    rows = plots.with_seeds(
        seeds,
        lambda one: [
            {parameter: value, "kind": text, "dominance": dominance}
            for parameter, sweep in one.items()
            for kind, text in kinds.items()
            for value, dominance in zip(sweep["value"].tolist(), sweep[kind], strict=True)
        ],
    )
    return plots.lines(
        rows,
        x=[*SWEEPS],
        y=["dominance"] * len(SWEEPS),
        by="kind",
        labels=LABELS,
        log=["depth", "sigma", "feature_sigma"],
    )


def fig13(_seeds):
    """Draw P(|X| > |Y|) of normal X and Y and its logistic approximation."""
    ratios = np.logspace(-2, 2, 81)
    rows = [
        {"ratio": ratio, "kind": kind, "probability": probability}
        for kind in ("exact", "logistic")
        for ratio, probability in zip(
            ratios, probability_of_dominance(ratios, kind == "logistic"), strict=True
        )
    ]
    return plots.lines(rows, x="ratio", y="probability", by="kind", labels=LABELS, log=["ratio"])


EXPERIMENTS = (
    Experiment(
        name="yutomasi2019/trivial_dominance",
        scales=SCALES,
        measure=measure,
        artifacts=[
            Artifact(
                "fig11",
                "dominance in the trivial case",
                "falls with width, depth and deviation, rises with the share of open ReLUs",
                fig11,
            ),
            Artifact("fig13", "the probability of appendix E", "", fig13),
        ],
        claims=[
            Claim(
                name="Y14",
                section="appendix D, Fig. 11",
                statement="In the trivial case, the closed form of dominance agrees with its "
                "simulation.",
                quantity="difference of the probabilities, mean over 21 settings",
                measure=simulation_gap,
                at_most=0.05,
                figure="fig11",
            )
        ],
        deviations=["the values of the parameters are ours: those of the paper are lost"],
    ),
)

if __name__ == "__main__":
    main("yutomasi2019/trivial_dominance")
