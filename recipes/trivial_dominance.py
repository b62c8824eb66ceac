"""Yu & Tomasi (2019), Figs 11 and 13: dominant gradient flow where it has a closed form.

    python recipes/trivial_dominance.py

Needs neither data nor a network. Fig. 11: the probability that a channel learns mostly from the
feature of its own index, in a network of 1 x 1 convolutions on one pixel, against each of its
parameters: residual and plain networks simulated, and the closed approximation for residual ones.
Fig. 13: P(|X| > |Y|) of two normal variables and its logistic approximation (appendix E). The
paper: falls with width, depth and deviation, rises with the share of open ReLUs, does not depend on
the features' gradients; plain networks stay near the value of no dominance, 0.08 at 64 channels.

--run_dir gets fig11.png, fig13.png, their CSVs and results.jsonl: by how much simulation and
approximation, and exact and logistic probability, differ at most. Takes seconds.
"""

import pathlib
import time

from experiment.script import run_script

import numpy as np

from experiment import flags as common
from experiment import results
from experiment.flags import FLAGS
from experiment.results import Result
from yutomasi2019 import figures
from zoo.callbacks import probability_of_dominance, trivial_dominance

USUAL = {"width": 64, "depth": 5, "sigma": 0.03, "keep": 0.9, "feature_sigma": 1.0}
SWEEPS = {  # ours: what the figure's axes show is lost
    "width": (16, 32, 64, 128),
    "depth": (1, 2, 5, 10, 20),
    "sigma": (0.003, 0.01, 0.03, 0.1),
    "feature_sigma": (0.01, 0.1, 1.0, 10.0),
    "keep": (0.5, 0.7, 0.9, 1.0),
}
SIMULATED = {"smoke": 5, "minutes": 100, "paper": 1000}  # ours: networks for each value

common.define_output_flags(
    "runs/trivial-dominance-BUDGET-SEED", f"Number of simulated networks: {SIMULATED}."
)


def main():
    """Simulate and approximate, then draw both figures and write their results."""
    start = time.perf_counter()
    count = SIMULATED[FLAGS.budget]
    folder = pathlib.Path(FLAGS.run_dir or f"runs/trivial-dominance-{FLAGS.budget}-{FLAGS.seed}")
    rows = []
    for parameter, values in SWEEPS.items():
        for value in values:
            rows += simulate(parameter, value, count)
        print(
            f"{figures.TRIVIAL_LABELS[parameter]}: {len(values)} values, {count} networks each",
            flush=True,
        )
    figures.fig11(folder / "fig11.png", rows)
    residual = [row for row in rows if row["network"] == "residual"]
    gaps = [abs(row["simulated"] - row["approximated"]) for row in residual]
    plain = [
        row["simulated"]
        for row in rows
        if row["network"] == "plain" and row["parameter"] != "width"
    ]
    write(
        folder,
        artifact="yutomasi2019/fig11",
        model="trivial networks",
        data="simulated",
        config={"networks": count},
        value=max(gaps),
        seeds=[FLAGS.seed],
        assumptions=[f"{count} networks a value, and the values: the paper's are lost"],
        seconds=round(time.perf_counter() - start, 1),
        more={"mean_difference": float(np.mean(gaps)), "plain": [min(plain), max(plain)]},
    )
    table = draw_probability(folder / "fig13.png")
    logistic = max(abs(row["exact"] - row["logistic"]) for row in table)
    write(
        folder,
        artifact="yutomasi2019/fig13",
        model="normal variables",
        data="closed form",
        value=logistic,
    )
    print(
        f"approximation and simulation differ by {np.mean(gaps):.3f} in the mean, {max(gaps):.3f} "
        f"at most; plain networks of 64 channels: {min(plain):.3f} to {max(plain):.3f}; exact and "
        f"logistic probability differ by {logistic:.3f} at most; {folder}"
    )


def write(folder, **values):
    """Write a result to the folder and to --results."""
    metric = "largest_difference_of_approximation"
    result = Result(metric=metric, budget=FLAGS.budget, **values)
    results.write(result, folder / "results.jsonl", FLAGS.results)


def simulate(parameter, value, count):
    """Return the rows of a residual and of a plain network with one parameter changed."""
    parameters = {**USUAL, parameter: value}
    rows = []
    for network in ("residual", "plain"):
        is_residual = network == "residual"
        simulated = trivial_dominance(
            **parameters, residual=is_residual, seed=FLAGS.seed, samples=count
        )
        approximated = trivial_dominance(**parameters) if is_residual else None
        row = {"parameter": parameter, "value": value, "network": network}
        rows.append({**row, "simulated": simulated, "approximated": approximated})
    return rows


def draw_probability(path):
    """Draw Fig. 13, and return its rows."""
    ratios = np.logspace(-2, 2, 81)
    exact = probability_of_dominance(ratios, False).tolist()
    logistic = probability_of_dominance(ratios, True).tolist()
    rows = [
        {"ratio": ratio, "exact": a, "logistic": b}
        for ratio, a, b in zip(ratios.tolist(), exact, logistic, strict=True)
    ]
    figures.fig13(path, rows)
    return rows


if __name__ == "__main__":
    run_script(main)
