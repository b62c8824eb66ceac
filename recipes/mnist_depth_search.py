"""Srivastava et al. (2015), Fig. 1: plain and highway MLPs of depth 10 to 100, by random search.

    python recipes/mnist_depth_search.py --data_dir mnist.npz
    python recipes/mnist_depth_search.py --budget paper

Of each kind and depth, `--configurations` networks (paper: 100, 800 in all) with settings drawn at
random train side by side on MNIST: plain layers of 71 units, highway layers of 50. A loss is the
mean training cross entropy of an epoch, as seen in training; a configuration is judged by its
lowest (footnote 3), and one that becomes NaN or infinite has diverged and is left out. The paper:
plain networks of depth 10 and 20 fall below 1e-4 and deeper ones degrade; at depth 100 the best
highway network's loss is less than a hundredth of the plain one's.

The run directory holds fig1.png and .csv (left: the best of each depth, epoch by epoch; right: the
mean of the best tenth), fig1-configurations.csv (settings and losses of all), results.jsonl (the
best of each kind and depth, and how the two kinds compare), and a folder for each group of networks
with the checkpoint (4 MB a network of depth 100) from which a killed search goes on exactly, and
a longer one, of more epochs or, by whole blocks of `--at_once`, more configurations.

`--budget minutes` is 12 configurations a kind and depth for 20 epochs. An epoch of these 96
networks on 10,000 images took 68 s of one core with torch (of two epochs); with jax about 50 s and
once 2 s a group to compile (from depth 50).
"""

import collections
import dataclasses
import itertools
import math
import pathlib
import sys

import numpy as np
from absl import app, flags

from experiment import data as image_data
from experiment import hardware, plots, run_dirs, training
from srivastava2015 import search as depth_search

DEPTHS = (10, 20, 50, 100)  # ibid.
CONFIGURATIONS, EPOCHS = 100, 400  # section 3.1; the axis of Fig. 1
BUDGETS = {"smoke": (2, 1), "minutes": (12, 20), "paper": (CONFIGURATIONS, EPOCHS)}
SMOKE_DEPTHS = (2, 5)
PLAIN_LOSS = 1e-4  # section 3.1: of the best plain networks of 10 and 20 layers, at most
RATIO = {100: 100.0}  # ibid., by depth: of the best plain loss to the best highway loss, at least
READINGS = ["the ranges of the search and the batch are ours"]

image_data.define_flags()
flags.DEFINE_enum("budget", "minutes", list(BUDGETS), "smoke: two batches.")
flags.DEFINE_integer("configurations", None, "Of each kind and depth.", lower_bound=1)
flags.DEFINE_integer("epochs", None, "Overrides the budget's.", lower_bound=1)
flags.DEFINE_list("depths", None, f"Without the classifier: {DEPTHS}; smoke: {SMOKE_DEPTHS}.")
flags.DEFINE_integer("at_once", 12, "Draws that train together, by activation.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Of the search and of the order of images.", lower_bound=0)
flags.DEFINE_string("run_dir", None, "Default: RUNS/mnist-depth-DATA-SEED-DIGEST.")
flags.DEFINE_string("runs", "runs", "Where recipes keep and find the networks they trained.")
flags.DEFINE_bool("resume", True, "Go on from the run directory's checkpoints.")
# Not mixed_float16: a loss scale skips a step for all networks if one of them diverges.
hardware.define_flags(["float32", "mixed_bfloat16"])
flags.DEFINE_string("results", None, "Also append the lines of results to this file.")
FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Search:
    """A search that is ready to start; see `prepare`."""

    images: object
    folder: pathlib.Path
    configurations: int
    epochs: int
    runs: dict


def main(argv):
    training.check(argv)
    from zoo import keep_memory

    search = prepare(depths())
    keep_memory()
    total = sum(len(group.members) for group in search.runs)
    print(
        f"{total} of {CONFIGURATIONS * len(DEPTHS) * 2} configurations ({search.configurations} "
        f"of {CONFIGURATIONS} a kind and depth), {search.epochs} of {EPOCHS} epochs, "
        f"{search.images.name}"
    )
    devices, pace = hardware.devices(), depth_search.Pace(search.runs, search.epochs)
    found, done = collections.defaultdict(list), 0
    for group, resume in search.runs.items():
        data = search.images, search.epochs, FLAGS.seed
        trained = depth_search.train(group, resume, *data, devices, FLAGS.precision, pace)
        found[group.kind, group.depth] += trained
        done += len(group.members)
        print(f"{done} of {total} configurations done, {pace}", flush=True)
    if devices.is_chief:
        results(found, search)


