"""Srivastava et al. (2015), Fig. 1: plain and highway MLPs of depth 10 to 100, by random search.

    python recipes/mnist_depth_search.py --data_dir mnist.npz
    python recipes/mnist_depth_search.py --budget paper

For each kind and depth, `--configurations` networks (paper: 100, 800 in all) with randomly sampled
settings train side by side on MNIST: plain layers of 71 units, highway layers of 50. A loss is the
mean training cross entropy of an epoch, measured in training; a configuration is judged by its
lowest loss (footnote 3), and one that becomes NaN or Inf has diverged and is left out. The paper:
plain networks of depth 10 and 20 fall below 1e-4 and deeper ones degrade; at depth 100 the best
highway network's loss is less than a hundredth of the plain one's.

The run directory holds fig1.png and .csv (left: the best network of each depth by epoch; right: the
mean of the best tenth), fig1-configurations.csv (settings and losses of all), results.jsonl (the
best of each kind and depth, and their ratio), and a folder for each group of networks with the
checkpoint (4 MB a network of depth 100) from which a killed search resumes exactly, and so does a
longer one, of more epochs or, by whole blocks of `--at_once`, more configurations.

`--budget minutes` trains to the end of a short schedule: 10 configurations a kind and depth for 200
epochs of the first 2,000 images, momentum 0.9, a rate between 0.001 and 0.1 that decays by 0.985 an
epoch.
"""

import collections
import dataclasses
import math
import pathlib

from experiment.script import run_script

import numpy as np
from absl import app, flags

import zoo
from experiment import data as image_data
from experiment import flags as common
from experiment import hardware, plots, process, run_dirs
from experiment.results import NOT_COMPARABLE, Result
from srivastava2015 import figures
from srivastava2015 import search as depth_search
from srivastava2015.search import BATCH, UNITS, Group, Trained

DEPTHS = (10, 20, 50, 100)  # section 3.1
CONFIGURATIONS = 100  # ibid., of each kind and depth
EPOCHS = 400  # the axis of Fig. 1
BUDGETS = {"smoke": (2, 1), "minutes": (10, 200), "paper": (CONFIGURATIONS, EPOCHS)}
SMOKE_DEPTHS = (2, 5)
MINUTES_IMAGES = 2000  # few enough for each network to memorize: what is left is optimization
PLAIN_LOSS = 1e-4  # section 3.1: of the best plain networks of 10 and 20 layers, at most
RATIO = {100: 100.0}  # ibid., by depth: of the best plain loss to the best highway loss, at least
ASSUMPTIONS = ["the ranges of the search and the batch are ours"]

help_text = "Number of configurations of each kind and depth. Default: the budget's."
flags.DEFINE_integer("configurations", None, help_text, lower_bound=1)
help_text = f"Numbers of layers before the classifier. Default: {DEPTHS}; smoke: {SMOKE_DEPTHS}."
flags.DEFINE_list("depths", None, help_text)
help_text = "Number of samples in a block, which trains together, by activation."
flags.DEFINE_integer("at_once", 12, help_text, lower_bound=1)
common.define_data_flags()
common.define_output_flags("RUNS/mnist-depth-DATA-SEED-DIGEST")
# Not mixed_float16: a loss scale skips a step for all networks if one of them diverges.
common.define_training_flags(["float32", "mixed_bfloat16"])
FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Search:
    """A search that is ready to start; see `prepare`."""

    images: object
    folder: pathlib.Path
    configurations: int
    epochs: int
    groups: dict[Group, zoo.checkpoint.Resume]

    def deviations(self, depth: int) -> list[str]:
        """Return the deviations from the paper of the networks of one depth."""
        deviations = []
        if self.configurations != CONFIGURATIONS:
            deviations.append(f"{self.configurations} of {CONFIGURATIONS} configurations")
        if self.epochs != EPOCHS:
            deviations.append(f"{self.epochs} of {EPOCHS} epochs")
        is_mnist = self.images.name == "MNIST"
        deviations += image_data.deviations(self.images, is_mnist, minutes=MINUTES_IMAGES)
        if depth not in DEPTHS:
            deviations.append(f"depth {depth}, not one of {DEPTHS}")
        if FLAGS.precision != "float32":
            deviations.append(FLAGS.precision)
        return deviations

    def write(self, depth, networks, **values):
        """Append the result of trained networks of one depth; `values` are a `Result`'s."""
        kinds = {network.settings.gate_bias is None for network in networks}
        metadata = [
            run_dirs.load_metadata(self.folder / group.name)
            for group in self.groups
            if group.depth == depth and (group.kind == "plain") in kinds
        ]
        origin = {
            key: ", ".join(dict.fromkeys(one[key] for one in metadata)) for key in metadata[0]
        }
        usual = {"seconds": round(sum(network.seconds for network in networks), 1), **origin}
        result = Result(
            artifact="srivastava2015/fig1",
            seeds=[FLAGS.seed],
            data=self.images.name,
            budget=FLAGS.budget,
            epochs=self.epochs,
            deviations=self.deviations(depth),
            assumptions=ASSUMPTIONS,
            **{**usual, **values},
        )
        run_dirs.write(self.folder, result)


