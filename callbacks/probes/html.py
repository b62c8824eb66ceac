"""Figures of a table, and a page of them that is read without a server."""

import base64
import html
import io
import pathlib

import numpy as np

from zoo.io import replace

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}
img{max-width:100%}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.1em .8em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}summary{cursor:pointer}p{max-width:45em}"""

MADE_BY = {  # what functions measure, by the beginning of its name
    "lesion": "lesions",
    "lesions": "random_lesions",
    "shuffle": "shuffles",
    "exit": "early_exits",
    "unroll": "unrollings",
    "interlayercushion": "interlayer_cushions",
    "noise": "noise_sensitivity",
    "dominantflow": "dominant_flow",
}
COUNTED = ("lesions_", "shuffle_", "unroll_", "noise_")  # whose `unit` says how many


def draw(table, probes, path=None):
    """One panel a probe: a number a block as points over the blocks, a dashed line for the number
    of the whole network; a number a unit as an image of blocks and units; several epochs as lines.

    Args:
        table: A `Table`.
        probes: Names of its probes.
        path: Where to write it as PNG; `None`: nowhere.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6 * len(probes)), layout="constrained")
    axes = figure.subplots(len(probes), 1, squeeze=False)[:, 0]
    for axis, probe in zip(axes, probes, strict=True):
        rows = table.of_probe(probe)
        if probe.startswith(COUNTED):
            _against_unit(axis, rows, probe)
        elif any(row.unit is not None for row in rows):
            image = axis.imshow(table.array(probe), aspect="auto", cmap="gray_r")
            figure.colorbar(image, ax=axis)
            axis.set(xlabel="unit", ylabel="block", title=probe)
        else:
            _curves(axis, rows, probe)
    if path is not None:
        replace(pathlib.Path(path), lambda new: figure.savefig(new, format="png", dpi=120))
    return figure


def _against_unit(axis, rows, probe):
    """Values over how many: lesions, swaps, repetitions; dashed: of the network as it is."""
    counted = [row for row in rows if row.unit is not None]
    single = len({row.unit for row in counted}) == len(counted)
    line = "o-" if single else "o"
    units, values = [row.unit for row in counted], [row.value for row in counted]
    axis.plot(units, values, line, color="black", markersize=3)
    for row in rows:
        if row.unit is None:
            axis.axhline(row.value, linestyle="--", color="0.5", linewidth=1)
    axis.set(xlabel="how many", ylabel=probe)
    axis.xaxis.get_major_locator().set_params(integer=True)


def _curves(axis, rows, probe):
    blocks = [*dict.fromkeys(row.block for row in rows if row.block is not None)]
    epochs = [*dict.fromkeys(row.epoch for row in rows)]
    for i, epoch in enumerate(epochs):
        now = [row for row in rows if row.epoch == epoch]
        grey = str(0.75 - 0.75 * (i + 1) / len(epochs))  # the last one is black
        found = {row.block: row for row in now}
        stages = dict.fromkeys(found[b].stage for b in blocks if b in found)
        for stage in stages:
            places = [p for p, b in enumerate(blocks) if b in found and found[b].stage == stage]
            values = [found[blocks[p]].value for p in places]
            axis.plot(places, values, "o-", color=grey, markersize=3)
        if None in found:
            axis.axhline(found[None].value, linestyle="--", color=grey, linewidth=1)
    if len(epochs) > 1:
        axis.text(
            0.99,
            0.97,
            f"epochs {epochs[0]} (light) to {epochs[-1]}",
            ha="right",
            va="top",
            transform=axis.transAxes,
            fontsize=8,
        )
    axis.set(xlabel="block", ylabel=probe, xlim=(-0.5, max(len(blocks), 1) - 0.5))
    axis.xaxis.get_major_locator().set_params(integer=True)


def write(table, path, title):
    """Writes the page of a table; see `Table.to_html`."""
    from zoo import callbacks

    meanings = {
        value.__name__: value.__doc__
        for value in vars(callbacks).values()
        if isinstance(value, type) and issubclass(value, callbacks.Probe)
    }
    meanings |= {name: getattr(callbacks, function).__doc__ for name, function in MADE_BY.items()}
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += (f"<p>{html.escape(note)}</p>" for note in table.notes)
    for probe in table.probes():
        rows = table.of_probe(probe)
        parts.append(f"<h2>{html.escape(probe)}</h2>")
        parts += _meaning(probe, meanings)
        parts.append(f'<img alt="{html.escape(probe)}" src="{_png(draw(table, [probe]))}">')
        if all(row.unit is None for row in rows):
            parts.append(_numbers(rows))
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style>{''.join(parts)}</html>\n"
    )
    replace(pathlib.Path(path), lambda new: new.write_text(text, encoding="utf-8"))


def _meaning(probe, meanings):
    """The first paragraph of the docstring of the class that a probe's name begins with."""
    words = probe.replace("_", "")
    fitting = [name for name in meanings if words.startswith(name.lower())]
    if fitting:
        doc = meanings[max(fitting, key=len)] or ""
        yield f"<p>{html.escape(' '.join(doc.split(chr(10) * 2)[0].split()))}</p>"


def _numbers(rows):
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
        f"<details><summary>numbers</summary><table><tr><th>block</th><th>stage</th>{head}</tr>"
        f"{''.join(lines)}</table></details>"
    )


def _png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
