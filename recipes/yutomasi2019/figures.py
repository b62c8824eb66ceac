"""Figures of Yu & Tomasi (2019), each a function of a path and tidy rows; and their rows.

A function writes a PNG and the CSV file of its rows beside it, so that a figure can be drawn again
(`report.redraw`). Rows with a column "seed" are drawn as means in bands.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from experiment import plots
from zoo.callbacks import Table

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

MISSING = (None, "")  # of a value, and in a CSV file
STARTS = {"plain": "Kaiming's start", "transferred": "the residual's start"}
MOST_ENTRIES = 800  # of a bin of Fig. 7; the paper's axis ends there, too
LARGEST_CUSHION = 4.0  # of Fig. 3; ours: larger ones are in the last bin
FEATURE_BINS = np.linspace(-4, 8, 61)  # of Fig. 10
WEIGHT_BINS = np.linspace(-1, 1.5, 101)  # of Fig. 7
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
    "mean": "mean over training",
    "largest_difference": "largest difference of a weight",
}
TRIVIAL_LABELS = {
    "width": "channels d",
    "depth": "layers n",
    "sigma": "deviation of an entry",
    "feature_sigma": "deviation of a feature's gradient",
    "keep": "share p of open ReLUs",
    "dominance": "P(r > 1)",
    "ratio": "ratio of the deviations",
    "probability": "P(|X| > |Y|)",
}


def cushion_rows(name: str, when: str, table: Table) -> Iterator[Row]:
    """Yield a network's rows of Fig. 3: shares of images by block and layer cushion.

    The table, of before or after training, has `zoo.callbacks.LayerCushion` up to
    `LARGEST_CUSHION`.
    """
    histograms = table.array("layer_cushion_histogram")
    edges = np.linspace(0, LARGEST_CUSHION, histograms.shape[1] + 1)[:-1].tolist()
    blocks = table.values("layer_cushion")
    for block, shares in zip(blocks, histograms.tolist(), strict=True):
        for low, share in zip(edges, shares, strict=True):
            row = {"network": name, "when": when, "block": block, "from": round(low, 4)}
            yield {**row, "share": share}


def fig3(path: pathlib.Path, rows: Rows) -> None:
    """Draw layer cushions of images, for the middle block of each third of the depth."""
    blocks = [*dict.fromkeys(row["block"] for row in rows)]
    middle = [blocks[len(blocks) * part // 6] for part in (1, 3, 5)]
    shown = [row for row in rows if row["block"] in middle]
    label = f"layer cushion of an image, a ratio (last bin: {LARGEST_CUSHION:g} and beyond)"
    by = ["network", "when"]
    labels = {**LABELS, "from": label, "before": "before training", "after": "after training"}
    options = {"x": "from", "y": "share", "by": by, "panel": "block", "steps": True}
    plots.lines(path, shown, labels=labels, table=rows, **options)


def fig6(path: pathlib.Path, rows: Rows) -> None:
    """Draw the largest difference of a weight by step; the file's name tells single precision."""
    plots.lines(
        path,
        rows,
        x="step",
        y="largest_difference",
        by=["start", "depth"],
        labels=LABELS,
        log=["largest_difference"],
        title="single precision" if "float32" in path.stem else "double precision",
    )


def weight_rows(
    name: str, weights: Mapping[str, Mapping[str, np.ndarray]], mode: float | None
) -> Iterator[Row]:
    """Yield a network's rows of Fig. 7: histograms of its weights, "before" and "after", by group.

    `mode` is the paper's mode of the identity's entries after training, or None.
    """
    for when, groups in weights.items():
        for group in ("all", "identity"):
            counts = np.histogram(groups[group], WEIGHT_BINS)[0].tolist()
            for low, count in zip(WEIGHT_BINS[:-1].tolist(), counts, strict=True):
                row = {"network": name, "when": when, "entries": group}
                yield {**row, "from": round(low, 4), "count": count, "paper_mode": mode or ""}


def fig7(path: pathlib.Path, rows: Rows) -> None:
    """Draw histograms of all weights and of the identity's, before and after training.

    Each network has panels of its own: those that are equal at the start would hide each other.
    """
    shown = []
    for row in rows:
        count = min(row["count"], MOST_ENTRIES) if row["entries"] == "all" else row["count"]
        shown.append({**row, f"count_{row['when']}": count})
    modes = {row["network"]: row["paper_mode"] for row in rows if row["paper_mode"] != ""}
    marks = [
        {"network": network, "from": mode, "label": f"the paper's mode of the identity's, {mode}"}
        for network, mode in modes.items()
    ]
    y = ["count_before", "count_after"]
    options = {"x": "from", "y": y, "by": "entries", "panel": "network", "marks": marks}
    options["steps"] = True
    plots.lines(path, shown, labels=LABELS, table=rows, **options)


def risk_rows(  # noqa: PLR0913 (columns of the figure, by keyword)
    *,
    network: str,
    depth: int,
    risk: Sequence[float],
    accuracy: Sequence[float],
    paper_risk: float | None,
    paper_test_error: float | None,
) -> Iterator[Row]:
    """Yield a network's rows of Fig. 8: training cross entropy and test accuracy of each epoch.

    The paper's numbers are those at its end, or None.
    """
    for epoch, (loss, share) in enumerate(zip(risk, accuracy, strict=True), 1):
        row = {"network": network, "depth": depth, "epoch": epoch, "risk": loss}
        paper = {"paper_risk": paper_risk, "paper_test_error": paper_test_error}
        yield {**row, "test_error": 1 - share, **paper}


