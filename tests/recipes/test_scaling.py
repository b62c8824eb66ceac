"""SCALING.md holds what its model prints, and the model what the compiled program says."""

import importlib.util
import json
import os
import subprocess
import sys

import keras
import pytest
from absl import flags

from helpers.harness import ROOT, without_backend

MARKS = "<!-- made by scaling_model.py -->\n", "\n<!-- end -->"


@pytest.fixture
def model():
    path = ROOT / "recipes" / "scaling_model.py"
    spec = importlib.util.spec_from_file_location("scaling_model", path)
    module = importlib.util.module_from_spec(spec)
    known = {*flags.FLAGS}
    spec.loader.exec_module(module)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["scaling_model.py"])
    yield module
    for name in {*flags.FLAGS} - known:
        delattr(flags.FLAGS, name)


@without_backend
def test_the_tables_of_scaling_md_are_what_the_model_prints(model):
    text = (ROOT / "recipes" / "SCALING.md").read_text(encoding="utf-8")
    assert text.split(MARKS[0])[1].split(MARKS[1])[0].strip() == model.tables().strip()


@without_backend
def test_a_step_on_eight_devices_worked_out_by_hand(model, monkeypatch):
    monkeypatch.setattr(model, "program", lambda: (100e6, 300))
    compute, gradient, waiting, whole = model.step(8, 256)
    assert compute == 32 / 2500
    assert gradient == pytest.approx(2 * 7 / 8 * 100e6 / 450e9 + 3 * 5e-6)
    assert waiting == pytest.approx(300 * 3 * 5e-6)
    assert whole == pytest.approx(compute + waiting)  # the gradient's goes on behind the backward
    alone = model.step(1, 256)
    assert alone[1:3] == (0.0, 0.0) and alone[3] == 256 / 2500


def run(script, path, *arguments):
    command = [sys.executable, str(ROOT / "recipes" / script), *arguments, f"--results={path}"]
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in path.read_text().splitlines()], done.stdout


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="it reads XLA's program")
def test_the_program_of_two_devices_holds_the_gradient_once(tmp_path):
    options = "--devices=1,2", "--batch=4", "--image_size=32"
    lines, _ = run("benchmark.py scaling", tmp_path / "lines.jsonl", *options)
    found = {(line["metric"], line["found"]["all_reduces"] > 0): line["value"] for line in lines}
    assert found["operations_times_n", True] == pytest.approx(1.0, abs=0.1)
    assert 1.0 <= found["all_reduced_over_gradient", True] < 1.01
    assert ("all_reduced_over_gradient", False) not in found  # one device has nobody to tell


@pytest.mark.slow
def test_pipelines_are_measured_beside_models(tmp_path):
    options = "--pipelines=cifar", "--rounds=1", "--steps=4", f"--run_dir={tmp_path}"
    (line,), printed = run("benchmark.py pipelines", tmp_path / "lines.jsonl", *options)
    rates = line["images_per_second"]
    assert line["value"] == pytest.approx(rates["pipeline"] / rates["model"], rel=0.01)
    assert rates["both"] < 1.5 * rates["model"] and 0 < line["device"]["in_turn"] <= 1
    assert f"pipeline {rates['pipeline']:,.0f} images/s" in printed
    assert (tmp_path / "pipelines.png").exists() and (tmp_path / "pipelines.csv").exists()
