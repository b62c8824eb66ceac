"""Figures of blocks and epochs that the recipes of Jastrzebski et al. (2018) share.

A recipe imports it from beside itself. Each function leaves a PNG and the CSV beside it; tables are
`zoo.callbacks.Table`s.
"""

from experiment import plots

SPLITS = {"train": "-", "test": "--"}  # the paper: solid and dashed
GROUPS = {"borderline": "o-", "correct": "s--", "all": "^:"}
KEYS = {"accuracy": "accuracy", "loss": "loss in nats", "entropy": "entropy in nats"}  # axes
DURING = {  # a probe of the last stage in training, and its axis
    "cosine_loss_block": "cosine of f and dL/dx",
    "l2_ratio": "|f| / |x|",
    "intermediate_accuracy": "accuracy behind the block",
}


def by_block(path, tables, probe, label, mark=None):
    """A probe over the blocks of the trained network, a line a split: Figs 2, 3 and 4.

    Args:
        path: Of the PNG.
        tables: By split.
        probe: A name; what its tables say of the whole network is drawn across.
        label: Of the vertical axis.
        mark: The paper's value at the last block, where there is one.
    """
    figure, axis = plots.new()
    rows = []
    for split, table in tables.items():
        values = table.values(probe)
        line = {"color": "black", "linestyle": SPLITS[split]}
        if None in values:
            axis.axhline(values[None], **{**line, "color": "0.7"}, label=f"{split}, all blocks")
        of_blocks = {block: value for block, value in values.items() if block}
        axis.plot([*of_blocks.values()], **line, marker=".", label=split)
        rows += [{"split": split, "block": b or "", probe: v} for b, v in values.items()]
    if mark is not None:
        last = len(of_blocks) - 1
        axis.plot(last, mark, "kx", label="the paper's last block (about)")
    axis.set(xlabel="residual block", ylabel=label)
    axis.legend(fontsize=7, handlelength=4)
    plots.save(path, figure, rows)


def by_epoch(path, table, probes, title=""):
    """Probes of the last stage's blocks in training, a panel a probe, a line a block.

    Lines go from light to black as blocks go to the output: Figs 5, 13, 14, 18 and 19.

    Args:
        path: Of the PNG.
        table: What `RunProbes` left; empty if no epoch was probed: then nothing is drawn.
        probes: Keys of `DURING`.
        title: Of the figure.
    """
    if not len(table):
        return
    figure, axes = plots.new(4.5 * len(probes), 3.2, ncols=len(probes), squeeze=False)
    lines = {probe: last_stage(table, probe) for probe in probes}
    for axis, (probe, blocks) in zip(axes[0], lines.items(), strict=True):
        for place, (block, values) in enumerate(blocks.items()):
            near = place / max(len(blocks) - 1, 1)
            line = {"color": f"{0.8 - 0.8 * near}", "linestyle": "-" if place % 2 else "--"}
            line["marker"] = "."
            if place in (0, len(blocks) - 1):
                line["label"] = block
            axis.plot(*zip(*values.items(), strict=True), **line)
        axis.set(xlabel="epoch", ylabel=DURING[probe])
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(fontsize=7, handlelength=4)
    figure.suptitle(title)
    rows = [
        {"epoch": epoch, "block": block} | {p: lines[p][block].get(epoch, "") for p in probes}
        for block in dict.fromkeys(block for blocks in lines.values() for block in blocks)
        for epoch in sorted({e for blocks in lines.values() for e in blocks[block]})
    ]
    plots.save(path, figure, rows)


def last_stage(table, probe):
    """A probe's values by epoch, by block of the last stage, in order."""
    rows = [row for row in table.of_probe(probe) if row.block and row.unit is None]
    last, found = rows[-1].stage, {}
    for row in rows:
        if row.stage == last:
            found.setdefault(row.block, {})[row.epoch] = row.value
    return found


def at_end(table, probe):
    """A probe's values at the blocks of the last stage, of a table of one pass."""
    return [value for by_epoch in last_stage(table, probe).values() for value in by_epoch.values()]


def groups(path, tables, label, first=0, marks=None):
    """Accuracy, loss and entropy of borderline, correct and all examples: Figs 6 and 7.

    Args:
        path: Of the PNG.
        tables: By split, with `BorderlineExamples`.
        label: Of the horizontal axis.
        first: Its first number.
        marks: By split and metric, the paper's values of a group at 0 and 20, if there are any.
    """
    marks = marks or {}
    figure, axes = plots.new(10, 5.5, nrows=2, ncols=3, squeeze=False)
    rows = []
    for line, (split, table) in zip(axes, tables.items(), strict=True):
        found = {
            (group, key): at_end(table, name)
            for group in GROUPS
            for key in ("share", *KEYS)
            if (name := f"borderline_examples_{group}_{key}") in table.probes()
        }
        for axis, key in zip(line, KEYS, strict=True):
            for group, style in GROUPS.items():
                values = found.get((group, key), ())
                places = range(first, first + len(values))
                axis.plot(places, values, style, color="black", markersize=3, label=group)
            if (split, key) in marks:
                group, values = marks[split, key]
                axis.plot((0, 20), values, "x", color="0.4", label=f"{group}, paper")
                axis.legend(fontsize=7, handlelength=4)
            axis.set(xlabel=label, ylabel=f"{KEYS[key]}, {split}")
            axis.xaxis.get_major_locator().set_params(integer=True)
        rows += groups_rows(split, found, first)
    axes[0][0].legend(fontsize=7, handlelength=4)
    axes[1][0].legend(fontsize=7, handlelength=4)
    plots.save(path, figure, rows)


def groups_rows(split, found, first):
    """The CSV of `groups`; a group without examples has no accuracy, loss and entropy."""
    rows = []
    for group in GROUPS:
        for index, share in enumerate(found[group, "share"]):
            row = {"split": split, "place": first + index, "group": group, "share": share}
            known = {key: found.get((group, key)) for key in KEYS}
            rows.append(row | {key: v[index] if v else "" for key, v in known.items()})
    return rows


def unrolled(path, tables, trained):
    """Cosine loss and l2 ratio of the last stage, its last block repeated: Fig. 20.

    The cosine drawn is that of Fig. 13, with the gradient of a classifier reading the block's x;
    the CSV also has that with the loss of the whole network, 0 where repetitions saturate it.

    Args:
        path: Of the PNG.
        tables: By scale of the repetitions, and by split.
        trained: How many blocks the last stage was trained with.
    """
    shown = ("cosine_loss_block", "l2_ratio")
    figure, axes = plots.new(9, 3 * len(tables), nrows=len(tables), ncols=2, squeeze=False)
    rows = []
    for line, (scale, by_split) in zip(axes, tables.items(), strict=True):
        for axis, probe in zip(line, shown, strict=True):
            for split, table in by_split.items():
                style = {"color": "black", "linestyle": SPLITS[split], "marker": "."}
                axis.plot(at_end(table, probe), label=split, **style)
            axis.axvline(trained - 0.5, color="0.6", linestyle=":")
            axis.axhline(0, color="0.8", linewidth=0.5)
            label = DURING[probe]
            axis.set(xlabel="block of the last stage", ylabel=label, title=f"f scaled by {scale}")
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.legend(fontsize=7, handlelength=4)
        rows += [
            {"scale": scale, "split": split, "block": i, "probe": probe, "value": value}
            for split, table in by_split.items()
            for probe in (*shown, "cosine_loss")
            for i, value in enumerate(at_end(table, probe))
        ]
    plots.save(path, figure, rows)
