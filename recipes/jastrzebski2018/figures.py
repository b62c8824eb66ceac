"""Figures of Jastrzebski et al. (2018), each a function of a path and tidy rows; and their rows.

A function writes a PNG and the CSV file of its rows beside it, so that a figure can be drawn again
(`report.redraw`). Rows with a column "seed" are drawn as means in bands. The paper's values are
rows, too: PAPER stands in their split, group or network.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiment import plots
from zoo.callbacks import Table

Row = dict[str, Any]
GROUPS = ("borderline", "correct", "all")
PAPER = "the paper"
LABELS = {  # of columns
    "accuracy": "accuracy",
    "loss": "loss in nats",
    "entropy": "entropy in nats",
    "cosine_loss": "cosine of f and dL/dx",
    "cosine_loss_block": "cosine of f and dL/dx, early readout",
    "l2_ratio": "|f| / |x|",
    "lesion_accuracy": "accuracy without the block",
    "intermediate_accuracy": "accuracy after the block",
    "activation_norm": "mean norm of the block's output",
    "ratio": "gradient norm, first stage / last stage",
}
IN_TRAINING = ("cosine_loss_block", "l2_ratio", "intermediate_accuracy")  # probes of each epoch


def block_rows(tables: Mapping[str, Table], probe: str, mark: float | None = None) -> list[Row]:
    """Return the rows of Figs 2, 3 and 4: a probe of each block; no block: all of them.

    Tables are by split; `mark` is the paper's value at the last block, where there is one.
    """
    rows = [
        {"split": split, "block": block or "", probe: value}
        for split, table in tables.items()
        for block, value in table.values(probe).items()
    ]
    if mark is not None:
        rows.append({"split": PAPER, "block": rows[-1]["block"], probe: mark})
    return rows


def fig2(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Draw a probe over the blocks of the trained network, a line a split: Figs 2, 3 and 4."""
    probe = [*rows[0]][-1]
    indices = {block: i for i, block in enumerate(_column(rows, "block", skipped=("",)))}
    shown = [{**row, "index": indices[row["block"]]} for row in rows if row["block"] != ""]
    marks = [
        {probe: _mean(rows, probe, split=split, block=""), "split": split, "label": f"{split}, all"}
        for split in _column(rows, "split")
        if any(row["split"] == split and row["block"] == "" for row in rows)
    ]
    marks += [
        {"index": row["index"], probe: row[probe], "label": f"{PAPER}'s last block (about)"}
        for row in shown
        if row["split"] == PAPER
    ]
    plots.lines(
        path,
        [row for row in shown if row["split"] != PAPER],
        x="index",
        y=probe,
        by="split",
        marks=marks,
        labels={**LABELS, "index": "residual block"},
        title=path.stem,
        table=rows,
    )


fig3 = fig4 = fig10 = fig11 = fig12 = fig2


def epoch_rows(table: Table, probes: Sequence[str]) -> list[Row]:
    """Return the rows of Figs 5, 13, 14, 18 and 19: the last stage's blocks in training.

    The table is of `RunProbes`, without rows if no epoch was probed.
    """
    values = {probe: last_stage(table, probe) for probe in probes} if len(table) else {}
    rows = []
    for block in dict.fromkeys(block for by_block in values.values() for block in by_block):
        epochs = {epoch for by_block in values.values() for epoch in by_block[block]}
        for epoch in sorted(epochs):
            known = {probe: values[probe][block].get(epoch, "") for probe in probes}
            rows.append({"epoch": epoch, "block": block, **known})
    return rows


