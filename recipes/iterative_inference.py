"""Jastrzebski et al. (2018), Figs 2 to 7, 10 to 17 and 20: do residual blocks refine.

    python recipes/iterative_inference.py --depth 20 --data_dir cifar10.npz
    python recipes/iterative_inference.py --budget paper
    python recipes/iterative_inference.py --model wide_resnet --data cifar100 --budget paper

Trains a network as the paper did and then asks of each block, on training and on test images: how
it moves what it carries against the loss (cosine loss, Fig. 4), how far (l2 ratio, Fig. 2), what is
lost without it (Fig. 3), how well the classifier reads it (Fig. 5), what the last blocks do to
borderline examples (Fig. 6), and what repeating the last block does (Figs 7 and 20). Figs 13 and 14
are the first two, of the last stage, epoch by epoch. With CIFAR-100, Figs 2, 3, 4, 5, 13 and 14 are
Figs 11, 12, 10, 17, 15 and 16.

The paper's four networks are cifar_resnet --depth 110, which `--budget paper` takes, and the other
models. Its test errors on CIFAR-10: ResNet-110 6.13 %, ResNet-56 6.53, ResNet-38 6.99, ResNet-32
7.14; its unrolled ResNet-110: training loss 0.0012 to 0.001, accuracy of borderline test examples
43 to 53 %; its last block's cosine loss: about -0.1.

The network is kept in --runs. --run_dir, which is the network's folder if it is not given, gets
figN-NETWORK.png and .csv, probes-NETWORK-train.html and probes-NETWORK-test.html (and .csv), and
unrolling-NETWORK.csv with every scale that was tried. Lines of results, beside the test accuracy's
(Table 1, or Fig. 5 for a network that is not in it), all on test images: Fig. 3, how many blocks
can each be left out for at most 5 points of accuracy; Fig. 4, the cosine loss of the last block;
Fig. 7, the accuracy of borderline examples, those of the trained network's output, behind the last
repetition.
"""

import functools

from absl import app, flags

from experiment import data as image_data
from experiment import hardware, progress, training
from jastrzebski2018 import plots
from jastrzebski2018 import study as refinement_recipe
from jastrzebski2018.study import BATCH

MODELS = ("cifar_resnet", "single_representation_resnet", "avg_pooling_resnet", "wide_resnet")
DEPTHS = {"smoke": 14, "minutes": 20, "paper": 110}  # 14: two blocks a stage: one is repeated
UNROLLED = {"smoke": 2, "minutes": 20, "paper": 20}  # section 4.4: repetitions
SLIM = {  # of smoke: channels of the stem, and channels, blocks and strides of each stage
    "single_representation_resnet": (8, ((8, 3, 1),)),
    "avg_pooling_resnet": (8, ((8, 2, 1), (8, 2, "pool"), (8, 2, "pool"))),
    "wide_resnet": (8, ((16, 2, 1), (16, 2, 2), (16, 2, 2))),
}
FOLLOWED = 5  # blocks of Fig. 6
SPARED = 5  # points of accuracy; ours
SCALES = (1.0, 0.5, 0.25, 0.1, 0.05)  # of the repetitions; ours: the paper gives none
CIFAR100 = {2: 11, 3: 12, 4: 10, 5: 17, 13: 15, 14: 16}  # figures that have other numbers there
LAST_COSINE = -0.1  # Fig. 6, "around"
MARKS = {  # section 4.4: before and after 20 repetitions
    ("train", "loss"): ("all", (0.0012, 0.001)),
    ("test", "accuracy"): ("borderline", (0.43, 0.53)),
}

flags.DEFINE_enum("model", "cifar_resnet", MODELS, "Network.")
told = "Layers of cifar_resnet, 6 n + 2; default: 110 for --budget paper, else 20."
flags.DEFINE_integer("depth", None, told, lower_bound=14)
told = "Repetitions of the last block; default: 20."
flags.DEFINE_integer("unroll", None, told, lower_bound=1)
refinement_recipe.define_flags()
FLAGS = flags.FLAGS


