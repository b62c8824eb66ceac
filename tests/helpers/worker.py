"""One worker of a job that loses a worker in the middle of an epoch; see `helpers.launch`.

    worker.py RUN OUT

Worker 1 kills itself once in the second epoch. In the end the chief compares weights and history
with those of a training on one device.
"""

import json
import os
import pathlib
import random
import signal
import sys

import keras

from helpers import replicas
from zoo import distribute
from zoo.callbacks.checkpoint import open_run
from zoo.callbacks.training import Epochs
from zoo.datasets.batches import Batches

run = pathlib.Path(sys.argv[1])
out = pathlib.Path(sys.argv[2])
EPOCHS = 3
KILLED_AT = (1, 2)  # epoch and batch
devices = distribute.strategy("auto")  # before anything is computed
assert devices.num_processes == 2
print("random state", random.random(), flush=True)


def noisy(x, generator):
    return x + generator.normal(size=x.shape).astype("float32")


class Killer(keras.callbacks.Callback):
    """SIGKILL to worker 1, the first time that it gets to `KILLED_AT`."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        marker = run / "killed"
        if not devices.is_chief and (self.epoch, batch) == KILLED_AT and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def train(devices, callbacks):
    """Return the final weights and the history."""
    with devices.scope():
        model = replicas.image_model()
    batches = Batches(*replicas.images(16), replicas.BATCH, seed=3, augment=noisy)
    history = devices.fit(
        model,
        batches,
        epochs=EPOCHS,
        validation_data=Batches(*replicas.images(8), replicas.BATCH, shuffle=False),
        callbacks=[Epochs(batches), *callbacks],
        verbose=0,
        shuffle=False,
    )
    devices.make_local(model)
    return replicas.values(model), history.history


resume = open_run(run, {"test": 1}, writes=devices.is_chief)
started = (resume.read() or {"epoch": 0})["epoch"]
print("starts after epoch", started, flush=True)
weights, history = train(devices, [Killer(), resume])
if devices.is_chief:
    one_weights, one_history = train(distribute.strategy("one"), [])
    found = {
        "weights": replicas.max_deviation(weights, one_weights),
        "history": replicas.max_deviation(history.values(), one_history.values()),
        "started": started,
        "epochs": len(history["loss"]),
    }
    out.write_text(json.dumps(found))
