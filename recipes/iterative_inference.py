"""Jastrzebski et al. (2018), Figs 2 to 7, 13, 14 and 20: do residual blocks refine, on CIFAR-10.

    python recipes/iterative_inference.py --model cifar_resnet --depth 20 --data_dir cifar10.npz
    python recipes/iterative_inference.py --model resnet110 --budget paper

Trains a network as the paper did and then asks of each block, on training and on test images: how
it moves what it carries against the loss (cosine loss, Fig. 4), how far (l2 ratio, Fig. 2), what is
lost without it (Fig. 3), how well the classifier reads it (Fig. 5), what the last blocks do to
borderline examples (Fig. 6), and what repeating the last block does (Figs 7 and 20). Figs 13 and 14
are the first two, of the last stage, epoch by epoch. With CIFAR-100 they are Figs 10, 11, 12 and 15
to 17 under the same names.

The run directory holds what highway_conv.py's holds, figN.png and figN.csv, probes-train.html,
probes-test.html (and .csv), training.csv with what was measured after each epoch, and unrolling.csv
with every scale that was tried. The paper's test errors on CIFAR-10: ResNet-110 6.13 %, ResNet-56
6.53, ResNet-38 6.99, ResNet-32 7.14; its unrolled ResNet-110: training loss 0.0012 to 0.001,
accuracy of borderline test examples 43 to 53 %.
"""

import image_recipe  # beside this script
import refinement_figures
import refinement_recipe
from absl import app, flags
from refinement_recipe import BATCH

MODELS = ("cifar_resnet", "resnet110", "single_representation_resnet", "avg_pooling_resnet")
MODELS += ("wide_resnet",)
FOLLOWED = 5  # blocks of Fig. 6
UNROLLED = {  # section 4.4: before and after 20 repetitions
    ("train", "loss"): ("all", (0.0012, 0.001)),
    ("test", "accuracy"): ("borderline", (0.43, 0.53)),
}

flags.DEFINE_enum("model", "cifar_resnet", MODELS, "Network.")
depth = "Layers of cifar_resnet, 6 n + 2; the paper's start at 32."
flags.DEFINE_integer("depth", 20, depth, lower_bound=14)  # two blocks a stage: one is repeated
flags.DEFINE_integer("unroll", 20, "Repetitions of the last block.", lower_bound=1)
refinement_recipe.define_flags()
FLAGS = flags.FLAGS


def main(argv):
    image_recipe.check(argv)
    name = f"{FLAGS.model}{FLAGS.depth}" if FLAGS.model == "cifar_resnet" else FLAGS.model
    schedule = "cifar_resnet" if FLAGS.model == "resnet110" else FLAGS.model
    depth = {"resnet110": 110, "cifar_resnet": FLAGS.depth}.get(FLAGS.model)
    errors = refinement_recipe.ERRORS["cifar_resnet"].get(depth, ())
    study, probing = refinement_recipe.study(schedule, errors), refinement_recipe.probing()
    run = image_recipe.prepare(study, name, "cifar10", build, **probing)
    splits = refinement_recipe.examples(run)
    image_recipe.train(run, [refinement_recipe.probe_during(run, splits["test"])])
    inspect(run, splits, name)
    unroll(run, splits)
    paper = image_recipe.paper_of(run)
    departures = ["no validation part is held out"]
    departures += [] if errors else ["not a network of the paper's Table 1"]
    image_recipe.finish(run, name, {}, paper, departures)


def build(images):
    """The network for these images."""
    import zoo

    arguments = {"input_shape": images.x_train.shape[1:], "classes": images.classes}
    if FLAGS.model == "cifar_resnet":
        arguments["depth"] = FLAGS.depth
    return zoo.create_model(FLAGS.model, **arguments)


