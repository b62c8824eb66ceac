"""Srivastava et al. (2015), Fig. 1: plain and highway MLPs of depth 10 to 100, by random search.

    python recipes/mnist_depth.py --data_dir mnist.npz
    python recipes/mnist_depth.py --budget paper

Of each kind and depth, `--configurations` networks (paper: 100, 800 in all) with settings drawn at
random train side by side on MNIST: plain layers of 71 units, highway layers of 50. A loss is the
mean training cross entropy of an epoch, as seen in training; a configuration is judged by its
lowest (footnote 3), and one that becomes NaN or infinite has diverged and is left out. The paper:
plain networks of depth 10 and 20 fall below 1e-4 and deeper ones degrade; at depth 100 the best
highway network's loss is less than a hundredth of the plain one's.

The run directory holds fig1.png and .csv (left: the best of each depth, epoch by epoch; right: the
mean of the best tenth), configurations.csv, results.jsonl, and a folder for each group of networks
with the checkpoint (4 MB a network of depth 100) from which a killed search goes on exactly.
"""

import collections
import dataclasses
import itertools
import math
import pathlib
import sys

import figures  # beside this script
import image_recipe
import numpy as np
from absl import app, flags

UNITS = {"plain": 71, "highway": 50}  # section 3.1: about 5,000 weights a layer
DEPTHS = (10, 20, 50, 100)  # ibid.
CONFIGURATIONS, EPOCHS = 100, 400  # section 3.1; the axis of Fig. 1
BATCH = 100  # ours: the paper does not say
RANGES = {  # ours, but for the names, the activations and the gate bias
    "log10_rate": (-3.0, -0.5),
    "momentum": (0.5, 0.99),
    "decay": (0.9, 1.0),  # of the rate, an epoch
    "activation": ("relu", "tanh"),
    "gate_bias": (-10, -1),  # whole numbers
}
BUDGETS = {"smoke": (2, 1), "minutes": (12, 25), "paper": (CONFIGURATIONS, EPOCHS)}

flags.DEFINE_string("data", "mnist", "See zoo.datasets.images; with --data_dir any name.")
flags.DEFINE_string("data_dir", None, "An .npz file or a folder of images: zoo.datasets.images.")
flags.DEFINE_enum("budget", "minutes", list(BUDGETS), "smoke: two batches.")
flags.DEFINE_integer("configurations", None, "Of each kind and depth.", lower_bound=1)
flags.DEFINE_integer("epochs", None, "Overrides the budget's.", lower_bound=1)
flags.DEFINE_list("depths", [str(depth) for depth in DEPTHS], "Layers without the classifier.")
flags.DEFINE_integer("at_once", 12, "Networks that train together at most.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Of the search and of the order of images.", lower_bound=0)
flags.DEFINE_string("run_dir", None, "Default: runs/mnist_depth-DATA-BUDGET-SEED.")
flags.DEFINE_bool("resume", True, "Go on from the run directory's checkpoints.")
flags.DEFINE_string("results", None, "Also append the lines of results to this file.")
FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the search draws for one network; `seed` is that of its initial weights."""

    index: int
    rate: float
    momentum: float
    decay: float
    activation: str
    gate_bias: int | None
    seed: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Networks that train together."""

    kind: str
    depth: int
    activation: str
    number: int
    members: tuple

    @property
    def name(self):
        return f"{self.kind}{self.depth}-{self.activation}-{self.number}"


def main(argv):
    image_recipe.check(argv)
    if not all(word.isdigit() and int(word) > 1 for word in FLAGS.depths):
        raise app.UsageError(f"Expected --depths of 2 or more layers. Received: {FLAGS.depths}")
    depths = sorted({int(word) for word in FLAGS.depths})
    from zoo import keep_memory
    from zoo.checkpoint import open_run
    from zoo.datasets import images as sources

    configurations = FLAGS.configurations or BUDGETS[FLAGS.budget][0]
    epochs = FLAGS.epochs or BUDGETS[FLAGS.budget][1]
    groups = [g for d in depths for kind in UNITS for g in groups_of(kind, d, configurations)]
    try:
        images = image_recipe.load(sources, FLAGS.data, BATCH)
        folder = pathlib.Path(FLAGS.run_dir or image_recipe.default_folder("mnist_depth", images))
        runs = {}
        for group in groups:
            identity = identity_of(group, images, configurations, epochs)
            room = 20 + configurations * sum(depths) // 10  # MB, all groups'
            runs[group] = open_run(folder / group.name, identity, room, anew=not FLAGS.resume)
    except (ValueError, sources.DownloadError) as error:
        sys.exit(f"mnist_depth.py: {error}")
    keep_memory()
    total = configurations * len(UNITS) * len(depths)
    print(
        f"{total} of {CONFIGURATIONS * len(UNITS) * len(DEPTHS)} configurations ({configurations} "
        f"of {CONFIGURATIONS} a kind and depth), {epochs} of {EPOCHS} epochs, {images.name}"
    )
    found, done = collections.defaultdict(list), 0
    for group, resume in runs.items():
        found[group.kind, group.depth] += train(group, resume, images, epochs)
        done += len(group.members)
        print(f"{done} of {total} configurations done", flush=True)
    report(found, folder, images, epochs)


