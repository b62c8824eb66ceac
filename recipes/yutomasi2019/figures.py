"""Figures of Yu & Tomasi (2019): 7, 8 and 9 of trained networks, 3, 10 and 12 of noise stability.

Each function writes a PNG, and the CSV file of the same name beside it.
"""

import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from experiment import plots
from yutomasi2019 import networks, tables
from yutomasi2019.tables import Measured
from zoo.callbacks import Table

RISKS = {"plain": {32: 0.13, 44: 0.46}, "transferred": {32: 0.055, 44: 0.083}}  # Fig. 9, 10 runs
PAPER = f"the paper after {networks.EPOCHS} epochs"
STARTS = {"plain": "Kaiming's start", "transferred": "the residual's start"}
MOST_ENTRIES = 800  # of a bin of Fig. 7; the paper's axis ends there, too
LARGEST_CUSHION = 4.0  # of Fig. 3; ours: larger ones are in the last bin
FEATURE_BINS = np.linspace(-4, 8, 61)  # of Fig. 10
LABELS = {
    "risk": "mean training cross entropy, nats",  # without the penalty, as the paper's risk
    "test_error": "test error, share of images",
    "difference": "Kaiming's less the residual's, nats",
    "all": "all entries of the plain kernels",
    "identity": "entries of the identity",
    "from": "value",
    "count_before": "entries before training",
    "count_after": "entries after training",
    "share": "share of images",
    "feature": "final feature, in its standard deviations",
    "gradient": "gradient of the loss there, in its standard deviations",
    "dominant_flow": "share of dominant channels",
    "first": "first iteration",
    "last": "last iteration",
}


def write(folder: pathlib.Path, measured: Sequence[Measured]) -> None:
    """Draw Figs 7 to 9 as far as they are asked for, and write the results of Fig. 9."""
    for depth in dict.fromkeys(network.depth for network in measured):
        same_depth = [network for network in measured if network.depth == depth]
        with_weights = [network for network in same_depth if network.weights]
        if with_weights and networks.wants("fig7"):
            modes = {network.paper(tables.MODES) for network in with_weights} - {None}
            rows = [row for network in with_weights for row in histogram_rows(network)]
            draw_weights(folder / f"fig7-depth{depth}.png", rows, modes)
        if networks.wants("fig8"):
            draw_risk(folder / f"fig8-depth{depth}.png", same_depth)
    plain = [network for network in measured if network.network in STARTS]
    if networks.wants("fig9") and plain:
        draw_starts(folder / "fig9.png", plain)
        for network in plain:
            network.trained.write(
                folder,
                "fig9",
                "training_risk",
                round(network.risk[-1], 6),
                network.paper(RISKS),
                assumptions=[networks.TRAINING],
            )


def histogram_rows(measured: Measured) -> Iterator[dict[str, Any]]:
    """Yield a network's rows of Fig. 7."""
    for when, groups in measured.weights.items():
        for group in ("all", "identity"):
            counts = np.histogram(groups[group], tables.BINS)[0].tolist()
            for low, count in zip(tables.BINS[:-1].tolist(), counts, strict=True):
                row = {"network": measured.network, "when": when, "entries": group}
                yield {**row, "from": round(low, 4), "count": count}


def draw_weights(
    path: pathlib.Path, rows: Sequence[Mapping[str, Any]], modes: Collection[float] = ()
) -> None:
    """Draw Fig. 7: histograms of all weights and of the identity's, before and after training.

    Args:
        path: Path of the PNG.
        rows: Rows of `histogram_rows`, of the networks in the figure.
        modes: The paper's modes of the identity's entries after training.
    """
    shown = []
    only_plain = {row["network"] for row in rows} == {"plain"}
    for row in rows:
        if row["entries"] == "all":
            count = min(row["count"], MOST_ENTRIES)
        elif row["network"] == "plain" and not only_plain:
            continue
        else:
            count = row["count"]
        shown.append({**row, f"count_{row['when']}": count})
    marks = [
        {"entries": "identity", "from": mode, "label": f"the paper's mode after training, {mode}"}
        for mode in modes
    ]
    y = ["count_before", "count_after"]
    options = {"x": "from", "y": y, "by": "network", "panel": "entries", "marks": marks}
    options["steps"] = True
    plots.lines(path, shown, labels=LABELS, table=rows, **options)


def draw_risk(path: pathlib.Path, measured: Sequence[Measured]) -> None:
    """Draw Fig. 8: risk and test error by epoch, and test error by risk."""
    rows = []
    marks = []
    for network in measured:
        name = {"network": network.network, "depth": network.depth}
        accuracies = network.trained.history["val_accuracy"]
        for epoch, (risk, accuracy) in enumerate(zip(network.risk, accuracies, strict=True), 1):
            rows.append({**name, "epoch": epoch, "risk": risk, "test_error": 1 - accuracy})
        loss, _, error = network.paper(tables.TRAINED, tables.UNKNOWN)
        if loss is not None:
            point = {"epoch": len(network.risk), "risk": loss, "test_error": error}
            label = f"{network.network} {network.depth}, {PAPER}"
            marks.append({**name, **point, "label": label})
    risks = [row["risk"] for row in rows]
    plots.lines(
        path,
        rows,
        x=["epoch", "epoch", "risk"],
        y=["risk", "test_error", "test_error"],
        by=["network", "depth"],
        marks=marks,
        labels=LABELS,
        log=["risk"] if max(risks) > 5 * min(risks) else [],
    )


