"""Figs 3, 10 and 12 of Yu & Tomasi (2019), as noise_stability.py draws them.

It imports this from beside itself.
"""

import numpy as np

from experiment import plots

LARGEST = 4.0  # cushion of Fig. 3; ours: all beyond are in the last bin
EDGES = np.linspace(-4, 8, 61)  # of Fig. 10


def draw_cushions(path, tables):
    """Fig. 3: cushions of images, a panel for the middle block of each third of the depth."""
    figure, axes = plots.new(10, 3, ncols=3, sharey=True)
    rows = []
    for (name, table), style in zip(tables.items(), plots.styles(), strict=False):
        shares, blocks = table.array("layer_cushion_histogram"), table.values("layer_cushion")
        edges = np.linspace(0, LARGEST, shares.shape[1] + 1)
        for axis, part in zip(axes, (1, 3, 5), strict=True):
            index = len(shares) * part // 6
            axis.stairs(shares[index], edges, label=f"{name}, block {index + 1}", **style)
            axis.legend(fontsize=6)
        rows += (
            {"network": name, "block": block, "from": round(low, 4), "share": share}
            for block, line in zip(blocks, shares.tolist(), strict=True)
            for low, share in zip(edges[:-1].tolist(), line, strict=True)
        )
    axes[1].set(xlabel=f"layer cushion of an image, a ratio (last bin: {LARGEST:g} and beyond)")
    axes[0].set(ylabel="share of images")
    plots.save(path, figure, rows)


def in_deviations(values):
    """Values of all features, each feature's over its deviation; dead features left out."""
    spread = values.std(0)
    return (values[:, spread > 0] / spread[spread > 0]).ravel()


def draw_features(path, features):
    """Fig. 10: final features and the loss's gradients there, and the standard normal.

    Args:
        path: Of the picture.
        features: Of each network, by name, features and gradients: images by features.
    """
    figure, axes = plots.new(8, 3, ncols=2, sharey=True)
    width, rows = EDGES[1] - EDGES[0], []
    for (name, pair), style in zip(features.items(), plots.styles(), strict=False):
        for axis, what, values in zip(axes, ("feature", "gradient"), pair, strict=True):
            scaled = in_deviations(values)
            density = np.histogram(scaled, EDGES)[0] / max(scaled.size, 1) / width
            mean = scaled.mean() if scaled.size else np.nan
            axis.stairs(density, EDGES, label=f"{name}, mean {mean:.2f}", **style)
            rows += (
                {"network": name, "of": what, "from": round(low, 4), "density": value}
                for low, value in zip(EDGES[:-1].tolist(), density.tolist(), strict=True)
            )
    x = (EDGES[:-1] + EDGES[1:]) / 2
    for axis, what in zip(axes, ("feature", "gradient"), strict=True):
        axis.plot(x, np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi), color="0.6", label="N(0, 1)")
        axis.set(xlabel=f"final {what}, in its deviations")
        axis.legend(fontsize=7)
    axes[0].set(ylabel="density")
    plots.save(path, figure, rows)


def draw_dominance(path, flows):
    """Fig. 12: the share of dominant channels over the layers, first and last iteration.

    Args:
        path: Of the picture.
        flows: By a network's name, its tables at the first and at the last iteration.
    """
    figure, axes = plots.new(9, 3.5, ncols=2, sharey=True)
    rows = []
    for (name, pair), style in zip(flows.items(), plots.styles(), strict=False):
        for axis, when, table in zip(axes, ("first", "last"), pair, strict=True):
            values = [*table.values("dominant_flow").values()]
            layers = range(1, 1 + len(values))
            axis.plot(layers, values, label=name, **style)
            axis.set(xlabel="block", title=f"{when} iteration")
            rows += (
                {"network": name, "iteration": when, "block": block, "dominant_flow": value}
                for block, value in zip(layers, values, strict=True)
            )
    axes[0].set(ylabel="share of dominant channels")
    axes[0].legend(fontsize=7)
    plots.save(path, figure, rows)
