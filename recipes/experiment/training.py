"""Training of the recipes: a `Study` says what the paper did, a run directory keeps the network.

A recipe for images calls `prepare`, `train` and `finish`; the language model and the depth search
call `fit`, on which `train` is built. Networks are found again by `run_dirs`.
"""

import dataclasses
import pathlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

import zoo
from experiment import data as image_data
from experiment import hardware, plots, process, run_dirs
from experiment.flags import FLAGS
from experiment.results import Result
from zoo import export
from zoo.callbacks.checkpoint import Resume
from zoo.callbacks.training import Epochs
from zoo.datasets.batches import Ahead
from zoo.io import save_model
from zoo.optimizers import CaffeSGD

History = Mapping[str, Sequence[float]]


def accuracy_percent(history: History) -> list[float]:
    """Return the validation accuracies of the epochs in %."""
    return [100 * value for value in history["val_accuracy"]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A paper's training of one network."""

    artifact: str  # of the result, e.g. "srivastava2015/table1"
    preprocessing: str  # a recipe of `zoo.datasets.preprocessing`
    batch: int  # images in a batch
    optimizer: Callable[[int], keras.optimizers.Optimizer]  # from the number of iterations
    iterations: int | None = None  # the paper's updates; None: `epochs` counts
    epochs: int | None = None  # the paper's
    scales: bool = True  # a shorter training drops its learning rate at the same fractions
    minutes: int  # epochs of `--budget minutes`; ours
    minutes_images: int | None = None  # its training images; None: all
    paper: Mapping[str, float | None]  # the paper's test accuracy in %, by data set
    # mean and standard deviation of the paper's runs, by data set
    spread: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    metrics: Sequence = ()  # of Keras, beside accuracy
    # name of the result's metric, and function from the history to its values in %
    score: tuple[str, Callable[[History], list[float]]] = ("test_accuracy", accuracy_percent)
    validation: int = 0  # the last training images, which are held out for validation
    tested: int | None = None  # first test images of the learning curve; None: all
    resize: Callable[[Any], Any] | None = None  # from the images to images of another size
    # from the study and the default data
    data: Callable[["Study", str], image_data.Prepared] = image_data.prepare

    def num_epochs(self, num_train: int) -> int:
        """Return --epochs, or the budget's number of epochs of `num_train` images."""
        paper = self.epochs or self.iterations * self.batch // num_train
        return FLAGS.epochs or {"smoke": 1, "minutes": self.minutes, "paper": paper}[FLAGS.budget]


def piecewise(
    rates: Sequence[float], drops: Sequence[float], total: float
) -> Callable[[int], keras.optimizers.schedules.LearningRateSchedule]:
    """Return a piecewise constant learning rate whose drops scale with the training's length.

    Args:
        rates: Learning rates, one more than drops.
        drops: When each ends, in the unit of `total`.
        total: The paper's length.

    Returns:
        A function from the number of iterations to a Keras schedule.
    """

    def schedule(iterations):
        ends = [round(drop * iterations / total) for drop in drops]
        return keras.optimizers.schedules.PiecewiseConstantDecay(ends, rates)

    return schedule


def fb_resnet_sgd(
    rates: Sequence[float], drops: Sequence[float], total: float
) -> Callable[[int], CaffeSGD]:
    """Return fb.resnet.torch's optimizer, in which all weights decay; arguments as `piecewise`."""
    schedule = piecewise(rates, drops, total)
    decay = {"decay": 1e-4, "last_decay": 1e-4, "bias_rate": 1.0, "decay_all": True}
    return lambda iterations: CaffeSGD(schedule(iterations), momentum=0.9, nesterov=True, **decay)


class Diverged(SystemExit):
    """Training ended because the loss is NaN or Inf; uncaught, it ends the process."""


def fit(
    model: keras.Model,
    *data: Any,
    folder: pathlib.Path,
    epochs: int,
    resume: Resume,
    callbacks: Sequence[keras.callbacks.Callback],
    track: Sequence[keras.callbacks.Callback],
    **options: Any,
) -> None:
    """Train a network in one call of Keras's `fit`, resuming from its checkpoint.

    Args:
        model: Built and compiled in the scope of `hardware.devices()`.
        *data: Positional arguments of `zoo.distribute.Strategy.fit`.
        folder: The run directory.
        epochs: Number of epochs in all.
        resume: The run directory's `Resume`.
        callbacks: All others.
        track: Those whose state the checkpoint keeps.
        **options: Further arguments of Keras's `fit`.

    Raises:
        Diverged: if the loss becomes NaN or Inf and a callback raises; earlier epochs are kept.
    """
    resume.track[:] = track
    before = (resume.read() or {}).get("epoch")
    try:
        hardware.devices().fit(
            model,
            *data,
            epochs=epochs,
            verbose=0,
            callbacks=[*callbacks, resume],
            shuffle=False,
            **options,
        )
    except FloatingPointError as error:
        path = resume.path
        checkpoint = path if path.exists() else "none: the first epoch was not finished"
        message = f"{process.script()}: {error} Last good checkpoint: {checkpoint}."
        raise Diverged(message) from error
    hardware.devices().make_local(model)
    run_dirs.save_metadata(folder, before != resume.read()["epoch"])


@dataclasses.dataclass
class Run:
    """A training that is ready to start, or done; see `prepare`."""

    study: Study
    data: image_data.Prepared
    epochs: int
    folder: pathlib.Path
    model: keras.Model
    resume: Resume
    probing: str = ""  # command that probes the trained network
    elapsed: float = 0.0  # seconds of training
    finished: float = 0.0  # when training ended

    @property
    def images(self) -> Any:
        """Images as they are, `zoo.datasets.images.Images`."""
        return self.data.images

    @property
    def history(self) -> dict[str, list[float]]:
        """Metrics of the finished epochs, lists by key."""
        return run_dirs.history_of(self.resume)

    @property
    def seconds(self) -> float:
        """Duration of the training and of everything after it, until now."""
        return round(self.elapsed + time.perf_counter() - self.finished, 1)

    @property
    def known(self) -> bool:
        """True if the paper measured on these data, of which ours may be a part or JPEGs."""
        return image_data.original_name(self.images) in self.study.paper

    @property
    def paper(self) -> float | None:
        """The paper's accuracy on these data, if it gives one."""
        return self.study.paper.get(image_data.original_name(self.images))

    def deviations(self) -> list[str]:
        """Return how data, length and precision deviate from the paper's."""
        study = self.study
        known = self.images.name in study.paper
        deviations = image_data.deviations(
            self.images, known, study.data is image_data.prepare, study.minutes_images
        )
        if study.tested and study.tested < len(self.data.x_test):
            deviations.append(f"test accuracy of the first {study.tested:,} test images")
        iterations = self.epochs * len(self.data.train)
        shortened = ", schedule shortened" if study.scales else ""
        if study.iterations and iterations != study.iterations:
            deviations.append(f"{iterations} of {study.iterations} iterations{shortened}")
        if study.epochs and self.epochs != study.epochs:
            deviations.append(f"{self.epochs} of {study.epochs} epochs{shortened}")
        if FLAGS.precision != "float32":
            deviations.append(FLAGS.precision)
        return deviations + hardware.batch_norm_deviations(self.model, study.batch)

    def result(self, **values: Any) -> Result:
        """Return a `Result` of this run; `values` override its attributes."""
        usual = {
            "artifact": self.study.artifact,
            "seeds": [FLAGS.seed],
            "data": self.images.name,
            "budget": FLAGS.budget,
            "epochs": self.epochs,
            **run_dirs.load_metadata(self.folder),
        }
        return Result(**{**usual, **values})


def prepare(
    study: Study,
    name: str,
    default_data: str,
    build: Callable[[Any], keras.Model],
    shared: bool = False,
    **identity: Any,
) -> Run:
    """Prepare data, model and run directory; bad input ends the process before any work is lost.

    Args:
        study: The paper's training.
        name: Name of the network, for the run directory.
        default_data: Default of --data.
        build: Function from the images to a model.
        shared: True if --run_dir is not this network's folder, which is always in --runs.
        **identity: Settings that determine the training beside data, seed, schedule and so on.
    """
    with process.usage_errors():
        devices = hardware.devices(study.batch // FLAGS.accumulate)
        data = study.data(study, default_data)
        devices.check_data(hardware.micro_batches(data.train), validation=data.test)
        epochs = study.num_epochs(len(data.images.x_train))
        keras.config.set_dtype_policy(FLAGS.precision)
        zoo.seed_everything(FLAGS.seed)
        zoo.keep_memory()
        with devices.scope():
            model = build(data.images)
            optimizer = study.optimizer(epochs * len(data.train))
            settings = run_dirs.optimizer_settings(optimizer)
            model, optimizer = hardware.fit_into_memory(model, optimizer, study.batch)
            metrics = ["accuracy", *study.metrics]
            model.compile(optimizer, "sparse_categorical_crossentropy", metrics=metrics)
        identity = {
            "model": name,
            **image_data.identity(data.images),
            "epochs": epochs,
            "seed": FLAGS.seed,
            "precision": FLAGS.precision,
            "validation": study.validation,  # else as many --train_examples would be the same
            "backend": keras.config.backend(),
            "batch": study.batch,
            "preprocessing": study.preprocessing,
            "optimizer": settings,
            **({} if FLAGS.accumulate == 1 else {"accumulate": FLAGS.accumulate}),
            **identity,
        }
        folder = run_dirs.folder_of(name, data.images.name, identity)
        if FLAGS.run_dir and not shared:
            folder = pathlib.Path(FLAGS.run_dir)
        resume = run_dirs.open_folder(folder, identity)
    folder = hardware.folder_for(folder)
    probing = _probing(study, folder, default_data)
    return Run(study, data, epochs, folder, model, resume, probing)


def _probing(study, folder, default_data):
    """Return the command that probes the trained network, if it can read the images."""
    if study.data is not image_data.prepare:
        return ""
    command = ["python", "-m", "zoo.probe", str(folder / "model.keras")]
    command += ["--data", FLAGS.data or default_data, "--preprocessing", study.preprocessing]
    return shlex.join(command + (["--data_dir", FLAGS.data_dir] if FLAGS.data_dir else []))


def train(run: Run, callbacks: Sequence[keras.callbacks.Callback] = ()) -> None:
    """Train the network of a run, or find it trained.

    Raises:
        Diverged: if the loss is NaN or Inf.
    """
    batches = Ahead(hardware.micro_batches(run.data.train))
    size = run.study.batch // FLAGS.accumulate
    progress = zoo.callbacks.Progress(run.epochs, len(batches), size, "images")
    fit(
        run.model,
        batches,
        folder=run.folder,
        epochs=run.epochs,
        resume=run.resume,
        callbacks=[Epochs(batches), zoo.callbacks.StopOnNaN(), progress, *callbacks],
        track=[progress],
        validation_data=run.data.test,
    )
    run.elapsed = progress.elapsed
    run.finished = time.perf_counter()


def finish(
    run: Run,
    name: str,
    config: Mapping[str, Any],
    paper: float | None,
    deviations: Sequence[str],
    assumptions: Sequence[str] = (),
    measured: tuple[str, float] | None = None,
    **more: Any,
) -> Result:
    """Write learning curve, model, SavedModel and the result of the last and the best epoch.

    Args:
        run: A trained `Run`.
        name: Name of the network, in the result.
        config: Settings that distinguish the network.
        paper: The paper's value of this network on these data, or None.
        deviations: From the paper, beside those of data, length and precision.
        assumptions: Choices that the paper leaves open; the result stays comparable.
        measured: Metric and value of the result, if that is not the score.
        **more: Further keys of the line.
    """
    history = run.history
    plots.learning_curve(run.folder / "metrics.csv", history, "accuracy", run.images.name)
    save_model(run.model, run.folder / "model.keras")
    metric, score = run.study.score
    scores = score(history)
    best = min if metric.endswith("error") else max
    best_epoch = 1 + best(range(run.epochs), key=scores.__getitem__)
    spread = None
    if measured is None:
        spread = run.study.spread.get(image_data.original_name(run.images))
    reported, value = measured or (metric, round(scores[-1], 3))
    result = run.result(
        model=name,
        config={**config, "parameters": run.model.count_params()},
        metric=reported,
        value=value,
        paper=paper,
        deviations=[*run.deviations(), *deviations],
        assumptions=[*assumptions],
        seconds=run.seconds,
        more={
            "spread": spread,
            "best_epoch": best_epoch,
            f"{metric}_by_epoch": [round(value, 2) for value in scores],
            **more,
        },
    )
    run_dirs.write(run.folder, result)
    if not hardware.devices().is_chief:
        return result
    if FLAGS.export:
        folder = run.folder / "saved_model"
        deviation = export(run.model, folder, examples={"serve": run.data.x_test[:4]})
        print(f"SavedModel: {folder}; deviates by {deviation:.1e} at most")
    published = "" if paper is None else f"; the paper: {paper} %"
    print(
        f"{metric.replace('_', ' ')} on {run.images.name}: {scores[-1]:.2f} % after epoch "
        f"{run.epochs}, {best(scores):.2f} % after epoch {best_epoch}; by guessing: "
        f"{guessing(metric, run.images.classes):.2f} %{published if measured is None else ''}. "
        f"All in {run.folder}"
    )
    if run.probing:
        print(f"Next: {run.probing}")
    return result


def guessing(metric: str, classes: int) -> float:
    """Return what guessing one of `classes` equally likely classes scores in %.

    Args:
        metric: Name of an accuracy or an error, which begins with top5 if five guesses count.
        classes: Number of classes.

    Example:
    >>> guessing("test_accuracy", 10), guessing("top5_error", 10)
    (10.0, 50.0)
    """
    share = 100 * min(5 if metric.startswith("top5") else 1, classes) / classes
    return 100 - share if metric.endswith("error") else share
