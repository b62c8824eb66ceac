"""Srivastava et al. (2015), Tables 1 to 3: convolutional highway networks on MNIST and CIFAR.

    python recipes/highway_conv.py --model highway_mnist --data_dir mnist.npz
    python recipes/highway_conv.py --model highway_a --data_dir cifar10.npz
    python recipes/highway_conv.py --model highway_cifar --budget paper

The paper's test accuracies: highway_mnist 99.43 % (width 32: 99.55), highway_a 89.18, highway_b
92.46, highway_c 91.20, highway_cifar 92.40 on CIFAR-10 and 67.76 on CIFAR-100 (--data cifar100).
What our runs gave, and how long they took, stands in recipes/README.md. `--budget minutes` is a
small fraction of the paper's iterations, and its accuracy far below; on two slow cores 12 epochs of
10,000 MNIST images took 11 minutes. `--budget paper` is for an accelerator.

A run directory holds config.json, metrics.csv, accuracy.png, state.npz (from which a killed run
goes on), model.keras, saved_model/ and results.jsonl. KERAS_BACKEND chooses tensorflow, jax, torch.
"""

import pathlib
import re
import sys
import time
from collections import namedtuple

from absl import app, flags, logging

Solver = namedtuple("Solver", "learning_rate drops iterations")
MNIST = Solver(0.01, (60_000, 120_000), 180_000)  # the authors' solver files; see zoo/optimizers.py
CIFAR = Solver(0.025, (100_000, 150_000, 175_000), 200_000)
Study = namedtuple("Study", "artifact solver preprocessing paper minutes")
STUDIES = {  # paper: test accuracy in %, by data; minutes: epochs of that budget, ours
    "highway_mnist": Study("table1", MNIST, "highway_mnist", {"MNIST": 99.43}, 30),
    "highway_a": Study("table2", CIFAR, "highway_cifar", {"CIFAR-10": 89.18}, 8),
    "highway_b": Study("table2", CIFAR, "highway_cifar", {"CIFAR-10": 92.46}, 1),
    "highway_c": Study("table2", CIFAR, "highway_cifar", {"CIFAR-10": 91.20}, 2),
    "highway_cifar": Study(
        "table3", CIFAR, "highway_cifar", {"CIFAR-10": 92.40, "CIFAR-100": 67.76}, 1
    ),
}
WIDE_MNIST = 99.55  # width 32
BATCH = 100  # the authors' train_test files
VARIANTS = ("plain", "residual", "t_only", "c_only", "coupled", "full")

flags.DEFINE_enum("model", "highway_mnist", list(STUDIES), "Network.")
flags.DEFINE_enum("variant", "coupled", VARIANTS, "Form of its layers.")
flags.DEFINE_integer("width", 16, "Channels of highway_mnist: 16 or 32 in the paper.")
flags.DEFINE_string("data", None, "mnist, cifar10, cifar100; with --data_dir any name.")
flags.DEFINE_string("data_dir", None, "An .npz file or a folder of images: zoo.datasets.images.")
flags.DEFINE_enum("budget", "minutes", ["smoke", "minutes", "paper"], "smoke: two batches.")
flags.DEFINE_integer("epochs", None, "Overrides the budget's; the schedule shrinks along.")
flags.DEFINE_integer("seed", 0, "Of weights, order and augmentation.", lower_bound=0)
flags.DEFINE_string("run_dir", None, "Default: runs/MODEL-DATA-VARIANT-BUDGET-SEED.")
flags.DEFINE_bool("resume", True, "Go on from the run directory's checkpoint.")
flags.DEFINE_bool("export", True, "Write a SavedModel (needs TensorFlow).")
flags.DEFINE_enum("precision", "float32", ["float32", "mixed_bfloat16", "mixed_float16"], "")
flags.DEFINE_string("results", None, "Also append the line of results to this file.")
FLAGS = flags.FLAGS


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")
    import keras

    import zoo
    from zoo.checkpoint import open_run
    from zoo.datasets import images as sources

    study = STUDIES[FLAGS.model]
    try:
        images = load(sources)
        epochs = epochs_of(study, len(images.x_train))
        run_dir = pathlib.Path(FLAGS.run_dir or default_run_dir(images))
        keras.config.set_dtype_policy(FLAGS.precision)
        zoo.seed_everything(FLAGS.seed)
        zoo.keep_memory()
        model = build(images)
        resume = open_run(run_dir, identity(images, epochs), 200, anew=not FLAGS.resume)
    except (ValueError, sources.DownloadError) as error:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {error}")
    try:
        seconds, x_test = train(model, study, images, epochs, run_dir, resume)
    except FloatingPointError as error:
        kept = resume.path if resume.path.exists() else "none: the first epoch was not finished"
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {error} Last good checkpoint: {kept}.")
    finish(model, study, images, epochs, run_dir, resume, seconds, x_test)


def load(sources):
    """The images asked for; two batches of them for `--budget smoke`."""
    import dataclasses

    images = sources.load(FLAGS.data or default_data(), FLAGS.data_dir)
    if images.notice:
        logging.warning("%s", images.notice)
    if FLAGS.budget == "smoke":
        keys = ("x_train", "y_train", "x_test", "y_test")
        cut = {key: getattr(images, key)[: 2 * BATCH] for key in keys}
        images = dataclasses.replace(images, **cut)
    if len(images.x_train) < BATCH:
        raise ValueError(
            f"Expected at least one batch of {BATCH} training images. "
            f"Received: {len(images.x_train)} in {FLAGS.data_dir}"
        )
    return images


def default_data():
    return "mnist" if FLAGS.model == "highway_mnist" else "cifar10"


