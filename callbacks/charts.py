"""Charts of a table of values by matplotlib, and a page of them, read without a server."""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from zoo.callbacks.probes.probe import Table
from zoo.checks import as_names, require
from zoo.io import replace
from zoo.types import PathLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUNTS = ("shuffle_", "loop_")  # values over counts, which are the column `unit`
COLORS = ("#3b7dc4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # on black and white
POINTS = {"marker": "o", "markersize": 3}
DASHED = {"linestyle": "--", "color": "0.5", "linewidth": 1}
NAMES = 30  # largest number of names at an axis
LONG = 16  # largest number of characters of a name there
STYLE = """:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;max-width:78em;margin:1.5em auto;padding:0 1em}
div,pre{overflow-x:auto}p,h1,h3{overflow-wrap:anywhere}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(22em,100%),1fr));gap:1.2em}
section p{font-size:.87em;min-height:3em;margin:0}h3{margin:.6em 0 .2em}
svg{width:100%;height:auto;color:color-mix(in srgb,CanvasText 75%,Canvas)}
svg text{fill:currentColor}
table{border-spacing:0;font-size:.9em;text-align:left}th{font-weight:normal}summary{margin-top:.6em}
td,th{padding:.2em .9em .2em 0;vertical-align:top;border-top:1px solid #8886}
td:nth-child(n+4){white-space:nowrap}:is(td,th):first-child{overflow-wrap:anywhere;min-width:7em}"""

MEANINGS = {  # by the beginning of a value's name; the longest one counts
    "activation_norm": "Norm of a block's output: does it grow from block to block?",
    "block_influence": "1 - cosine of a block's skip input and output; near 0 it may be removed.",
    "block_outputs": "Mean output of each unit; equal columns from block to block are carried.",
    "borderline_examples": "Early readout of the examples near a decision boundary, and of others.",
    "class_gates": "Mean gate over a class's examples minus that over all; distance: its size.",
    "cosine_input": "Cosine of f and the skip input x; negative: the block takes away from x.",
    "cosine_loss": "Cosine of f and the loss gradient; negative: the block lowers the loss.",
    "dominant_flow": "Share of channels whose own feature brings most of their gradient.",
    "estimation_error": "Mean difference of a block's output from its stage's last output.",
    "exit_": "The network stopped after each block: later ones return their skip input.",
    "gate_activity": "Mean gate: T near 0 carries the input, near 1 replaces it; C the reverse.",
    "gate_bias": "Bias of the gate's logits; negative: the input is carried.",
    "gradient_norm": "Norm of the loss gradient at a block's input: does it vanish or explode?",
    "gradient_norm_first": "Gradient norm of the first stage over the last's: does it explode?",
    "interlayer_cushion": "How much better layers between two blocks pass signal than noise.",
    "intermediate_accuracy": "Accuracy and loss of the classifier applied to each block's output.",
    "l2_ratio": "|f| / |x|: small changes refine x, 1 and more replace it; dead: share of zero x.",
    "layer_cushion": "How much better a layer passes its input than noise of the same size.",
    "layer_cushion_": "Share of examples: by size of the cushion, or dead: of an input that is 0.",
    "lesion_": "Accuracy or loss without each block, one at a time.",
    "lesion_agreement": "Share of answers that stay the same without each block.",
    "lesion_change": "Norm of the output's change without each block, over the output's norm.",
    "lesion_kl": "KL divergence, in nats, of the output from that without each block.",
    "lesion_variation": "Probability that moves to other classes without each block.",
    "logit_lens": "The network's tail applied to each block's output, against its own output.",
    "loop_": "A run of blocks used so many times; divergences, from the next number, in nats.",
    "loop_step_norm": "How far the last use of a run of blocks moves its input, over its norm.",
    "norm_growth": "|y| / |x|: growth of activations through a block.",
    "residual_mean": "Mean f over examples; 0: no bias; relative: its norm over the size of f.",
    "shuffle_": "Blocks of each stage in random orders, by number of swaps; tau: Kendall's tau.",
    "taylor_term": "A block's change of the loss, to first order.",
}


def plot(table: Table, probes: Sequence[str] | None = None) -> Figure:
    """Draw a panel for each of `probes`, or of the table's; standard deviations are bands.

    Scalar values are points over the blocks, a line for each epoch, and a band of the deviation
    over examples at the last one; the whole network's is dashed. Values by unit are an image of
    blocks and units.
    """
    from matplotlib.figure import Figure

    require(len(table), "one with rows", table=table)
    probes = as_names(probes=probes) if probes else _panels(table)
    figure = Figure(figsize=(7, 3.2 * len(probes)), layout="constrained")
    axes = figure.subplots(len(probes), 1, squeeze=False)[:, 0]
    for axis, probe in zip(axes, probes, strict=True):
        _draw(axis, table, probe)
        axis.set_title(probe, parse_math=False)
    return figure


def _panels(table):
    """Return the values that have a chart: all but the deviations of others, drawn as bands."""
    probes = table.probes()
    return [name for name in probes if name.removesuffix("_std") not in {*probes} - {name}]


def _draw(axis, table, probe):
    rows = table.of_probe(probe)
    if probe.startswith(COUNTS):
        _draw_counts(axis, rows)
    elif any(row.unit is not None for row in rows):
        _draw_units(axis, rows, probe)
    else:
        _draw_blocks(axis, table, probe)
    if any(np.any(np.asarray(line.get_ydata()) < 0) for line in axis.get_lines()):
        axis.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize=7, frameon=False)