def fig5(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Draw probes of the last stage's blocks in training, a panel each; without rows nothing."""
    if not rows:
        return
    probes = [key for key in rows[0] if key not in ("seed", "epoch", "block")]
    plots.lines(path, rows, x="epoch", y=probes, by="block", labels=LABELS, title=path.stem)


fig13 = fig14 = fig15 = fig16 = fig17 = fig18 = fig19 = fig5


def last_stage(table: Table, probe: str) -> dict[str, dict[int | None, float]]:
    """Return a probe's values by epoch, by block of the last stage, in order."""
    rows = [row for row in table.of_probe(probe) if row.block and row.unit is None]
    values: dict[str, dict[int | None, float]] = {}
    for row in rows:
        if row.stage == rows[-1].stage:
            values.setdefault(row.block, {})[row.epoch] = row.value
    return values


def at_end(table: Table, probe: str) -> list[float]:
    """Return a probe's values at the blocks of the last stage, of a table of one pass."""
    by_block = last_stage(table, probe)
    return [value for by_epoch in by_block.values() for value in by_epoch.values()]


def group_rows(tables: Mapping[str, Table], first: int = 0, paper: Sequence[Row] = ()) -> list[Row]:
    """Return the rows of Figs 6 and 7: accuracy, loss and entropy of three groups of examples.

    Tables of `BorderlineExamples` are by split, places count from `first`, and the paper's values
    have the columns split, group, place, and accuracy or loss.
    """
    metrics = ("accuracy", "loss", "entropy")
    rows = []
    for split, table in tables.items():
        for group in GROUPS:
            columns = {
                key: at_end(table, f"borderline_examples_{group}_{key}")
                for key in ("share", *metrics)
                if f"borderline_examples_{group}_{key}" in table.probes()
            }
            for index, share in enumerate(columns["share"]):
                row = {"split": split, "place": first + index, "group": group, "share": share}
                for key in metrics:  # of a group without examples there is no accuracy
                    row[key] = columns[key][index] if columns.get(key) else ""
                rows.append(row)
    empty = {key: "" for key in ("split", "place", "group", "share", *metrics)}
    return rows + [{**empty, **row, "group": f"{row['group']}, {PAPER}"} for row in paper]


def fig6(path: pathlib.Path, rows: Sequence[Row], x: str = "block of the last stage") -> None:
    """Draw the groups' accuracy, loss and entropy over the places, a row of panels a split."""
    marks = [
        {**row, "group": row["group"].removesuffix(f", {PAPER}"), "label": row["group"]}
        for row in rows
        if row["group"].endswith(PAPER)
    ]
    plots.lines(
        path,
        [row for row in rows if not row["group"].endswith(PAPER)],
        x="place",
        y=("accuracy", "loss", "entropy"),
        by="group",
        panel="split",
        marks=marks,
        labels={**LABELS, "place": x},
        title=path.stem,
        table=rows,
    )


def fig7(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Draw the groups over the repetitions of the last block."""
    fig6(path, rows, "repetitions of the last block")


def unrolled_rows(tables: Mapping[float, Mapping[str, Table]], trained: int) -> list[Row]:
    """Return the rows of Fig. 20: probes of the last stage, its last block repeated.

    Tables are by scale of the repetitions, and by split; the trained stage had `trained` blocks.
    """
    return [
        {
            "scale": scale,
            "split": split,
            "block": block,
            "repetition": max(0, block + 1 - trained),
            "probe": probe,
            "value": value,
        }
        for scale, by_split in tables.items()
        for split, table in by_split.items()
        for probe in ("cosine_loss", "cosine_loss_block", "l2_ratio")
        for block, value in enumerate(at_end(table, probe))
    ]


def fig20(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Draw the probes of the blocks and of their repetitions: f unscaled above, scaled below.

    Each seed has a best scale of its own.
    """
    begin = min(row["block"] for row in rows if row["repetition"])
    scales = ", ".join(map(str, sorted(_column(rows, "scale", skipped=(1.0,)))))
    panels = {True: "f unscaled", False: f"f scaled by {scales}"}
    plots.lines(
        path,
        [{**row, row["probe"]: row["value"], "scaling": panels[row["scale"] == 1]} for row in rows],
        x="block",
        y=_column(rows, "probe"),
        by="split",
        panel="scaling",
        marks=[{"block": begin - 0.5, "label": "repetitions begin"}],
        labels={**LABELS, "block": "block of the last stage"},
        title=path.stem,
        table=rows,
    )


def fig9(path: pathlib.Path, rows: Sequence[Row], panels: Sequence[str] = ("accuracy",)) -> None:
    """Draw accuracy of both splits by epoch; norms before training if the rows have those."""
    if "activation_norm" in rows[0]:
        return _draw_norms(path, rows)
    shown = []
    marks = []
    for row in rows:
        network = row["network"].removesuffix(f", {PAPER}")
        for split in ("training", "validation", "test"):
            accuracy = row.get(f"{split}_accuracy")
            if accuracy is None:
                continue
            ratio = row["training_ratio" if split == "training" else "test_ratio"]
            point = {**row, "network": network, "split": split}
            point |= {"accuracy": accuracy, "ratio": ratio}
            if network == row["network"]:
                shown.append(point)
            else:
                marks.append({**point, "label": f"{network}, {PAPER}'s last epoch"})
    plots.lines(
        path,
        shown,
        x="epoch",
        y=panels,
        by=["network", "split"],
        marks=marks,
        labels={**LABELS, "accuracy": "accuracy in %", "epoch": "epoch (0: before training)"},
        log=["ratio"],
        title=path.stem,
        table=rows,
    )


def fig8(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Draw accuracy and the ratio of gradient norms by epoch; or norms before training."""
    fig9(path, rows, ("accuracy", "ratio"))


def _draw_norms(path, rows):
    indices: dict[tuple, Iterator[int]] = {}
    shown = []
    for row in rows:
        counter = indices.setdefault((row.get("seed"), row["network"]), iter(range(len(rows))))
        shown.append({**row, "index": next(counter)})
    plots.lines(
        path,
        shown,
        x="index",
        y="activation_norm",
        by="network",
        labels={**LABELS, "index": "block, before training"},
        log=["activation_norm"],
        title=path.stem,
        table=rows,
    )


def _column(rows, key, skipped=()):
    return [*dict.fromkeys(row[key] for row in rows if row[key] not in skipped)]


def _mean(rows, key, **conditions):
    values = [r[key] for r in rows if all(r[k] == value for k, value in conditions.items())]
    return sum(values) / len(values)
