"""Charts by matplotlib: lines over numbers or names, and figures of a table of values."""

from __future__ import annotations

import io
import pathlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from zoo.callbacks.probes.probe import Table
from zoo.io import replace
from zoo.types import PathLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# values over counts, which are the column `unit`
COUNTS = ("lesions_", "shuffle_", "loop_")
COLORS = ("#3b7dc4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # on black and white
POINTS = {"marker": "o", "markersize": 3}
DASHED = {"linestyle": "--", "color": "0.5", "linewidth": 1}
INK = "currentColor"  # in an SVG: of the page
NAMES = 30  # largest number of names at an axis


def plot(table: Table, probes: Sequence[str] | None = None, path: PathLike | None = None) -> Figure:
    """Draw a panel for each probe of a table.

    Scalar values are points over the blocks, connected in each stage, a line for each epoch, and a
    band of the deviation over examples at the last one; the whole network's is dashed. Values by
    unit are an image of blocks and units.

    Args:
        table: The table.
        probes: Names; `None`: all, deviations as bands of the others.
        path: PNG file to write; `None`: none.
    """
    from matplotlib.figure import Figure

    probes = probes or panels(table)
    longest = max((len(row.block) for row in table if row.block and row.unit is None), default=0)
    height = max(2.6, 1.6 + 0.06 * longest)  # inches, with the names below a panel
    figure = Figure(figsize=(7, height * len(probes)), layout="constrained")
    axes = figure.subplots(len(probes), 1, squeeze=False)[:, 0]
    for axis, probe in zip(axes, probes, strict=True):
        draw(axis, table, probe)
        axis.set_title(probe, parse_math=False)
    if path is not None:
        save_png(figure, path)
    return figure


def save_png(figure: Figure, path: PathLike) -> None:
    """Write a figure atomically."""
    replace(pathlib.Path(path), lambda new: figure.savefig(new, format="png", dpi=120))


def panels(table: Table) -> list[str]:
    """Return the values that have a chart: all but the deviations of others, drawn as bands."""
    probes = table.probes()
    return [name for name in probes if name.removesuffix("_std") not in {*probes} - {name}]


def draw(axis: Axes, table: Table, probe: str) -> None:
    """Draw one probe's values."""
    rows = table.of_probe(probe)
    if probe.startswith(COUNTS):
        _draw_counts(axis, rows)
    elif any(row.unit is not None for row in rows):
        _draw_units(axis, rows, probe)
    else:
        _draw_blocks(axis, table, probe)
    if any(np.nanmin(line.get_ydata(), initial=0) < 0 for line in axis.get_lines()):
        axis.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize=7, frameon=False)


def _draw_units(axis, rows, probe):
    """Draw an image of blocks by units; values of both signs are centered at 0."""
    values = rows.array(probe)
    largest = np.nanmax(np.abs(values), initial=0)
    signed = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
    image = axis.imshow(values, aspect="auto", **(signed if np.nanmin(values) < 0 else {}))
    axis.figure.colorbar(image, ax=axis)
    _set_names(
        axis.yaxis, [*dict.fromkeys(row.block or "" for row in rows if row.unit is not None)]
    )
    axis.set(xlabel="unit", ylabel="block")


def _draw_counts(axis, rows):
    """Draw a line over counts for each block, and dashed the values without a count."""
    by_block = {}
    for row in rows:
        if row.unit is None:
            axis.axhline(row.value, **DASHED)
        else:
            by_block.setdefault(row.block, {})[row.unit] = row.value
    points = [(n, v) for values in by_block.values() if len(values) == 1 for n, v in values.items()]
    if points:
        axis.plot(*zip(*points, strict=True), color=COLORS[0], linestyle="", **POINTS)
    curves = {block: values for block, values in by_block.items() if len(values) > 1}
    for i, (block, values) in enumerate(curves.items()):
        color = COLORS[i % len(COLORS)]
        axis.plot([*values], [*values.values()], label=block, color=color, **POINTS)
    axis.set(xlabel="count")
    axis.xaxis.get_major_locator().set_params(integer=True)


def _draw_blocks(axis, table, probe):
    """Draw a line over blocks for each epoch, interrupted between stages; the last has a band."""
    rows = table.of_probe(probe)
    stages = {row.block: row.stage for row in rows if row.block is not None}
    positions, names = [], []
    for i, (block, stage) in enumerate(stages.items()):
        if i and stage != stages[names[-1]]:
            positions.append(i - 0.5)
            names.append(None)
        positions.append(i)
        names.append(block)
    epochs = [*dict.fromkeys(row.epoch for row in rows)]
    for i, epoch in enumerate(epochs):
        values = rows.values(probe, epoch)
        if None in values:
            axis.axhline(values.pop(None), **DASHED)
        if values:
            y = np.array([values.get(name, np.nan) for name in names])
            label = f"epoch {epoch}" if len(epochs) > 1 and i in (0, len(epochs) - 1) else None
            alpha = 0.25 + 0.75 * (i + 1) / len(epochs)
            axis.plot(positions, y, label=label, color=COLORS[0], alpha=alpha, **POINTS)
            if epoch == epochs[-1] and f"{probe}_std" in table.probes():
                spread = table.values(f"{probe}_std", epoch)
                width = np.array([spread.get(name, np.nan) for name in names])
                band = {"color": COLORS[0], "alpha": 0.2, "linewidth": 0}
                axis.fill_between(positions, y - width, y + width, **band)
    axis.set(xlabel="block")
    if stages:
        axis.set_xlim(-0.5, len(stages) - 0.5)
        _set_names(axis.xaxis, [*stages], rotation=90)


def _set_names(axis, names, **options):
    positions = range(0, len(names), -(-len(names) // NAMES) or 1)
    axis.set_ticks([*positions], [names[i] for i in positions], fontsize=7, **options)
    for label in axis.get_ticklabels():
        label.set_parse_math(False)  # a name may have a dollar


def to_svg(figure: Figure) -> str:
    """Return a figure as an SVG element of a page, whose text and axes have the page's color."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "zoo"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"<[^>]+>", lambda tag: _shortened(tag[0]), text).replace("#000000", INK)
    return re.sub(r"\n\s*", "\n", text[text.index("<svg") :])


def _shortened(tag):
    """Return a tag without fonts and size, which are the page's, and without useless digits."""
    tag = re.sub(r"(\d\.\d)\d{3,}|font-family: [^;\"]*;?", r"\1", tag)
    if tag.startswith("<svg"):
        tag = re.sub(r' (width|height)="[^"]*"', "", tag)
    return re.sub(r'^<g id="[^"]*"', "<g", tag)  # other charts of a page have the same
