"""A page of a table of values: inline SVG, read without a server or a network."""

import base64
import html
import io
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from zoo.callbacks.probes.figures import COUNTS, panels
from zoo.callbacks.probes.probe import Probe
from zoo.io import replace

STYLE = """:root{--ink:#1c2126;--soft:#69727b;--line:#d9dde1;--band:#f1f3f5;--paper:#fff;
--mark:#1f5fa8;--low:31,95,168;--high:192,74,38}
@media(prefers-color-scheme:dark){:root{--ink:#e4e7ea;--soft:#98a1aa;--line:#3a4148;--band:#22272c;
--paper:#171a1d;--mark:#74aef0;--low:116,174,240;--high:240,140,98}}
*{box-sizing:border-box}body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);
background:var(--paper);max-width:78em;margin:1.5em auto;padding:0 1em}
h1{font-size:1.35em;margin-bottom:.2em}h2{font-size:1.1em;margin-top:1.8em}
h3{font:600 .95em system-ui;margin:0}p{max-width:52em}.soft,small{color:var(--soft)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9em}
td,th{padding:.18em .6em;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
td.t,th.t{text-align:left}summary{cursor:pointer;color:var(--soft)}details p{font-size:.9em}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(22em,100%),1fr));gap:1.2em}
svg{width:100%;height:auto;display:block}svg text{font:10px system-ui,sans-serif;fill:var(--soft)}
.a{stroke:var(--line);fill:none}.z{stroke:var(--soft);fill:none}.s{fill:var(--band)}
.l{stroke:var(--mark);fill:none;stroke-width:1.5}.d{fill:var(--mark)}
.w{stroke:var(--mark);stroke-dasharray:4 3;fill:none}.e{fill:var(--mark);opacity:.16}
.h{fill:transparent}.h:hover{fill:var(--soft);fill-opacity:.14}
.strip td,.strip th{padding:.1em .5em;border:0}.strip td.c{padding:0;min-width:.6em;height:1.5em}
.strip td.c:hover{outline:2px solid var(--ink)}img{width:100%;image-rendering:pixelated}
#tip{position:fixed;pointer-events:none;background:var(--ink);color:var(--paper);padding:.2em .6em;
border-radius:3px;font-size:.85em;white-space:pre;display:none;z-index:1}
.refines{color:#2a7a3f}.replaces{color:#8a6100}.idle{color:var(--soft)}.undoes,.explodes{color:#c0392b}
@media(prefers-color-scheme:dark){.refines{color:#7fca93}.replaces{color:#e2b95c}
.undoes,.explodes{color:#f08a7e}}"""

SCRIPT = """const tip=document.getElementById("tip");
document.addEventListener("pointermove",e=>{const t=e.target.closest("[data-t]");
tip.style.display=t?"block":"none";if(t){tip.textContent=t.dataset.t;
tip.style.left=Math.min(e.clientX+14,innerWidth-tip.offsetWidth-4)+"px";
tip.style.top=Math.max(e.clientY-tip.offsetHeight-10,4)+"px"}})"""

MEANINGS = {  # of values that no probe measures, by the beginning of their names
    "lesion_": "Each block left out, one at a time: a redundant block barely changes the output.",
    "lesions_": "Several random blocks left out at once; those that change the shape stay.",
    "shuffle_": "The blocks of each stage in a random order, against the order's Kendall tau.",
    "exit_": "The network stopped after each block: later ones return their skip input.",
    "unroll_": "The last block applied up to so many times more, with its residual part scaled.",
    "loop_": "A run of blocks used so many times; angles in degrees, divergences in nats.",
    "fixed_point_": "Where a run of blocks leads if it is repeated: distances from the last state, "
    "the factor from step to step, and the largest |eigenvalue| there.",
    "interlayer_cushion": "How much better the part of the network from one block to another "
    "passes the signal than noise, which it passes alike in every direction.",
    "minimal_interlayer_cushion": "The smallest interlayer cushion from each block to any later "
    "one, at most the identity's.",
    "noise_": "Accuracy, loss and relative change of the output with normal noise on all kernels.",
    "dominant_flow": "Share of a layer's channels that get most of their gradient through the "
    "feature of their index.",
}
WIDTH, HEIGHT = 360, 190  # of a chart, in its own units
LEFT, RIGHT, TOP, BOTTOM = 46, 6, 8, 58  # its margins
LABELS = 24  # largest number of names at an axis


