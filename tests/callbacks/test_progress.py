"""The progress display of trainings and of long passes: a bar in a terminal, lines in a log."""

import io
import sys

import keras
import numpy as np
import pytest
from keras import layers

from helpers.harness import without_backend
from zoo import callbacks


class Terminal(io.StringIO):
    def isatty(self):
        return True


def fit_with_progress(**options):
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    progress = callbacks.Progress(2, 4, 2, **options)
    model.fit(np.ones((8, 2)), np.ones(8), 2, epochs=2, verbose=0, callbacks=[progress])
    return progress


def test_a_log_gets_the_speed_first_and_a_line_for_each_epoch():
    lines = []
    progress = fit_with_progress(write=lines.append)
    assert "tokens/s" in lines[0] and "an epoch" in lines[0]
    done = [line for line in lines if "done" in line]
    assert ["epoch 1/2 done" in done[0], "epoch 2/2 done" in done[1]] == [True, True]
    assert progress.elapsed > 0


def test_a_log_gets_lines_in_between_when_they_are_due():
    lines = []
    fit_with_progress(write=lines.append, interval=0.0)
    assert sum("left" in line and "%" in line for line in lines) >= 3


def test_a_terminal_gets_one_bar_of_all_steps(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    fit_with_progress()
    assert "8/8" in sys.stdout.getvalue() and "epoch 2/2 done" in sys.stdout.getvalue()


@without_backend
@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_pass_is_shown_as_lines_or_as_a_bar(stream, monkeypatch):
    monkeypatch.setattr(sys, "stdout", stream())
    progress = callbacks.PassProgress("probes", 20, interval=-1.0)
    for seen in (5, 10, 5, 10):  # two passes
        progress(seen)
    text = sys.stdout.getvalue()
    assert text.startswith("probes")
    assert ("20/20" in text) if stream is Terminal else ("75%" in text and "0:00:00 left" in text)
