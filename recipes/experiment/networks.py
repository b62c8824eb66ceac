"""Trained networks in run directories, and the images that they are trained on."""

import dataclasses
import json
import pathlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

import zoo
from zoo import export
from zoo.backend import keras_private
from zoo.callbacks.checkpoint import Resume
from zoo.callbacks.training import Epochs
from zoo.datasets import preprocessing as preprocessings
from zoo.datasets.batches import Ahead, Batches, MicroBatches
from zoo.datasets.images import Images
from zoo.distribute import Strategy
from zoo.io import replace, save_model
from zoo.optimizers import CaffeSGD, accumulating
from zoo.recipes.experiment import plots, provenance
from zoo.recipes.experiment.settings import ImageSettings

TRAINED = "trained.json"  # commit, backend and hardware of a training
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class DivergenceError(FloatingPointError):
    """Training ended because the loss is NaN or Inf; the last good checkpoint is kept."""


@dataclasses.dataclass
class ImageData:
    """Images, and what training and evaluation read of them.

    Attributes:
        images: Images as they are; what was held out for validation is no part of them.
        preprocessing: Name of the recipe of `zoo.datasets.preprocessing`.
        preprocess: Function that prepares images for evaluation.
        train: Batches for training.
        validation: Batches for validation: of test images, or of images that are held out.
        x_test: Test images, prepared for evaluation.
        identity: What identifies the data in a run directory.
    """

    images: Images
    preprocessing: str
    preprocess: Any
    train: keras.utils.PyDataset
    validation: Any
    x_test: np.ndarray
    identity: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an image."""
        return self.images.x_train.shape[1:]


def prepare_images(
    images: Images,
    settings: ImageSettings,
    preprocessing: str,
    seed: int,
    held_out: int = 0,
    tested: int | None = None,
    resize: Callable[[Images], Images] | None = None,
) -> ImageData:
    """Return images with batches for training and validation.

    Args:
        images: All images.
        settings: Settings of the training.
        preprocessing: Name of a recipe of `zoo.datasets.preprocessing`.
        seed: Seed of order and augmentation.
        held_out: Number of the last training images, on which is validated instead of trained.
        tested: Number of the first test images that the epochs are validated on; `None`: all.
        resize: Function from images to images of another size.

    Raises:
        ValueError: if less than a batch is left for training.
    """
    images = resize(images) if resize else images
    kept = len(images.x_train) - held_out
    if kept < settings.batch:
        raise ValueError(
            f"Expected to hold out so few images that a batch of {settings.batch} is left. "
            f"Received: {held_out} of {len(images.x_train)}"
        )
    validation_images = images.x_train[kept:], images.y_train[kept:]
    images = dataclasses.replace(
        images, x_train=images.x_train[:kept], y_train=images.y_train[:kept]
    )
    preprocess = preprocessings.fit(preprocessing, images.x_train)
    x_test = preprocess(images.x_test)
    validation = x_test[:tested], images.y_test[:tested]
    if held_out:
        validation = preprocess(validation_images[0]), validation_images[1]
    train = Batches(
        images.x_train,
        images.y_train,
        settings.batch,
        seed,
        preprocess.augment,
        drop_remainder=True,
    )
    return ImageData(
        images,
        preprocessing,
        preprocess,
        train,
        Batches(*validation, settings.batch, shuffle=False),
        x_test,
        {
            "data": images.name,
            "images": len(images.x_train),
            "checksum": checksum(images),
            "held_out": held_out,
            "preprocessing": preprocessing,
        },
    )


def checksum(images: Images) -> int:
    """Return the CRC-32 of images and labels, which distinguishes data sets of the same name."""
    value = 0
    for key in ARRAYS:
        value = zlib.crc32(np.ascontiguousarray(getattr(images, key)), value)
    return value


@dataclasses.dataclass
class Network:
    """A network in its run directory; see `Run.network`.

    Attributes:
        name: Its name.
        model: The compiled model, after `train` the trained one.
        data: Its images.
        epochs: Number of epochs in all.
        batch: Images in a batch.
        folder: The run directory: metrics.csv, accuracy.png, state.npz, model.keras, saved_model/.
        resume: Its checkpoint.
        devices: Devices of the training.
        export: True if `train` writes a SavedModel.
    """

    name: str
    model: keras.Model
    data: ImageData
    epochs: int
    batch: int
    folder: pathlib.Path
    resume: Resume
    devices: Strategy
    export: bool

    @property
    def history(self) -> dict[str, list[float]]:
        """Metrics of the finished epochs, lists by key."""
        return history_of(self.resume)

    @property
    def accuracies(self) -> list[float]:
        """Validation accuracy of each finished epoch in %."""
        return [100 * value for value in self.history["val_accuracy"]]

    def train(self, callbacks: Sequence[keras.callbacks.Callback] = ()) -> None:
        """Train the network, or find it trained, and write its files.

        Raises:
            DivergenceError: if the loss becomes NaN or Inf.
        """
        batches = Ahead(self.data.train)
        size = self.data.train.batch_sizes and max(self.data.train.batch_sizes)
        progress = zoo.callbacks.Progress(self.epochs, len(batches), size or self.batch, "images")
        is_new = fit(
            self.devices,
            self.model,
            batches,
            folder=self.folder,
            epochs=self.epochs,
            resume=self.resume,
            callbacks=[Epochs(batches), zoo.callbacks.StopOnNaN(), progress, *callbacks],
            track=[progress],
            validation_data=self.data.validation,
        )
        self._save(is_new)

    def _save(self, is_new):
        plots.learning_curve(self.folder, self.history, "accuracy", self.data.images.name)
        if is_new or not (self.folder / "model.keras").exists():
            save_model(self.model, self.folder / "model.keras")
        if not self.devices.is_chief:
            return
        if self.export:
            folder = self.folder / "saved_model"
            deviation = export(self.model, folder)
            print(f"SavedModel: {folder}; deviates by {deviation:.1e} at most")
        scores = self.accuracies
        print(
            f"{self.name} on {self.data.images.name}: accuracy {scores[-1]:.2f} % after epoch "
            f"{self.epochs}, {max(scores):.2f} % after epoch {1 + int(np.argmax(scores))}; "
            f"by guessing {100 / self.data.images.classes:g} %. All in {self.folder}",
            flush=True,
        )


def prepare_network(
    run: Any,
    name: str,
    settings: ImageSettings,
    data: ImageData,
    build: Callable[[], keras.Model],
    optimizer: Callable[[int], keras.optimizers.Optimizer],
    metrics: Sequence[Any],
    identity: Mapping[str, Any],
) -> Network:
    """Return a network that is ready to be trained; see `Run.network`."""
    if settings.batch % settings.accumulate:
        divisors = [n for n in range(1, settings.batch + 1) if settings.batch % n == 0]
        raise ValueError(
            f"`accumulate` must divide the batch of {settings.batch} examples: one of {divisors}. "
            f"Received: {settings.accumulate}"
        )
    devices = run.split(settings.batch // settings.accumulate)
    iterations = settings.epochs * len(data.train)
    train = (
        data.train if settings.accumulate == 1 else MicroBatches(data.train, settings.accumulate)
    )
    devices.check_data(train, validation=data.validation)
    run.start(settings)
    with devices.scope():
        model = build()
        chosen = optimizer(iterations)
        config = keras.optimizers.serialize(chosen)["config"]
        model = zoo.remat(model) if settings.remat else model
        metrics = ["accuracy", *metrics]
        chosen = accumulating(chosen, settings.accumulate)
        model.compile(chosen, "sparse_categorical_crossentropy", metrics=metrics)
    folder, resume = run.open_network(
        name,
        data.images.name,
        {
            **data.identity,
            "model": name,
            "epochs": settings.epochs,
            "precision": settings.precision,
            "batch": settings.batch,
            "accumulate": settings.accumulate,
            "optimizer": {**config, "name": type(chosen).__name__},
            **identity,
        },
    )
    normalized = any(
        isinstance(layer, keras.layers.BatchNormalization)
        for layer in keras_private.inner_layers(model)
    )
    if settings.accumulate > 1 and normalized:
        size = settings.batch // settings.accumulate
        run.deviations.append(f"batch normalization over micro-batches of {size} examples")
    return Network(
        name,
        model,
        dataclasses.replace(data, train=train),
        settings.epochs,
        settings.batch,
        folder,
        resume,
        devices,
        run.options.export,
    )


def fit(
    devices: Strategy,
    model: keras.Model,
    *data: Any,
    folder: pathlib.Path,
    epochs: int,
    resume: Resume,
    callbacks: Sequence[keras.callbacks.Callback],
    track: Sequence[keras.callbacks.Callback],
    **options: Any,
) -> bool:
    """Train a network in one call of Keras's `fit`, resuming from its checkpoint.

    Args:
        devices: Strategy in whose scope the model was built and compiled.
        model: The model.
        *data: Positional arguments of `zoo.distribute.Strategy.fit`.
        folder: The run directory.
        epochs: Number of epochs in all.
        resume: The run directory's `Resume`.
        callbacks: All others.
        track: Those whose state the checkpoint keeps.
        **options: Further arguments of Keras's `fit`.

    Returns:
        True if at least one epoch was trained, False if the network was found trained.

    Raises:
        DivergenceError: if the loss becomes NaN or Inf and a callback raises.
    """
    resume.track[:] = track
    before = (resume.read() or {}).get("epoch")
    try:
        devices.fit(
            model,
            *data,
            epochs=epochs,
            verbose=0,
            callbacks=[*callbacks, resume],
            shuffle=False,
            **options,
        )
    except FloatingPointError as error:
        checkpoint = resume.path if resume.path.exists() else "none"
        raise DivergenceError(f"{error} Last good checkpoint: {checkpoint}.") from error
    devices.make_local(model)
    is_new = before != resume.read()["epoch"]
    path = folder / TRAINED
    if is_new or not path.exists():
        text = json.dumps(provenance.origin(), indent=1)
        replace(path, lambda temporary: temporary.write_text(text, "utf-8"))
    return is_new


def history_of(resume: Resume) -> dict[str, list[float]]:
    """Return the finished epochs' metrics, lists by key; empty if no epoch was finished."""
    checkpoint = resume.read()
    return checkpoint["history"]["history"] if checkpoint else {}


def piecewise(
    rates: Sequence[float], drops: Sequence[float], total: float
) -> Callable[[int], keras.optimizers.schedules.LearningRateSchedule]:
    """Return a piecewise constant learning rate whose drops scale with the training's length.

    Args:
        rates: Learning rates, one more than drops.
        drops: End of each, in the unit of `total`.
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