def inspect(run, splits, name):
    """Figs 2 to 6, 13 and 14: tables, pages, pictures, and what they say in a line."""
    from zoo import callbacks

    tables = {}
    for split, data in splits.items():
        probes = [callbacks.CosineLoss(), callbacks.L2Ratio(), callbacks.IntermediateAccuracy()]
        probes += [callbacks.BorderlineExamples(FOLLOWED), callbacks.EstimationError()]
        probes += [callbacks.GradientNorm(), callbacks.ActivationNorm()]
        table = callbacks.run(probes, run.model, data, batch_size=BATCH)
        table += callbacks.lesions(run.model, data, batch_size=BATCH)
        table.to_csv(run.folder / f"probes-{split}.csv")
        title = f"{name}, {len(data[0])} {split} images of {run.images.name}, epoch {run.epochs}"
        table.to_html(run.folder / f"probes-{split}.html", title)
        say(table, split)
        tables[split] = table
    draw = refinement_figures
    draw.by_block(run.folder / "fig2.png", tables, "l2_ratio", "|f| / |x|")
    draw.by_block(run.folder / "fig3.png", tables, "lesion_accuracy", "accuracy without the block")
    draw.by_block(run.folder / "fig4.png", tables, "cosine_loss", "cosine of f and dL/dx", -0.1)
    first = 1 + max(0, trained(tables["test"]) - FOLLOWED)
    draw.groups(run.folder / "fig6.png", tables, "block of the last stage", first)
    path = run.folder / "training.csv"
    during = callbacks.Table.from_csv(path) if path.exists() else callbacks.Table()
    epochs = {5: "intermediate_accuracy", 13: "cosine_loss_block", 14: "l2_ratio"}
    for number, probe in epochs.items():
        draw.by_epoch(run.folder / f"fig{number}.png", during, [probe])


def trained(table):
    """How many blocks the last stage has."""
    return len(refinement_figures.last_stage(table, "l2_ratio"))


def unroll(run, splits):
    """Figs 7 and 20: the last block repeated, as it is and with the scale of the lowest loss."""
    import zoo
    from zoo import callbacks

    times = FLAGS.unroll
    scale, table = callbacks.unrollings(run.model, splits["train"], times)
    table.to_csv(run.folder / "unrolling.csv")
    tables = {}
    for factor in dict.fromkeys((1.0, scale)):
        model = zoo.unroll(run.model, times, factor)
        tables[factor] = {}
        for split, data in splits.items():
            probes = [callbacks.CosineLoss(), callbacks.CosineLoss("block", "cosine_loss_block")]
            probes += [callbacks.L2Ratio(), callbacks.BorderlineExamples(times + 1)]
            tables[factor][split] = callbacks.run(probes, model, data, batch_size=BATCH)
    draw, best = refinement_figures, tables[scale]
    draw.groups(run.folder / "fig7.png", best, "repetitions of the last block", marks=UNROLLED)
    draw.unrolled(run.folder / "fig20.png", tables, trained(best["test"]) - times)
    rows = [row for row in table if row.probe == f"unroll_{scale}_loss"]
    print(
        f"the last block {times} times more, f scaled by {scale} (lowest loss): training loss "
        f"{rows[0].value:.4g} -> {rows[-1].value:.4g}; {negative(tables, times)}"
    )


def negative(tables, times):
    """In how many of the repetitions the cosine loss is negative, by scale, on test images."""
    found = []
    for scale, by_split in tables.items():
        values = refinement_figures.at_end(by_split["test"], "cosine_loss_block")[-times:]
        found.append(f"{sum(value < 0 for value in values)} of {times} scaled by {scale}")
    return "cosine loss on test images negative in " + ", ".join(found)


def say(table, split):
    """The numbers that the paper's text names."""
    cosine = [v for block, v in table.values("cosine_loss").items() if block]
    ratio = [v for block, v in table.values("l2_ratio").items() if block]
    lesion = table.values("lesion_accuracy")
    intact, others = lesion[None], {b: v for b, v in lesion.items() if b}
    worst = min(others, key=others.get)
    print(
        f"{split}: cosine loss negative in {sum(v < 0 for v in cosine)} of {len(cosine)} blocks "
        f"(last {cosine[-1]:.3f}); l2 ratio {max(ratio):.2f} to {min(ratio):.2f}; accuracy "
        f"{intact:.3f}, without {worst} {others[worst]:.3f}, without another at least "
        f"{sorted(others.values())[1]:.3f}"
    )


if __name__ == "__main__":
    app.run(main)