def main(argv):
    training.check(argv)
    name, depth = network()
    errors = refinement_recipe.ERRORS["cifar_resnet"].get(depth, ())
    study = refinement_recipe.study(FLAGS.model, errors, f"fig{number(5)}")
    probing = refinement_recipe.probing()
    run = training.prepare(study, name, "cifar10", build(depth), shared=True, **probing)
    splits = refinement_recipe.examples(run)
    refinement_recipe.train(run, splits)
    others = ["not a network of the paper"] if depth and not errors or slim() else []
    line = refinement_recipe.record(run, name, {}, errors, others)
    folder = hardware.folder_for(FLAGS.run_dir or run.folder)
    folder.mkdir(parents=True, exist_ok=True)
    told = functools.partial(refinement_recipe.append, run, splits, folder, line)
    inspect(run, splits, name, folder, told)
    unroll(run, splits, name, folder, told)
    print(f"figures of {name} in {folder}")


def network():
    """The network's name, and its depth if it is a cifar_resnet."""
    if FLAGS.model != "cifar_resnet":
        return FLAGS.model, None
    depth = FLAGS.depth or DEPTHS[FLAGS.budget]
    return f"cifar_resnet{depth}", depth


def slim():
    """Stem and stages of smoke's network, of the paper's kind; None: the paper's own."""
    return SLIM.get(FLAGS.model) if FLAGS.budget == "smoke" else None


def build(depth):
    """A function of the images to the network; `depth`: of cifar_resnet."""

    def of(images):
        import zoo
        from zoo.applications.cifar_resnet import preactivated
        from zoo.applications.input_and_head import Top

        classes, shape = images.classes, images.x_train.shape[1:]
        if slim():
            return preactivated(*slim(), classes, shape, Top(name=FLAGS.model))
        arguments = {"depth": depth} if depth else {}
        return zoo.create_model(FLAGS.model, input_shape=shape, classes=classes, **arguments)

    return of


def number(figure):
    """Of CIFAR-10's figure, or of the one that shows the same of CIFAR-100."""
    return CIFAR100.get(figure, figure) if FLAGS.data == "cifar100" else figure


def path_of(folder, figure, name):
    """Where CIFAR-10's figure, or CIFAR-100's, of a network is written."""
    same = FLAGS.data == "cifar100" and number(figure) == figure
    return folder / f"fig{number(figure)}-{name}{'-cifar100' if same else ''}.png"


def papers(run, name):
    """Whether section 4.4's numbers, and Fig. 6's, are of this network and these images."""
    return name == "cifar_resnet110" and image_data.original(run.images) == "CIFAR-10"


def inspect(run, splits, name, folder, told):
    """Figs 2 to 6, 13 and 14: tables, pages, pictures, and what they say in lines."""
    from zoo import callbacks

    tables = {}
    for split, data in splits.items():
        probes = [callbacks.CosineLoss(), callbacks.L2Ratio(), callbacks.IntermediateAccuracy()]
        probes += [callbacks.BorderlineExamples(FOLLOWED), callbacks.EstimationError()]
        probes += [callbacks.GradientNorm(), callbacks.ActivationNorm()]
        shown = {w: progress.Left(f"{w}, {split}", len(data[0])) for w in ("probes", "lesions")}
        table = callbacks.run(probes, run.model, data, batch_size=BATCH, progress=shown["probes"])
        more = {"batch_size": BATCH, "progress": shown["lesions"]}
        table += callbacks.lesions(run.model, data, **more)
        table.to_csv(folder / f"probes-{name}-{split}.csv")
        title = f"{name}, {len(data[0])} {split} images of {run.images.name}, epoch {run.epochs}"
        table.to_html(folder / f"probes-{name}-{split}.html", title)
        say(table, split)
        tables[split] = table
    mark = LAST_COSINE if papers(run, name) else None
    draw(run, tables, name, folder, mark)
    tell(tables["test"], mark, told)


def draw(run, tables, name, folder, mark):
    """Figs 2 to 6, 13 and 14."""
    figures = plots
    figures.by_block(path_of(folder, 2, name), tables, "l2_ratio", "|f| / |x|")
    label = "accuracy without the block"
    figures.by_block(path_of(folder, 3, name), tables, "lesion_accuracy", label)
    label = "cosine of f and dL/dx"
    figures.by_block(path_of(folder, 4, name), tables, "cosine_loss", label, mark)
    first = 1 + max(0, trained(tables["test"]) - FOLLOWED)
    figures.groups(path_of(folder, 6, name), tables, "block of the last stage", first)
    during = refinement_recipe.measured_in_training(run, "training")
    epochs = {5: "intermediate_accuracy", 13: "cosine_loss_block", 14: "l2_ratio"}
    for figure, probe in epochs.items():
        figures.by_epoch(path_of(folder, figure, name), during, [probe])


