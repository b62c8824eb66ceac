"""Figures of a table of values, and a page of them that is read without a server."""

from __future__ import annotations

import base64
import html
import io
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.callbacks.probes.probe import Probe
from zoo.io import replace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}
img{max-width:100%}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.1em .8em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}summary{cursor:pointer}p{max-width:45em}"""

MEANINGS = {  # of values that no probe measures, by the beginning of their names
    "lesion_": "Each block left out, one at a time: a redundant block barely changes the accuracy.",
    "lesions_": "Several random blocks left out at once; those that change the shape stay.",
    "shuffle_": "The blocks of each stage in a random order, against the order's Kendall tau.",
    "exit_": "The network stopped after each block: later ones return their skip input.",
    "unroll_": "The last block applied up to so many times more, with its residual part scaled.",
    "interlayer_cushion": "How much better the part of the network from one block to another "
    "passes the signal than noise, which it passes alike in every direction.",
    "minimal_interlayer_cushion": "The smallest interlayer cushion from each block to any later "
    "one, at most the identity's.",
    "noise_": "Accuracy, loss and relative change of the output with normal noise on all kernels.",
    "dominant_flow": "Share of a layer's channels that get most of their gradient through the "
    "feature of their index.",
}
COUNTS = ("lesions_", "shuffle_", "unroll_", "noise_")  # values over counts: the column `unit`


LABELS = 30  # largest number of blocks' names at an axis


def panels(table: Any) -> list[str]:
    """Return the values that have a chart: all but the deviations of others, drawn as bands."""
    probes = table.probes()
    return [name for name in probes if name.removesuffix("_std") not in {*probes} - {name}]


def draw(table: Any, probes: Sequence[str], path: str | pathlib.Path | None = None) -> Figure:
    """Draw one panel for each probe.

    Scalar values are points over the blocks, a line for each epoch, and a band of the deviation
    over examples at the last one; the whole network's is a dashed line. Values by unit are an image
    of blocks and units.

    Args:
        table: A `Table` (whose module imports this one).
        probes: Names of its probes.
        path: PNG file to write; `None`: none.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6 * len(probes)), layout="constrained")
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
    """Draw values over counts (lesions, swaps, repetitions); dashed: the unmodified network."""
    counted = [row for row in rows if row.unit is not None]
    units = [row.unit for row in counted]
    line = "o-" if len({*units}) == len(units) else "o"
    axis.plot(units, [row.value for row in counted], line, color=_colour(0, 1), markersize=3)
    for row in rows:
        if row.unit is None:
            axis.axhline(row.value, linestyle="--", color="0.5", linewidth=1)
    axis.set(xlabel="count", ylabel=probe)
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
    axis.set(xlabel="block", ylabel=probe, xlim=(-0.5, max(len(blocks), 1) - 0.5))
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


def write(table: Any, path: str | pathlib.Path, title: str) -> None:
    """Write the page of a table; see `Table.to_html`."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += (f"<p>{html.escape(note)}</p>" for note in table.notes)
    for probe in panels(table):
        rows = table.of_probe(probe)
        parts.append(f"<h2>{html.escape(probe)}</h2>")
        parts.append(f"<p>{html.escape(meaning(probe))}</p>")
        parts.append(f'<img alt="{html.escape(probe)}" src="{_png(draw(table, [probe]))}">')
        if all(row.unit is None for row in rows):
            parts.append(_numbers(rows, "numbers"))
        if f"{probe}_std" in table.probes():
            parts.append(_numbers(table.of_probe(f"{probe}_std"), "deviations over examples"))
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style>{''.join(parts)}</html>\n"
    )
    replace(pathlib.Path(path), lambda new: new.write_text(text, encoding="utf-8"))


def meaning(probe: str) -> str:
    """Return what a value measures, by the beginning of its name; "" if that is not known.

    For values of a `Probe`, the class's docstring without its arguments.
    """
    prefixes = {cls.default_name(): cls.__doc__ or "" for cls in _subclasses(Probe)}
    prefixes |= MEANINGS
    fitting = [prefix for prefix in prefixes if probe.startswith(prefix)]
    if not fitting:
        return ""
    return " ".join(prefixes[max(fitting, key=len)].partition("Args:")[0].split())


def _subclasses(cls) -> Iterator[type[Probe]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _numbers(rows, name):
    epochs = [*dict.fromkeys(row.epoch for row in rows)]
    blocks = dict.fromkeys((row.block, row.stage) for row in rows)
    cells = {(row.block, row.epoch): row.value for row in rows}
    head = "".join(f"<th>{'value' if e is None else f'epoch {e}'}</th>" for e in epochs)
    lines = (
        f"<tr><td>{html.escape(block or 'network')}</td><td>{'' if stage is None else stage}</td>"
        + "".join(f"<td>{cells.get((block, e), np.nan):.5g}</td>" for e in epochs)
        for block, stage in blocks
    )
    return (
        f"<details><summary>{name}</summary><table><tr><th>block</th><th>stage</th>{head}</tr>"
        f"{''.join(lines)}</table></details>"
    )


def _png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
