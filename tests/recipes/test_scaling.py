"""The compiled program of a step on several devices holds what docs/devices.md says."""

import doctest
import pathlib
import re

import keras
import pytest

from benchmarks import xla
from helpers.benchmarks import run_benchmark
from helpers.harness import without_backend


@without_backend
def test_all_reduces_are_counted_from_the_text_of_a_program():
    assert doctest.testmod(xla).failed == 0


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="it reads XLA's program")
def test_the_program_of_two_devices_holds_the_gradient_once(tmp_path):
    options = "--devices=1,2", "--batch=4", "--image_size=32"
    lines, _ = run_benchmark(tmp_path / "lines.jsonl", "scaling", *options)
    found = {(line["metric"], line["found"]["all_reduces"] > 0): line["value"] for line in lines}
    assert found["operations_times_n", True] == pytest.approx(1.0, abs=0.1)
    assert 1.0 <= found["all_reduced_over_gradient", True] < 1.01
    assert ("all_reduced_over_gradient", False) not in found  # a single device reduces nothing


@pytest.mark.slow
def test_pipelines_are_measured_beside_models(tmp_path):
    options = "--pipelines=cifar", "--rounds=1", "--steps=4", f"--run_dir={tmp_path}"
    (line,), printed = run_benchmark(tmp_path / "lines.jsonl", "pipelines", *options)
    rates = line["images_per_second"]
    assert line["value"] == pytest.approx(rates["pipeline"] / rates["model"], rel=0.01)
    assert 0 < line["device"]["in_turn"] <= 1 and 0 < line["device"]["ahead"]
    shown = re.search(r"pipeline ([0-9,]+) images/s", printed)[1].replace(",", "")
    assert int(shown) == pytest.approx(rates["pipeline"], abs=1)
    assert (pathlib.Path(tmp_path) / "pipelines.png").exists()
    assert (pathlib.Path(tmp_path) / "pipelines.csv").exists()
