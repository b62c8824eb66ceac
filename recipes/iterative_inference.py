"""Jastrzebski et al. (2018), Figs 2 to 7, 10 to 17 and 20: do residual blocks refine.

    python recipes/iterative_inference.py --data_dir DATA
    python recipes/iterative_inference.py --budget paper --depth 38
    python recipes/iterative_inference.py --budget paper --model wide_resnet --data cifar100

Trains a network as the paper did and then measures each block on training and on test images: the
cosine between its branch and the gradient of the loss (cosine loss, Fig. 4), the size of the branch
relative to the input (l2 ratio, Fig. 2), the accuracy without the block (Fig. 3), the accuracy of
the early readout (Fig. 5), the effect of the last blocks on borderline examples (Fig. 6), and that
of repeating the last block (Figs 7 and 20). Figs 13 and 14 are the first two, of the last stage,
epoch by epoch. With CIFAR-100, Figs 2, 3, 4, 5, 13 and 14 are Figs 11, 12, 10, 17, 15 and 16.

`--budget minutes` is a miniature, trained to the end of its schedule: 18 blocks on MNIST averaged
to 16 x 16 pixels, the network of `lesions.py`. `--budget paper` takes one of the paper's four:
cifar_resnet --depth 110 and the other models. Its test errors on CIFAR-10: ResNet-110 6.13 %,
ResNet-56 6.53, ResNet-38 6.99, ResNet-32 7.14; its unrolled ResNet-110: training loss 0.0012 to
0.001, accuracy of borderline test examples 43 to 53 %; its last block's cosine loss: about -0.1.

The network is kept in --runs. --run_dir, which is the network's folder if it is not given, gets
figN-NETWORK.png and .csv, probes-NETWORK-train.html and probes-NETWORK-test.html (and .csv), and
unrolling-NETWORK.csv of the best scale. Results, beside the test accuracy (Table 1,
or Fig. 5 for a network that is not in it), on test images: the l2 ratio, the cosine loss and the
early readout of blocks (Figs 2, 4, 5, 14); the number of blocks that can each be left out for at
most 5 points of accuracy (Fig. 3); the accuracy of borderline examples over the last blocks, and
over the repetitions of the last one (Figs 6, 7); repetitions with a negative cosine (Fig. 20).
"""

import math
import statistics

from experiment.script import run_script

from absl import flags

import zoo
from experiment import data as image_data
from experiment import hardware, training
from jastrzebski2018 import figures, miniature, study
from jastrzebski2018.study import BATCH, Inspection
from zoo import callbacks
from zoo.applications.cifar_resnet import preactivated
from zoo.applications.input_and_head import Top
from zoo.callbacks.training import PassProgress

MODELS = ("cifar_resnet", "single_representation_resnet", "avg_pooling_resnet", "wide_resnet")
DEPTHS = {"smoke": 14, "paper": 110}  # 14: two blocks a stage: one is repeated
UNROLLED = {"smoke": 2, "minutes": 20, "paper": 20}  # section 4.4: repetitions
SMOKE_STAGES = {  # channels of the stem, and channels, blocks and strides of each stage
    "single_representation_resnet": (8, ((8, 3, 1),)),
    "avg_pooling_resnet": (8, ((8, 2, 1), (8, 2, "pool"), (8, 2, "pool"))),
    "wide_resnet": (8, ((16, 2, 1), (16, 2, 2), (16, 2, 2))),
}
LAST_BLOCKS = 5  # of Fig. 6
TOLERATED = 5  # points of accuracy; ours
SCALES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)  # of the repetitions; ours: the paper gives none
SCALED = f"f scaled by the one of {', '.join(map(str, SCALES))} of the lowest training loss"
CIFAR100 = {2: 11, 3: 12, 4: 10, 5: 17, 13: 15, 14: 16}  # figures that have other numbers there
LAST_COSINE = -0.1  # Fig. 6, "around"
BORDERLINE_ACCURACY = (0.43, 0.53)  # section 4.4: before and after 20 repetitions
MARKS = [  # ibid.
    {"split": split, "group": group, "place": place, key: value}
    for split, group, key, values in (
        ("train", "all", "loss", (0.0012, 0.001)),
        ("test", "borderline", "accuracy", BORDERLINE_ACCURACY),
    )
    for place, value in zip((0, 20), values, strict=True)
]
BORDERLINE = "borderline_examples_borderline"

help_text = "Network of --budget paper to train and inspect."
flags.DEFINE_enum("model", "cifar_resnet", MODELS, help_text)
help_text = "Number of layers of cifar_resnet, 6 n + 2. Default: 110."
flags.DEFINE_integer("depth", None, help_text, lower_bound=14)
help_text = "Number of repetitions of the last block. Default: 20."
flags.DEFINE_integer("unroll", None, help_text, lower_bound=1)
study.define_flags()
FLAGS = flags.FLAGS