def fig8(path: pathlib.Path, rows: Rows) -> None:
    """Draw risk and test error by epoch, and test error by risk."""
    last = {(row["network"], row["depth"]): row for row in rows}
    marks = []
    for (network, depth), row in last.items():
        if row["paper_risk"] not in MISSING:
            point = {"risk": row["paper_risk"], "test_error": row["paper_test_error"]}
            marks.append({**row, **point, "label": f"{network}, {depth}, the paper at its end"})
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


def start_rows(
    network: str, depth: int, risk: Sequence[float], paper: float | None
) -> Iterator[Row]:
    """Yield a plain network's rows of Fig. 9: its mean training cross entropy of each epoch.

    The paper's risk is that at its end, a mean over ten runs, or None.
    """
    for epoch, loss in enumerate(risk, 1):
        row = {"network": network, "depth": depth, "epoch": epoch, "risk": loss}
        yield {**row, "paper": paper}


def fig9(path: pathlib.Path, rows: Rows) -> None:
    """Draw the risk of plain networks from Kaiming's and from the residual's start, by epoch.

    Beside it: the difference between both, of the same depth, epoch and seed.
    """

    def key(row):
        return row["depth"], row["epoch"], row.get("seed")

    other = {key(row): row["risk"] for row in rows if row["network"] == "transferred"}
    shown = []
    for row in rows:
        pair = other.get(key(row)) if row["network"] == "plain" else None
        shown.append({**row, "difference": None if pair is None else row["risk"] - pair})
    last = {(row["network"], row["depth"]): row for row in rows}
    marks = [
        {**row, "risk": row["paper"], "label": f"the paper at its end: {row['paper']:g}"}
        for row in last.values()
        if row["paper"] not in MISSING
    ]
    plots.lines(
        path,
        shown,
        x="epoch",
        y=["risk", "difference"],
        by=["network", "depth"],
        marks=marks,
        labels={**LABELS, **STARTS},
        table=rows,
    )


def in_deviations(values: np.ndarray) -> np.ndarray:
    """Return `(images, features)` in standard deviations of the features, without dead features."""
    deviations = values.std(0)
    return (values[:, deviations > 0] / deviations[deviations > 0]).ravel()


def feature_rows(name: str, pair: tuple[np.ndarray, np.ndarray]) -> Iterator[Row]:
    """Yield a network's rows of Fig. 10: densities of final features and of the loss's gradients.

    Both are arrays of shape `(images, features)`.
    """
    width = FEATURE_BINS[1] - FEATURE_BINS[0]
    for quantity, values in zip(("feature", "gradient"), pair, strict=True):
        scaled = in_deviations(values)
        density = np.histogram(scaled, FEATURE_BINS)[0] / max(scaled.size, 1) / width
        for low, value in zip(FEATURE_BINS[:-1].tolist(), density.tolist(), strict=True):
            yield {"network": name, "of": quantity, "from": round(low, 4), "density": value}


def fig10(path: pathlib.Path, rows: Rows) -> None:
    """Draw densities of final features and of the loss's gradients there, and the normal one."""
    width = FEATURE_BINS[1] - FEATURE_BINS[0]
    edges = FEATURE_BINS[:-1].tolist()
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


def flow_rows(name: str, flows: Mapping[str, Mapping[str, float]]) -> Iterator[Row]:
    """Yield a network's rows of Fig. 12: dominance by block, by iteration: first, last or mean."""
    for iteration, by_block in flows.items():
        for block, flow in enumerate(by_block.values(), 1):
            row = {"network": name, "iteration": iteration, "block": block}
            yield {**row, "dominant_flow": flow}


def fig12(path: pathlib.Path, rows: Rows) -> None:
    """Draw the share of dominant channels by block: at both ends of training, and in the mean."""
    options = {"x": "block", "y": "dominant_flow", "by": "network", "panel": "iteration"}
    plots.lines(path, rows, labels=LABELS, **options)


def fig11(path: pathlib.Path, rows: Rows) -> None:
    """Draw dominance of the trivial case: a panel for each parameter."""
    shown = [
        {**row, row["parameter"]: row["value"], "kind": kind, "dominance": row[kind]}
        for row in rows
        for kind in ("simulated", "approximated")
    ]
    parameters = [*dict.fromkeys(row["parameter"] for row in rows)]
    plots.lines(
        path,
        shown,
        x=parameters,
        y=["dominance"] * len(parameters),
        by=["network", "kind"],
        labels=TRIVIAL_LABELS,
        log=[parameter for parameter in parameters if parameter not in ("keep", "width")],
        table=rows,
    )


def fig13(path: pathlib.Path, rows: Rows) -> None:
    """Draw P(|X| > |Y|) of normal X and Y and its logistic approximation."""
    shown = [
        {**row, "kind": kind, "probability": row[kind]}
        for row in rows
        for kind in ("exact", "logistic")
    ]
    options = {"x": "ratio", "y": "probability", "by": "kind", "log": ["ratio"]}
    plots.lines(path, shown, labels=TRIVIAL_LABELS, table=rows, **options)
