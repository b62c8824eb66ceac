"""The rules of Kim et al.'s training that stand outside a step."""

import math

import keras

from zoo.layers.carry_lstm import CarryLSTM


class CarryState(keras.callbacks.Callback):
    """Zero state before a validation, and training's own state again after it.

    Without it, `fit(validation_data=...)` would read the validation text as the continuation
    of the training text, and training would go on from the validation text. In training the
    state is carried over batches and epochs.

    Reference: `main.lua` of Kim et al.'s code: `init_state_global` is never reset.
    """

    def on_test_begin(self, logs=None):
        self.kept = [(v, keras.ops.copy(v)) for v in self._states()]
        for variable, _ in self.kept:
            variable.assign(keras.ops.zeros(variable.shape, variable.dtype))

    def on_test_end(self, logs=None):
        for variable, value in self.kept:
            variable.assign(value)

    def _states(self):
        layers = [la for la in self.model._flatten_layers() if isinstance(la, CarryLSTM)]
        return [variable for layer in layers for variable in (layer.h, layer.c)]


class Perplexity(keras.callbacks.Callback):
    """Adds `perplexity` and `val_perplexity` to the logs.

    Args:
        num_steps: Steps that `loss` is summed over: perplexity = exp(loss / num_steps).
        score: A function without arguments that returns the validation perplexity.
    """

    def __init__(self, num_steps, score=None):
        super().__init__()
        self.num_steps, self.score = num_steps, score

    def on_epoch_end(self, epoch, logs=None):
        self.model  # noqa: B018 (on JAX it puts the weights back into their variables)
        logs["perplexity"] = math.exp(min(logs["loss"] / self.num_steps, 700.0))
        if self.score:
            logs["val_perplexity"] = self.score()


class HalveOnStall(keras.callbacks.Callback):
    """Halves the learning rate after an epoch that hardly improved the validation perplexity.

    Args:
        monitor: Key of the logs; lower is better.
        least: Improvement over the epoch before, below which the rate is halved.
        patience: Values that must be on record before the first halving.
        factor: What the rate is multiplied by.

    Reference: `main.lua` of Kim et al.'s code: `decay_when` 1, `learning_rate_decay` 0.5, and
    `#val_losses > 2`.
    """

    def __init__(self, monitor="val_perplexity", least=1.0, patience=3, factor=0.5):
        super().__init__()
        self.monitor, self.least, self.patience, self.factor = monitor, least, patience, factor
        self.values = []
        self.state = ("values",)  # what `Resume` restores

    def on_epoch_end(self, epoch, logs=None):
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
    """Ends training at the first loss that is not finite, before a checkpoint is written.

    Put it before `zoo.Resume`: the last good checkpoint stays.

    Args:
        every: Batches between looks; the running mean keeps a NaN, so none is missed.

    Raises:
        FloatingPointError: in `fit`.
    """

    def __init__(self, every=50):
        super().__init__()
        self.every = every

    def on_train_batch_end(self, batch, logs=None):
        if batch % self.every == 0:
            self._look(f"batch {batch + 1}", logs)

    def on_epoch_end(self, epoch, logs=None):
        self._look(f"the end of epoch {epoch + 1}", logs)

    def _look(self, when, logs):
        loss = float((logs or {}).get("loss", 0.0))
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"The loss is {loss} at {when}. Training stopped; the last checkpoint is from "
                f"before. Lower the learning rate, or train in float32."
            )


class Epochs(keras.callbacks.Callback):
    """Set the epoch of the batches, also if `zoo.Resume` starts `fit` at a later one.

    Args:
        batches: The `zoo.datasets.batches.Batches` or `RecordBatches` that `fit` trains on, or
            a wrapper of them.

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
