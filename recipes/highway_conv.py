"""Srivastava et al. (2015), Tables 1 to 3: convolutional highway networks on MNIST and CIFAR.

    python recipes/highway_conv.py --model highway_mnist --data_dir mnist.npz
    python recipes/highway_conv.py --model highway_a --data_dir cifar10.npz
    python recipes/highway_conv.py --model highway_cifar --budget paper

The paper's test accuracies: highway_mnist 99.43 % (width 32: 99.55), highway_a 89.18, highway_b
92.46, highway_c 91.20, highway_cifar 92.40 on CIFAR-10 and 67.76 on CIFAR-100 (--data cifar100).
`--budget minutes` is a miniature: 10,000 MNIST images for 20 epochs, or 2,000 CIFAR images for 10
to 40, to the end of a shorter schedule. `--budget paper` needs an accelerator.

A run directory holds config.json, metrics.csv, accuracy.png, state.npz (from which a killed run
resumes), model.keras, saved_model/ and results.jsonl. KERAS_BACKEND selects tensorflow, jax or
torch.
"""

import dataclasses

from experiment.script import run_script

from absl import flags

import zoo
from experiment import flags as common
from experiment import training
from experiment.training import Study
from zoo.optimizers import CaffeSGD

SMOKE_BATCH = 20
MINUTES_BATCH = 50  # ours, of MNIST: twice the updates at the same cost


def solver(learning_rate, drops, iterations):
    """Return the optimizer of the authors' solver: the rate falls to a tenth at each drop.

    In `--budget minutes` it falls once, for the last fifth: within so few iterations the authors'
    drops would come before the network has learnt.
    """

    def optimizer(total):
        ends = [0.8 * iterations] if FLAGS.budget == "minutes" else drops
        rates = [learning_rate * 0.1**i for i in range(len(ends) + 1)]
        return CaffeSGD(training.piecewise(rates, ends, iterations)(total))

    return optimizer


MNIST = Study(
    artifact="srivastava2015/table1",
    preprocessing="highway_mnist",
    batch=100,  # the authors' train_test files
    optimizer=solver(0.01, (60_000, 120_000), 180_000),  # the authors' solver files
    iterations=180_000,  # ibid.
    minutes=20,  # ours
    minutes_images=10_000,
    paper={"MNIST": 99.43},  # Table 1, width 16
    spread={"MNIST": (99.4, 0.03)},
)
CIFAR = Study(
    artifact="srivastava2015/table2",
    preprocessing="highway_cifar",
    batch=100,  # the authors' train_test files
    optimizer=solver(0.025, (100_000, 150_000, 175_000), 200_000),  # the authors' solver files
    iterations=200_000,  # ibid.
    minutes=40,  # ours
    minutes_images=2000,
    paper={"CIFAR-10": 89.18},  # Table 2, highway A
)
STUDIES = {
    "highway_mnist": MNIST,
    "highway_a": CIFAR,
    "highway_b": dataclasses.replace(
        CIFAR, minutes=15, paper={"CIFAR-10": 92.46}, spread={"CIFAR-10": (92.28, 0.16)}
    ),
    "highway_c": dataclasses.replace(CIFAR, minutes=30, paper={"CIFAR-10": 91.20}),
    "highway_cifar": dataclasses.replace(
        CIFAR,
        artifact="srivastava2015/table3",
        minutes=10,
        paper={"CIFAR-10": 92.40, "CIFAR-100": 67.76},
        spread={"CIFAR-10": (92.31, 0.12), "CIFAR-100": (67.61, 0.15)},
    ),
}
WIDE = dataclasses.replace(  # Table 1, width 32
    MNIST, paper={"MNIST": 99.55}, spread={"MNIST": (99.54, 0.02)}
)

flags.DEFINE_enum("model", "highway_mnist", list(STUDIES), "Network to train.")
flags.DEFINE_enum("variant", "coupled", list(zoo.FORMS), "Functional form of its layers.")
help_text = "Number of channels of highway_mnist; the paper's are 16 and 32."
flags.DEFINE_integer("width", 16, help_text, lower_bound=1)
common.define_image_flags()
FLAGS = flags.FLAGS


def main():
    """Run the recipe."""
    study, deviations = choose()
    run = training.prepare(
        study,
        f"{FLAGS.model}-{FLAGS.variant}",
        "mnist" if FLAGS.model == "highway_mnist" else "cifar10",
        build,
        variant=FLAGS.variant,
        width=FLAGS.width,
    )
    training.train(run)
    training.finish(run, FLAGS.model, {"variant": FLAGS.variant}, run.paper, deviations)


def choose():
    """Return the study that the flags select, and how it deviates from the paper."""
    study = STUDIES[FLAGS.model]
    deviations = []
    if FLAGS.budget == "smoke":
        deviations.append(f"batches of {SMOKE_BATCH}, not {study.batch}")
    if study is MNIST and FLAGS.width == 32:
        study = WIDE
    elif study is MNIST and FLAGS.width != 16:
        study = dataclasses.replace(MNIST, paper={"MNIST": None}, spread={})
        deviations.append(f"width {FLAGS.width}")
    if FLAGS.variant != "coupled":
        deviations.append(f"variant {FLAGS.variant}")
    if FLAGS.budget == "smoke":
        study = dataclasses.replace(study, batch=SMOKE_BATCH)
    elif FLAGS.budget == "minutes" and FLAGS.model == "highway_mnist":
        study = dataclasses.replace(study, batch=MINUTES_BATCH)
        deviations.append(f"batches of {MINUTES_BATCH}, not {MNIST.batch}")
    return study, deviations


def build(images):
    """Return the network for these images."""
    arguments = {"input_shape": images.x_train.shape[1:], "classes": images.classes}
    if FLAGS.model == "highway_mnist":
        arguments["width"] = FLAGS.width
    return zoo.create_model(FLAGS.model, variant=FLAGS.variant, **arguments)


if __name__ == "__main__":
    run_script(main)
