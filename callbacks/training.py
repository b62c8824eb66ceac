"""Callbacks for training: the rules of Kim et al. (2016), epochs of batches, and progress.

Rules of the paper: `CarryState`, `Perplexity`, `HalveOnStall`. For every training: `Epochs`,
`StopOnNaN`, and `Progress`, which prints a line every so often and one an epoch. `PassProgress`
does so for passes of probes and sweeps.
"""

import datetime
import functools
import math
import time
from collections.abc import Callable

import keras

from zoo.backend import RETURNS_EARLY, keras_private
from zoo.layers.carry_lstm import CarryLSTM

PRINT = functools.partial(print, flush=True)  # a log is read while it grows
INTERVAL = 20.0  # seconds between two lines of a log
CHECKED = 50  # batches between two checks of the loss, which wait for the device


class CarryState(keras.callbacks.Callback):
    """Validate from a zero state, and restore the training state afterwards.

    Otherwise `fit(validation_data=...)` would read the validation text as the continuation of the
    training text, and training would resume from its end. In training the state is carried over
    batches and epochs.

    Reference: `main.lua` of Kim et al.'s code: `init_state_global` is never reset.
    """

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Save the state and set it to zero."""
        layers = [la for la in keras_private.inner_layers(self.model) if isinstance(la, CarryLSTM)]
        states = [variable for layer in layers for variable in (layer.h, layer.c)]
        self.saved = [(variable, keras.ops.copy(variable)) for variable in states]
        for variable in states:
            variable.assign(keras.ops.zeros(variable.shape, variable.dtype))

    def on_test_end(self, logs: dict | None = None) -> None:
        """Restore the state."""
        for variable, value in self.saved:
            variable.assign(value)


class Perplexity(keras.callbacks.Callback):
    """Add `perplexity` and `val_perplexity` to the logs.

    Args:
        num_steps: Steps that `loss` is summed over: perplexity = exp(loss / num_steps).
        score: A function without arguments that returns the validation perplexity.
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

    Args:
        monitor: Key of the logs; lower is better.
        least: Improvement over the previous epoch below which the rate is halved.
        patience: Number of epochs before the rate can be halved.
        factor: Factor of the learning rate.

    Raises:
        ValueError: when training starts, if the learning rate is a schedule.

    Reference: `main.lua` of Kim et al.'s code: `decay_when` 1, `learning_rate_decay` 0.5, and
    `#val_losses > 2`.
    """

    state = ("values",)  # what `Resume` restores

    def __init__(
        self,
        monitor: str = "val_perplexity",
        least: float = 1.0,
        patience: int = 3,
        factor: float = 0.5,
    ) -> None:
        super().__init__()
        self.monitor = monitor
        self.least = least
        self.patience = patience
        self.factor = factor
        self.values: list[float] = []

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Check that the learning rate can be assigned."""
        rate = self.model.optimizer.learning_rate  # of a schedule, its current value
        if not isinstance(rate, keras.Variable):
            raise ValueError(
                f"`HalveOnStall` sets the learning rate, which must be a number. Received: "
                f"{self.model.optimizer.name!r} with a schedule. Leave one of them out."
            )

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Log the learning rate, and halve it if the epoch improved too little.

        Raises:
            ValueError: if the logs lack the monitored value.
        """
        logs = logs or {}
        if self.monitor not in logs:
            raise ValueError(
                f"`HalveOnStall` needs {self.monitor!r} in the logs. Received: {sorted(logs)}. "
                f"Put the callback that adds it before this one."
            )
        optimizer = self.model.optimizer
        rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        logs["learning_rate"] = rate
        self.values.append(float(logs[self.monitor]))
        if len(self.values) >= self.patience and self.values[-2] - self.values[-1] < self.least:
            optimizer.learning_rate = rate * self.factor


class StopOnNaN(keras.callbacks.Callback):
    """Stop training at a loss that is not finite, before a checkpoint is written.

    Put it before `zoo.checkpoint.Resume`: the last good checkpoint stays. The running mean keeps a
    NaN, so it is read every 50 batches only: `keras.callbacks.TerminateOnNaN` waits for the device
    after each batch.

    Raises:
        FloatingPointError: in `fit`.
    """

    async_safe = RETURNS_EARLY  # True: Keras does not wait for the device after each batch

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Check the loss every 50 batches."""
        if batch % CHECKED == 0:
            self._check(f"batch {batch + 1}", logs)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Check the loss."""
        self._check(f"the end of epoch {epoch + 1}", logs)

    def _check(self, when, logs):
        loss = float((logs or {}).get("loss", 0.0))
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"The loss is {loss} at {when}. Training stopped; the last checkpoint is from "
                f"before. Lower the learning rate, or train in float32."
            )


class Epochs(keras.callbacks.Callback):
    """Set the epoch of the batches, also if `Resume` starts `fit` at a later one.

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
        if self.params["steps"] != len(self.batches):
            raise ValueError(
                f"An epoch must be one pass over the {len(self.batches)} batches, because their "
                f"order belongs to the epoch. Received: {self.params['steps']} steps in an epoch. "
                "Leave `steps_per_epoch` out."
            )

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Set the epoch of the batches."""
        self.batches.set_epoch(epoch)


class Progress(keras.callbacks.Callback):
    """Print each epoch's numbers and the time left, and a line every 20 seconds meanwhile.

    Args:
        epochs: Number of epochs in all.
        batches: Number of batches in an epoch.
        per_batch: Number of tokens or examples in a batch.
        unit: Name of what `per_batch` counts.
        write: Function that receives the lines.

    Attributes:
        elapsed: Seconds of the finished epochs; `Resume` restores it.
    """

    async_safe = RETURNS_EARLY  # True: Keras does not wait for the device after each batch
    state = ("elapsed",)

    def __init__(
        self,
        epochs: int,
        batches: int,
        per_batch: int,
        unit: str = "tokens",
        write: Callable[[str], object] = PRINT,
    ) -> None:
        super().__init__()
        self.epochs = epochs
        self.batches = batches
        self.per_batch = per_batch
        self.unit = unit
        self.write = write
        self.elapsed = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Start the epoch's clock."""
        self._epoch = epoch
        self._start = self._last = time.perf_counter()
        self._warm: tuple[int, float] | None = None  # after the first step, which compiles

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Write a line if one is due."""
        now = time.perf_counter()
        if self._warm is None:
            self._warm = batch, now
        elif now - self._last > INTERVAL:
            self._last = now
            first, start = self._warm
            step = (now - start) / max(batch - first, 1)
            left = _duration(step * (self.batches * (self.epochs - self._epoch) - batch - 1))
            rate = f"{self.per_batch / step:,.0f} {self.unit}/s"
            loss = f"  loss {float(logs['loss']):.4g}" if logs else ""
            share = (batch + 1) / self.batches
            head = f"epoch {self._epoch + 1}/{self.epochs}"
            self.write(f"{head} {share:4.0%}  {rate}{loss}  {left} left")

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Write the epoch's numbers."""
        seconds = time.perf_counter() - self._start
        self.elapsed += seconds
        numbers = "  ".join(f"{key} {float(value):.5g}" for key, value in (logs or {}).items())
        left = _duration(seconds * (self.epochs - epoch - 1))
        self.write(f"epoch {epoch + 1}/{self.epochs} done  {numbers}  {left} left")


class PassProgress:
    """Print every 20 seconds how much of a long pass over examples is done, and the time left.

    An instance is the argument `progress` of `zoo.callbacks.run` and of the sweeps: it is
    called with the number of examples seen so far.

    Args:
        label: Name of the pass.
        examples: Number of examples, of all passes that follow each other.
    """

    def __init__(self, label: str, examples: int) -> None:
        self.label = label
        self.total = examples
        self.done = 0
        self.seen = 0
        self.start = self.last = time.perf_counter()

    def __call__(self, seen: int) -> None:
        """Print a line if one is due.

        Args:
            seen: Examples of this pass so far; as many as before, or fewer, begin the next pass.
        """
        self.done += seen - self.seen if seen > self.seen else seen
        self.seen = seen
        now = time.perf_counter()
        if now - self.last > INTERVAL:
            self.last = now
            left = _duration((now - self.start) * (self.total / self.done - 1))
            PRINT(f"{self.label}: {self.done / self.total:.0%}, {left} left")


def _duration(seconds):
    return datetime.timedelta(seconds=round(seconds))
