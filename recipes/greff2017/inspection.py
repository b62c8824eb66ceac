"""Greff et al. (2017), Fig. 3, equation 9: estimates and residuals of a trained network.

`inspect` measures a network; `fig3` and `section3_2` draw what it returned.
"""

import numpy as np

from zoo import callbacks
from zoo.recipes.experiment import plots
from zoo.recipes.jastrzebski2018.training import of_blocks

HALF_OF_RANDOM = 0.28  # of 1 / sqrt(pi), |E[F]| / rms of random weights after a ReLU; ours


def inspect(model, label, batches, run):
    """Return estimation errors and means of the residual functions by block."""
    probes = [
        callbacks.EstimationError(rectified=True),  # after the ReLU that ends a block
        callbacks.ResidualMean(),
    ]
    progress = run.progress(f"probes of {label}", len(batches.x))
    table = callbacks.run(probes, model, batches, progress=progress)
    rows = table.of_probe("estimation_error")
    stages = 1 + np.unique([row.stage for row in rows], return_inverse=True)[1]
    return {
        "blocks": [row.block for row in rows],
        "stage": stages,
        "estimation_error": of_blocks(table, "estimation_error"),
        "estimation_error_std": of_blocks(table, "estimation_error_std"),
        "residual_mean": of_blocks(table, "residual_mean"),
        "relative_residual_mean": of_blocks(table, "residual_mean_relative"),
    }


def by_stage(facts):
    """Return mean and deviation of the estimation errors, an array (blocks, 2) a stage."""
    values = np.stack([facts["estimation_error"], facts["estimation_error_std"]], axis=1)
    return [values[facts["stage"] == stage] for stage in np.unique(facts["stage"])]


def fig3(seeds):
    """Draw the estimation error: networks down, stages across, mean and deviation of blocks.

    Of several seeds each block's two values are averaged.
    """
    networks = seeds[0]["inspected"]
    rows, columns = len(networks), len({*networks[[*networks][0]]["stage"].tolist()})
    size = {"nrows": rows, "ncols": columns, "squeeze": False}
    figure, axes = plots.new(2.5 * columns, 2.5 * rows, **size)
    style = {"color": plots.COLORS[0], "marker": "o", "markersize": 4, "capsize": 3}
    for line, name in zip(axes, networks, strict=True):
        line[0].set_ylabel(f"{name}\nestimation error (activation)", fontsize=8)
        stages = zip(*(by_stage(one["inspected"][name]) for one in seeds), strict=True)
        for number, (axis, same) in enumerate(zip(line, stages, strict=True), 1):
            mean, deviation = np.mean(same, axis=0).T
            blocks = np.arange(1, 1 + len(mean))
            axis.axhline(0, color="0.75", linewidth=0.8)
            axis.errorbar(blocks, mean, deviation, **style)
            axis.set(title=f"stage {number}", xlabel="block", xticks=blocks)
    return figure


def section3_2(seeds):
    """Draw the relative mean of each block's residual function; of equation 9 it is 0."""

    def rows_of(one):
        for name, facts in one["inspected"].items():
            columns = {"mean": facts["relative_residual_mean"]}
            yield from plots.numbered("block", columns, network=name)

    rows = plots.with_seeds(seeds, rows_of)
    labels = {"mean": "norm of E[F] / root mean square of F"}
    return plots.lines(rows, x="block", y="mean", by="network", labels=labels)
