"""Greff et al. (2017), sections 2 and 4.4: lesions and shuffles of a residual and a plain network.

    python recipes/lesions.py --data_dir DATA
    python recipes/lesions.py --budget paper --data_dir DATA

Trains a residual network and the same network without skips, and measures on test images the
accuracy without each block, without several random blocks, and with the blocks of each stage in
random orders, beside the order's Kendall tau. The paper reports of Veit et al. (2016): a residual
network of 110 layers loses little by any block but the first and those that change the shape, and
its error rises smoothly with the disorder; VGG-15 without any of its layers is wrong about 90 % of
the time.

`--budget minutes` is a miniature, trained to the end of its schedule: 18 blocks on MNIST averaged
to 16 x 16 pixels, the network of `iterative_inference.py`. `--budget paper` takes 110 layers on
CIFAR-10, and for the plain network 20, because deep plain networks do not train (ours: Veit et al.
took VGG). Blocks that change the shape stay where they are; those of a plain network cannot be left
out, either, as nothing else has their output's shape.

The networks are kept in --runs. --run_dir gets section2.png (each block), section2-random.png
(several blocks) and section4.4.png (orders), with their CSV files, and results.jsonl.
"""

import dataclasses
import statistics

from experiment.script import run_script

from absl import app, flags

import zoo
from experiment import flags as common
from experiment import run_dirs, training
from experiment.training import Study
from greff2017 import figures
from jastrzebski2018 import miniature
from zoo import callbacks
from zoo.callbacks.training import PassProgress
from zoo.graph.blocks import find_blocks

NETWORKS = ("residual", "plain")
DEPTHS = {"residual": 110, "plain": 20}  # --budget paper
PROBED = {"smoke": 20, "minutes": 1000, "paper": None}  # test images; None: all
SWAPS = (1, 2, 4, 8, 16, 32)  # of two blocks of a stage
REPEATS = 5  # random choices and orders of each kind
METRICS = {  # by figure: the column that numbers the modifications, and the result's metric
    "section2": ("block", "accuracy_without_a_block"),
    "section2-random": ("left_out", "accuracy_without_a_random_block"),
    "section4.4": ("swaps", "accuracy_after_a_swap_in_each_stage"),
}
PAPER = Study(  # fb.resnet.torch, with which Veit et al. trained
    artifact="greff2017/section2",
    preprocessing="he_cifar",
    batch=128,
    optimizer=training.fb_resnet_sgd([0.1, 0.01, 0.001], [81, 122], 164),
    epochs=164,
    minutes=164,
    paper={"CIFAR-10": None},
)

flags.DEFINE_list("networks", list(NETWORKS), f"Networks to train, of {', '.join(NETWORKS)}.")
help_text = "Number of layers of --budget paper, 6 n + 2. Default: 110, of the plain network 20."
flags.DEFINE_integer("depth", None, help_text, lower_bound=8)
help_text = "Number of test images to measure on. Default: 1000; for --budget paper all."
flags.DEFINE_integer("probe_examples", None, help_text, lower_bound=1)
common.define_image_flags()
FLAGS = flags.FLAGS


def main():
    """Run the recipe."""
    if {*FLAGS.networks} - {*NETWORKS} or not FLAGS.networks:
        raise app.UsageError(
            f"Expected --networks of {', '.join(NETWORKS)}. Received: {','.join(FLAGS.networks)}"
        )
    if FLAGS.depth is not None and (FLAGS.budget != "paper" or FLAGS.depth % 6 != 2):
        raise app.UsageError(
            "Expected --depth 6 n + 2 with --budget paper, as the miniature has 18 blocks. "
            f"Received: --depth={FLAGS.depth} --budget={FLAGS.budget}"
        )
    trained = {name: train(name) for name in NETWORKS if name in FLAGS.networks}
    folder = run_dirs.figures_folder("lesions", [run.folder for run, _ in trained.values()])
    rows = {"section2": [], "section2-random": [], "section4.4": []}
    for name, (run, result) in trained.items():
        for figure, measured in measure(name, run).items():
            rows[figure] += measured
            record(folder, figure, measured, dataclasses.replace(result, seconds=run.seconds))
    figures.section2(folder / "section2.png", rows["section2"])
    figures.section2(folder / "section2-random.png", rows["section2-random"])
    figures.section4_4(folder / "section4.4.png", rows["section4.4"])
    print(f"figures in {folder}")


