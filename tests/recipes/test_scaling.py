"""docs/scaling.md holds what its model prints, and the model what the compiled program says."""

import argparse
import doctest
import pathlib

import keras
import pytest

from benchmarks import scaling_model, xla
from helpers.benchmarks import run_benchmark
from helpers.harness import ROOT, without_backend


@pytest.fixture
def machine():
    """Return the machine that the flags' defaults describe."""
    parser = argparse.ArgumentParser()
    scaling_model.add_flags(parser)
    return parser.parse_args([])


@without_backend
def test_the_tables_of_the_page_on_scaling_are_what_the_model_prints(machine):
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert scaling_model.tables(machine) in text


@without_backend
def test_a_step_on_eight_devices_worked_out_by_hand(machine, monkeypatch):
    monkeypatch.setattr(scaling_model, "program", lambda: (100e6, 300))
    compute, gradient, waiting, whole = scaling_model.step(machine, 8, 256)
    assert compute == 32 / 2500
    assert gradient == pytest.approx(2 * 7 / 8 * 100e6 / 450e9 + 3 * 5e-6)
    assert waiting == pytest.approx(300 * 3 * 5e-6)
    assert whole == pytest.approx(compute + waiting)  # the gradient's is hidden by the backward
    alone = scaling_model.step(machine, 1, 256)
    assert alone[1:3] == (0.0, 0.0) and alone[3] == 256 / 2500


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
    assert f"pipeline {rates['pipeline']:,.0f} images/s" in printed
    assert (pathlib.Path(tmp_path) / "pipelines.png").exists()
    assert (pathlib.Path(tmp_path) / "pipelines.csv").exists()