def main():
    """Run the recipe."""
    search = prepare(depths())
    zoo.keep_memory()
    total = sum(len(group.members) for group in search.groups)
    print(
        f"{total} of {CONFIGURATIONS * len(DEPTHS) * 2} configurations ({search.configurations} "
        f"of {CONFIGURATIONS} a kind and depth), {search.epochs} of {EPOCHS} epochs, "
        f"{search.images.name}"
    )
    pace = depth_search.Pace([*search.groups], search.epochs)
    networks = collections.defaultdict(list)
    done = 0
    for group, resume in search.groups.items():
        trained = depth_search.train(group, resume, search.images, search.epochs, pace)
        networks[group.kind, group.depth] += trained
        done += len(group.members)
        print(f"{done} of {total} configurations done, {pace}", flush=True)
    if hardware.devices().is_chief:
        report(networks, search)


def depths():
    """Return --depths, or the budget's."""
    if FLAGS.depths is None:
        return SMOKE_DEPTHS if FLAGS.budget == "smoke" else DEPTHS
    if not FLAGS.depths or not all(word.isdigit() and int(word) > 1 for word in FLAGS.depths):
        raise app.UsageError(
            "Expected --depths of 2 or more layers, such as --depths=10,100. Received: "
            f"--depths={','.join(FLAGS.depths)}"
        )
    return sorted({int(word) for word in FLAGS.depths})


def prepare(depths):
    """Load the images and open all groups' run directories, or end before any work is lost."""
    budget_configurations, budget_epochs = BUDGETS[FLAGS.budget]
    configurations = FLAGS.configurations or budget_configurations
    ranges = depth_search.MINIATURE if FLAGS.budget == "minutes" else depth_search.RANGES
    groups = [
        group
        for depth in depths
        for kind in UNITS
        for group in depth_search.groups_of(
            kind, depth, configurations, FLAGS.at_once, FLAGS.seed, ranges
        )
    ]
    megabytes = 20 + configurations * sum(depths) // 10  # all groups'
    with process.usage_errors():
        hardware.devices(BATCH).check_batch(BATCH)
        images = image_data.load("mnist", BATCH, minutes=MINUTES_IMAGES)
        common_identity = depth_search.identity_of(images, FLAGS.seed, FLAGS.precision, ranges)
        identity = {**common_identity, "at_once": FLAGS.at_once}
        folder = FLAGS.run_dir or run_dirs.folder_of("mnist-depth", images.name, identity)
        folder = pathlib.Path(folder)
        opened = {}
        for group in groups:
            identity = {**common_identity, **depth_search.members_of(group)}
            opened[group] = run_dirs.open_folder(folder / group.name, identity, megabytes)
    return Search(images, folder, configurations, FLAGS.epochs or budget_epochs, opened)