def tell(table, mark, told):
    """The lines of Figs 3 and 4, of test images; `told` writes them."""
    accuracies = table.values("lesion_accuracy")
    intact = accuracies.pop(None)
    spared = sum(value >= intact - SPARED / 100 for value in accuracies.values())
    reading = [f"a block can be left out for at most {SPARED} points of accuracy"]
    more = {"blocks": len(accuracies), "lowest_accuracy": round(100 * min(accuracies.values()), 3)}
    found = f"fig{number(3)}", "blocks_that_can_be_left_out", spared
    told(*found, readings=reading, **more)
    cosines = [value for block, value in table.values("cosine_loss").items() if block]
    stage = plots.at_end(table, "cosine_loss")
    more = {
        "cosine_loss_of_last_stage": round(sum(stage) / len(stage), 4),
        "negative_blocks": sum(value < 0 for value in cosines),
        "blocks": len(cosines),
    }
    told(f"fig{number(4)}", "cosine_loss_of_last_block", round(cosines[-1], 4), mark, **more)


def trained(table):
    """How many blocks the last stage has."""
    return len(plots.last_stage(table, "l2_ratio"))


def unroll(run, splits, name, folder, told):
    """Figs 7 and 20: the last block repeated, as it is and with the scale of the lowest loss."""
    import zoo
    from zoo import callbacks

    times = FLAGS.unroll or UNROLLED[FLAGS.budget]
    left = progress.Left("unrolling", len(splits["train"][0]), len(SCALES))
    options = {"scales": SCALES, "batch_size": BATCH, "progress": left}
    scale, table = callbacks.unrollings(run.model, splits["train"], times, **options)
    table.to_csv(folder / f"unrolling-{name}.csv")
    tables = {}
    for factor in dict.fromkeys((1.0, scale)):
        model = zoo.unroll(run.model, times, factor)
        tables[factor] = {}
        for split, data in splits.items():
            probes = [callbacks.CosineLoss(), callbacks.CosineLoss("block", "cosine_loss_block")]
            probes += [callbacks.L2Ratio(), callbacks.BorderlineExamples(times + 1)]
            left = progress.Left(f"scale {factor}, {split}", len(data[0]))
            options = {"batch_size": BATCH, "progress": left}
            tables[factor][split] = callbacks.run(probes, model, data, **options)
    figures, best = plots, tables[scale]
    marks = MARKS if papers(run, name) and times == UNROLLED["paper"] else {}
    words = "repetitions of the last block"
    figures.groups(path_of(folder, 7, name), best, words, marks=marks)
    before = trained(best["test"]) - times
    figures.unrolled(path_of(folder, 20, name), tables, before)
    losses = [row.value for row in table if row.probe == f"unroll_{scale}_loss"]
    print(
        f"the last block {times} times more, f scaled by {scale} (lowest loss): training loss "
        f"{losses[0]:.4g} -> {losses[-1]:.4g}; {negative(tables, times)}"
    )
    found = {"scale": scale, "repetitions": times, "training_loss": [losses[0], losses[-1]]}
    found["examples"] = len(splits["test"][0])
    tell_borderline(best["test"], marks, told, **found)


def tell_borderline(table, marks, told, examples, **found):
    """The line of Fig. 7, if there is a borderline example."""
    key = "borderline_examples_borderline"
    if f"{key}_accuracy" not in table.probes():
        return print("no borderline example: no line of Fig. 7")
    accuracy = [round(100 * v, 3) for v in plots.at_end(table, f"{key}_accuracy")]
    count = round(examples * plots.at_end(table, f"{key}_share")[0])
    paper = round(100 * marks["test", "accuracy"][1][1]) if marks else None
    reading = [f"f scaled by the one of {', '.join(map(str, SCALES))} of the lowest training loss"]
    reading += ["borderline: within 0.1 of the highest other probability"]
    more = {"before": accuracy[0], "borderline_examples": count, **found}
    told("fig7", "borderline_accuracy_unrolled", accuracy[-1], paper, reading, **more)


def negative(tables, times):
    """In how many of the repetitions the cosine loss is negative, by scale, on test images."""
    found = []
    for scale, by_split in tables.items():
        values = plots.at_end(by_split["test"], "cosine_loss_block")[-times:]
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
