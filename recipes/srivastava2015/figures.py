"""Figures of Srivastava et al. (2015), each a function of a path and tidy rows; and their rows.

A function writes a PNG and the CSV file of its rows beside it, so that a figure can be drawn again
(`report.redraw`). Rows with a column "seed" are those of several runs. What the paper says is rows,
too: PAPER stands in their kind or layer.
"""

import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colors

from experiment import plots

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
PAPER = "the paper"
OPENING = "opening of T: 0 copies, 1 rewrites"
UNITS = {"bias of T": "logit", "outputs of one example": "output"}  # others are gates


def fig1(path: pathlib.Path, rows: Rows) -> None:
    """Draw the best network of each depth by epoch, and the mean of the best tenth by depth.

    Columns: panel ("left" or "right"), kind, depth, epoch, loss.
    """
    shown = []
    marks = []
    for row in rows:
        if not math.isfinite(row["loss"]):
            continue
        if row["kind"] == PAPER:
            marks.append({"best": row["loss"], "label": "the paper: plain 10, 20 fall below"})
        elif row["panel"] == "left":
            shown.append({**row, "best": row["loss"]})
        else:
            point = {key: value for key, value in row.items() if key != "depth"}
            shown.append({**point, "layers": row["depth"], "mean": row["loss"]})
    plots.lines(
        path,
        shown,
        x=["epoch", "layers"],
        y=["best", "mean"],
        by=["kind", "depth"],
        marks=marks,
        labels={
            "best": "mean training cross entropy, nats",
            "mean": "mean of the best tenth, nats",
            "layers": "depth, layers",
        },
        log=["best", "mean"],
        table=rows,
    )


def unit_rows(panel: str, values: np.ndarray, center: float | None = None) -> Iterator[Row]:
    """Yield the rows of a map of Fig. 2 or 3: a panel of layers by units.

    `center` is the value at the middle of its colors, or None: from 0 to 1.
    """
    for layer, unit in np.ndindex(*values.shape):
        value = float(values[layer, unit])
        row = {"panel": panel, "layer": layer, "unit": unit, "value": value}
        yield {**row, "center": "" if center is None else center}


def fig2(path: pathlib.Path, rows: Rows) -> None:
    """Draw maps of layers (down) by units (across) side by side, each with its color bar.

    A map with a center has blue below and orange above it; the others run from 0 to 1.
    """
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        panels.setdefault(row["panel"], []).append(row)
    grid = {"ncols": len(panels), "squeeze": False}
    figure, axes = plots.new(3.4 * len(panels), 4, **grid)
    for axis, (title, cells) in zip(axes[0], panels.items(), strict=True):
        values = _map(cells)
        style: dict[str, Any] = {"cmap": "cividis", "vmin": 0.0, "vmax": 1.0}
        center = cells[0]["center"]
        if center != "":
            norm = colors.CenteredNorm(center, float(np.abs(values - center).max()) or 1.0)
            style = {"cmap": "PuOr_r", "norm": norm}
        drawn = axis.imshow(values, aspect="auto", interpolation="nearest", **style)
        axis.set(title=title, xlabel="unit", ylabel="layer")
        label = "difference of mean T" if title.startswith("class") else UNITS.get(title, OPENING)
        figure.colorbar(drawn, ax=axis, label=label)
    plots.save(path, figure, rows)


fig3 = fig2


def _map(cells):
    """Return the array of a map's rows, by layer and unit; of several seeds the mean."""
    size = [1 + max(cell[key] for cell in cells) for key in ("layer", "unit")]
    total = np.zeros(size)
    count = np.zeros(size)
    for cell in cells:
        total[cell["layer"], cell["unit"]] += cell["value"]
        count[cell["layer"], cell["unit"]] += 1
    return total / count


def lesion_rows(
    losses: Sequence[float], intact: float, idle: tuple[int, int] | None
) -> Iterator[Row]:
    """Yield the rows of Fig. 4: training losses without each layer, and of the intact network.

    `idle` are the first and the last idle layer of the paper, or None.
    """
    for layer, loss in enumerate(losses, 1):
        in_paper = int(idle is not None and idle[0] <= layer <= idle[1])
        yield {"layer": layer, "loss_without": loss, "loss": intact, "idle_in_paper": in_paper}


def fig4(path: pathlib.Path, rows: Rows) -> None:
    """Draw the training loss without each layer, and that of the whole network."""
    intact = float(np.mean([row["loss"] for row in rows]))
    idle = [row["layer"] for row in rows if row["idle_in_paper"]]
    marks: list[Row] = [{"loss_without": intact, "label": "whole network"}]
    if idle:
        marks.append({"layer": (min(idle), max(idle)), "label": "idle in the paper"})
    labels = {"layer": "layer left out", "loss_without": "mean training cross entropy, nats"}
    options = {"x": "layer", "y": "loss_without", "marks": marks, "log": ["loss_without"]}
    plots.lines(path, rows, labels=labels, **options)


def section2_2(path: pathlib.Path, rows: Rows) -> None:
    """Draw the training loss of each epoch, and that of guessing."""
    marks = [{"loss": rows[0]["guessing"], "label": "guessing"}]
    labels = {"loss": "mean training cross entropy, nats"}
    plots.lines(path, rows, x="epoch", y="loss", marks=marks, labels=labels)
