"""Callbacks for training: the rules of Kim et al. (2016), epochs of batches, and progress."""

import datetime
import math
import time
from collections.abc import Callable

import keras
import numpy as np

from zoo.backend import RETURNS_EARLY
from zoo.checks import check_integers, check_numbers, require

INTERVAL = 20.0  # seconds between two lines of a log


class Perplexity(keras.callbacks.Callback):
    """Add `perplexity` and `val_perplexity` to the logs.

    The loss is summed over `num_steps`: perplexity = exp(loss / num_steps). `score`, a function
    without arguments, returns the validation perplexity.
    """

    def __init__(self, num_steps: int, score: Callable[[], float] | None = None) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.score = score

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        """Add the perplexities."""
        self.model  # noqa: B018  # on JAX, attaches the trained values to the variables
        logs["perplexity"] = math.exp(min(logs["loss"] / self.num_steps, 700.0))
        if self.score:
            logs["val_perplexity"] = self.score()


class HalveOnStall(keras.callbacks.Callback):
    """Halve the learning rate after an epoch that hardly improved the validation perplexity.

    It is halved if the improvement over the previous epoch is below `least`, from epoch `patience`
    on, which is at least the second.

    Raises:
        ValueError: if `patience` is below 2; in `fit`, if `Perplexity` is not before it, or the
            optimizer has a schedule.

    Reference: `main.lua` of Kim et al.'s code: `decay_when` 1, `learning_rate_decay` 0.5, and
    `#val_losses > 2`.
    """

    state = ("values",)  # what `Resume` restores

    def __init__(self, least: float = 1.0, patience: int = 3) -> None:
        super().__init__()
        check_integers(2, patience=patience)
        check_numbers(least=least)
        self.least = least
        self.patience = patience
        self.values: list[float] = []

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Check that the learning rate can be set, and forget an earlier training."""
        self.values = []
        rate = self.model.optimizer.learning_rate
        expected = "a number in the optimizer, and no schedule, as `HalveOnStall` changes it"
        require(isinstance(rate, keras.Variable), expected, learning_rate=rate)

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        """Log the learning rate, and halve it if the epoch improved too little."""
        expected = "ones with 'val_perplexity': put the callback that adds it before this one"
        require("val_perplexity" in logs, expected, logs=sorted(logs))
        optimizer = self.model.optimizer
        rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        logs["learning_rate"] = rate
        self.values.append(float(logs["val_perplexity"]))
        if len(self.values) >= self.patience and self.values[-2] - self.values[-1] < self.least:
            optimizer.learning_rate = rate / 2


class Epochs(keras.callbacks.Callback):
    """Tell the batches the current epoch, also where `Resume` starts `fit` at a later one.

    The batches are those that `fit` trains on, of `zoo.datasets.batches`, or a wrapper of them.

    Raises:
        ValueError: When training starts, if an epoch is not one pass over the batches.
    """

    def __init__(self, batches: keras.utils.PyDataset) -> None:
        super().__init__()
        self.batches = batches
        batches.set_epoch(0)  # JAX and torch read a batch before training begins

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Check that an epoch is one pass over the batches."""
        steps = self.params["steps"]
        expected = f"{len(self.batches)}, one pass over the batches, whose order is the epoch's"
        require(steps == len(self.batches), expected, steps_per_epoch=steps)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Set the epoch of the batches."""
        self.batches.set_epoch(epoch)


class PassProgress:
    """Print every 20 seconds how much of a long pass over examples is done, and the time left.

    An instance is the argument `progress` of `zoo.callbacks.run` and of the sweeps: it is called
    with the number of examples of the pass seen so far. If that is as before, or less, the next
    pass begins. `label` is a name, `examples` the number of examples of all passes.
    """

    def __init__(self, label: str, examples: int) -> None:
        check_integers(1, examples=examples)
        self.label = label
        self.total = examples
        self.done = 0
        self.seen = 0
        self.start = self.last = time.perf_counter()

    def __call__(self, seen: int) -> None:
        """Print a line if one is due."""
        self.done += seen - self.seen if seen > self.seen else seen
        self.seen = seen
        now = time.perf_counter()
        if now - self.last > INTERVAL:
            self.last = now
            left = _duration((now - self.start) * (self.total / self.done - 1))
            print(f"{self.label}: {self.done / self.total:.0%}, {left} left", flush=True)


class Progress(keras.callbacks.Callback):
    """Print each epoch's numbers and the time left, and within long epochs what is done of them.

    `epochs` is their number in all, `batches` that of batches in an epoch.
    """

    async_safe = RETURNS_EARLY  # True: Keras does not wait for the device after each batch

    def __init__(self, epochs: int, batches: int) -> None:
        super().__init__()
        check_integers(1, epochs=epochs, batches=batches)
        self.epochs = epochs
        self.batches = batches

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Start the epoch's clock."""
        self._passed = PassProgress(f"epoch {epoch + 1}/{self.epochs}", self.batches)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Write a line if one is due."""
        self._passed(batch + 1)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Write the epoch's numbers."""
        seconds = time.perf_counter() - self._passed.start
        numbers = ""
        for key, values in (logs or {}).items():
            numbers += " ".join([f"  {key}", *(f"{value:.5g}" for value in np.ravel(values))])
        left = _duration(seconds * (self.epochs - epoch - 1))
        print(f"{self._passed.label} done{numbers}  {left} left", flush=True)


def _duration(seconds):
    return datetime.timedelta(seconds=round(seconds))
