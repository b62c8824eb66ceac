"""What the recipes for images share: flags, data, a training that resumes, a row of results.

A recipe imports it from beside itself, says in a `Study` what its paper did, and calls `prepare`,
`train` and `finish`. A network's run directory is named by a digest of all that makes its training
what it is, so recipes that ask for the same training share it: the second finds it done.
"""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable

from absl import app, flags

from experiment import data as image_data
from experiment import hardware, memory, run_dirs

FLAGS = flags.FLAGS
begun = set()  # folders of this process's runs, which --resume=false forgets once


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
        spread: Mean and standard deviation of the paper's runs, by its data.
        data: A function of the study and the default data to what `image_data.arrays` returns.
        metrics: Of Keras, beside accuracy.
        score: The line's metric, and a function of the history to its values in %, by epoch.
        scales: Whether a shorter training drops its learning rate at the same fractions.
        validation: How many of the last training images are held out; `fit` validates on them.
    """

    artifact: str
    optimizer: Callable
    preprocessing: str
    paper: dict
    minutes: int
    batch: int
    iterations: int | None = None
    epochs: int | None = None
    spread: dict = dataclasses.field(default_factory=dict)
    data: Callable | None = None
    metrics: tuple = ()
    score: tuple = ("test_accuracy", lambda history: [100 * v for v in history["val_accuracy"]])
    scales: bool = True
    validation: int = 0


class Diverged(SystemExit):
    """A loss that is no number ended a training: the process too, where nobody catches it."""


def define_flags():
    """The flags that every recipe for images has."""
    image_data.define_flags()
    hardware.define_flags()
    flags.DEFINE_enum("budget", "minutes", ["smoke", "minutes", "paper"], "smoke: two batches.")
    flags.DEFINE_integer("epochs", None, "Overrides the budget's.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Of weights, order and augmentation.", lower_bound=0)
    flags.DEFINE_string("run_dir", None, "Default: RUNS/MODEL-DATA-SEED-DIGEST.")
    flags.DEFINE_string("runs", "runs", "Where recipes keep and find the networks they trained.")
    flags.DEFINE_bool("resume", True, "Go on from the run directory's checkpoint.")
    flags.DEFINE_bool("export", True, "Write a SavedModel (needs TensorFlow).")
    memory.define_flags()
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
    test: object
    progress: object = None
    started: float = 0.0


def prepare(study, name, default_data, build, shared=False, **identity):
    """Data, model and run directory; bad input ends the process before any work is lost.

    Args:
        study: A `Study`.
        name: Of the model, for the run directory.
        default_data: What `--data` is if it is not given.
        build: A function of the images to a model.
        shared: Whether it is one network of several, which `--run_dir` is not of.
        **identity: What makes the run this one, beside data, seed, schedule and so on.
    """
    import keras

    import zoo
    from zoo.callbacks.checkpoint import open_run
    from zoo.datasets.download import DownloadError

    try:
        devices = hardware.devices(study.batch // FLAGS.accumulate)
        images, prepared, batches, test, x_test = (study.data or image_data.arrays)(
            study, default_data
        )
        devices.check_data(memory.pieces(batches), validation=test)
        epochs = epochs_of(study, len(images.x_train))
        keras.config.set_dtype_policy(FLAGS.precision)
        zoo.seed_everything(FLAGS.seed)
        zoo.keep_memory()
        with devices.scope():
            model = build(images)
            optimizer = study.optimizer(epochs * len(batches))
            settings = run_dirs.settings(optimizer)
            model, optimizer = memory.fitted(model, optimizer, study.batch)
            metrics = ["accuracy", *study.metrics]
            model.compile(optimizer, "sparse_categorical_crossentropy", metrics=metrics)
        identity = {
            **{"model": name, "data": images.name, "images": len(images.x_train)},
            "checksum": image_data.checksum(images),
            **{"epochs": epochs, "seed": FLAGS.seed, "precision": FLAGS.precision},
            "validation": study.validation,  # else as many --train_examples would be the same
            "backend": keras.config.backend(),
            **{"batch": study.batch, "preprocessing": study.preprocessing},
            **{"optimizer": settings, **memory.identity(), **identity},
        }
        given = None if shared else FLAGS.run_dir
        kept = run_dirs.folder_of(FLAGS.runs, name, images.name, FLAGS.seed, identity)
        folder = pathlib.Path(given or kept)
        anew = not FLAGS.resume and folder not in begun
        resume = open_run(folder, identity, 200, anew, devices.is_chief)
        begun.add(folder)
    except (ValueError, DownloadError) as error:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {error}")
    folder = hardware.folder_for(folder)
    return Run(study, images, epochs, folder, model, resume, batches, prepared, x_test, test)


def epochs_of(study, num_train):
    """The budget's epochs; the paper's may be counted in iterations."""
    if FLAGS.epochs:
        return FLAGS.epochs
    paper = study.epochs or study.iterations * study.batch // num_train
    return {"smoke": 1, "minutes": study.minutes, "paper": paper}[FLAGS.budget]


def train(run, callbacks=()):
    """One call of `fit`, which goes on where a killed one was.

    Raises:
        Diverged: if a loss is no number; what was trained before is kept.
    """
    import zoo
    from zoo.callbacks.training import Epochs
    from zoo.datasets.prefetch import Ahead

    batches = Ahead(memory.pieces(run.batches))
    size = run.study.batch // FLAGS.accumulate
    run.progress = zoo.callbacks.Progress(run.epochs, len(batches), size, "images")
    run.resume.track[:] = [run.progress]
    before = (run.resume.read() or {}).get("epoch")
    own = [Epochs(batches), zoo.callbacks.StopOnNaN(), run.progress]
    try:
        hardware.devices().fit(
            run.model,
            batches,
            epochs=run.epochs,
            validation_data=run.test,
            verbose=0,
            callbacks=[*own, *callbacks, run.resume],
            shuffle=False,
        )
    except FloatingPointError as error:
        path = run.resume.path
        kept = path if path.exists() else "none: the first epoch was not finished"
        name = pathlib.Path(sys.argv[0]).name
        raise Diverged(f"{name}: {error} Last good checkpoint: {kept}.") from error
    run.started = time.perf_counter()
    run_dirs.remember(run.folder, before != run.resume.read()["epoch"])


def finish(run, name, config, paper, departures, readings=(), measured=None, **more):
    """Curve, score of the last and of the best epoch, model, SavedModel, results.

    Args:
        run: A trained `Run`.
        name: Of the model, in the line of results.
        config: A dictionary of what distinguishes the network.
        paper: The paper's value of this network on these data, or None; see `of_paper`.
        departures: From the paper, beside those of data, length and precision: with any, the line
            is not comparable.
        readings: What is ours because the paper does not say; the line stays comparable.
        measured: What the line reports, a metric and its value, where that is not the score.
        **more: Of the line of results.

    Returns:
        The line of results.
    """
    from experiment import results
    from zoo import export
    from zoo.io import save_model

    history = run.resume.read()["history"]["history"]
    results.curve(run.folder / "metrics.csv", history, "accuracy", run.images.name, "linear")
    save_model(run.model, run.folder / "model.keras")
    metric, score = run.study.score
    spread = None if measured else run.study.spread.get(image_data.original(run.images))
    scores, best = score(history), min if metric.endswith("error") else max
    reported, value = measured or (metric, round(scores[-1], 3))
    found = [*usual_departures(run), *departures]
    line = results.row(
        artifact=run.study.artifact,
        model=name,
        config={**config, "parameters": run.model.count_params()},
        metric=reported,
        value=value,
        std=None,
        seeds=[FLAGS.seed],
        paper=paper,
        data=run.images.name,
        budget=FLAGS.budget,
        epochs=run.epochs,
        departures=found,
        readings=[*readings],
        spread=spread,
        verdict=results.verdict(value, paper, spread, found),
        seconds=round(run.progress.elapsed + time.perf_counter() - run.started, 1),
        **run_dirs.told(run.folder),
        best_epoch=1 + best(range(run.epochs), key=scores.__getitem__),
        **{f"{metric}_by_epoch": [round(value, 2) for value in scores]},
        **more,
    )
    line |= hardware.told()
    hardware.append(run.folder, line)
    if not hardware.devices().is_chief:
        return line
    print(
        f"{metric.replace('_', ' ')} on {run.images.name}: {scores[-1]:.2f} % after epoch "
        f"{run.epochs}, {best(scores):.2f} % after epoch {line['best_epoch']}; all in {run.folder}"
    )
    if FLAGS.export:
        folder, examples = run.folder / "saved_model", {"serve": run.x_test[:4]}
        deviation = export(run.model, folder, examples=examples)
        print(f"SavedModel: {folder}; deviates by {deviation:.1e} at most")
    return line


def paper_of(run):
    """The paper's accuracy on the data, of which ours may be a part or JPEGs."""
    return run.study.paper.get(image_data.original(run.images))


def of_paper(run, value):
    """`value`, a paper's, if it was measured on these data, of which ours may be a part or JPEGs.

    Else None: nothing is set beside what was measured on other images.
    """
    return value if image_data.original(run.images) in run.study.paper else None


def usual_departures(run):
    """What distinguishes data, length and precision from the paper's."""
    study, images, found = run.study, run.images, []
    if images.name not in study.paper:
        found.append(f"{images.name}: {images.notice or 'not the images of the paper'}")
    found += [] if study.data else image_data.left_out(images)
    iterations = run.epochs * len(run.batches)
    shortened = ", schedule shortened" if study.scales else ""
    if study.iterations and iterations != study.iterations:
        found.append(f"{iterations} of {study.iterations} iterations{shortened}")
    if study.epochs and run.epochs != study.epochs:
        found.append(f"{run.epochs} of {study.epochs} epochs{shortened}")
    if FLAGS.precision != "float32":
        found.append(FLAGS.precision)
    return found + memory.departures(run.model, study.batch)
