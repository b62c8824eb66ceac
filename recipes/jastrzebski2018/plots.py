"""Figures of blocks and epochs that the recipes of Jastrzebski et al. (2018) share.

Each function leaves a PNG and the CSV beside it.
"""

import pathlib
from collections.abc import Mapping, Sequence

from experiment import plots
from zoo.callbacks import Table

Path = str | pathlib.Path
GROUPS = ("borderline", "correct", "all")
LABELS = {  # of columns
    "accuracy": "accuracy",
    "loss": "loss in nats",
    "entropy": "entropy in nats",
    "cosine_loss": "cosine of f and dL/dx",
    "cosine_loss_block": "cosine of f and dL/dx",
    "l2_ratio": "|f| / |x|",
    "lesion_accuracy": "accuracy without the block",
    "intermediate_accuracy": "accuracy after the block",
    "index": "residual block",
}
IN_TRAINING = ("cosine_loss_block", "l2_ratio", "intermediate_accuracy")  # probes of each epoch


def by_block(
    path: Path, tables: Mapping[str, Table], probe: str, mark: float | None = None
) -> None:
    """Draw a probe over the blocks of the trained network, a line a split: Figs 2, 3 and 4.

    Args:
        path: Path of the PNG.
        tables: By split.
        probe: Its name; its value of the whole network is drawn across.
        mark: The paper's value at the last block, where there is one.
    """
    rows = []
    marks = []
    for split, table in tables.items():
        blocks = 0
        for block, value in table.values(probe).items():
            rows.append({"split": split, "block": block or "", probe: value})
            if block is None:
                label = f"{split}, all blocks"
                marks.append({"split": split, probe: value, "label": label})
            else:
                rows[-1]["index"] = blocks
                blocks += 1
    if mark is not None:
        label = "the paper's last block (about)"
        marks.append({"index": blocks - 1, probe: mark, "label": label})
    plots.lines(
        path,
        rows,
        x="index",
        y=probe,
        by="split",
        marks=marks,
        labels=LABELS,
        table=[{key: row[key] for key in ("split", "block", probe)} for row in rows],
    )


def by_epoch(path: Path, table: Table, probes: Sequence[str], title: str = "") -> None:
    """Draw probes of the last stage's blocks in training: Figs 5, 13, 14, 18 and 19.

    Args:
        path: Path of the PNG.
        table: Table of `RunProbes`; empty if no epoch was probed: then nothing is drawn.
        probes: Names, a panel each.
        title: Title of the figure.
    """
    if not len(table):
        return
    values = {probe: last_stage(table, probe) for probe in probes}
    blocks = dict.fromkeys(block for by_block in values.values() for block in by_block)
    rows = []
    for block in blocks:
        epochs = {epoch for by_block in values.values() for epoch in by_block[block]}
        for epoch in sorted(epochs):
            known = {probe: values[probe][block].get(epoch, "") for probe in probes}
            rows.append({"epoch": epoch, "block": block, **known})
    plots.lines(path, rows, x="epoch", y=probes, by="block", labels=LABELS, title=title)


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


def groups(
    path: Path,
    tables: Mapping[str, Table],
    label: str,
    first: int = 0,
    marks: Sequence[Mapping] = (),
) -> None:
    """Draw accuracy, loss and entropy of borderline, correct and all examples: Figs 6 and 7.

    Args:
        path: Path of the PNG.
        tables: By split, with `BorderlineExamples`.
        label: Label of the horizontal axis.
        first: Its first number.
        marks: The paper's values, by the columns split, group, place, and accuracy or loss.
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
    plots.lines(
        path,
        rows,
        x="place",
        y=metrics,
        by="group",
        panel="split",
        marks=marks,
        labels={**LABELS, "place": label},
    )


def unrolled(path: Path, tables: Mapping[float, Mapping[str, Table]], trained: int) -> None:
    """Draw cosine loss and l2 ratio of the last stage, its last block repeated: Fig. 20.

    The cosine drawn is that of Fig. 13, with the gradient of the early readout at the block's
    input; the CSV also has that with the loss of the whole network, 0 where repetitions saturate
    it.

    Args:
        path: Path of the PNG.
        tables: By scale of the repetitions, and by split.
        trained: Number of blocks that the last stage was trained with.
    """
    drawn = ("cosine_loss_block", "l2_ratio")
    rows = [
        {"scale": scale, "split": split, "block": i, "probe": probe, "value": value}
        for scale, by_split in tables.items()
        for split, table in by_split.items()
        for probe in (*drawn, "cosine_loss")
        for i, value in enumerate(at_end(table, probe))
    ]
    plots.lines(
        path,
        [{**row, row["probe"]: row["value"]} for row in rows],
        x="block",
        y=drawn,
        by="split",
        panel="scale",
        marks=[{"block": trained - 0.5, "label": "repetitions begin"}],
        labels={**LABELS, "block": "block of the last stage", **scales(tables)},
        table=rows,
    )


def scales(tables: Mapping[float, object]) -> dict[str, str]:
    """Return titles of panels by scale."""
    return {str(scale): f"f scaled by {scale}" for scale in tables}