def write(table: Any, path: str | pathlib.Path, title: str, head: str = "") -> None:
    """Write the page of a `Table`; `head` is HTML below its title, such as a table of verdicts."""
    blocks = _blocks(table)
    parts = [f"<h1>{_text(title)}</h1>", head]
    strip = [probe for probe in panels(table) if len(_last_values(table, probe)) > 1]
    if len(blocks) > 1 and strip:
        parts += ["<h2>Blocks by measures</h2>", heat_strip(table, strip)]
    parts.append('<h2>Measures</h2><div class="grid">')
    parts += (_panel(table, probe, blocks) for probe in panels(table))
    parts.append("</div>")
    if table.notes:
        notes = "".join(f"<li>{_text(note)}</li>" for note in table.notes)
        parts.append(f"<h2>Not measured</h2><ul>{notes}</ul>")
    text = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{_text(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style>'
        f'<body>{"".join(parts)}<div id="tip"></div><script>{SCRIPT}</script></body></html>\n'
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


def _text(text: Any) -> str:
    return html.escape(str(text))


def _blocks(table) -> dict[str, int | None]:
    """Return the stage of each block that has scalar values, by name, in order."""
    return {
        row.block: row.stage
        for row in table
        if row.block is not None and row.unit is None and not row.probe.startswith(COUNTS)
    }


def _last_values(table, probe) -> dict[str, float]:
    """Return a probe's finite values by block, at its last epoch."""
    rows = [row for row in table.of_probe(probe) if row.unit is None and row.block is not None]
    last = {row.block: row.value for row in rows if row.epoch == rows[-1].epoch}
    return {} if probe.startswith(COUNTS) else last


def heat_strip(table: Any, probes: Sequence[str]) -> str:
    """Return a table of coloured cells: a row for each measure, a column for each block.

    Each row has its own scale: from its smallest value to its largest, or around 0 if it has
    values of both signs.
    """
    blocks = _blocks(table)
    lines = []
    for probe in probes:
        values = _last_values(table, probe)
        known = [value for value in values.values() if math.isfinite(value)]
        if not known:
            continue
        low, high = min(known), max(known)
        cells = []
        for block in blocks:
            value = values.get(block, math.nan)
            label = f"{block}\n{probe} {value:.4g}"
            colour = _colour(value, low, high)
            cells.append(f'<td class="c" style="{colour}" data-t="{_text(label)}"></td>')
        ends = f"<td>{low:.3g}</td><td>{high:.3g}</td>"
        lines.append(f'<tr><th class="t">{_text(probe)}</th>{"".join(cells)}{ends}</tr>')
    rule = "The higher a value, the stronger; where signs differ blue is negative, red positive."
    head = f"<tr><th></th>{'<th></th>' * len(blocks)}<th>smallest</th><th>largest</th></tr>"
    return (
        f'<p class="soft">A column a block, in order. {rule}</p>'
        f'<div class="wide"><table class="strip">{head}{"".join(lines)}</table></div>'
    )


def _colour(value, low, high):
    if not math.isfinite(value):
        return ""
    if low < 0 < high:
        strength = abs(value) / max(-low, high)
        tone = "--low" if value < 0 else "--high"
    else:
        strength = (value - low) / (high - low) if high > low else 0.5
        tone = "--low"
    return f"background:rgba(var({tone}),{0.06 + 0.94 * strength:.2f})"


def _panel(table, probe, blocks):
    """Return the chart of one probe with its meaning and numbers."""
    rows = [*table.of_probe(probe)]
    spread = {}
    if f"{probe}_std" in table.probes():
        spread = _last_values(table, f"{probe}_std")
    if probe.startswith(COUNTS):
        chart = _count_chart(rows)
    elif any(row.unit is not None for row in rows):
        chart = _image(table.array(probe))
    else:
        chart = _block_chart(rows, blocks, spread)
    details = f"<p>{_text(meaning(probe))}</p>"
    if all(row.unit is None for row in rows):
        details += _numbers(rows, spread)
    return (
        f"<section><h3>{_text(probe)}</h3>{chart}"
        f"<details><summary>meaning and numbers</summary>{details}</details></section>"
    )


def _numbers(rows: Sequence[Any], spread: Mapping[str, float]) -> str:
    epochs = [*dict.fromkeys(row.epoch for row in rows)]
    blocks = dict.fromkeys((row.block, row.stage) for row in rows)
    cells = {(row.block, row.epoch): row.value for row in rows}
    heads = [
        *("value" if e is None else f"epoch {e}" for e in epochs),
        *["deviation"][: len(spread)],
    ]
    lines = []
    for block, stage in blocks:
        values = [cells.get((block, epoch), np.nan) for epoch in epochs]
        values += [spread.get(block, np.nan)] if spread else []
        numbers = "".join(f"<td>{value:.5g}</td>" for value in values)
        place = "" if stage is None else stage
        lines.append(
            f'<tr><td class="t">{_text(block or "network")}</td><td>{place}</td>{numbers}</tr>'
        )
    head = "".join(f"<th>{name}</th>" for name in heads)
    return (
        f'<div class="wide"><table><tr><th class="t">block</th><th>stage</th>{head}</tr>'
        f"{''.join(lines)}</table></div>"
    )


class _Axes:
    """The area of a chart, and the scale of its values."""

    def __init__(self, values: Sequence[float]) -> None:
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        if 0 < low < 0.5 * high:
            low = 0.0
        margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        self.low = low - margin * (low != 0)
        self.high = high + margin
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / 2))
        step *= next(f for f in (1, 2, 5, 10) if (self.high - self.low) / (f * step) <= 4.5)
        first = math.ceil(self.low / step)
        self.ticks = [n * step for n in range(first, math.floor(self.high / step) + 1)]

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(TOP + (1 - share) * (HEIGHT - TOP - BOTTOM), 1)

    def draw(self) -> str:
        """Return the ticks, and the zero line where there are values of both signs."""
        parts = []
        for tick in self.ticks:
            kind = "z" if tick == 0 and self.low < 0 else "a"
            y = self.y(tick)
            parts.append(f'<path class="{kind}" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
            parts.append(f'<text x="{LEFT - 4}" y="{y + 3}" text-anchor="end">{tick:.4g}</text>')
        return "".join(parts)


def _svg(parts):
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def _block_chart(rows, blocks, spread):
    """Return points over the blocks: a line for each stage and epoch, a band of deviations."""
    positions = {block: i for i, block in enumerate(blocks)}
    column = (WIDTH - LEFT - RIGHT) / max(len(blocks), 1)
    epochs = [*dict.fromkeys(row.epoch for row in rows)]
    last = {row.block: row.value for row in rows if row.epoch == epochs[-1]}
    ends = [last.get(b, 0.0) + sign * width for b, width in spread.items() for sign in (-1, 1)]
    axes = _Axes([*(row.value for row in rows), *ends])

    def point(block, value):
        return f"{LEFT + column * (positions[block] + 0.5):.1f} {axes.y(value)}"

    parts = [*_stages(blocks, column), axes.draw()]
    for i, epoch in enumerate(epochs):
        shade = f' opacity="{0.25 + 0.75 * (i + 1) / len(epochs):.2f}"'
        by_stage: dict[int | None, list[tuple[str, float]]] = {}
        for row in rows:
            if row.epoch != epoch or not math.isfinite(row.value):
                continue
            if row.block is None:
                line = f"M{LEFT} {axes.y(row.value)}H{WIDTH - RIGHT}"
                parts.append(f'<path class="w" d="{line}"{shade}/>')
            else:
                by_stage.setdefault(row.stage, []).append((row.block, row.value))
        for line in by_stage.values():
            parts.append(f'<path class="l" d="M{"L".join(point(*p) for p in line)}"{shade}/>')
            if epoch == epochs[-1] and all(block in spread for block, _ in line):
                upper = [point(b, v + spread[b]) for b, v in line]
                lower = [point(b, v - spread[b]) for b, v in line[::-1]]
                parts.append(f'<path class="e" d="M{"L".join(upper + lower)}Z"/>')
            for block, value in line if epoch == epochs[-1] else ():
                x, y = point(block, value).split()
                parts.append(f'<circle class="d" cx="{x}" cy="{y}" r="2.2"/>')
    parts += _names(blocks, column, last)
    return _svg(parts)


def _stages(blocks, column):
    """Return the background of every second stage."""
    stages = [*dict.fromkeys(blocks.values())]
    parts = []
    for i, stage in enumerate(blocks.values()):
        if stages.index(stage) % 2:
            place = f'x="{LEFT + column * i:.1f}" width="{column:.1f}"'
            parts.append(f'<rect class="s" {place} y="{TOP}" height="{HEIGHT - TOP - BOTTOM}"/>')
    return parts


def _names(blocks, column, last):
    """Return the names at the axis, and a column over each block that shows its value."""
    step = -(-len(blocks) // LABELS) or 1
    parts = []
    for i, (block, stage) in enumerate(blocks.items()):
        x = LEFT + column * (i + 0.5)
        if i % step == 0:
            short = block if len(block) <= 12 else f"{block[:3]}..{block[-7:]}"
            turn = f'transform="translate({x + 3:.1f},{HEIGHT - BOTTOM + 6}) rotate(-60)"'
            parts.append(f'<text {turn} text-anchor="end">{_text(short)}</text>')
        value = f"{last[block]:.5g}" if block in last else "not measured"
        label = _text(f"{block}, stage {stage}\n{value}")
        place = f'x="{x - column / 2:.1f}" y="{TOP}" width="{column:.1f}"'
        parts.append(f'<rect class="h" {place} height="{HEIGHT - TOP}" data-t="{label}"/>')
    return parts


def _count_chart(rows):
    """Return values over counts (lesions, swaps, repetitions); dashed: the unmodified network."""
    counted = [r for r in rows if r.unit is not None and math.isfinite(r.value)]
    axes = _Axes([row.value for row in rows])
    units = sorted({row.unit for row in counted}) or [0]
    width = (WIDTH - LEFT - RIGHT - 12) / max(units[-1] - units[0], 1)
    parts = [axes.draw()]
    for row in rows:
        if row.unit is None and math.isfinite(row.value):
            parts.append(f'<path class="w" d="M{LEFT} {axes.y(row.value)}H{WIDTH - RIGHT}"/>')
    for row in counted:
        x = round(LEFT + 6 + width * (row.unit - units[0]), 1)
        label = _text(f"{row.block or ''} {row.unit}: {row.value:.5g}")
        place = f'cx="{x}" cy="{axes.y(row.value)}"'
        parts.append(f'<circle class="d" {place} r="3" data-t="{label}"/>')
    for unit in units[:: -(-len(units) // LABELS)]:
        x = round(LEFT + 6 + width * (unit - units[0]), 1)
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{unit}</text>')
    return _svg(parts)


def _image(values):
    """Return an image of values by block (rows) and unit; blue: negative, red: positive."""
    from matplotlib.image import imsave

    largest = np.nanmax(np.abs(values), initial=0) or 1.0
    strength = np.nan_to_num(np.abs(values) / largest)[..., None]
    tone = np.where(values[..., None] < 0, (31, 95, 168), (192, 74, 38))
    pixels = (255 - strength * (255 - tone)).astype("uint8")
    png = io.BytesIO()
    imsave(png, pixels)
    source = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
    height = min(max(8 * len(values), 40), 200)
    rows = f"{len(values)} blocks (rows), {values.shape[1]} units; largest {largest:.4g}"
    return f'<img alt="{rows}" src="{source}" style="height:{height}px"><small>{rows}</small>'
