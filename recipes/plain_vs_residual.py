"""Yu & Tomasi (2019), Tables 1 to 5, Figs 6 to 9: plain and residual networks on CIFAR-10.

    python recipes/plain_vs_residual.py --data_dir cifar10.npz --depths 20,44
    python recipes/plain_vs_residual.py --networks residual --depths 20 --budget paper

The simplified networks of one convolution a block: `plain` from Kaiming's initial weights (KWI),
`residual` from Hardt and Ma's (HMWI), `transferred`, the plain network that equals the latter at
the start and pays the same penalty, and `dominant`, kernels with dominant entries only; on request
`full_plain` and `full_residual`, with two normalised convolutions a block. The paper's test errors
at depth 20, 32, 44: plain 12.63, 13.49, 22.13 %; transferred 11.21, 10.85, 11.59; residual 11.31,
11.43, 11.82; dominant 31.52, 31.19, 31.83.

--run_dir gets, each with its CSV, fig6.png (the distance of equivalent networks, step by step, in
float32), fig7-NETWORK.png (weights before and after; table3-NETWORK.csv has their statistics),
fig8.png (risk and test error by epoch, and test error at equal risk), fig9.png (plain networks from
both starts: risk, and its difference), and losses.csv (Tables 1, 2, 4 and 5). The networks are kept
in --runs, each with what highway_conv.py leaves.
"""

import divergence  # beside this script
import figures
import hardware
import image_recipe
import numpy as np
import plain_nets
from absl import app, flags

ERRORS = {  # Tables 1, 2 and 5, in %, depth by depth
    "plain": {20: 12.63, 32: 13.49, 44: 22.13},
    "transferred": {20: 11.21, 32: 10.85, 44: 11.59},
    "residual": {20: 11.31, 32: 11.43, 44: 11.82},
    "dominant": {20: 31.52, 32: 31.19, 44: 31.83},
}
TABLE4 = {  # training loss and penalty, before and after, depth by depth; of residual: Table 1
    "plain": {
        20: (2.309, 5.393e-4, 0.07227, 7.743e-4),
        32: (2.308, 8.878e-4, 0.1225, 9.458e-4),
        44: (2.309, 1.238e-3, 0.4950, 1.180e-3),
    },
    "transferred": {
        20: (None, None, 0.04132, 5.122e-4),
        32: (None, None, 0.04880, 5.561e-4),
        44: (None, None, 0.07345, 6.194e-4),
    },
    "residual": {
        20: (2.305, None, 0.04287, None),
        32: (2.305, None, 0.04847, None),
        44: (2.306, None, 0.07397, None),
    },
    "dominant": {20: (None, None, 0.9385, None), 32: (None, None, 0.9440, None)},
}
TABLE4["dominant"][44] = (None, None, 0.9397, None)
LOSSES = ("start_loss", "start_penalty", "end_loss", "end_penalty")
BINS = np.linspace(-1, 1.5, 101)  # of Fig. 7

divergence.define_flags()
plain_nets.define_flags(["20", "32", "44"])
FLAGS = flags.FLAGS


def main(argv):
    image_recipe.check(argv)
    asked = plain_nets.asked()
    given = FLAGS.run_dir or f"runs/plain-vs-residual-{plain_nets.short(asked)}"
    losses, histories = [], {}
    for network, depth in asked:
        run = plain_nets.prepare(network, depth)
        folder = hardware.folder_for(given)
        folder.mkdir(parents=True, exist_ok=True)
        losses.append(one(run, network, depth, folder))
        histories[network, depth] = run.resume.read()["history"]["history"]
        figures.write_rows(folder / "losses.csv", losses)
    draw_risk(folder / "fig8.png", histories)
    draw_starts(folder / "fig9.png", histories)
    if FLAGS.divergence_steps and {"plain", "residual"} <= {network for network, _ in asked}:
        depths = dict.fromkeys(depth for _, depth in asked)
        found = {depth: divergence.diverge(depth) for depth in depths}
        divergence.draw(folder / "fig6.png", found)


def one(run, network, depth, folder):
    """Trains one network; its line of results, its weights, its row of losses.csv."""
    start, before = losses_of(run), kernels(run.model)
    image_recipe.train(run)
    end = losses_of(run)
    if before:
        draw_weights(folder, f"{network}{depth}", before, kernels(run.model))
    error = ERRORS.get(network, {}).get(depth)
    line = image_recipe.finish(
        run,
        f"{network}{depth}",
        {},
        None if error is None else round(100 - error, 2),
        [
            "optimizer, rates, clip and augmentation are ours: the paper does not say",
            "training loss of the first 2,000 images, as at test",
        ],
        training_loss=[round(loss, 6) for loss in (start[0], end[0])],
        penalty=[round(value, 8) for value in (start[1], end[1])],
        own_penalty=[round(value, 9) for value in (start[2], end[2])],
    )
    paper = TABLE4.get(network, {}).get(depth, [None] * len(LOSSES))
    names = (*LOSSES[:2], "start_own_penalty", *LOSSES[2:], "end_own_penalty")
    return {
        **{"network": network, "depth": depth, **dict(zip(names, start + end, strict=True))},
        "test_error": 1 - line["value"] / 100,
        **{f"paper_{name}": value for name, value in zip(LOSSES, paper, strict=True)},
        "paper_test_error": None if error is None else error / 100,
    }


def losses_of(run):
    """Cross entropy, the penalty that is paid, and that of the weights as they are.

    The residual network pays what its plain equal would: Table 4's is that of its own weights.
    """
    from zoo.penalty import FACTOR, penalty

    squares = sum(float(np.sum(np.square(w))) for w in all_kernels(run.model))
    return [cross_entropy(run), penalty(run.model), FACTOR * squares]