def report(networks, search):
    """Write fig1-configurations.csv, Fig. 1 and the results of `Trained` by kind and depth."""
    rows = []
    points = []
    for (kind, depth), trained in networks.items():
        trained.sort(key=lambda network: network.settings.index)
        rows += [configuration(kind, depth, network) for network in trained]
        trained.sort(key=lambda network: network.lowest)  # stable: infinities last
        best = trained[: -(-len(trained) // 10)]  # the paper's 10 of 100, rounded up
        finite = [network.lowest for network in best if not network.diverged]
        mean = float(np.mean(finite or math.inf))
        point = {"panel": "left", "kind": kind, "depth": depth}
        if not best[0].diverged:
            points += [
                {**point, "epoch": epoch, "loss": loss}
                for epoch, loss in enumerate(best[0].losses, 1)
            ]
        points.append({**point, "panel": "right", "epoch": "", "loss": mean})
        record(kind, depth, trained, len(best), mean, search)
    plots.write_rows(search.folder / "fig1-configurations.csv", rows)
    if image_data.original_name(search.images) == "MNIST":
        bound = {"panel": "left", "kind": figures.PAPER, "depth": "", "epoch": ""}
        points.append({**bound, "loss": PLAIN_LOSS})
    figures.fig1(search.folder / "fig1.png", points)
    for depth in dict.fromkeys(depth for _, depth in networks):
        compare(depth, networks["plain", depth], networks["highway", depth], search)
    print(f"all in {search.folder}")


def configuration(kind: str, depth: int, network: Trained) -> dict:
    """Return the row of fig1-configurations.csv of one network."""
    return {
        "kind": kind,
        "depth": depth,
        **dataclasses.asdict(network.settings),
        "lowest_loss": network.lowest,
        "final_loss": network.losses[-1],
        "diverged": network.diverged,
    }


def record(kind, depth, networks, top, mean, search):
    """Print and write the result of one kind and depth.

    The networks are sorted, the best one first; `mean` is that of the lowest losses of the `top`.
    """
    best = networks[0]
    settings = {k: v for k, v in dataclasses.asdict(best.settings).items() if v is not None}
    diverged = sum(network.diverged for network in networks)
    search.write(
        depth,
        networks,
        model=f"{kind}_mlp{depth}",
        config={"kind": kind, "depth": depth},
        metric="best_training_loss",
        value=best.lowest,
        more={
            "settings": None if best.diverged else settings,
            "configurations": len(networks),
            "diverged": diverged,
            "top": top,
            "top_mean": mean,
            "training_loss_by_epoch": best.losses,
        },
    )
    shown = ", ".join(
        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in settings.items()
    )
    print(
        f"{kind} {depth}: best training loss {best.lowest:.3g}, mean of the best {top} of "
        f"{len(networks)} {mean:.3g}, {diverged} diverged"
        + ("" if best.diverged else f"; the best has {shown}")
    )


def compare(depth, plain, highway, search):
    """Write the ratio of the best plain loss to the best highway loss."""
    if plain[0].diverged or highway[0].diverged:
        print(f"depth {depth}: all networks of a kind diverged, there is no ratio")
        return
    ratio = plain[0].lowest / highway[0].lowest
    is_mnist = image_data.original_name(search.images) == "MNIST"
    paper = RATIO.get(depth) if is_mnist else None
    verdict = NOT_COMPARABLE
    if paper and not search.deviations(depth):
        verdict = f"{'beyond' if ratio > paper else 'short of'} the paper's bound"
    search.write(
        depth,
        plain + highway,
        model=f"mlps{depth}",
        config={"depth": depth},
        metric="plain_over_highway_loss" + (" (paper: at least)" if paper else ""),
        value=ratio,
        paper=paper,
        verdict=verdict,
        seconds=0.0,  # the networks' lines have them
    )
    bound = f"; the paper: more than {paper:g} times" if paper else ""
    print(f"depth {depth}: the best plain loss is {ratio:.3g} times the best highway loss{bound}")


if __name__ == "__main__":
    run_script(main)
