"""Yu & Tomasi (2019), Figs 11 and 13: dominant gradient flow where it can be worked out by hand.

    python recipes/trivial_dominance.py

Needs neither data nor a network. Fig. 11: the probability that a channel learns mostly from the
feature of its own index, in a network of 1 x 1 convolutions on one pixel, against each of its
parameters: residual and plain networks simulated, and the closed approximation for residual ones.
Fig. 13: P(|X| > |Y|) of two normal variables and its logistic approximation (appendix E). The
paper: falls with width, depth and deviation, rises with the share of open ReLUs, does not depend on
the features' gradients; plain networks stay near the value of no dominance, 0.08 at 64 channels.

--run_dir gets fig11.png, fig13.png, their CSVs and results.jsonl: by how much simulation and
approximation, and exact and logistic probability, differ at most.
"""

import pathlib
import time

import numpy as np
from absl import app, flags

from experiment import flags as common
from experiment import plots, results

USUAL = {"width": 64, "depth": 5, "sigma": 0.03, "keep": 0.9, "feature_sigma": 1.0}
SWEEPS = {  # ours: what the figure's axes show is lost
    "width": (16, 32, 64, 128),
    "depth": (1, 2, 5, 10, 20),
    "sigma": (0.003, 0.01, 0.03, 0.1),
    "feature_sigma": (0.01, 0.1, 1.0, 10.0),
    "keep": (0.5, 0.7, 0.9, 1.0),
}
AXES = {
    "width": "channels d",
    "depth": "layers n",
    "sigma": "deviation of an entry",
    "feature_sigma": "deviation of a feature's gradient",
    "keep": "share p of open ReLUs",
}
DRAWS = {"smoke": 5, "minutes": 100, "paper": 1000}  # ours: networks that are simulated

common.define_output_flags(
    "runs/trivial-dominance-BUDGET-SEED", f"Number of simulated networks, by budget: {DRAWS}."
)
flags.adopt_module_key_flags(common)
FLAGS = flags.FLAGS


def main(argv):
    common.check(argv)
    began = time.perf_counter()
    folder = FLAGS.run_dir or f"runs/trivial-dominance-{FLAGS.budget}-{FLAGS.seed}"
    folder, rows = pathlib.Path(folder), []
    for key, values in SWEEPS.items():
        rows += [row for value in values for row in simulate(key, value)]
        print(f"{AXES[key]}: {len(values)} values, {draws()} networks each", flush=True)
    draw_trivial(folder / "fig11.png", rows)
    table = draw_probability(folder / "fig13.png")
    gaps = [abs(r["simulated"] - r["approximated"]) for r in rows if r["network"] == "residual"]
    plain = [r["simulated"] for r in rows if r["network"] == "plain" and r["parameter"] != "width"]
    readings = [f"{draws()} networks a value, and the values: the paper's are lost"]
    told = {"assumptions": readings, "seconds": round(time.perf_counter() - began, 1)}
    told["more"] = {"mean_difference": float(np.mean(gaps)), "plain": [min(plain), max(plain)]}
    config = {"networks": draws()}
    write(folder, "fig11", "trivial networks", "simulated", config, max(gaps), [FLAGS.seed], **told)
    logistic = max(abs(row["exact"] - row["logistic"]) for row in table)
    write(folder, "fig13", "normal variables", "closed form", {}, logistic, [], seconds=0.0)
    print(
        f"approximation and simulation differ by {np.mean(gaps):.3f} in the mean, {max(gaps):.3f} "
        f"at most; plain networks of 64 channels: {min(plain):.3f} to {max(plain):.3f}; exact and "
        f"logistic probability differ by {logistic:.3f} at most; {folder}"
    )


def draws():
    """How many networks are simulated for each value of a parameter."""
    return DRAWS[FLAGS.budget]


def write(folder, artifact, model, data, config, value, seeds, **more):
    """Write a result to `folder` and to --results."""
    result = results.Result(
        artifact=f"yutomasi2019/{artifact}",
        model=model,
        config=config,
        metric="largest_difference_of_approximation",
        value=value,
        seeds=seeds,
        data=data,
        budget=FLAGS.budget,
        **more,
    )
    results.write(result, folder / "results.jsonl", FLAGS.results)


def simulate(key, value):
    """A row for the residual network, and one for the plain one."""
    from zoo.callbacks import trivial_dominance

    case = {**USUAL, key: value}
    for network in ("residual", "plain"):
        kind = {"residual": network == "residual", "seed": FLAGS.seed}
        found = trivial_dominance(**case, **kind, samples=draws())
        close = trivial_dominance(**case) if kind["residual"] else None
        names = {"parameter": key, "value": value, "network": network}
        yield {**names, "simulated": found, "approximated": close}


def draw_trivial(path, rows):
    figure, axes = plots.new(12, 3, ncols=len(SWEEPS), sharey=True)
    for axis, key in zip(axes, SWEEPS, strict=True):
        for network, style in (("residual", "o"), ("plain", "s")):
            mine = [r for r in rows if r["parameter"] == key and r["network"] == network]
            values, color = [r["value"] for r in mine], "black" if style == "o" else "0.6"
            found = [r["simulated"] for r in mine]
            axis.plot(values, found, style, color=color, label=f"{network}, simulated")
            if network == "residual":
                close = [r["approximated"] for r in mine]
                axis.plot(values, close, "-", color="black", label="residual, approximated")
        axis.set(xlabel=AXES[key], xscale="linear" if key == "keep" else "log")
        axis.minorticks_off()
        axis.set_xticks(SWEEPS[key], [f"{value:g}" for value in SWEEPS[key]])
    axes[0].set_ylabel("P(r > 1)")
    axes[0].legend(fontsize=7)
    plots.save(path, figure, rows)


def draw_probability(path):
    """Fig. 13; the table that it shows."""
    from zoo.callbacks import probability_of_dominance

    ratio = np.logspace(-2, 2, 81)
    exact, close = (probability_of_dominance(ratio, logistic) for logistic in (False, True))
    figure, axis = plots.new()
    axis.plot(ratio, exact, color="black", label="exact")
    axis.plot(ratio, close, "--", color="0.5", label="logistic")
    axis.set(xlabel="ratio of the deviations", ylabel="P(|X| > |Y|)", xscale="log")
    axis.legend()
    table = zip(ratio.tolist(), exact.tolist(), close.tolist(), strict=True)
    names = ("ratio", "exact", "logistic")
    rows = [dict(zip(names, row, strict=True)) for row in table]
    plots.save(path, figure, rows)
    return rows


if __name__ == "__main__":
    app.run(main)
