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

import depth_search  # beside this script
import figures
import hardware
import image_data
import image_recipe
import numpy as np
from absl import app, flags

DEPTHS = (10, 20, 50, 100)  # ibid.
CONFIGURATIONS, EPOCHS = 100, 400  # section 3.1; the axis of Fig. 1
BUDGETS = {"smoke": (2, 1), "minutes": (12, 20), "paper": (CONFIGURATIONS, EPOCHS)}

image_data.define_flags()
flags.DEFINE_enum("budget", "minutes", list(BUDGETS), "smoke: two batches.")
flags.DEFINE_integer("configurations", None, "Of each kind and depth.", lower_bound=1)
flags.DEFINE_integer("epochs", None, "Overrides the budget's.", lower_bound=1)
flags.DEFINE_list("depths", [str(depth) for depth in DEPTHS], "Layers without the classifier.")
flags.DEFINE_integer("at_once", 12, "Draws that train together, by activation.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Of the search and of the order of images.", lower_bound=0)
flags.DEFINE_string("run_dir", None, "Default: runs/mnist-depth-BUDGET-SEED.")
flags.DEFINE_bool("resume", True, "Go on from the run directory's checkpoints.")
# Not mixed_float16: a loss scale skips a step for all networks if one of them diverges.
hardware.define_flags(["float32", "mixed_bfloat16"])  # one overflow would stop all networks
flags.DEFINE_string("results", None, "Also append the lines of results to this file.")
FLAGS = flags.FLAGS


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
    of = configurations, FLAGS.at_once, FLAGS.seed
    pairs = [(kind, depth) for depth in depths for kind in depth_search.UNITS]
    groups = [group for pair in pairs for group in depth_search.groups_of(*pair, *of)]
    try:
        devices = hardware.devices(depth_search.BATCH)
        devices.check_batch(depth_search.BATCH)
        images = image_data.load(sources, "mnist", depth_search.BATCH)
        name = f"runs/mnist-depth-{FLAGS.budget}-{FLAGS.seed}"
        folder = pathlib.Path(FLAGS.run_dir or name)
        runs = {}
        for group in groups:
            identity = depth_search.identity_of(group, images, FLAGS.seed, FLAGS.precision)
            room = 20 + configurations * sum(depths) // 10  # MB, all groups'
            runs[group] = open_run(
                folder / group.name, identity, room, anew=not FLAGS.resume, writes=devices.is_chief
            )
    except (ValueError, sources.DownloadError) as error:
        sys.exit(f"mnist_depth.py: {error}")
    keep_memory()
    total = configurations * len(pairs)
    print(
        f"{total} of {CONFIGURATIONS * len(DEPTHS) * 2} configurations ({configurations} "
        f"of {CONFIGURATIONS} a kind and depth), {epochs} of {EPOCHS} epochs, {images.name}"
    )
    found, done = collections.defaultdict(list), 0
    for group, resume in runs.items():
        trained = depth_search.train(
            group, resume, images, epochs, FLAGS.seed, devices, FLAGS.precision
        )
        found[group.kind, group.depth] += trained
        done += len(group.members)
        print(f"{done} of {total} configurations done", flush=True)
    if devices.is_chief:
        report(found, folder, images, epochs)


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
        mean = float(np.mean([v for v in kept if math.isfinite(v)] or math.inf))
        line = {"panel": "left", "kind": kind, "depth": depth}
        best = networks[0][1] if math.isfinite(kept[0]) else []
        panels += [{**line, "epoch": i, "loss": loss} for i, loss in enumerate(best, 1)]
        panels.append({**line, "panel": "right", "epoch": "", "loss": mean})
        record(kind, depth, networks, mean, folder, images, epochs)
    figures.write_rows(folder / "configurations.csv", rows)
    draw_figure(folder / "fig1.png", panels, len(networks), images.name)
    best = {key: lowest(networks[0][1]) for key, networks in found.items()}
    for depth in sorted({depth for _, depth in best}):
        plain, highway = best["plain", depth], best["highway", depth]
        if math.isfinite(plain) and math.isfinite(highway):
            ratio = f"{plain / highway:.3g}"
            print(f"depth {depth}: the best plain loss is {ratio} times the best highway loss")
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
    departures += image_data.left_out(images)
    departures += [FLAGS.precision] * (FLAGS.precision != "float32")
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
        training_loss_by_epoch=[v if math.isfinite(v) else None for v in curve],
        **hardware.told(),
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
    left.axhline(1e-4, color="0.8", linewidth=0.8, label="paper: plain 10, 20 fall below")
    left.set(xlabel="epoch", ylabel="mean training cross entropy", yscale="log", title=data)
    right.set(xlabel="depth, layers", yscale="log")
    right.set_ylabel(f"mean of the lowest losses, best {tenth(number)} of {number}")
    left.legend(fontsize=6, ncols=2)
    right.legend(fontsize=6)
    figures.save(path, figure, rows)


if __name__ == "__main__":
    app.run(main)