def depths():
    """The user's, or the budget's."""
    if FLAGS.depths is None:
        return SMOKE_DEPTHS if FLAGS.budget == "smoke" else DEPTHS
    if not FLAGS.depths or not all(word.isdigit() and int(word) > 1 for word in FLAGS.depths):
        raise app.UsageError(
            "Expected --depths of 2 or more layers, such as --depths=10,100. Received: "
            f"--depths={','.join(FLAGS.depths)}"
        )
    return sorted({int(word) for word in FLAGS.depths})


def prepare(depths):
    """The images, and all groups' run directories, or an end before any work is lost."""
    from zoo.callbacks.checkpoint import open_run
    from zoo.datasets import images as sources

    configurations = FLAGS.configurations or BUDGETS[FLAGS.budget][0]
    of = configurations, FLAGS.at_once, FLAGS.seed
    pairs = [(kind, depth) for depth in depths for kind in depth_search.UNITS]
    groups = [group for pair in pairs for group in depth_search.groups_of(*pair, *of)]
    room = 20 + configurations * sum(depths) // 10  # MB, all groups'
    try:
        devices = hardware.devices(depth_search.BATCH)
        devices.check_batch(depth_search.BATCH)
        images = image_data.load(sources, "mnist", depth_search.BATCH)
        all_alike = depth_search.identity_of(images, FLAGS.seed, FLAGS.precision)
        named = {**all_alike, "at_once": FLAGS.at_once}
        kept = run_dirs.folder_of(FLAGS.runs, "mnist-depth", images.name, FLAGS.seed, named)
        folder, runs = pathlib.Path(FLAGS.run_dir or kept), {}
        for group in groups:
            identity = {**all_alike, **depth_search.members_of(group)}
            where = folder / group.name, identity, room
            runs[group] = open_run(*where, from_scratch=not FLAGS.resume, writes=devices.is_chief)
    except (ValueError, sources.DownloadError) as error:
        sys.exit(f"mnist_depth_search.py: {error}")
    return Search(images, folder, configurations, FLAGS.epochs or BUDGETS[FLAGS.budget][1], runs)


def lowest(curve):
    """What a configuration is judged by: its lowest loss, or infinity if it ever diverged."""
    return min(curve) if np.isfinite(curve).all() else math.inf


def results(found, search):
    """fig1-configurations.csv, Fig. 1, and the lines of results."""
    rows, panels, folder = [], [], search.folder
    for (kind, depth), networks in found.items():
        networks.sort(key=lambda network: network[0].index)
        for one, curve, _ in networks:
            settings = {"kind": kind, "depth": depth, **dataclasses.asdict(one)}
            result = {"lowest_loss": lowest(curve), "final_loss": curve[-1]}
            rows.append({**settings, **result, "diverged": not np.isfinite(curve).all()})
        networks.sort(key=lambda network: lowest(network[1]))  # stable: infinities last
        kept = [lowest(curve) for _, curve, _ in networks[: tenth(len(networks))]]
        mean = float(np.mean([v for v in kept if math.isfinite(v)] or math.inf))
        line = {"panel": "left", "kind": kind, "depth": depth}
        best = networks[0][1] if math.isfinite(kept[0]) else []
        panels += [{**line, "epoch": i, "loss": loss} for i, loss in enumerate(best, 1)]
        panels.append({**line, "panel": "right", "epoch": "", "loss": mean})
        record(kind, depth, networks, mean, search)
    plots.write_rows(folder / "fig1-configurations.csv", rows)
    draw_figure(folder / "fig1.png", panels, search)
    for depth in dict.fromkeys(depth for _, depth in found):
        compare(depth, found["plain", depth], found["highway", depth], search)
    print(f"all in {folder}")


