"""Figs 7, 8 and 9 of Yu & Tomasi (2019), as plain_vs_residual.py draws them.

It imports this from beside itself.
"""

import numpy as np

from experiment import plots
from yutomasi2019 import networks as plain_nets
from yutomasi2019 import tables

RISKS = {"plain": {32: 0.13, 44: 0.46}, "transferred": {32: 0.055, 44: 0.083}}  # Fig. 9, 10 runs
RISK = "mean training cross entropy, nats"  # by epoch, without the penalty, as the paper's risk
MARKS = {"plain": "x", "residual": "+", "transferred": "1", "dominant": "2"}  # the paper's values
PAPER = f"the paper after {plain_nets.EPOCHS} epochs"
STARTS = {"plain": "Kaiming's start", "transferred": "the residual's start"}


def write(folder, all_found):
    """The figures that are asked for, of what there is, and Fig. 9's lines of results."""
    for depth in dict.fromkeys(one.key[1] for one in all_found):
        mine = [one for one in all_found if one.key[1] == depth]
        weighed = [one for one in mine if one.weights]
        if weighed and plain_nets.wants("fig7"):
            modes = {one.paper(tables.MODES) for one in weighed} - {None}
            rows = [row for one in weighed for row in histograms(one)]
            draw_weights(folder / f"fig7-depth{depth}.png", rows, modes)
        if plain_nets.wants("fig8"):
            draw_risk(folder / f"fig8-depth{depth}.png", mine)
    pairs = {one.key: one for one in all_found if one.key[0] in STARTS}
    if plain_nets.wants("fig9") and pairs:
        draw_starts(folder / "fig9.png", pairs)
        for one in pairs.values():
            readings, value = [plain_nets.TRAINING], risk(one)[-1]
            facts = {"metric": "training_risk", "readings": readings}
            one.trained.write(folder, "fig9", round(value, 6), one.paper(RISKS), **facts)


def risk(found):
    """Mean cross entropy of each epoch's training, without the penalty."""
    return found.trained.history[plain_nets.RISK]


def histograms(found):
    """The rows of Fig. 7 of a network."""
    for when, groups in found.weights.items():
        for key in ("all", "identity"):
            counts = np.histogram(groups[key], tables.BINS)[0].tolist()
            for low, count in zip(tables.BINS[:-1].tolist(), counts, strict=True):
                row = {"network": found.key[0], "when": when, "entries": key}
                yield {**row, "from": round(low, 4), "count": count}


def draw_weights(path, rows, modes=()):
    """Fig. 7: all weights and below those of the identity, before and after training.

    Args:
        path: Of the picture.
        rows: Of `histograms`, of the networks in the picture.
        modes: Of the identity's entries after training, the paper's.
    """
    figure, axes = plots.new(8, 5, nrows=2, ncols=2)
    networks = [*dict.fromkeys(row["network"] for row in rows)]
    residual = [network for network in networks if network != "plain"] or networks
    styles = dict(zip(networks, plots.styles(), strict=False))
    shown = {"all": ("all weights", networks), "identity": ("entries of the identity", residual)}
    for line, (key, (named, mine)) in zip(axes, shown.items(), strict=True):
        for axis, when in zip(line, ("before", "after"), strict=True):
            for network in mine:
                wanted = {"network": network, "when": when, "entries": key}
                counts = [row["count"] for row in rows if wanted.items() <= row.items()]
                axis.stairs(counts, tables.BINS, label=network, **styles[network])
            axis.set(xlabel="entry of the plain kernel", ylabel="entries")
            axis.set_title(f"{named}, {when} training", fontsize=9)
            axis.set_ylim(0, 800 if key == "all" else None)  # the paper clips there, too
    for mode in modes:
        axes[1, 1].axvline(mode, color="0.5", linestyle="--", label=f"the paper's mode, {mode}")
    for axis in axes.flat:
        axis.legend(fontsize=7)
    plots.save(path, figure, rows)


def draw_risk(path, all_found):
    """Fig. 8: risk and test error by epoch, and one by the other."""
    figure, (left, middle, right) = plots.new(11, 3.5, ncols=3)
    rows = []
    for one, style in zip(all_found, plots.styles(), strict=False):
        (network, depth), risks = one.key, risk(one)
        errors = [1 - value for value in one.trained.history["val_accuracy"]]
        epochs, line = range(1, 1 + len(risks)), {"label": f"{network} {depth}", **style}
        for axis, x, y in ((left, epochs, risks), (middle, epochs, errors), (right, risks, errors)):
            axis.plot(x, y, marker=".", **line)
        loss, _, error = one.paper(tables.TRAINED, (None,) * 3)
        if loss is not None:
            mark = {"marker": MARKS[network], "color": "black", "linestyle": ""}
            left.plot(epochs[-1], loss, label=f"{network} {depth}, {PAPER}", **mark)
            middle.plot(epochs[-1], error, **mark)
            right.plot(loss, error, **mark)
        rows += (
            {"network": network, "depth": depth, "epoch": e, "risk": a, "test_error": b}
            for e, a, b in zip(epochs, risks, errors, strict=True)
        )
    left.set(xlabel="epoch", ylabel=RISK, yscale=scale(rows))
    middle.set(xlabel="epoch", ylabel="test error, share of images")
    right.set(xlabel=RISK, ylabel="test error, share of images", xscale=scale(rows))
    left.legend(fontsize=7)
    plots.save(path, figure, rows)


def scale(rows):
    """Of an axis of risks: logarithmic where it helps."""
    risks = [row["risk"] for row in rows]
    return "log" if max(risks) > 5 * min(risks) else "linear"


def draw_starts(path, pairs):
    """Fig. 9: plain networks from Kaiming's start and from the residual's, and the difference."""
    figure, (left, right) = plots.new(8, 3.5, ncols=2)
    styles, rows = plots.styles(), []
    for (network, depth), one in pairs.items():
        risks, style = risk(one), next(styles)
        epochs = range(1, 1 + len(risks))
        left.plot(epochs, risks, marker=".", label=f"{depth}, {STARTS[network]}", **style)
        paper = one.paper(RISKS)
        if paper is not None:
            label = f"{PAPER}: {paper:g}"
            left.plot(epochs[-1], paper, MARKS[network], color="black", label=label)
        rows += (
            {"network": network, "depth": depth, "epoch": epoch, "risk": value, "paper": paper}
            for epoch, value in zip(epochs, risks, strict=True)
        )
    for depth in dict.fromkeys(depth for _, depth in pairs):
        both = [pairs.get((network, depth)) for network in STARTS]
        if None not in both:
            gap = np.subtract(*map(risk, both))
            style = next(styles)
            right.plot(range(1, 1 + len(gap)), gap, marker=".", label=f"{depth} layers", **style)
            right.legend(fontsize=7)
    left.set(xlabel="epoch", ylabel=RISK)
    right.set(xlabel="epoch", ylabel="Kaiming's less the residual's, nats")
    left.legend(fontsize=7)
    plots.save(path, figure, rows)