def _draw_units(axis, rows, probe):
    values = rows.array(probe)
    largest = np.nanmax(np.abs(values), initial=0)
    signed = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}  # 0 in the center
    image = axis.imshow(values, aspect="auto", **(signed if np.nanmin(values) < 0 else {}))
    axis.figure.colorbar(image, ax=axis)
    names = [*dict.fromkeys(row.block or "" for row in rows if row.unit is not None)]
    _set_names(axis.yaxis, names)
    axis.set(xlabel="unit")


def _draw_counts(axis, rows):
    """Draw a line over counts for each block, and dashed the values without a count."""
    by_block = {}
    for row in rows:
        if row.unit is None:
            axis.axhline(row.value, **DASHED)
        else:
            by_block.setdefault(row.block, {})[row.unit] = row.value
    for i, (block, values) in enumerate(by_block.items()):
        label, color = (block, COLORS[i % len(COLORS)]) if len(values) > 1 else (None, COLORS[0])
        axis.plot([*values], [*values.values()], label=label, color=color, **POINTS)
    axis.set(xlabel="count")
    axis.xaxis.get_major_locator().set_params(integer=True)


def _draw_blocks(axis, table, probe):
    rows = table.of_probe(probe)
    names = [*dict.fromkeys(row.block for row in rows if row.block is not None)]
    epochs = [*dict.fromkeys(row.epoch for row in rows)]
    for i, epoch in enumerate(epochs):
        of_epoch = Table(row for row in table if row.epoch == epoch)  # which may be None
        values = of_epoch.values(probe)
        if None in values:
            axis.axhline(values.pop(None), **DASHED)
        if values:
            y = np.array([values.get(name, np.nan) for name in names])
            label = f"epoch {epoch}" if len(epochs) > 1 and i in (0, len(epochs) - 1) else None
            alpha = 0.25 + 0.75 * (i + 1) / len(epochs)
            axis.plot(y, label=label, color=COLORS[0], alpha=alpha, **POINTS)
            if epoch == epochs[-1] and f"{probe}_std" in of_epoch.probes():
                spread = of_epoch.values(f"{probe}_std")
                width = np.array([spread.get(name, np.nan) for name in names])
                band = {"color": COLORS[0], "alpha": 0.2, "linewidth": 0}
                axis.fill_between(range(len(names)), y - width, y + width, **band)
    axis.set_xlim(-0.5, max(len(names), 1) - 0.5)
    _set_names(axis.xaxis, names, rotation=90)


def _set_names(axis, names, **options):
    """Write names at an axis without the words that all of them begin or end with."""
    start = os.path.commonprefix(names)
    end = os.path.commonprefix([name[len(start) :][::-1] for name in names])[::-1]
    start = re.match(r"(.*[_/.])?", start)[0]
    end = re.search(r"([_/.].*)?$", end)[0]
    label = f"block {start[:LONG]}…{end[-LONG:]}" if start + end else "block"
    axis.set_label_text(label, fontsize=8)
    positions = range(0, len(names), -(-len(names) // NAMES) or 1)
    rest = [names[i][len(start) : len(names[i]) - len(end)] for i in positions]
    shown = [v if len(v) <= LONG else f"{v[: LONG // 2]}…{v[-LONG // 2 :]}" for v in rest]
    if len({*shown}) < len(shown):
        shown = [*positions]
    axis.set_ticks([*positions], shown, fontsize=7, **options)
    for label in (axis.label, *axis.get_ticklabels()):
        label.set_parse_math(False)  # a name may have a dollar


def write_html(table: Table, path: PathLike, title: str | None = None, head: str = "") -> None:
    """Write a page with every probe's chart, meaning and numbers; it needs no server.

    Without a `title` it has the table's. `head` is HTML below it, such as a report.
    """
    title = html.escape(title or table.title or "Probes")
    sections = "".join(_section(table, probe) for probe in _panels(table))
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    if notes:
        notes = f"<h2>Notes</h2><ul>{notes}</ul>"
    text = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style><body><main><h1>{title}</h1>{head}<h2>Measures</h2><p>Means over "
        f"examples; bands: their standard deviation; dashed: the whole network.</p>"
        f'<div class="grid">{sections}</div>{notes}</main></body></html>\n'
    )
    replace(path, lambda new: new.write_text(text, encoding="utf-8"))


def _section(table, probe):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 3), layout="constrained")
    _draw(figure.subplots(), table, probe)
    fitting = [name for name in MEANINGS if probe.startswith(name)]
    meaning = MEANINGS[max(fitting, key=len)] if fitting else ""
    names = {probe, f"{probe}_std"}  # and the deviations, which the chart has as a band
    has_units = probe.startswith(COUNTS)  # few; of others these are a layer's units
    rows = [row for row in table if row.probe in names and (has_units or row.unit is None)]
    name = html.escape(probe)
    return (
        f'<section><h3>{name}</h3><p>{meaning}</p><div role="img" aria-label="chart of {name}">'
        f"{_to_svg(figure)}</div><details><summary>numbers</summary>"
        f'<pre tabindex="0">{html.escape(str(Table(rows)))}</pre></details></section>'
    )


def _to_svg(figure):
    """Return a figure as an SVG element of a page, whose text and axes have the page's color."""
    import matplotlib

    file = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # none
    style = {"svg.fonttype": "none", "svg.hashsalt": "zoo", "font.sans-serif": ["DejaVu Sans"]}
    with matplotlib.rc_context(style):  # one font: every label repeats the list
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    text = re.sub(r">\s+<", "><", file.getvalue())
    return text[text.index("<svg") :].replace("#000000", "currentColor")