def tenth(number):
    """The paper's 10 of 100, of any number: the tenth part, rounded up."""
    return -(-number // 10)


def record(kind, depth, networks, mean, search):
    """Prints and appends a line of results; `networks` are sorted, the best one first."""
    best, curve, _ = networks[0]
    number, top, loss = len(networks), tenth(len(networks)), lowest(curve)
    settings = {k: v for k, v in dataclasses.asdict(best).items() if v is not None}
    shown = ", ".join(
        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in settings.items()
    )
    diverged = sum(math.isinf(lowest(losses)) for _, losses, _ in networks)
    write(
        search,
        depth,
        [kind],
        model=f"{kind}_mlp{depth}",
        config={"kind": kind, "depth": depth},
        metric="best_training_loss",
        value=loss,
        paper=None,
        verdict="not comparable",
        seconds=round(sum(seconds for *_, seconds in networks), 1),
        settings=settings if math.isfinite(loss) else None,
        configurations=number,
        diverged=diverged,
        top=top,
        top_mean=mean,
        training_loss_by_epoch=curve,
    )
    print(
        f"{kind} {depth}: best training loss {loss:.3g}, mean of the best {top} of {number} "
        f"{mean:.3g}, {diverged} diverged"
        + (f"; the best has {shown}" if math.isfinite(loss) else "")
    )


def compare(depth, plain, highway, search):
    """A line of how many times the best plain loss is the best highway loss."""
    losses = [lowest(networks[0][1]) for networks in (plain, highway)]
    if not np.isfinite(losses).all():
        print(f"depth {depth}: all networks of a kind diverged, there is no ratio")
        return
    ratio, is_mnist = losses[0] / losses[1], image_data.original(search.images) == "MNIST"
    paper = RATIO.get(depth) if is_mnist else None
    metric = "plain_over_highway_loss" + " (paper: at least)" * (paper is not None)
    verdict = "not comparable"
    if paper and not departures(search, depth):
        verdict = f"{'beyond' if ratio > paper else 'short of'} the paper's bound"
    write(
        search,
        depth,
        ["plain", "highway"],
        model=f"mlps{depth}",
        config={"depth": depth},
        metric=metric,
        value=ratio,
        paper=paper,
        verdict=verdict,
        seconds=round(sum(seconds for *_, seconds in plain + highway), 1),
    )
    bound = f"; the paper: more than {paper:g} times" if paper else ""
    print(f"depth {depth}: the best plain loss is {ratio:.3g} times the best highway loss{bound}")


def departures(search, depth):
    """From the paper; `image_recipe.usual_departures` is of one training, with a model."""
    number, epochs, images = search.configurations, search.epochs, search.images
    found = [f"{number} of {CONFIGURATIONS} configurations"] * (number != CONFIGURATIONS)
    found += [f"{epochs} of {EPOCHS} epochs"] * (epochs != EPOCHS)
    if images.name != "MNIST":
        found.append(f"{images.name}: {images.notice or 'not the images of the paper'}")
    found += image_data.left_out(images)
    found += [f"depth {depth}, not one of {DEPTHS}"] * (depth not in DEPTHS)
    return found + [FLAGS.precision] * (FLAGS.precision != "float32")


def write(search, depth, kinds, **facts):
    """Appends a line of results of the networks of one depth and of these kinds."""
    from experiment import results

    groups = [group for group in search.runs if group.depth == depth and group.kind in kinds]
    told = [run_dirs.told(search.folder / group.name) for group in groups]
    line = results.row(
        artifact="srivastava2015/fig1",
        std=None,
        seeds=[FLAGS.seed],
        data=search.images.name,
        budget=FLAGS.budget,
        epochs=search.epochs,
        departures=departures(search, depth),
        readings=READINGS,
        **{key: ", ".join(dict.fromkeys(one[key] for one in told)) for key in told[0]},
        **facts,
        **hardware.told(),
    )
    hardware.append(search.folder, line)


def draw_figure(path, rows, search):
    """Fig. 1: the best network of each depth by epoch, and the mean of the best tenth by depth."""
    figure, (left, right) = plots.new(9, 4, ncols=2)
    number, data = search.configurations, search.images
    depths = sorted({row["depth"] for row in rows})
    rows_of = collections.defaultdict(list)
    for row in rows:
        if math.isfinite(row["loss"]):
            rows_of[row["panel"], row["kind"], row["depth"]].append(row)
    for kind, color in (("plain", "0.6"), ("highway", "black")):
        for depth, style in zip(depths, itertools.cycle(plots.LINES), strict=False):
            curve = rows_of["left", kind, depth]
            xy = [row["epoch"] for row in curve], [row["loss"] for row in curve]
            left.plot(*xy, style, marker=".", color=color, label=f"{kind} {depth}")
        means = [row for depth in depths for row in rows_of["right", kind, depth]]
        xy = [row["depth"] for row in means], [row["loss"] for row in means]
        right.plot(*xy, marker="o", color=color, label=kind)
    if image_data.original(data) == "MNIST":
        told = "paper: plain 10, 20 fall below"
        left.axhline(PLAIN_LOSS, color="0.8", linewidth=0.8, label=told)
    left.set(xlabel="epoch", ylabel="mean training cross entropy, nats", yscale="log")
    left.set_title(data.name)
    right.set(xlabel="depth, layers", yscale="log")
    right.set_ylabel(f"mean of the lowest losses, best {tenth(number)} of {number}, nats")
    left.legend(fontsize=6, ncols=2)
    right.legend(fontsize=6)
    plots.save(path, figure, rows)


if __name__ == "__main__":
    app.run(main)
