"""Yu & Tomasi (2019), Figs 11 and 13: dominant gradient flow where it has a closed form.

    python recipes/yutomasi2019/trivial_dominance.py

Needs neither data nor a network. Fig. 11: the probability that a channel learns mostly from the
feature of its own index, in a network of 1 x 1 convolutions on one pixel, against each of its
parameters. Fig. 13: P(|X| > |Y|) of two normal variables (appendix E).
"""

import numpy as np

from zoo.recipes import experiment
from zoo.recipes.experiment import Artifact, Experiment, main, plots, setting

PARAMETERS = {  # label, usual value, and values; ours: the axes of the paper's figure are lost
    "width": ("channels d", 64, (16, 32, 64, 128)),
    "depth": ("layers n", 5, (1, 2, 5, 10, 20)),
    "sigma": ("deviation of an entry", 0.03, (0.003, 0.01, 0.03, 0.1)),
    "feature_sigma": ("deviation of a feature's gradient", 1.0, (0.01, 0.1, 1.0, 10.0)),
    "keep": ("share p of open ReLUs", 0.9, (0.5, 0.7, 0.9, 1.0)),
}
LABELS = {name: label for name, (label, _, _) in PARAMETERS.items()} | {
    "dominance": "P(r > 1)",
    "ratio": "ratio of the deviations",
    "probability": "P(|X| > |Y|)",
    "residual": "residual, simulated",
    "plain": "plain, simulated",
    "approximation": "residual, approximated",
}


class Settings(experiment.Settings):
    """Settings of the simulation."""

    samples: int = setting(1000, "Simulated networks for each value of a parameter; ours.")


SCALES = {"smoke": Settings(samples=5), "miniature": Settings(samples=100), "full": Settings()}


def measure(settings, run):
    """Return the probability of dominance by parameter, simulated and approximated."""
    usual = {name: value for name, (_, value, _) in PARAMETERS.items()}
    sweeps = {}
    for parameter, (label, _, values) in PARAMETERS.items():
        cases = [{**usual, parameter: value} for value in values]
        sweep = {"value": values, "approximation": [approximate(**case) for case in cases]}
        for kind in ("residual", "plain"):
            sweep[kind] = [simulate(kind, settings.samples, run.seed, **case) for case in cases]
        sweeps[parameter] = {name: np.array(numbers) for name, numbers in sweep.items()}
        print(f"{label}: {len(values)} values, {settings.samples} networks each")
    return sweeps


def simulate(kind, samples, seed, width, depth, sigma, keep, feature_sigma):
    """Return P(r_i > 1), the mean over simulated networks.

    M is the product of `depth` layers W' Lambda, times diag(g), with W = E in "plain" networks and
    I + E in "residual" ones, E of normal entries, Lambda of Bernoulli(`keep`) masks: row i is the
    gradient at feature i, after its ReLU, by final feature, and r_i = |M_ii| / |sum over j != i of
    M_ij|. `feature_sigma` is the deviation of g. Appendix D.4.1.
    """
    rng = np.random.default_rng(seed)
    identity = np.eye(width) if kind == "residual" else 0
    dominant = 0.0
    for _ in range(samples):
        product = np.eye(width)
        for _ in range(depth):
            w = sigma * rng.standard_normal((width, width)) + identity
            mask = rng.random(width) < keep
            product = product @ (w.T * mask)  # the layer's ReLU scales columns of W'
        product = product * feature_sigma * rng.standard_normal(width)
        own = np.abs(np.diag(product))
        dominant += (own > np.abs(product.sum(1) - np.diag(product))).mean()
    return float(dominant / samples)


def approximate(width, depth, sigma, keep, feature_sigma):
    """Return P(r_i > 1) of a residual network to first order; it does not depend on g.

    It is p^n (2/pi) arctan(1 / (sigma sqrt((d - 1) S))), S = p (1 - p^n) / (1 - p), or n at p = 1:
    derived by us.
    """
    del feature_sigma
    total = depth if keep == 1 else keep * (1 - keep**depth) / (1 - keep)
    return float(keep**depth * probability(1 / (sigma * np.sqrt((width - 1) * total))))


def probability(ratio):
    """Return P(|X| > |Y|) of independent normal X and Y of mean 0, `ratio` of their deviations."""
    return 2 / np.pi * np.arctan(ratio)


def logistic(ratio):
    """Return the approximation of `probability` with its value and slope at 1 (exponent: ours)."""
    return 1 / (1 + ratio ** (-4 / np.pi))


def fig11(seeds):
    """Draw dominance of the trivial case: a panel for each parameter."""
    rows = plots.with_seeds(
        seeds,
        lambda one: [
            {parameter: value, "kind": kind, "dominance": dominance}
            for parameter, sweep in one.items()
            for kind in ("residual", "plain", "approximation")
            for value, dominance in zip(sweep["value"].tolist(), sweep[kind], strict=True)
        ],
    )
    log = ["depth", "sigma", "feature_sigma"]
    y = ["dominance"] * len(PARAMETERS)
    return plots.lines(rows, x=[*PARAMETERS], y=y, by="kind", labels=LABELS, log=log)


def fig13(_seeds):
    """Draw P(|X| > |Y|) of normal X and Y and its logistic approximation."""
    rows = [
        {"ratio": ratio, "kind": kind, "probability": function(ratio)}
        for kind, function in (("exact", probability), ("logistic", logistic))
        for ratio in np.logspace(-2, 2, 81)
    ]
    return plots.lines(rows, x="ratio", y="probability", by="kind", labels=LABELS, log=["ratio"])


EXPERIMENT = Experiment(
    name="yutomasi2019/trivial_dominance",
    scales=SCALES,
    measure=measure,
    artifacts=[
        Artifact("fig11", "dominance in the trivial case", fig11),
        Artifact("fig13", "the probability of appendix E", fig13),
    ],
    deviations=["the values of the parameters are ours: those of the paper are lost"],
)

if __name__ == "__main__":
    main("yutomasi2019/trivial_dominance")
