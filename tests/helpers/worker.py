"""One worker of a job that loses a worker in the middle of an epoch; `zoo.launch` starts it.

    worker.py RUN OUT

Worker 1 kills itself once in the second epoch. The chief then compares what they end with to
what one device ends with.
"""

import json
import os
import pathlib
import signal
import sys

import keras

from helpers import replicas
from zoo import distribute
from zoo.callbacks.checkpoint import open_run
from zoo.callbacks.training import Epochs
from zoo.datasets.batches import Batches

run, out = map(pathlib.Path, sys.argv[1:])
EPOCHS, DEADLY = 3, (1, 2)  # epoch and batch
devices = distribute.strategy("auto")  # before anything is computed
assert devices.name == "multiworker"


class Killed(keras.callbacks.Callback):
    """SIGKILL to worker 1, the first time it gets there."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        marker = run / "killed"
        if not devices.is_chief and (self.epoch, batch) == DEADLY and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def trained(devices, callbacks):
    with devices.scope():
        model = replicas.image_model()
    batches = Batches(*replicas.images(16), replicas.BATCH, seed=3)
    callbacks = [Epochs(batches), *callbacks]
    test = Batches(*replicas.images(8), replicas.BATCH, shuffle=False)
    history = devices.fit(
        model, batches, epochs=EPOCHS, validation_data=test, callbacks=callbacks, verbose=0,
        shuffle=False,
    )  # fmt: skip
    return replicas.values(model), history.history


resume = open_run(run, {"test": 1}, 1, writes=devices.is_chief)
started = (resume.read() or {"epoch": 0})["epoch"]
print("starts after epoch", started, flush=True)
ours, history = trained(devices, [Killed(), resume])
if devices.is_chief:
    alone, theirs = trained(distribute.strategy("one"), [])
    found = {"weights": replicas.far(ours, alone)}
    found["history"] = replicas.far(history.values(), theirs.values())
    out.write_text(json.dumps({**found, "started": started, "epochs": len(history["loss"])}))
