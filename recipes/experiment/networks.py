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
from zoo.callbacks import Table
from zoo.callbacks.checkpoint import Resume
from zoo.callbacks.training import Epochs
from zoo.datasets.images import Images
from zoo.distribute import Strategy
from zoo.io import replace
from zoo.optimizers import CaffeSGD
from zoo.recipes.experiment import plots, provenance

TRAINED = "trained.json"  # commit, backend and hardware of a training


class DivergenceError(RuntimeError):
    """Training ended because the loss is NaN or Inf; the last good checkpoint is kept."""


@dataclasses.dataclass
class ImageData:
    """Images, and what training and evaluation read of them.

    `preprocess` prepares images for evaluation, as `x_test` are prepared; `validation` has batches
    of test images, and `identity` what identifies the data in a run directory.
    """

    images: Images
    preprocess: Any
    train: keras.utils.PyDataset
    validation: Any
    x_test: np.ndarray | None
    identity: Mapping[str, Any]

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments of a builder: the shape of an image, and the number of classes."""
        return {"input_shape": self.images.x_train.shape[1:], "classes": self.images.classes}


def checksum(images: Images) -> int:
    """Return the CRC-32 of images and labels, which distinguishes data sets of the same name."""
    value = 0
    for key in ("x_train", "y_train", "x_test", "y_test"):
        value = zlib.crc32(np.ascontiguousarray(getattr(images, key)), value)
    return value


def drawn(total: int, count: int | None, seed: int) -> np.ndarray:
    """Return sorted indices of `count` of `total` examples, drawn by the seed, or of all."""
    return np.sort(np.random.default_rng(seed).permutation(total)[:count])


@dataclasses.dataclass
class Network:
    """A network in its run directory, `folder`: metrics.csv, accuracy.png, state.npz, model.keras.

    See `Run.network`. `model` is the compiled one, and trained after `train`.
    """

    name: str
    model: keras.Model
    data: ImageData
    epochs: int
    batch: int
    folder: pathlib.Path
    resume: Resume
    devices: Strategy

    @property
    def history(self) -> dict[str, list[float]]:
        """Metrics of the finished epochs, lists by key."""
        return history_of(self.resume)

    @property
    def accuracies(self) -> list[float]:
        """Validation accuracy of each finished epoch in %."""
        return [100 * value for value in self.history["val_accuracy"]]

    def train(self, callbacks: Sequence[keras.callbacks.Callback] = ()) -> None:
        """Train the network, or find it trained, and write its files."""
        batches = self.data.train
        progress = zoo.callbacks.Progress(self.epochs, len(batches))
        fit(
            self.devices,
            zoo.fast(self.model),
            batches,
            epochs=self.epochs,
            resume=self.resume,
            callbacks=[Epochs(batches), progress, *callbacks],
            validation_data=self.data.validation,
        )
        plots.learning_curve(self.folder, self.history, "accuracy", self.data.images.name)
        replace(self.folder / "model.keras", self.model.save)  # again, as it may be damaged
        text = f"{self.name} on {self.data.images.name}: accuracy {self.accuracies[-1]:.2f} %"
        print(f"{text} after epoch {self.epochs}. All in {self.folder}", flush=True)


def fit(
    devices: Strategy,
    model: keras.Model,
    *data: Any,
    epochs: int,
    resume: Resume,
    callbacks: Sequence[keras.callbacks.Callback],
    track: Sequence[keras.callbacks.Callback] = (),
    **options: Any,
) -> None:
    """Train a network, resuming from its checkpoint, or find it trained.

    Positional arguments are those of `zoo.distribute.Strategy.fit`; further options, of Keras's
    `fit`. The checkpoint keeps the state of the callbacks in `track`.
    """
    resume.track[:] = track
    before = (resume.read() or {}).get("epoch")
    try:
        until_nan = keras.callbacks.TerminateOnNaN(raise_error=True)
        options |= {"verbose": 0, "callbacks": [until_nan, *callbacks, resume], "shuffle": False}
        devices.fit(model, *data, epochs=epochs, **options)
    except RuntimeError as error:
        if "NaN or Inf loss" not in str(error):  # of `TerminateOnNaN`
            raise
        checkpoint = resume.path if resume.path.exists() else "none"
        advice = "Lower the learning rate, or train in float32."
        raise DivergenceError(f"{error} Last good checkpoint: {checkpoint}. {advice}") from error
    if before != resume.read()["epoch"] or not resume.path.with_name(TRAINED).exists():
        write_origin(resume.path.parent)


def write_origin(folder: pathlib.Path) -> None:
    """Write the origin of a training beside it; see `Run.origin`."""
    text = json.dumps(provenance.origin(), indent=1)
    replace(folder / TRAINED, lambda temporary: temporary.write_text(text, "utf-8"))


def history_of(resume: Resume) -> dict[str, list[float]]:
    """Return the finished epochs' metrics, lists by key; empty if no epoch was finished."""
    checkpoint = resume.read()
    return checkpoint["history"]["history"] if checkpoint else {}


def piecewise(
    rates: Sequence[float], drops: Sequence[float], total: float
) -> Callable[[int], keras.optimizers.schedules.LearningRateSchedule]:
    """Return a function from the number of iterations to a piecewise constant learning rate.

    It has the first rate up to the first drop, and so on. `drops` and `total`, the length of the
    paper's training, are in the same unit; drops are scaled to the number of iterations.
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


def of_blocks(table: Table, probe: str) -> np.ndarray:
    """Return a probe's value of each block."""
    return np.array([value for block, value in table.values(probe).items() if block])