def draw(kind, depth, index, seed):
    """One configuration of the search: a function of these four and of nothing else."""
    random = np.random.default_rng([seed, [*UNITS].index(kind), depth, index])
    rate = 10 ** random.uniform(*RANGES["log10_rate"])
    momentum, decay = random.uniform(*RANGES["momentum"]), random.uniform(*RANGES["decay"])
    activation = str(random.choice(RANGES["activation"]))
    bias = int(random.integers(*RANGES["gate_bias"], endpoint=True)) if kind == "highway" else None
    weights = int(random.integers(2**31))
    return Settings(index, float(rate), momentum, decay, activation, bias, weights)


def groups_of(kind, depth, configurations):
    """The networks of one kind and depth by activation, at most `--at_once` together."""
    drawn = [draw(kind, depth, index, FLAGS.seed) for index in range(configurations)]
    for activation in RANGES["activation"]:
        same = [one for one in drawn if one.activation == activation]
        for start in range(0, len(same), FLAGS.at_once):
            members = tuple(same[start : start + FLAGS.at_once])
            yield Group(kind, depth, activation, start // FLAGS.at_once, members)


def identity_of(group, images, configurations, epochs):
    """What makes a group of networks this one, for `open_run`."""
    return {
        "recipe": "mnist_depth",
        **{"networks": group.name, "indices": [one.index for one in group.members]},
        **{"data": images.name, "images": len(images.x_train), "batch": BATCH},
        **{"configurations": configurations, "epochs": epochs, "seed": FLAGS.seed},
        "ranges": RANGES,
    }


def train(group, resume, images, epochs):
    """Trains the networks, from their checkpoint if there is one.

    Returns:
        Of each network: its settings, its losses epoch by epoch, and its share of the seconds.
    """
    import keras
    import side_by_side

    from zoo.datasets import preprocessing
    from zoo.datasets.batches import Batches, Epochs

    facts = resume.read()
    if facts is None or facts["epoch"] < epochs:
        prepared = preprocessing.fit("highway_mlp", images.x_train)
        data = images.x_train, images.y_train, BATCH, FLAGS.seed, prepared.augment
        batches = Batches(*data, drop_remainder=True)
        keras.utils.clear_session()  # the compiled steps of the group before
        seeds, biases = zip(*((one.seed, one.gate_bias) for one in group.members), strict=True)
        shape = group.kind, group.depth, UNITS[group.kind], group.activation, seeds, biases
        model = side_by_side.build(*shape, images.x_train.shape[1:], images.classes)
        side_by_side.compile_networks(model, group.members, len(batches))
        watch = side_by_side.Watch(f"{group.kind} {group.depth}, {group.activation}", epochs)
        resume.track[:] = [watch]
        callbacks = [Epochs(batches), watch, resume]
        model.fit(batches, epochs=epochs, verbose=0, callbacks=callbacks, shuffle=False)
        facts = resume.read()
    history, seconds = facts["history"]["history"], facts["callbacks"][0]["elapsed"]
    losses = [history[side_by_side.key(place)] for place in range(len(group.members))]
    share = seconds / len(group.members)
    return [(one, curve, share) for one, curve in zip(group.members, losses, strict=True)]


def lowest(curve):
    """What a configuration is judged by: its lowest loss, or infinity if it ever diverged."""
    return min(curve) if np.isfinite(curve).all() else math.inf


def report(found, folder, images, epochs):
    """configurations.csv, Fig. 1, and a line of results for each kind and depth."""
    rows, panels = [], []
    for (kind, depth), networks in found.items():
        networks.sort(key=lambda network: network[0].index)
        for one, curve, _ in networks:
            settings = {"kind": kind, "depth": depth, **dataclasses.asdict(one)}
            result = {"lowest_loss": lowest(curve), "final_loss": curve[-1]}
            rows.append({**settings, **result, "diverged": not np.isfinite(curve).all()})
        networks.sort(key=lambda network: lowest(network[1]))  # stable: infinities last
        kept = [lowest(curve) for _, curve, _ in networks[: tenth(len(networks))]]
        mean = float(np.mean(kept))
        line = {"panel": "left", "kind": kind, "depth": depth}
        best = networks[0][1] if math.isfinite(kept[0]) else []
        panels += [{**line, "epoch": i, "loss": loss} for i, loss in enumerate(best, 1)]
        panels.append({**line, "panel": "right", "epoch": "", "loss": mean})
        record(kind, depth, networks, mean, folder, images, epochs)
    figures.write_rows(folder / "configurations.csv", rows)
    draw_figure(folder / "fig1.png", panels, len(networks), images.name)
    best = {key: lowest(networks[0][1]) for key, networks in found.items()}
    for depth in sorted({depth for _, depth in best}):
        ratio = best["plain", depth] / best["highway", depth]
        print(f"depth {depth}: the best plain loss is {ratio:.3g} times the best highway loss")
    print(f"all in {folder}; the paper: more than 100 times at depth 100")


def tenth(number):
    """The paper's 10 of 100, of any number: the tenth part, rounded up."""
    return -(-number // 10)


def record(kind, depth, networks, mean, folder, images, epochs):
    """Prints and appends a line of results; `networks` are sorted, the best one first."""
    from zoo import report

    best, curve, _ = networks[0]
    number, top = len(networks), tenth(len(networks))
    diverged = sum(math.isinf(lowest(losses)) for _, losses, _ in networks)
    settings = {k: v for k, v in dataclasses.asdict(best).items() if v is not None}
    shown = {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in settings.items()}
    departures = [f"{number} of {CONFIGURATIONS} configurations"] * (number != CONFIGURATIONS)
    departures += [f"{epochs} of {EPOCHS} epochs"] * (epochs != EPOCHS)
    if images.name != "MNIST":
        departures.append(f"{images.name}: {images.notice or 'not the images of the paper'}")
    departures.append("the ranges of the search and the batch are ours: the paper does not say")
    line = report.row(
        artifact="srivastava2015/fig1",
        model=f"{kind}_mlp{depth}",
        config={name: f"{name} {v}" for name, v in shown.items()},
        metric="best_training_loss",
        value=lowest(curve),
        std=None,
        seeds=[FLAGS.seed],
        paper=None,
        data=images.name,
        budget=FLAGS.budget,
        epochs=epochs,
        departures=departures,
        verdict="not comparable",
        seconds=round(sum(seconds for *_, seconds in networks), 1),
        settings=settings,
        configurations=number,
        diverged=diverged,
        top=top,
        top_mean=mean,
        training_loss_by_epoch=curve,
    )
    for path in filter(None, [folder / "results.jsonl", FLAGS.results]):
        report.append(path, line)
    print(
        f"{kind} {depth}: best training loss {lowest(curve):.3g}, mean of the best {top} of "
        f"{number} {mean:.3g}, {diverged} diverged; the best has "
        + ", ".join(f"{name} {v}" for name, v in shown.items())
    )


def draw_figure(path, rows, number, data):
    """Fig. 1: the best network of each depth by epoch, and the mean of the best tenth by depth."""
    figure, (left, right) = figures.new(9, 4, ncols=2)
    depths = sorted({row["depth"] for row in rows})
    for kind, color in (("plain", "0.6"), ("highway", "black")):
        for depth, style in zip(depths, itertools.cycle(figures.LINES), strict=False):
            curve = [
                r for r in rows if (r["panel"], r["kind"], r["depth"]) == ("left", kind, depth)
            ]
            xy = [row["epoch"] for row in curve], [row["loss"] for row in curve]
            left.plot(*xy, style, color=color, label=f"{kind} {depth}")
        means = [r for r in rows if (r["panel"], r["kind"]) == ("right", kind)]
        xy = [row["depth"] for row in means], [row["loss"] for row in means]
        right.plot(*xy, marker="o", color=color, label=kind)
    for axes in (left, right):
        axes.axhline(1e-4, color="0.8", linewidth=0.8, label="paper: plain 10, 20 fall below")
    left.set(xlabel="epoch", ylabel="mean training cross entropy", yscale="log", title=data)
    right.set(xlabel="depth, layers", yscale="log")
    right.set_ylabel(f"mean of the lowest losses, best {tenth(number)} of {number}")
    left.legend(fontsize=6, ncols=2)
    right.legend(fontsize=6)
    figures.save(path, figure, rows)


if __name__ == "__main__":
    app.run(main)
