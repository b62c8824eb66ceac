"""A page of a table of values: one file, read without a server or a network."""

import html
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from zoo.callbacks import charts
from zoo.callbacks.probes.probe import Table
from zoo.io import replace
from zoo.types import PathLike

STYLE = """:root{color-scheme:light dark;--soft:GrayText}*{box-sizing:border-box}
body{font:15px/1.45 system-ui,sans-serif;max-width:78em;margin:1.5em auto;padding:0 1em}
h1{font-size:1.35em;margin-bottom:.2em}h2{font-size:1.1em;margin-top:1.8em}
h3{font:600 .95em system-ui;margin:0}p{max-width:52em}.soft{color:var(--soft)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9em}
td,th{padding:.18em .6em;text-align:right;border-bottom:1px solid #8884;white-space:nowrap}
td.t,th.t{text-align:left}summary{cursor:pointer;color:var(--soft)}details p{font-size:.9em}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(22em,100%),1fr));gap:1.2em}
svg{width:100%;height:auto;display:block;color:var(--soft)}svg text{fill:currentColor}
.refines{color:#3d9a58}.replaces{color:#b07d00}.idle{color:var(--soft)}
.undoes,.explodes{color:#d9534f}"""

MEANINGS = {  # by the beginning of a value's name
    "activation_norm": "Norm of a block's output: does it grow from block to block?",
    "block_influence": "1 - cosine of a block's skip input and output; near 0 it may be removed.",
    "block_outputs": "Mean output of each unit; equal columns from block to block are carried.",
    "borderline_examples": "Early readout of the examples near a decision boundary, and of others.",
    "class_gates": "Mean gate over a class's examples minus that over all examples.",
    "cosine_input": "Cosine of f and the skip input x; negative: the block takes away from x.",
    "cosine_loss": "Cosine of f and the loss gradient; negative: the block lowers the loss.",
    "dominant_flow": "Share of channels that get most of their gradient through the feature of "
    "their index.",
    "estimation_error": "Mean difference of a block's output from its stage's last output.",
    "exit_": "The network stopped after each block: later ones return their skip input.",
    "gate_activity": "Mean gate: T near 0 carries the input, near 1 replaces it; C the reverse.",
    "gate_bias": "Bias of the gate's logits; negative: the input is carried.",
    "gradient_norm": "Norm of the loss gradient at a block's input: does it vanish or explode?",
    "interlayer_cushion": "How much better the part of the network between two blocks passes the "
    "signal than noise.",
    "intermediate_accuracy": "Accuracy and loss of the classifier applied to each block's output.",
    "l2_ratio": "|f| / |x|: small changes refine the skip input x, 1 and more replace it.",
    "layer_cushion": "How much better a layer passes its input than noise of the same size.",
    "lesion_": "Each block left out, one at a time: a redundant block barely changes the output.",
    "lesions_": "Several random blocks left out at once; those that change the shape stay.",
    "logit_lens": "The network's tail applied to each block's output, against its own output.",
    "loop_": "A run of blocks used so many times; angles in degrees, divergences in nats.",
    "norm_growth": "|y| / |x|: growth of activations through a block.",
    "residual_mean": "Mean of a block's residual function over examples; 0: it has no bias.",
    "shuffle_": "The blocks of each stage in a random order, against the order's Kendall tau.",
    "taylor_term": "A block's change of the loss, to first order.",
    "weight_statistics": "Mean, deviation, L1 norm and largest value of a block's kernels.",
}


def write_html(table: Table, path: PathLike, title: str | None = None, head: str = "") -> None:
    """Write a page with every probe's chart, meaning and numbers; it needs no server.

    Args:
        table: The table.
        path: The file.
        title: Title of the page; `None`: the table's.
        head: HTML below the title, such as a table of verdicts.
    """
    title = title or table.title or "Probes"
    parts = [f"<h1>{html.escape(title)}</h1>", head]
    parts.append('<h2>Measures</h2><div class="grid">')
    parts += (_section(table, probe) for probe in charts.panels(table))
    parts.append("</div>")
    if table.notes:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
        parts.append(f"<h2>Not measured</h2><ul>{notes}</ul>")
    text = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}'
        f'</title><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )
    replace(pathlib.Path(path), lambda new: new.write_text(text, encoding="utf-8"))


def html_table(lines: Iterable[Sequence[Any]], left: Sequence[int], classes: Any = ()) -> str:
    """Return a table whose first line is its head.

    Args:
        lines: Cells.
        left: Indices of the columns that are text.
        classes: For each line below the head, the class of its second cell.
    """
    kinds = ["", *classes]
    rows = []
    for i, line in enumerate(lines):
        cells = []
        for j, cell in enumerate(line):
            kind = "t" * (j in left) + (f" {kinds[i]}" if j == 1 and i < len(kinds) else "")
            tag = "td" if i else "th"
            cells.append(f'<{tag} class="{kind.strip()}">{html.escape(str(cell))}</{tag}>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _section(table, probe):
    """Return the chart of one probe with its meaning and numbers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 2.6), layout="constrained")
    charts.draw(figure.subplots(), table, probe)
    fitting = [name for name in MEANINGS if probe.startswith(name)]
    details = f"<p>{MEANINGS[max(fitting, key=len)]}</p>" if fitting else ""
    rows = table.of_probe(probe).rows
    if all(row.unit is None for row in rows):
        details += _numbers(table, probe, rows)
    return (
        f"<section><h3>{html.escape(probe)}</h3>{charts.to_svg(figure)}"
        f"<details><summary>meaning and numbers</summary>{details}</details></section>"
    )


def _numbers(table, probe, rows):
    """Return a table of the values by block, a column for each epoch, and the deviations."""
    epochs = [*dict.fromkeys(row.epoch for row in rows)]
    columns = {"value" if e is None else f"epoch {e}": table.values(probe, e) for e in epochs}
    if f"{probe}_std" in table.probes():
        columns["deviation"] = table.values(f"{probe}_std", epochs[-1])
    blocks = dict.fromkeys((row.block, row.stage) for row in rows)
    lines = [
        [
            block or "network",
            "" if stage is None else stage,
            *(f"{values[block]:.5g}" if block in values else "" for values in columns.values()),
        ]
        for block, stage in blocks
    ]
    return html_table([["block", "stage", *columns], *lines], left=[0])
