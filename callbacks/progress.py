"""Progress that a person reads: how fast, how far, how long still."""

import time
from functools import partial

import keras


class Progress(keras.callbacks.Callback):
    """One line every `seconds`, and one an epoch; the first says how long all will take.

    Args:
        epochs: Epochs in all.
        batches: Batches of an epoch.
        per_batch: Tokens or examples in a batch.
        unit: Their name.
        seconds: Time between two lines.
        say: Where the lines go; `None` prints them.
    """

    def __init__(self, epochs, batches, per_batch, unit="tokens", seconds=20.0, say=None):
        super().__init__()
        self.epochs, self.batches, self.per_batch = epochs, batches, per_batch
        self.unit, self.seconds = unit, seconds
        self.say = say or partial(print, flush=True)  # a log is read while it grows
        self.elapsed = 0.0  # of finished epochs
        self.state = ("elapsed",)  # what `Resume` restores

    def on_train_begin(self, logs=None):
        self._steps, self._start = 0, None  # the first step of a process compiles

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._epoch_start = epoch, time.perf_counter()
        self._said = self._epoch_start

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        if self._start is None:
            self._start = now
            return
        self._steps += 1
        first = self._steps == min(8, self.batches - 1)
        if first or now - self._said > self.seconds:
            self._said = now
            step = (now - self._start) / self._steps
            left = step * (self.batches * (self.epochs - self._epoch) - batch - 1)
            rate = f"{self.per_batch / step:,.0f} {self.unit}/s"
            if first:
                epoch = clock(step * self.batches)
                self.say(f"{rate}: an epoch takes {epoch}, all that is left {clock(left)}.")
                return
            share = (batch + 1) / self.batches
            loss = f"  loss {float(logs['loss']):.4g}" if "loss" in (logs or {}) else ""
            self.say(
                f"epoch {self._epoch + 1}/{self.epochs} {share:4.0%}  {rate}{loss}  "
                f"{clock(left)} left"
            )

    def on_epoch_end(self, epoch, logs=None):
        self.elapsed += time.perf_counter() - self._epoch_start
        self._start, self._steps = None, 0  # what runs between epochs is not a step's time
        numbers = "  ".join(f"{key} {float(value):.5g}" for key, value in (logs or {}).items())
        self.say(f"epoch {epoch + 1}/{self.epochs} done  {numbers}")


def clock(seconds):
    """Seconds as h:mm:ss.

    >>> clock(3725.4)
    '1:02:05'
    """
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
