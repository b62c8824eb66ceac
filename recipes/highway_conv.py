"""Srivastava et al. (2015), Tables 1 to 3: convolutional highway networks on MNIST and CIFAR.

    python recipes/highway_conv.py --model highway_mnist --data_dir mnist.npz
    python recipes/highway_conv.py --model highway_a --data_dir cifar10.npz
    python recipes/highway_conv.py --model highway_cifar --budget paper

The paper's test accuracies: highway_mnist 99.43 % (width 32: 99.55), highway_a 89.18, highway_b
92.46, highway_c 91.20, highway_cifar 92.40 on CIFAR-10 and 67.76 on CIFAR-100 (--data cifar100).
What our runs gave, and how long they took, stands in recipes/README.md. `--budget minutes` is a
small fraction of the paper's iterations, and its accuracy far below; on two cores 45 epochs of
10,000 MNIST images took 12 minutes. `--budget paper` is for an accelerator.

A run directory holds config.json, metrics.csv, accuracy.png, state.npz (from which a killed run
goes on), model.keras, saved_model/ and results.jsonl. KERAS_BACKEND chooses tensorflow, jax, torch.
"""

import dataclasses

from absl import app, flags

from experiment import schedules, training

BATCH, SMOKE_BATCH = 100, 20  # the authors' train_test files; of --budget smoke
VARIANTS = ("plain", "residual", "t_only", "c_only", "coupled", "full")
BY_WIDTH = {16: (99.43, (99.4, 0.03)), 32: (99.55, (99.54, 0.02))}  # Table 1


def caffe(learning_rate, drops, iterations):
    """The authors' solver: the learning rate falls to a tenth at each drop; zoo/optimizers.py."""
    rates = [learning_rate * 0.1**i for i in range(len(drops) + 1)]
    schedule = schedules.piecewise(rates, drops, iterations)

    def optimizer(total):
        from zoo.optimizers import CaffeSGD

        return CaffeSGD(schedule(total))

    return {"optimizer": optimizer, "iterations": iterations, "batch": BATCH}


MNIST = caffe(0.01, (60_000, 120_000), 180_000)  # the authors' solver files
CIFAR = caffe(0.025, (100_000, 150_000, 175_000), 200_000)


def cifar(table, minutes, paper, spread=()):
    """The study of a network for CIFAR; the paper's accuracies, on CIFAR-10 first."""
    data, artifact = ("CIFAR-10", "CIFAR-100"), f"srivastava2015/table{table}"
    named = {
        "paper": dict(zip(data, paper, strict=False)),
        "spread": dict(zip(data, spread, strict=False)),
    }
    return training.Study(
        artifact, preprocessing="highway_cifar", minutes=minutes, **named, **CIFAR
    )


STUDIES = {
    "highway_mnist": training.Study(
        "srivastava2015/table1",
        preprocessing="highway_mnist",
        paper={"MNIST": None},  # see BY_WIDTH
        minutes=30,
        **MNIST,
    ),
    "highway_a": cifar(2, 8, [89.18]),
    "highway_b": cifar(2, 1, [92.46], [(92.28, 0.16)]),
    "highway_c": cifar(2, 2, [91.20]),
    "highway_cifar": cifar(3, 1, [92.40, 67.76], [(92.31, 0.12), (67.61, 0.15)]),
}

flags.DEFINE_enum("model", "highway_mnist", list(STUDIES), "Network.")
flags.DEFINE_enum("variant", "coupled", VARIANTS, "Form of its layers.")
flags.DEFINE_integer("width", 16, "Channels of highway_mnist: 16 or 32 in the paper.")
training.define_flags()
FLAGS = flags.FLAGS


def main(argv):
    training.check(argv)
    study, departures = STUDIES[FLAGS.model], []
    if FLAGS.budget == "smoke":
        study = dataclasses.replace(study, batch=SMOKE_BATCH)
        departures.append(f"batches of {SMOKE_BATCH}, not {BATCH}")
    is_mnist = FLAGS.model == "highway_mnist"
    if is_mnist and FLAGS.width in BY_WIDTH:
        paper, spread = BY_WIDTH[FLAGS.width]
        study = dataclasses.replace(study, paper={"MNIST": paper}, spread={"MNIST": spread})
    elif is_mnist:
        departures.append(f"width {FLAGS.width}")
    run = training.prepare(
        study,
        f"{FLAGS.model}-{FLAGS.variant}",
        "mnist" if is_mnist else "cifar10",
        build,
        variant=FLAGS.variant,
        width=FLAGS.width,
    )
    training.train(run)
    paper = training.paper_of(run)
    if FLAGS.variant != "coupled":
        departures.append(f"variant {FLAGS.variant}")
    training.finish(run, FLAGS.model, {"variant": FLAGS.variant}, paper, departures)


def build(images):
    """The network for these images."""
    import zoo

    arguments = {"input_shape": images.x_train.shape[1:], "classes": images.classes}
    if FLAGS.model == "highway_mnist":
        arguments["width"] = FLAGS.width
    return zoo.create_model(FLAGS.model, variant=FLAGS.variant, **arguments)


if __name__ == "__main__":
    app.run(main)