def main():
    """Run the recipe."""
    inspection = trained_miniature() if FLAGS.budget == "minutes" else trained_network()
    inspect(inspection)
    unroll(inspection)
    print(f"figures of {inspection.name} in {inspection.folder}")


def trained_miniature():
    """Train the miniature, or find it trained."""
    study.check_miniature("model", "depth")
    run = miniature.train()
    result = training.finish(run, "miniature", {}, None, [miniature.DEVIATION])
    return Inspection(run, "miniature", study.examples(run), folder_of(run), result)


def trained_network():
    """Train the network that the flags select, or find it trained."""
    name, depth = network()
    errors = study.ERRORS["cifar_resnet"].get(depth, ())
    run = training.prepare(
        study.study(FLAGS.model, errors, f"fig{number(5)}"),
        name,
        "cifar10",
        lambda images: build(images, depth),
        shared=True,
        **study.probing(),
    )
    splits = study.examples(run)
    study.train(run, splits)
    is_papers = not smoke_stages() and (depth is None or errors)
    deviations = [] if is_papers else ["not a network of the paper"]
    result = study.record(run, name, {}, errors, deviations)
    return Inspection(run, name, splits, folder_of(run), result)


def folder_of(run):
    """Return the folder for the figures: --run_dir or the network's."""
    folder = hardware.folder_for(FLAGS.run_dir or run.folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def network():
    """Return the network's name, and its depth if it is a cifar_resnet."""
    if FLAGS.model != "cifar_resnet":
        return FLAGS.model, None
    depth = FLAGS.depth or DEPTHS[FLAGS.budget]
    return f"cifar_resnet{depth}", depth


def smoke_stages():
    """Return stem and stages of the smaller network for --budget smoke; None: the paper's."""
    return SMOKE_STAGES.get(FLAGS.model) if FLAGS.budget == "smoke" else None


def build(images, depth):
    """Return the network for these images; `depth` is that of cifar_resnet."""
    shape = images.x_train.shape[1:]
    if smoke_stages():
        return preactivated(*smoke_stages(), images.classes, shape, Top(name=FLAGS.model))
    arguments = {"depth": depth} if depth else {}
    return zoo.create_model(FLAGS.model, input_shape=shape, classes=images.classes, **arguments)


def number(figure):
    """Return the number of a figure of CIFAR-10, or that of its counterpart for CIFAR-100."""
    return CIFAR100.get(figure, figure) if FLAGS.data == "cifar100" else figure


def path_of(folder, figure, name):
    """Return the path of a network's figure, given by its number for CIFAR-10."""
    same = FLAGS.data == "cifar100" and number(figure) == figure
    return folder / f"fig{number(figure)}-{name}{'-cifar100' if same else ''}.png"


def has_papers_numbers(inspection):
    """Return True if section 4.4's numbers, and Fig. 6's, are of this network and these images."""
    data = image_data.original_name(inspection.run.images)
    return inspection.name == "cifar_resnet110" and data == "CIFAR-10"


def inspect(inspection):
    """Make Figs 2 to 6, 13 and 14: tables, pages, pictures and results."""
    run = inspection.run
    tables = {}
    for split, data in inspection.splits.items():
        table = measure(run, split, data, study.all_test_images(inspection, split))
        path = inspection.folder / f"probes-{inspection.name}-{split}.csv"
        table.to_csv(path)
        images = f"{len(data[0])} {split} images of {run.images.name}"
        title = f"{inspection.name}, {images}, epoch {run.epochs}"
        callbacks.write_html(table, path.with_suffix(".html"), title)
        summarize(table, split)
        tables[split] = table
    mark = LAST_COSINE if has_papers_numbers(inspection) else None
    draw(inspection, tables, mark)
    record(inspection, tables["test"], mark)


def measure(run, split, data, many):
    """Return the table of all probes and lesions; borderline examples, which are few, of `many`."""
    probes = [
        callbacks.CosineLoss(),
        callbacks.L2Ratio(),
        callbacks.IntermediateAccuracy(),
        callbacks.EstimationError(),
        callbacks.GradientNorm(),
        callbacks.ActivationNorm(),
    ]
    progress = PassProgress(f"probes, {split}", len(data[0]))
    table = callbacks.run(probes, run.model, data, batch_size=BATCH, progress=progress)
    progress = PassProgress(f"borderline examples, {split}", len(many[0]))
    borderline = [callbacks.BorderlineExamples(LAST_BLOCKS)]
    table += callbacks.run(borderline, run.model, many, batch_size=BATCH, progress=progress)
    progress = PassProgress(f"lesions, {split}", len(data[0]))
    return table + callbacks.lesions(run.model, data, batch_size=BATCH, progress=progress)


def draw(inspection, tables, mark):
    """Draw Figs 2 to 6, 13 and 14."""
    folder, name = inspection.folder, inspection.name
    probes = {2: "l2_ratio", 3: "lesion_accuracy", 4: "cosine_loss"}
    for figure, probe in probes.items():
        rows = figures.block_rows(tables, probe, mark if figure == 4 else None)
        figures.fig2(path_of(folder, figure, name), rows)
    first = 1 + max(0, num_blocks(tables["test"]) - LAST_BLOCKS)
    figures.fig6(path_of(folder, 6, name), figures.group_rows(tables, first))
    table = study.table_of_training(inspection.run, "training")
    probes = {5: "intermediate_accuracy", 13: "cosine_loss_block", 14: "l2_ratio"}
    for figure, probe in probes.items():
        figures.fig5(path_of(folder, figure, name), figures.epoch_rows(table, [probe]))


def record(inspection, table, mark):
    """Write the results of Figs 2 to 6 and 14; all but the last of test images."""
    ratios = of_blocks(table, "l2_ratio")
    inspection.write(f"fig{number(2)}", "l2_ratio_of_last_block", ratios[-1], by_block=ratios)
    accuracies = table.values("lesion_accuracy")
    floor = accuracies.pop(None) - TOLERATED / 100
    inspection.write(
        f"fig{number(3)}",
        "blocks_that_can_be_left_out",
        sum(value >= floor for value in accuracies.values()),
        assumptions=[f"a block can be left out for at most {TOLERATED} points of accuracy"],
        blocks=len(accuracies),
        lowest_accuracy=round(100 * min(accuracies.values()), 3),
    )
    cosines = of_blocks(table, "cosine_loss")
    stage = figures.at_end(table, "cosine_loss")
    inspection.write(
        f"fig{number(4)}",
        "cosine_loss_of_last_block",
        cosines[-1],
        mark,
        cosine_loss_of_last_stage=round(sum(stage) / len(stage), 4),
        negative_blocks=sum(value < 0 for value in cosines),
        blocks=len(cosines),
        by_block=cosines,
    )
    readouts = percentages(table, "intermediate_accuracy")
    inspection.write(
        f"fig{number(5)}", "intermediate_accuracy", readouts[-1], by_block_of_last_stage=readouts
    )
    record_groups(inspection, table)
    record_training(inspection)


def record_groups(inspection, table):
    """Write the result of Fig. 6, if there is a borderline example."""
    if f"{BORDERLINE}_accuracy" not in table.probes():
        return
    groups = {
        group: percentages(table, f"borderline_examples_{group}_accuracy")
        for group in ("borderline", "all")
    }
    inspection.write("fig6", "borderline_accuracy", groups["borderline"][-1], by_block=groups)


def record_training(inspection):
    """Write the result of Fig. 14, if an epoch was probed: the l2 ratio of the last stage."""
    table = study.table_of_training(inspection.run, "training")
    if not len(table):
        return
    by_block = [by_epoch.values() for by_epoch in figures.last_stage(table, "l2_ratio").values()]
    means = [round(statistics.mean(ratios), 4) for ratios in zip(*by_block, strict=True)]
    inspection.write(f"fig{number(14)}", "l2_ratio_of_last_stage", means[-1], by_probed_epoch=means)


def percentages(table, probe):
    """Return a probe's values at the blocks of the last stage in %."""
    return [round(100 * value, 3) for value in figures.at_end(table, probe)]


def of_blocks(table, probe):
    """Return a probe's value of each block."""
    return [round(value, 4) for block, value in table.values(probe).items() if block]


def num_blocks(table):
    """Return the number of blocks in the last stage."""
    return len(figures.last_stage(table, "l2_ratio"))


def unroll(inspection):
    """Make Figs 7 and 20: the last block repeated, unscaled and with the scale of lowest loss."""
    times = FLAGS.unroll or UNROLLED[FLAGS.budget]
    model, splits, name = inspection.run.model, inspection.splits, inspection.name
    progress = PassProgress("unrolling", len(SCALES) * len(splits["train"][0]))
    last = zoo.blocks.find_blocks(model)[0][-1].name
    options = {"times": range(1, times + 2), "first": last, "batch_size": BATCH}
    by_scale = {
        factor: callbacks.loops(model, splits["train"], scale=factor, progress=progress, **options)
        for factor in SCALES
    }
    losses = {
        factor: [row.value for row in table.of_probe("loop_loss")]
        for factor, table in by_scale.items()
    }
    finite = [factor for factor in SCALES if math.isfinite(losses[factor][-1])]
    scale = min(finite or SCALES, key=lambda factor: losses[factor][-1])
    table = by_scale[scale]
    table.to_csv(inspection.folder / f"unrolling-{name}.csv")
    tables = {
        factor: measure_unrolled(
            inspection, zoo.loop(model, last, times=times + 1, scale=factor), times, factor
        )
        for factor in dict.fromkeys((1.0, scale))
    }
    best = tables[scale]
    known = has_papers_numbers(inspection) and times == UNROLLED["paper"]
    figures.fig7(
        path_of(inspection.folder, 7, name),
        figures.group_rows(best, paper=MARKS if known else ()),
    )
    trained = num_blocks(best["test"]) - times
    figures.fig20(path_of(inspection.folder, 20, name), figures.unrolled_rows(tables, trained))
    losses = losses[scale]
    print(
        f"the last block {times} times more, f scaled by {scale} (lowest loss): training loss "
        f"{losses[0]:.4g} -> {losses[-1]:.4g}"
    )
    record_cosines(inspection, tables, times, scale)
    inspection.write(
        "fig7",
        "training_loss_unrolled_over_trained",
        losses[-1] / losses[0],
        assumptions=[SCALED],
        scale=scale,
        training_loss=[losses[0], losses[-1]],
    )
    record_borderline(
        inspection,
        best["test"],
        BORDERLINE_ACCURACY if known else None,
        scale=scale,
        repetitions=times,
    )


def measure_unrolled(inspection, model, times, factor):
    """Return the tables of an unrolled model, by split."""
    tables = {}
    for split, data in inspection.splits.items():
        probes = [
            callbacks.CosineLoss(),
            callbacks.CosineLoss("block", "cosine_loss_block"),
            callbacks.L2Ratio(),
        ]
        progress = PassProgress(f"scale {factor}, {split}", len(data[0]))
        tables[split] = callbacks.run(probes, model, data, batch_size=BATCH, progress=progress)
        many = study.all_test_images(inspection, split)
        progress = PassProgress(f"borderline examples, scale {factor}, {split}", len(many[0]))
        borderline = [callbacks.BorderlineExamples(times + 1)]
        tables[split] += callbacks.run(borderline, model, many, batch_size=BATCH, progress=progress)
    return tables


def record_cosines(inspection, tables, times, scale):
    """Write the result of Fig. 20: repetitions with a negative cosine loss on test images."""
    cosines = {
        factor: figures.at_end(by_split["test"], "cosine_loss_block")[-times:]
        for factor, by_split in tables.items()
    }
    negative = {factor: sum(c < 0 for c in values) for factor, values in cosines.items()}
    inspection.write(
        "fig20",
        "repetitions_with_negative_cosine",
        negative[scale],
        assumptions=[SCALED],
        scale=scale,
        repetitions=times,
        unscaled=negative[1.0],
        cosines={str(factor): [round(c, 4) for c in values] for factor, values in cosines.items()},
    )


def record_borderline(inspection, table, paper, **more):
    """Write the result of Fig. 7, if there is a borderline example, of an unrolled network's table.

    The paper's accuracies are those before and after the repetitions, or None.
    """
    if f"{BORDERLINE}_accuracy" not in table.probes():
        print("no borderline example: no result for Fig. 7")
        return
    accuracy = percentages(table, f"{BORDERLINE}_accuracy")
    share = figures.at_end(table, f"{BORDERLINE}_share")[0]
    inspection.write(
        "fig7",
        "borderline_accuracy_unrolled",
        accuracy[-1],
        round(100 * paper[1]) if paper else None,
        [
            SCALED,
            "borderline: within 0.1 of the highest other probability",
        ],
        before=accuracy[0],
        borderline_examples=round(len(study.all_test_images(inspection, "test")[0]) * share),
        **more,
    )


def summarize(table, split):
    """Print the numbers that the paper's text names."""
    cosine = [value for block, value in table.values("cosine_loss").items() if block]
    ratio = [value for block, value in table.values("l2_ratio").items() if block]
    accuracies = table.values("lesion_accuracy")
    intact = accuracies.pop(None)
    worst = min(accuracies, key=accuracies.get)
    print(
        f"{split}: cosine loss negative in {sum(v < 0 for v in cosine)} of {len(cosine)} blocks "
        f"(last {cosine[-1]:.3f}); l2 ratio {max(ratio):.2f} to {min(ratio):.2f}; accuracy "
        f"{intact:.3f}, without {worst} {accuracies[worst]:.3f}, without another at least "
        f"{sorted(accuracies.values())[1]:.3f}"
    )


if __name__ == "__main__":
    run_script(main)
