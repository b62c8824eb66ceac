"""Figures of Greff et al. (2017), each a function of a path and tidy rows.

A function writes a PNG and the CSV file of its rows beside it, so that a figure can be drawn again
(`report.redraw`). Fig. 4 is not here: its patches are not in the rows.
"""

import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiment import plots

Rows = Sequence[Mapping[str, Any]]
EPOCHS = 90  # of the paper's curves in Fig. 5


def table1a(path: pathlib.Path, rows: Rows) -> None:
    """Draw the test perplexity of each variant, ours and the paper's, with the values.

    Ours is the mean over seeds, with its deviation.
    """
    variants = [*dict.fromkeys(row["variant"] for row in rows)]
    figure, axis = plots.new(7.0, 3.3)
    columns = {"test_perplexity": "ours", "paper_large": "the paper's large model, 25 epochs"}
    for index, (column, label) in enumerate(columns.items()):
        ours = [[row[column] for row in rows if row["variant"] == v] for v in variants]
        values = [statistics.mean(seeds) for seeds in ours]
        spread = [statistics.stdev(seeds) if len(seeds) > 1 else 0.0 for seeds in ours]
        color = plots.COLORS[index]
        style = {"color": color, "marker": plots.MARKERS[index], "label": label}
        axis.errorbar(variants, values, spread, capsize=3, **style)
        for variant, value in zip(variants, values, strict=True):
            place = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center"}
            axis.annotate(f"{value:.1f}", (variant, value), fontsize=7, color=color, **place)
    axis.set(ylabel="test perplexity")
    axis.set_title(path.stem, fontsize=9)
    axis.margins(y=0.15)
    figure.legend(loc="outside right upper", fontsize=6)
    plots.save(path, figure, rows)


def fig3(path: pathlib.Path, rows: Rows) -> None:
    """Draw the estimation error: a panel for each stage, mean and deviation of its blocks.

    Of several seeds each block's two values are averaged.
    """
    stages = [*dict.fromkeys(row["stage"] for row in rows)]
    figure, axes = plots.new(2.5 * len(stages), 2.8, ncols=len(stages), squeeze=False)
    for stage, axis in zip(stages, axes[0], strict=True):
        blocks = [row for row in rows if row["stage"] == stage]
        index = [*dict.fromkeys(row["index"] for row in blocks)]
        mean, std = (
            [statistics.mean(r[key] for r in blocks if r["index"] == i) for i in index]
            for key in ("mean", "std")
        )
        axis.axhline(0, color="0.75", linewidth=0.8)
        axis.errorbar(index, mean, std, color=plots.COLORS[0], marker="o", markersize=4, capsize=3)
        axis.set(title=f"stage {stage}", xlabel="block", xticks=index)
    axes[0, 0].set_ylabel("estimation error (activation)")
    figure.suptitle(path.stem, fontsize=9)
    plots.save(path, figure, rows)


def section3_2(path: pathlib.Path, rows: Rows) -> None:
    """Draw the relative mean of each block's residual function; of equation 9 it is 0."""
    plots.lines(
        path,
        rows,
        x="index",
        y="relative_mean",
        by="network",
        labels={"index": "block", "relative_mean": "norm of E[F] / root mean square of F"},
        title=path.stem,
    )


def section2(path: pathlib.Path, rows: Rows) -> None:
    """Draw accuracy and loss without each block, or without several random ones.

    Rows without a block, or with none left out, are of the whole network.
    """
    by_block = "block" in rows[0]
    labels = {"left_out": "blocks left out", "index": "block that is left out"}
    indices = {name: i for i, name in enumerate(sorted({row.get("block", "") for row in rows}))}
    labels |= {"accuracy": "test accuracy", "loss": "test loss (nats)"}
    shown = []
    whole: dict[str, list] = {}
    for row in rows:
        if by_block and row["block"] == "":
            whole.setdefault(row["network"], []).append(row)
        else:
            shown.append({**row, "index": indices[row["block"]]} if by_block else row)
    # on a logarithmic axis as the curve's
    means = {"accuracy": statistics.mean, "loss": statistics.geometric_mean}
    marks = [
        {
            "network": network,
            "label": f"{network}, whole",
            key: mean(row[key] for row in same),
        }
        for network, same in whole.items()
        for key, mean in means.items()
    ]
    plots.lines(
        path,
        shown,
        x="index" if by_block else "left_out",
        y=["accuracy", "loss"],
        by="network",
        marks=marks,
        labels=labels,
        log=["loss"],
        over="seed" if by_block else "choice",
        title=path.stem,
        table=rows,
    )


def section4_4(path: pathlib.Path, rows: Rows) -> None:
    """Draw the test error of each order of the blocks over its Kendall tau, and means by swaps."""
    figure, axis = plots.new(6.0, 3.3)
    for index, network in enumerate(dict.fromkeys(row["network"] for row in rows)):
        style = {"color": plots.COLORS[index], "marker": plots.MARKERS[index]}
        by_swaps: dict[int, list] = {}
        for row in rows:
            if row["network"] == network:
                point = row["tau"], 100 * (1 - row["accuracy"])
                by_swaps.setdefault(row["swaps"], []).append(point)
        points = [point for same in by_swaps.values() for point in same]
        axis.plot(*zip(*points, strict=True), alpha=0.4, linestyle="", **style)
        means = [tuple(map(statistics.mean, zip(*p, strict=True))) for p in by_swaps.values()]
        axis.plot(*zip(*sorted(means), strict=True), label=network, **style)
    axis.set(xlabel="Kendall's tau of the order of blocks", ylabel="test error (%)")
    axis.set_title(path.stem, fontsize=9)
    axis.invert_xaxis()
    figure.legend(loc="outside right upper", fontsize=6)
    plots.save(path, figure, rows)


def fig5(path: pathlib.Path, rows: Rows) -> None:
    """Draw error and training loss by epoch, with and without batch normalization.

    A column `paper_top5_error` has the paper's error after its last epoch; only curves on ImageNet
    have it.
    """
    metric = next(key for key in rows[0] if key in ("top1_error", "top5_error"))
    shown = []
    for row in rows:
        normalized = re.search("_bn(,|_|$)", row["network"])
        panel = f"{'with' if normalized else 'without'} batch normalization"
        shown.append({**row, "panel": panel})
    last = {row["network"]: row for row in shown}
    marks = [
        {**row, metric: row["paper_top5_error"], "training_loss": ""}
        | {"label": f"{network}, the paper, epoch {EPOCHS}"}
        for network, row in last.items()
        if "paper_top5_error" in row
    ]
    plots.lines(
        path,
        shown,
        x="epoch",
        y=[metric, "training_loss"],
        by="network",
        panel="panel",
        marks=marks,
        labels={
            "top1_error": "top-1 validation error (%)",
            "top5_error": "top-5 validation error (%)",
            "training_loss": "training loss (nats)",
        },
        log=[metric, "training_loss"],
        title=path.stem,
        table=rows,
    )
