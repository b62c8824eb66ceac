"""Figures of a table of values."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.io import replace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# values over counts: the column `unit`
COUNTS = ("lesions_", "shuffle_", "unroll_", "noise_", "loop_", "fixed_point_distance")

LABELS = 30  # largest number of blocks' names at an axis


def panels(table: Any) -> list[str]:
    """Return the values that have a chart: all but the deviations of others, drawn as bands."""
    probes = table.probes()
    return [name for name in probes if name.removesuffix("_std") not in {*probes} - {name}]


def draw(table: Any, probes: Sequence[str], path: str | pathlib.Path | None = None) -> Figure:
    """Draw one panel for each probe of a `Table`, and write the PNG file `path` if there is one.

    Scalar values are points over the blocks, a line for each epoch, and a band of the deviation
    over examples at the last one; the whole network's is a dashed line. Values by unit are an image
    of blocks and units.
    """
    from matplotlib.figure import Figure

    named = [row.block for row in table if row.block is not None and row.unit is None]
    longest = max(map(len, named), default=0)
    height = max(2.6, 1.6 + 0.06 * longest)  # inches, with the names below a panel
    figure = Figure(figsize=(7, height * len(probes)), layout="constrained")
    axes = figure.subplots(len(probes), 1, squeeze=False)[:, 0]
    for axis, probe in zip(axes, probes, strict=True):
        rows = table.of_probe(probe)
        if probe.startswith(COUNTS):
            _draw_counts(axis, rows, probe)
        elif any(row.unit is not None for row in rows):
            _draw_units(figure, axis, rows, probe)
        else:
            _draw_blocks(axis, table, probe)
    if path is not None:
        replace(pathlib.Path(path), lambda new: figure.savefig(new, format="png", dpi=120))
    return figure


def _draw_counts(axis, rows, probe):
    """Draw values over counts (lesions, loops); dashed: the unmodified network."""
    by_block = {}
    for row in rows:
        if row.unit is None:
            axis.axhline(row.value, linestyle="--", color="0.5", linewidth=1)
        else:
            by_block.setdefault(row.block, {})[row.unit] = row.value
    for i, (block, values) in enumerate(by_block.items()):
        curve = len(values) > 1  # of one block's counts, and no point of its own
        colour = _colour(i, len(by_block)) if curve else _colour(0, 1)
        line = "o-" if curve else "o"
        axis.plot([*values], [*values.values()], line, color=colour, markersize=3, label=block)
        if curve and len(by_block) > 1:
            axis.legend(fontsize=7)
    axis.set(xlabel="count", title=probe)
    axis.xaxis.get_major_locator().set_params(integer=True)


def _draw_units(figure, axis, rows, probe):
    """Draw values by block and unit, on a scale that is centred at 0 if some are negative."""
    values = rows.array(probe)
    largest = np.nanmax(np.abs(values), initial=0)
    signed = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
    image = axis.imshow(values, aspect="auto", **(signed if np.nanmin(values) < 0 else {}))
    figure.colorbar(image, ax=axis)
    axis.set(xlabel="unit", ylabel="block", title=probe)
    _name_blocks(axis.yaxis, [*dict.fromkeys(row.block for row in rows if row.unit is not None)])


def _draw_blocks(axis, table, probe):
    rows = table.of_probe(probe)
    spread = f"{probe}_std" if f"{probe}_std" in table.probes() else None
    blocks = [*dict.fromkeys(row.block for row in rows if row.block is not None)]
    epochs = [*dict.fromkeys(row.epoch for row in rows)]
    for i, epoch in enumerate(epochs):
        colour = _colour(i, len(epochs))
        by_block = {row.block: row for row in rows if row.epoch == epoch}
        lines = {}
        for position, block in enumerate(blocks):
            if block in by_block:
                line = lines.setdefault(by_block[block].stage, ([], []))
                line[0].append(position)
                line[1].append(by_block[block].value)
        for positions, values in lines.values():
            axis.plot(positions, values, "o-", color=colour, markersize=3)
            if spread and epoch == epochs[-1]:
                deviations = table.values(spread, epoch)
                width = np.array([deviations[blocks[position]] for position in positions])
                band = np.array(values) - width, np.array(values) + width
                axis.fill_between(positions, *band, color=colour, alpha=0.2, linewidth=0)
        if None in by_block:
            axis.axhline(by_block[None].value, linestyle="--", color=colour, linewidth=1)
    if any(row.value < 0 for row in rows):
        axis.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    if len(epochs) > 1:
        text = f"epochs {epochs[0]} (light) to {epochs[-1]}"
        corner = {"ha": "right", "va": "top", "transform": axis.transAxes}
        axis.text(0.99, 0.97, text, fontsize=8, **corner)
    axis.set(xlabel="block", title=probe, xlim=(-0.5, max(len(blocks), 1) - 0.5))
    _name_blocks(axis.xaxis, blocks, rotation=90)


def _colour(index, count):
    """Return the colour of one of several epochs: the last one's is the darkest."""
    from matplotlib import colormaps

    return colormaps["viridis"](0.85 * (1 - (index + 1) / count))


def _name_blocks(axis, blocks, **options):
    positions = range(0, len(blocks), -(-len(blocks) // LABELS) or 1)
    axis.set_ticks([*positions], [blocks[i] for i in positions], fontsize=7, **options)
    for label in axis.get_ticklabels():
        label.set_parse_math(False)  # a name may have a dollar