def epochs_of(study, num_train):
    """The budget's epochs; the paper's are counted in iterations."""
    if FLAGS.epochs:
        return FLAGS.epochs
    paper = study.solver.iterations * BATCH // num_train
    return {"smoke": 1, "minutes": study.minutes, "paper": paper}[FLAGS.budget]


def default_run_dir(images):
    name = images.name.lower().replace(" ", "-").replace("(", "").replace(")", "")
    return f"runs/{FLAGS.model}-{name}-{FLAGS.variant}-{FLAGS.budget}-{FLAGS.seed}"


def build(images):
    """The network for these images."""
    import zoo

    arguments = {"input_shape": images.x_train.shape[1:], "classes": images.classes}
    if FLAGS.model == "highway_mnist":
        arguments["width"] = FLAGS.width
    return zoo.create_model(FLAGS.model, variant=FLAGS.variant, **arguments)


def identity(images, epochs):
    """What makes a run this run: a checkpoint of another is refused."""
    return {
        "model": FLAGS.model,
        "variant": FLAGS.variant,
        "width": FLAGS.width,
        "data": images.name,
        "images": len(images.x_train),
        "epochs": epochs,
        "seed": FLAGS.seed,
        "precision": FLAGS.precision,
    }


def schedule(solver, iterations):
    """The authors' learning rates, their drops at the same fractions of a shorter training."""
    import keras

    drops = [round(drop * iterations / solver.iterations) for drop in solver.drops]
    rates = [solver.learning_rate * 0.1**i for i in range(len(drops) + 1)]
    return keras.optimizers.schedules.PiecewiseConstantDecay(drops, rates)


def train(model, study, images, epochs, run_dir, resume):
    """One call of `fit`; returns its seconds over all processes, and the images it tested on."""
    import zoo
    from zoo.datasets import preprocessing
    from zoo.datasets.batches import Batches, Epochs
    from zoo.optimizers import CaffeSGD

    prepared = preprocessing.fit(study.preprocessing, images.x_train)
    batches = Batches(
        images.x_train, images.y_train, BATCH, FLAGS.seed, prepared.augment, drop_remainder=True
    )
    optimizer = CaffeSGD(schedule(study.solver, epochs * len(batches)))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    progress = zoo.callbacks.Progress(epochs, len(batches), BATCH, "images")
    resume.track[:] = [progress]
    x_test = prepared(images.x_test)
    test = Batches(x_test, images.y_test, BATCH, shuffle=False)
    callbacks = [Epochs(batches), zoo.callbacks.StopOnNaN(), progress, resume]
    model.fit(
        batches,
        epochs=epochs,
        validation_data=test,
        verbose=0,
        callbacks=callbacks,
        shuffle=False,
    )
    return progress.elapsed, x_test


def finish(model, study, images, epochs, run_dir, resume, seconds, x_test):
    """Curve, test accuracy of the last and of the best epoch, model, SavedModel, results."""
    from zoo import export, report
    from zoo.files import save_model

    start = time.perf_counter()
    history = resume.read()["history"]["history"]
    report.curve(run_dir / "metrics.csv", history, "accuracy", images.name, "linear")
    save_model(model, run_dir / "model.keras")
    accuracies = [100 * value for value in history["val_accuracy"]]
    paper = study.paper.get(re.sub(r"-[0-9.]+k| \(JPEG\)", "", images.name))
    if FLAGS.model == "highway_mnist" and paper:
        paper = {16: paper, 32: WIDE_MNIST}.get(FLAGS.width)
    found = departures(study, images, epochs, paper)
    line = report.row(
        artifact=f"srivastava2015/{study.artifact}",
        model=FLAGS.model,
        config={"variant": FLAGS.variant, "parameters": model.count_params()},
        metric="test_accuracy",
        value=round(accuracies[-1], 3),
        std=None,
        seeds=[FLAGS.seed],
        paper=paper,
        data=images.name,
        budget=FLAGS.budget,
        epochs=epochs,
        departures=found,
        verdict="not comparable" if found else f"{accuracies[-1] - paper:+.2f}, one seed",
        seconds=round(seconds + time.perf_counter() - start, 1),
        best_epoch=1 + max(range(epochs), key=accuracies.__getitem__),
        test_accuracy_by_epoch=[round(value, 2) for value in accuracies],
    )
    for path in filter(None, [run_dir / "results.jsonl", FLAGS.results]):
        report.append(path, line)
    print(
        f"test accuracy on {images.name}: {accuracies[-1]:.2f} % after epoch {epochs}, "
        f"{max(accuracies):.2f} % after epoch {line['best_epoch']}; all in {run_dir}"
    )
    if FLAGS.export:
        examples = {"serve": x_test[:4]}
        deviation = export.saved_model(model, run_dir / "saved_model", examples=examples)
        print(f"SavedModel: {run_dir / 'saved_model'}; deviates by {deviation:.1e} at most")


def departures(study, images, epochs, paper):
    """What distinguishes the run from the paper's."""
    found = []
    if images.name not in study.paper:
        found.append(f"{images.name}: {images.notice or 'not the images of the paper'}")
    elif paper is None:
        found.append(f"width {FLAGS.width}")
    iterations = epochs * (len(images.x_train) // BATCH)
    if iterations != study.solver.iterations:
        found.append(f"{iterations} of {study.solver.iterations} iterations, schedule shortened")
    if FLAGS.variant != "coupled":
        found.append(f"variant {FLAGS.variant}")
    if FLAGS.precision != "float32":
        found.append(FLAGS.precision)
    return found


if __name__ == "__main__":
    app.run(main)
