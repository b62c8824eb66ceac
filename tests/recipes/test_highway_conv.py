"""The recipe of the convolutional highways as its user meets it: runs, resumes, refuses."""

import json
import signal

import keras
import numpy as np
import pytest

from helpers.harness import (
    output_of,
    slow_elsewhere,
    start_changed_recipe,
    start_recipe,
    without_backend,
)


def write_images(path, num_train=250):
    """Squares of 14 pixels, bright above, below, left or right: the label."""
    random, arrays = np.random.default_rng(0), {}
    for split, count in (("train", num_train), ("test", 150)):
        y = np.arange(count) % 4
        x = random.integers(0, 80, (count, 14, 14, 1))
        halves = np.s_[:7, :], np.s_[7:, :], np.s_[:, :7], np.s_[:, 7:]
        for i, label in enumerate(y):
            x[i][halves[label]] += 120
        arrays |= {f"x_{split}": x.astype("uint8"), f"y_{split}": y}
    np.savez(path, **arrays)
    return path


def options_of(run_dir):
    return f"--run_dir={run_dir}", "--model=highway_mnist", "--width=3", "--export=false"


def start(run_dir, *arguments):
    return start_recipe("highway_conv.py", *options_of(run_dir), *arguments)


@pytest.fixture
def digits(tmp_path):
    """MNIST's name belongs to 28 x 28 pixels: images of another set go by their file's name."""
    return f"--data_dir={write_images(tmp_path / 'bright_halves.npz')}"


@slow_elsewhere
def test_a_run_leaves_a_curve_a_model_and_a_row_that_names_its_departures(tmp_path, digits):
    output = output_of(start(tmp_path / "run", digits, "--data=other", "--budget=smoke"))
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        *("config.json", "metrics.csv", "accuracy.png", "state.npz", "model.keras"),
        *("results.jsonl", "trained.json"),
    }
    row = json.loads((tmp_path / "run" / "results.jsonl").read_text())
    assert (row["artifact"], row["paper"]) == ("srivastava2015/table1", None)
    assert row["verdict"] == "not comparable"
    assert row["departures"][1] == "40 training and 40 test images only"
    assert row["departures"][2] == "2 of 180000 iterations, schedule shortened"
    assert row["departures"][3] == "batches of 20, not 100"
    assert f"{row['value']:.2f} %" in output and len(row["test_accuracy_by_epoch"]) == 1
    model = keras.models.load_model(tmp_path / "run" / "model.keras")
    assert model.input_shape == (None, 14, 14, 1) and model.output_shape == (None, 4)


@without_backend
def test_a_missing_file_ends_the_run_before_it_starts(tmp_path):
    output = output_of(start(tmp_path / "run", f"--data_dir={tmp_path / 'none.npz'}"), 1)
    assert "none.npz" in output and "Traceback" not in output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_killed_in_mid_epoch_ends_as_an_uninterrupted_one(tmp_path, digits):
    options = digits, "--data=other", "--epochs=6"
    output_of(start(tmp_path / "whole", *options))
    options_of_killed = *options_of(tmp_path / "killed"), *options
    killed = start_changed_recipe(tmp_path, "highway_conv.py", *options_of_killed, killed_at=(2, 0))
    output_of(killed, -signal.SIGKILL)
    facts = np.load(tmp_path / "killed" / "state.npz")
    assert json.loads(str(facts["facts"]))["epoch"] == 2
    output_of(start(tmp_path / "killed", *options))
    whole, resumed = (np.load(tmp_path / name / "state.npz") for name in ("whole", "killed"))
    for key in set(whole.files) - {"facts"}:
        np.testing.assert_array_equal(resumed[key], whole[key])
