"""What the recipes for images share: flags, data, a training that resumes, a row of results.

A recipe imports it from beside itself, says in a `Study` what its paper did, and calls `prepare`,
`train` and `finish`.
"""

import dataclasses
import pathlib
import re
import sys
import time
from collections.abc import Callable

from absl import app, flags, logging

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Study:
    """What a paper did to train one network.

    Attributes:
        artifact: Of the line of results, e.g. "srivastava2015/table1".
        optimizer: A function of the number of iterations to a Keras optimizer; a shorter training
            than the paper's drops its learning rate at the same fractions.
        iterations: Of the paper; or None, and `epochs` tells.
        epochs: Of the paper.
        minutes: Epochs of `--budget minutes`; ours.
        batch: Images in a batch.
        preprocessing: A recipe of `zoo.datasets.preprocessing`.
        paper: The paper's test accuracy in %, or None, by its data.
    """

    artifact: str
    optimizer: Callable
    preprocessing: str
    paper: dict
    minutes: int
    batch: int
    iterations: int | None = None
    epochs: int | None = None


def define_flags():
    """The flags that every recipe for images has."""
    flags.DEFINE_string("data", None, "mnist, cifar10, cifar100; with --data_dir any name.")
    flags.DEFINE_string(
        "data_dir", None, "An .npz file or a folder of images: zoo.datasets.images."
    )
    flags.DEFINE_integer("train_examples", None, "Only the first N for training.", lower_bound=1)
    flags.DEFINE_enum("budget", "minutes", ["smoke", "minutes", "paper"], "smoke: two batches.")
    flags.DEFINE_integer("epochs", None, "Overrides the budget's; the schedule shrinks along.")
    flags.DEFINE_integer("seed", 0, "Of weights, order and augmentation.", lower_bound=0)
    flags.DEFINE_string("run_dir", None, "Default: runs/MODEL-DATA-BUDGET-SEED.")
    flags.DEFINE_bool("resume", True, "Go on from the run directory's checkpoint.")
    flags.DEFINE_bool("export", True, "Write a SavedModel (needs TensorFlow).")
    precisions = ["float32", "mixed_bfloat16", "mixed_float16"]
    flags.DEFINE_enum("precision", "float32", precisions, "")
    flags.DEFINE_string("results", None, "Also append the line of results to this file.")