def all_kernels(model):
    import keras

    found = [v for v in model.trainable_variables if v.path.split("/")[-1] == "kernel"]
    return [keras.ops.convert_to_numpy(v) for v in found]


def cross_entropy(run):
    """Mean loss over the first 2,000 training images as at test, without the penalty."""
    import keras

    x, y = run.prepared(run.images.x_train[:2000]), run.images.y_train[:2000]
    losses = keras.losses.sparse_categorical_crossentropy(y, run.model.predict(x, verbose=0))
    return float(np.mean(keras.ops.convert_to_numpy(losses)))


def kernels(model):
    """Entries of the blocks' plain kernels, by group: all, large ones, those of the identity."""
    from zoo.layers.simplified import SimplifiedPlain, SimplifiedResidual
    from zoo.mapping import id_entries, plain_kernel

    entries, identity = [], []
    for layer in model.layers:
        if isinstance(layer, SimplifiedPlain | SimplifiedResidual):
            w = plain_kernel(layer)
            entries.append(w.ravel())
            identity.append(w[id_entries(w, layer.identity)])
    if not entries:
        return None
    entries, identity = np.concatenate(entries), np.concatenate(identity)
    found = {"all": entries, "identity": identity}
    for name, w in (("", entries), ("identity ", identity)):
        found[f"{name}> 0.25"] = w[np.abs(w) > 0.25]
    return {**found, "> 0.7": entries[np.abs(entries) > 0.7]}


def draw_weights(folder, name, before, after):
    """Table 3 and Fig. 7."""
    rows, figure_rows = [], []
    figure, axes = figures.new(8, 3, ncols=2)
    for axis, when, groups in zip(axes, ("before", "after"), (before, after), strict=True):
        for key, w in groups.items():
            numbers = (w.mean(), w.std(), np.abs(w).sum()) if w.size else (0.0, 0.0, 0.0)
            numbers = dict(zip(("mean", "std", "l1"), map(float, numbers), strict=True))
            rows.append({"when": when, "entries": key, "count": w.size, **numbers})
        for key, color in (("all", "0.8"), ("identity", "black")):
            counts = np.histogram(groups[key], BINS)[0]
            axis.stairs(counts, BINS, fill=key == "all", color=color, label=key)
            figure_rows += (
                {"when": when, "entries": key, "from": round(low, 4), "count": int(count)}
                for low, count in zip(BINS[:-1], counts, strict=True)
            )
        axis.set(ylim=(0, 800), title=f"{when} training")  # the paper clips there, too
        axis.set(xlabel="entry of the plain kernel", ylabel="entries")
        axis.legend()
    figures.write_rows(folder / f"table3-{name}.csv", rows)
    figures.save(folder / f"fig7-{name}.png", figure, figure_rows)


def draw_risk(path, histories):
    """Fig. 8: training loss (with the penalty) and test error by epoch, and one by the other."""
    figure, (left, middle, right) = figures.new(11, 3.5, ncols=3)
    rows = []
    for ((network, depth), history), style in zip(
        histories.items(), figures.styles(), strict=False
    ):
        loss, error = history["loss"], [1 - value for value in history["val_accuracy"]]
        epochs, line = range(1, 1 + len(loss)), {"label": f"{network} {depth}", **style}
        left.plot(epochs, loss, marker=".", **line)
        middle.plot(epochs, error, marker=".", **line)
        right.plot(loss, error, marker=".", **line)
        paper = ERRORS.get(network, {}).get(depth)
        if paper is not None:
            middle.plot(epochs[-1], paper / 100, "x", color=style["color"])
        rows += (
            {"network": network, "depth": depth, "epoch": e, "loss": one, "test_error": other}
            for e, one, other in zip(epochs, loss, error, strict=True)
        )
    left.set(xlabel="epoch", ylabel="training loss and penalty, nats", yscale=scale(histories))
    middle.set(xlabel="epoch", ylabel="test error (x: the paper's, at its end)")
    right.set(xlabel="training loss and penalty, nats", ylabel="test error")
    right.set(xscale=scale(histories))
    left.legend(fontsize=7)
    figures.save(path, figure, rows)


def scale(histories):
    """Of an axis of losses: logarithmic where it helps."""
    losses = [loss for history in histories.values() for loss in history["loss"]]
    return "log" if max(losses) > 5 * min(losses) else "linear"


def draw_starts(path, histories):
    """Fig. 9: plain networks from Kaiming's start and from the residual's, and the difference."""
    depths = [d for n, d in histories if n == "plain" and ("transferred", d) in histories]
    if not depths:
        return
    figure, (left, right) = figures.new(8, 3.5, ncols=2)
    styles, rows = figures.styles(), []
    for depth in depths:
        starts = [histories[network, depth]["loss"] for network in ("plain", "transferred")]
        epochs = range(1, 1 + len(starts[0]))
        for name, loss in zip(("Kaiming", "residual's"), starts, strict=True):
            left.plot(epochs, loss, marker=".", label=f"{depth}, {name} start", **next(styles))
        gap = np.subtract(*starts)
        right.plot(epochs, gap, marker=".", label=str(depth), **next(styles))
        rows += (
            {"depth": depth, "epoch": e, "plain": a, "transferred": b, "difference": a - b}
            for e, a, b in zip(epochs, *starts, strict=True)
        )
    left.set(xlabel="epoch", ylabel="training loss and penalty, nats")
    right.set(xlabel="epoch", ylabel="difference, nats")
    left.legend(fontsize=7)
    right.legend(fontsize=7)
    figures.save(path, figure, rows)


if __name__ == "__main__":
    app.run(main)
