"""The progress of trainings and of long passes: lines of a log."""

import keras
import numpy as np
import pytest
from keras import layers

from helpers.harness import slow_elsewhere, without_backend
from zoo import callbacks
from zoo.callbacks import training


@slow_elsewhere
@pytest.mark.parametrize("interval, between", [(20.0, 0), (-1.0, 8)])
def test_a_training_prints_a_line_for_each_epoch_and_those_that_are_due(
    interval, between, monkeypatch, capsys
):
    monkeypatch.setattr(training, "INTERVAL", interval)
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    progress = callbacks.Progress(2, 4)
    model.fit(np.ones((8, 2)), np.ones(8), 2, epochs=2, verbose=0, callbacks=[progress])
    lines = capsys.readouterr().out.splitlines()
    first, second = (line for line in lines if "done" in line)
    assert first.startswith("epoch 1/2 done  loss") and second.endswith("0:00:00 left")
    assert sum("left" in line and "done" not in line for line in lines) == between


@without_backend
def test_passes_that_follow_each_other_share_their_progress(monkeypatch, capsys):
    monkeypatch.setattr(training, "INTERVAL", -1.0)
    progress = callbacks.PassProgress("probes", 20)
    for seen in (5, 10, 5, 10):  # two passes
        progress(seen)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"probes: {n}%" for n in (25, 50, 75, 100)]
    assert lines[-1].endswith("0:00:00 left")


@without_backend
@pytest.mark.parametrize("make", [callbacks.PassProgress, callbacks.Progress])
def test_the_progress_of_nothing_is_refused(make):
    with pytest.raises(ValueError, match="must be a positive integer"):
        make(1, 0)
