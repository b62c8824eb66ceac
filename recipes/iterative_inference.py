"""Jastrzebski et al. (2018), Figs 2 to 7: do residual blocks refine, on CIFAR-10.

    python recipes/iterative_inference.py --model cifar_resnet --depth 20 --data_dir cifar10.npz
    python recipes/iterative_inference.py --model resnet110 --budget paper

Trains a network as the paper did and then asks of each block, on training and on test images: how
it moves what it carries against the loss (cosine loss, Fig. 4), how far (l2 ratio, Fig. 2), what is
lost without it (Fig. 3), how well the classifier reads it (Fig. 5), what the last blocks do to
borderline examples (Fig. 6), and what repeating the last block does (Fig. 7).

The run directory holds what highway_conv.py's holds, and probes-train.html, probes-test.html (and
.csv), training.csv with what was measured after each epoch, and unrolling.csv. The paper's test
errors on CIFAR-10: ResNet-110 6.13 %, ResNet-56 6.53, ResNet-38 6.99, ResNet-32 7.14.
"""

import image_recipe  # beside this script
import numpy as np
from absl import app, flags

MODELS = ("cifar_resnet", "resnet110", "single_representation_resnet", "avg_pooling_resnet")
MODELS += ("wide_resnet",)
ERRORS = {32: 7.14, 38: 6.99, 56: 6.53, 110: 6.13}  # Table 1, CIFAR-10
BATCH = 128  # the first author's later code; the paper does not say
DECAY = 2e-4  # ibid.: Keras l2(1e-4), whose gradient is 2e-4 w
SCHEDULES = {  # section 4: learning rates, the epochs at which each ends, epochs in all
    "single_representation_resnet": ((0.1, 0.02, 0.004, 0.0008), (40, 60, 80), 200),
    "avg_pooling_resnet": ((0.1, 0.02, 0.004, 0.0008), (40, 60, 80), 100),
    "wide_resnet": ((0.1, 0.02), (60,), 100),
    "resnet110": ((0.1, 0.01, 0.001, 1e-5, 1.1e-5), (80, 120, 200, 240), 300),  # as printed
}
SCHEDULES["cifar_resnet"] = SCHEDULES["resnet110"]

flags.DEFINE_enum("model", "cifar_resnet", MODELS, "Network.")
depth = "Layers of cifar_resnet, 6 n + 2; the paper's start at 32."
flags.DEFINE_integer("depth", 20, depth, lower_bound=14)  # two blocks a stage: one is repeated
flags.DEFINE_integer("minutes_epochs", 8, "Epochs of --budget minutes.", lower_bound=1)
flags.DEFINE_integer("probe_examples", 2000, "Images of each split to probe.", lower_bound=1)
flags.DEFINE_integer("probe_every", 1, "Epochs between two probings in training.", lower_bound=1)
flags.DEFINE_integer("unroll", 20, "Repetitions of the last block.", lower_bound=1)
image_recipe.define_flags()
FLAGS = flags.FLAGS


def main(argv):
    image_recipe.check(argv)
    name = f"{FLAGS.model}{FLAGS.depth}" if FLAGS.model == "cifar_resnet" else FLAGS.model
    run = image_recipe.prepare(study(), name, "cifar10", build)
    splits = examples(run)
    during = probe_during(run, splits["test"])
    image_recipe.train(run, [during])
    inspect(run, splits, name)
    paper = image_recipe.paper_of(run)
    departures = ["no validation part is held out"]
    departures += [] if paper else ["not a network of the paper's Table 1"]
    image_recipe.finish(run, name, {}, paper, departures)


def study():
    rates, drops, epochs = SCHEDULES[FLAGS.model]
    depth = {"resnet110": 110, "cifar_resnet": FLAGS.depth}.get(FLAGS.model)
    paper = round(100 - ERRORS[depth], 2) if depth in ERRORS else None
    schedule = image_recipe.piecewise(rates, drops, epochs)

    def optimizer(iterations):
        from zoo.optimizers import CaffeSGD

        decay = {"decay": DECAY, "last_decay": DECAY, "bias_rate": 1.0}
        return CaffeSGD(schedule(iterations), momentum=0.9, nesterov=False, **decay)

    return image_recipe.Study(
        "jastrzebski2018/table1",
        optimizer,
        preprocessing="jastrzebski_cifar",
        paper={"CIFAR-10": paper},
        minutes=FLAGS.minutes_epochs,
        batch=BATCH,
        epochs=epochs,
    )


def build(images):
    """The network for these images."""
    import zoo

    arguments = {"input_shape": images.x_train.shape[1:], "classes": images.classes}
    if FLAGS.model == "cifar_resnet":
        arguments["depth"] = FLAGS.depth
    return zoo.create_model(FLAGS.model, **arguments)


def examples(run):
    """The images that are probed, of both splits, as the network sees them at test."""
    chosen = np.random.default_rng(FLAGS.seed).permutation(len(run.images.x_train))
    chosen = np.sort(chosen[: FLAGS.probe_examples])
    train = run.prepared(run.images.x_train[chosen]), run.images.y_train[chosen]
    return {
        "train": train,
        "test": (run.x_test[: FLAGS.probe_examples], run.images.y_test[: FLAGS.probe_examples]),
    }


def probe_during(run, data):
    """Figs 5, 13 and 14: the last stage's blocks after each epoch."""
    from zoo import callbacks

    probes = [callbacks.IntermediateAccuracy(), callbacks.CosineLoss("block", "cosine_loss_block")]
    probes.append(callbacks.L2Ratio())
    return callbacks.RunProbes(
        probes, data, FLAGS.probe_every, BATCH, path=run.folder / "training.csv"
    )


def inspect(run, splits, name):
    """Figs 2 to 4, 6 and 7 of the trained network: tables, pages, and what they say in a line."""
    from zoo import callbacks

    for split, data in splits.items():
        probes = [callbacks.CosineLoss(), callbacks.L2Ratio(), callbacks.IntermediateAccuracy()]
        probes += [callbacks.BorderlineExamples(), callbacks.EstimationError()]
        probes += [callbacks.GradientNorm(), callbacks.ActivationNorm()]
        table = callbacks.run(probes, run.model, data, batch_size=BATCH)
        table += callbacks.lesions(run.model, data, batch_size=BATCH)
        table.to_csv(run.folder / f"probes-{split}.csv")
        title = f"{name}, {len(data[0])} {split} images of {run.images.name}, epoch {run.epochs}"
        table.to_html(run.folder / f"probes-{split}.html", title)
        say(table, split)
    scale, table = callbacks.unrollings(run.model, splits["train"], FLAGS.unroll)
    table.to_csv(run.folder / "unrolling.csv")
    rows = [row for row in table if row.probe == f"unroll_{scale}_loss"]
    print(
        f"the last block {FLAGS.unroll} times more, f scaled by {scale} (lowest loss): training "
        f"loss {rows[0].value:.4g} -> {rows[-1].value:.4g}"
    )


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