def check(argv):
    """Recipes take flags only."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")


@dataclasses.dataclass
class Run:
    """A training that is ready to start, or done; see `prepare`."""

    study: Study
    images: object
    epochs: int
    folder: pathlib.Path
    model: object
    resume: object
    batches: object
    prepared: object
    x_test: object
    progress: object = None
    started: float = 0.0


def prepare(study, name, default_data, build, **identity):
    """Data, model and run directory; bad input ends the process before any work is lost.

    Args:
        study: A `Study`.
        name: Of the model, for the run directory.
        default_data: What `--data` is if it is not given.
        build: A function of the images to a model.
        **identity: What makes the run this one, beside data, seed and so on.
    """
    import keras

    import zoo
    from zoo.checkpoint import open_run
    from zoo.datasets import images as sources
    from zoo.datasets import preprocessing
    from zoo.datasets.batches import Batches

    try:
        images = load(sources, default_data, study.batch)
        epochs = epochs_of(study, len(images.x_train))
        folder = pathlib.Path(FLAGS.run_dir or default_folder(name, images))
        keras.config.set_dtype_policy(FLAGS.precision)
        zoo.seed_everything(FLAGS.seed)
        zoo.keep_memory()
        model = build(images)
        identity = {
            **{"model": name, "data": images.name, "images": len(images.x_train)},
            **{"epochs": epochs, "seed": FLAGS.seed, "precision": FLAGS.precision},
            **identity,
        }
        resume = open_run(folder, identity, 200, anew=not FLAGS.resume)
        prepared = preprocessing.fit(study.preprocessing, images.x_train)
        train = images.x_train, images.y_train, study.batch, FLAGS.seed, prepared.augment
        batches = Batches(*train, drop_remainder=True)
    except (ValueError, sources.DownloadError) as error:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {error}")
    x_test = prepared(images.x_test)
    return Run(study, images, epochs, folder, model, resume, batches, prepared, x_test)


def load(sources, default_data, batch):
    """The images asked for; two batches of them for `--budget smoke`."""
    images = sources.load(FLAGS.data or default_data, FLAGS.data_dir)
    if images.notice:
        logging.warning("%s", images.notice)
    if FLAGS.train_examples:
        images = first(images, FLAGS.train_examples)
    if FLAGS.budget == "smoke":
        keys = ("x_train", "y_train", "x_test", "y_test")
        cut = {key: getattr(images, key)[: 2 * batch] for key in keys}
        images = dataclasses.replace(images, **cut)
    if len(images.x_train) < batch:
        raise ValueError(
            f"Expected at least one batch of {batch} training images. "
            f"Received: {len(images.x_train)} in {FLAGS.data_dir}"
        )
    return images


def first(images, count):
    """`images` with the first `count` for training, which hold every class but in folders."""
    x, y = images.x_train[:count], images.y_train[:count]
    if len(x) < count or len(set(y.tolist())) < len(set(images.y_train.tolist())):
        raise ValueError(
            f"Expected --train_examples up to {len(images.x_train)}, enough to hold every class. "
            f"Received: {count}, of {len(set(y.tolist()))} classes"
        )
    return dataclasses.replace(images, x_train=x, y_train=y)


def epochs_of(study, num_train):
    """The budget's epochs; the paper's may be counted in iterations."""
    if FLAGS.epochs:
        return FLAGS.epochs
    paper = study.epochs or study.iterations * study.batch // num_train
    return {"smoke": 1, "minutes": study.minutes, "paper": paper}[FLAGS.budget]


def default_folder(name, images):
    data = images.name.lower().replace(" ", "-").replace("(", "").replace(")", "")
    return f"runs/{name}-{data}-{FLAGS.budget}-{FLAGS.seed}"


def train(run, callbacks=()):
    """One call of `fit`, which goes on where a killed one was."""
    import zoo
    from zoo.datasets.batches import Batches, Epochs

    study, batches = run.study, run.batches
    optimizer = study.optimizer(run.epochs * len(batches))
    run.model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    run.progress = zoo.callbacks.Progress(run.epochs, len(batches), study.batch, "images")
    run.resume.track[:] = [run.progress]
    test = Batches(run.x_test, run.images.y_test, study.batch, shuffle=False)
    own = [Epochs(batches), zoo.callbacks.StopOnNaN(), run.progress]
    try:
        run.model.fit(
            batches,
            epochs=run.epochs,
            validation_data=test,
            verbose=0,
            callbacks=[*own, *callbacks, run.resume],
            shuffle=False,
        )
    except FloatingPointError as error:
        path = run.resume.path
        kept = path if path.exists() else "none: the first epoch was not finished"
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {error} Last good checkpoint: {kept}.")
    run.started = time.perf_counter()


def finish(run, name, config, paper, departures, **more):
    """Curve, test accuracy of the last and of the best epoch, model, SavedModel, results.

    Args:
        run: A trained `Run`.
        name: Of the model, in the line of results.
        config: A dictionary of what distinguishes the network.
        paper: The paper's test accuracy for this network, or None.
        departures: From the paper, beside those of data, length and precision.
        **more: Of the line of results.

    Returns:
        The line of results.
    """
    from zoo import export, report
    from zoo.files import save_model

    history = run.resume.read()["history"]["history"]
    report.curve(run.folder / "metrics.csv", history, "accuracy", run.images.name, "linear")
    save_model(run.model, run.folder / "model.keras")
    accuracies = [100 * value for value in history["val_accuracy"]]
    found = [*usual_departures(run), *departures]
    line = report.row(
        artifact=run.study.artifact,
        model=name,
        config={**config, "parameters": run.model.count_params()},
        metric="test_accuracy",
        value=round(accuracies[-1], 3),
        std=None,
        seeds=[FLAGS.seed],
        paper=paper,
        data=run.images.name,
        budget=FLAGS.budget,
        epochs=run.epochs,
        departures=found,
        verdict="not comparable" if found else f"{accuracies[-1] - paper:+.2f}, one seed",
        seconds=round(run.progress.elapsed + time.perf_counter() - run.started, 1),
        best_epoch=1 + max(range(run.epochs), key=accuracies.__getitem__),
        test_accuracy_by_epoch=[round(value, 2) for value in accuracies],
        **more,
    )
    for path in filter(None, [run.folder / "results.jsonl", FLAGS.results]):
        report.append(path, line)
    print(
        f"test accuracy on {run.images.name}: {accuracies[-1]:.2f} % after epoch {run.epochs}, "
        f"{max(accuracies):.2f} % after epoch {line['best_epoch']}; all in {run.folder}"
    )
    if FLAGS.export:
        folder, examples = run.folder / "saved_model", {"serve": run.x_test[:4]}
        deviation = export.saved_model(run.model, folder, examples=examples)
        print(f"SavedModel: {folder}; deviates by {deviation:.1e} at most")
    return line


def paper_of(run):
    """The paper's accuracy on the data, of which ours may be a part or JPEGs."""
    return run.study.paper.get(original(run.images))


def original(images):
    """The name of the set that these are, of which they may be a part or JPEGs."""
    return re.sub(r"-[0-9.]+k| \(JPEG\)", "", images.name)


def usual_departures(run):
    """What distinguishes data, length and precision from the paper's."""
    study, images, found = run.study, run.images, []
    if images.name not in study.paper:
        found.append(f"{images.name}: {images.notice or 'not the images of the paper'}")
    if FLAGS.train_examples:
        found.append(f"the first {FLAGS.train_examples:,} training images only")
    iterations = run.epochs * len(run.batches)
    if study.iterations and iterations != study.iterations:
        found.append(f"{iterations} of {study.iterations} iterations, schedule shortened")
    if study.epochs and run.epochs != study.epochs:
        found.append(f"{run.epochs} of {study.epochs} epochs, schedule shortened")
    if FLAGS.precision != "float32":
        found.append(FLAGS.precision)
    return found


def piecewise(rates, drops, total):
    """A schedule of learning rates whose drops, at fractions of the paper's `total`, scale along.

    Args:
        rates: Learning rates, one more than drops.
        drops: When each ends, in the unit of `total`.
        total: The paper's length.

    Returns:
        A function of the number of iterations to a Keras schedule.
    """

    def of(iterations):
        import keras

        ends = [round(drop * iterations / total) for drop in drops]
        return keras.optimizers.schedules.PiecewiseConstantDecay(ends, rates)

    return of