def draw_starts(path: pathlib.Path, measured: Sequence[Measured]) -> None:
    """Draw Fig. 9: risk of plain networks from Kaiming's and the residual's start, difference."""
    transferred = {n.depth: n.risk for n in measured if n.network == "transferred"}
    rows = []
    table = []
    marks = []
    for network in measured:
        paper = network.paper(RISKS)
        other = transferred.get(network.depth) if network.network == "plain" else None
        for epoch, risk in enumerate(network.risk, 1):
            row = {"network": network.network, "depth": network.depth, "epoch": epoch, "risk": risk}
            table.append({**row, "paper": paper})
            rows.append({**row, "difference": None if other is None else risk - other[epoch - 1]})
        if paper is not None:
            marks.append({**rows[-1], "risk": paper, "label": f"{PAPER}: {paper:g}"})
    plots.lines(
        path,
        rows,
        x="epoch",
        y=["risk", "difference"],
        by=["network", "depth"],
        marks=[{**mark, "difference": None} for mark in marks],
        labels={**LABELS, **STARTS},
        table=table,
    )


def draw_cushions(path: pathlib.Path, cushions: Mapping[str, Table]) -> None:
    """Draw Fig. 3: layer cushions of images, for the middle block of each third of the depth.

    Args:
        path: Path of the PNG.
        cushions: Tables of `zoo.callbacks.LayerCushion`, by network.
    """
    rows = []
    shown = []
    for name, table in cushions.items():
        histograms = table.array("layer_cushion_histogram")
        edges = np.linspace(0, LARGEST_CUSHION, histograms.shape[1] + 1)[:-1].tolist()
        middle = [len(histograms) * part // 6 for part in (1, 3, 5)]
        blocks = table.values("layer_cushion")
        for index, (block, shares) in enumerate(zip(blocks, histograms.tolist(), strict=True)):
            for low, share in zip(edges, shares, strict=True):
                rows.append(
                    {"network": name, "block": block, "from": round(low, 4), "share": share}
                )
                if index in middle:
                    shown.append({**rows[-1], "index": f"block {index + 1}"})
    label = f"layer cushion of an image, a ratio (last bin: {LARGEST_CUSHION:g} and beyond)"
    labels = {**LABELS, "from": label}
    options = {"x": "from", "y": "share", "by": "network", "panel": "index", "steps": True}
    plots.lines(path, shown, labels=labels, table=rows, **options)


def in_deviations(values: np.ndarray) -> np.ndarray:
    """Return all features' values in units of their standard deviations, without dead features.

    Args:
        values: Array of shape `(images, features)`.
    """
    deviations = values.std(0)
    return (values[:, deviations > 0] / deviations[deviations > 0]).ravel()


def draw_features(
    path: pathlib.Path, features: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> None:
    """Draw Fig. 10: densities of final features and of the loss's gradients there.

    Args:
        path: Path of the PNG.
        features: Features and gradients by network, arrays of shape `(images, features)`.
    """
    width = FEATURE_BINS[1] - FEATURE_BINS[0]
    edges = FEATURE_BINS[:-1].tolist()
    rows = []
    for name, pair in features.items():
        for quantity, values in zip(("feature", "gradient"), pair, strict=True):
            scaled = in_deviations(values)
            density = np.histogram(scaled, FEATURE_BINS)[0] / max(scaled.size, 1) / width
            for low, value in zip(edges, density.tolist(), strict=True):
                row = {"network": name, "of": quantity, "from": round(low, 4)}
                rows.append({**row, "density": value})
    normal = [
        {"network": "N(0, 1)", "of": quantity, "from": low, "density": density}
        for quantity in ("feature", "gradient")
        for low, density in zip(edges, _normal(np.array(edges) + width / 2), strict=True)
    ]
    options = {"x": "from", "y": "density", "by": "network", "panel": "of", "steps": True}
    plots.lines(path, [*rows, *normal], labels=LABELS, table=rows, **options)


def _normal(x):
    """Return the standard normal density."""
    return (np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)).tolist()


def draw_dominance(path: pathlib.Path, flows: Mapping[str, tuple[Table, Table]]) -> None:
    """Draw Fig. 12: the share of dominant channels by block, at the first and last iteration.

    Args:
        path: Path of the PNG.
        flows: Tables of `zoo.callbacks.dominant_flow` at both iterations, by network.
    """
    rows = [
        {"network": name, "iteration": iteration, "block": block, "dominant_flow": flow}
        for name, pair in flows.items()
        for iteration, table in zip(("first", "last"), pair, strict=True)
        for block, flow in enumerate(table.values("dominant_flow").values(), 1)
    ]
    options = {"x": "block", "y": "dominant_flow", "by": "network", "panel": "iteration"}
    plots.lines(path, rows, labels=LABELS, **options)