def train(name):
    """Train one network and return its run and its result."""
    if FLAGS.budget == "paper":
        depth = FLAGS.depth or DEPTHS[name]
        run = training.prepare(
            PAPER,
            f"{name}{depth}-lesions",
            "cifar10",
            lambda images: build(name, depth, images),
            shared=True,
        )
        training.train(run)
        deviations = [] if depth == DEPTHS[name] else [f"{depth} layers, not {DEPTHS[name]}"]
    else:
        run = miniature.train(name)
        deviations = [miniature.DEVIATION]
    if name == "plain":
        deviations.append("the same network without skips, not VGG")
    return run, training.finish(run, name, {}, None, deviations)


def build(name, depth, images):
    """Return the network `name` of --budget paper for these images."""
    shape = images.x_train.shape[1:]
    return zoo.cifar_resnet(depth, images.classes, shape, variant=name)


def measure(name, run):
    """Return the rows of each figure, of one network, on test images."""
    model = run.model
    count = FLAGS.probe_examples or PROBED[FLAGS.budget]
    data = run.data.x_test[:count], run.images.y_test[:count]
    blocks = [b for b in find_blocks(model)[0] if name != "plain" or not b.changes_shape]
    names = [block.name for block in blocks]
    movable = sum(not block.changes_shape for block in blocks)
    options = {"blocks": names, "batch_size": run.study.batch}

    def progress(text):
        return PassProgress(f"{text} of {name}", len(data[0]))

    single = callbacks.lesions(model, data, progress=progress("lesions"), **options)
    counts = [n for n in (1, 2, 4, 8, 16, 32) if n < movable]
    several = callbacks.random_lesions(
        model, data, counts, REPEATS, FLAGS.seed, progress=progress("random lesions"), **options
    )
    orders = callbacks.shuffles(
        model, data, SWAPS, REPEATS, FLAGS.seed, progress=progress("shuffles"), **options
    )
    taus = [1.0, *(row.value for row in orders.of_probe("shuffle_tau"))]
    return {
        "section2": [
            {"network": name, "block": block or "", "accuracy": accuracy, "loss": loss}
            for block, _, accuracy, loss in pairs(single, "lesion")
        ],
        "section2-random": [
            {
                "network": name,
                "left_out": unit or 0,
                "choice": i,
                "accuracy": accuracy,
                "loss": loss,
            }
            for i, (_, unit, accuracy, loss) in enumerate(pairs(several, "lesions"))
        ],
        "section4.4": [
            {"network": name, "swaps": unit or 0, "tau": tau, "accuracy": accuracy, "loss": loss}
            for tau, (_, unit, accuracy, loss) in zip(taus, pairs(orders, "shuffle"), strict=True)
        ],
    }


def pairs(table, probe):
    """Return block, unit, accuracy and loss of each modified network; the whole network first."""
    accuracies = table.of_probe(f"{probe}_accuracy")
    losses = table.of_probe(f"{probe}_loss")
    return [
        (row.block, row.unit, row.value, loss.value)
        for row, loss in zip(accuracies, losses, strict=True)
    ]


def record(folder, figure, rows, trained):
    """Write the result of one figure: the mean accuracy after the smallest modification in %.

    That is one block left out, or one swap in each stage. The line also has the accuracy of the
    whole network, and those of each block, or by number of blocks or swaps.
    """
    key, metric = METRICS[figure]
    intact, *modified = rows
    accuracies = {}
    for row in modified:
        accuracies.setdefault(str(row[key]), []).append(row["accuracy"])
    means = {number: percent(statistics.mean(values)) for number, values in accuracies.items()}
    more = {"whole": percent(intact["accuracy"]), f"by_{key}": means}
    if figure == "section4.4":
        taus = {str(row[key]): [] for row in modified}
        for row in modified:
            taus[str(row[key])].append(row["tau"])
        more["tau"] = {number: round(statistics.mean(tau), 3) for number, tau in taus.items()}
        more["orders"] = [
            {"swaps": row["swaps"], "tau": row["tau"], "accuracy": percent(row["accuracy"])}
            for row in modified
        ]
    result = dataclasses.replace(
        trained,
        artifact=f"greff2017/{figure.removesuffix('-random')}",
        metric=metric,
        value=means.get("1", round(statistics.mean(means.values()), 3)),
        more=more,
    )
    run_dirs.write(folder, result)
    print(f"{result.model}: {metric} {result.value} %, of the whole network {more['whole']} %")


def percent(share):
    """Return a share in %."""
    return round(100 * share, 3)


if __name__ == "__main__":
    run_script(main)
