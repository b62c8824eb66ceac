"""The recipes that train a network for images and then look inside it, as their users meet them."""

import csv
import json

import numpy as np
import pytest

from harness import output_of, slow_elsewhere, start_recipe
from zoo.callbacks import Table

pytestmark = slow_elsewhere

RECIPES = {  # script, side of its images, files beside those of every run, what it prints
    "iterative_inference": (
        32,
        {"probes-train.csv", "probes-train.html", "probes-test.csv", "probes-test.html",
         "training.csv", "unrolling.csv"}
        | {f"fig{n}.{kind}" for n in (2, 3, 4, 5, 6, 7, 13, 14, 20) for kind in ("png", "csv")},
        "cosine loss negative in",
    ),
    "mnist_gates": (
        14,
        {"probes.csv", "probes.html", "fig2.png", "fig3.png", "fig4.png"},
        "by less than a tenth",
    ),
}  # fmt: skip
SMALL = {
    "iterative_inference": ("--depth=14", "--probe_examples=12", "--unroll=2"),
    "mnist_gates": ("--depth=6", "--probe_examples=30"),
}


def write_images(path, side):
    """Two classes of noise, one brighter."""
    random, arrays = np.random.default_rng(0), {}
    for split, count in (("train", 260), ("test", 20)):
        y = np.arange(count) % 2
        x = random.integers(0, 100, (count, side, side, 3)) + 100 * y[:, None, None, None]
        arrays |= {f"x_{split}": x.astype("uint8"), f"y_{split}": y}
    np.savez(path, **arrays)
    return f"--data_dir={path}"


@pytest.mark.parametrize("name", RECIPES)
def test_a_smoke_run_leaves_a_network_and_what_was_found_in_it(name, tmp_path):
    side, files, words = RECIPES[name]
    data = write_images(tmp_path / "images.npz", side)
    options = data, "--data=other", "--budget=smoke", "--export=false", *SMALL[name]
    output = output_of(start_recipe(f"{name}.py", f"--run_dir={tmp_path / 'run'}", *options))
    assert words in output
    usual = "config.json metrics.csv accuracy.png state.npz model.keras results.jsonl".split()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {*usual, *files}
    row = json.loads((tmp_path / "run" / "results.jsonl").read_text())
    assert row["verdict"] == "not comparable" and row["departures"]
    (csv_file,) = (n for n in files if n in ("probes.csv", "probes-test.csv"))
    table = Table.from_csv(tmp_path / "run" / csv_file)
    assert {"l2_ratio", "cosine_loss", "lesion_accuracy"} <= {*table.probes()}
    assert all(np.isfinite(row.value) for row in table)
    metrics = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert len([*csv.DictReader(metrics)]) == 1


def test_plain_and_residual_networks_are_trained_side_by_side(tmp_path):
    data = write_images(tmp_path / "images.npz", 32)
    options = data, "--data=other", "--budget=smoke", "--export=false", "--depths=5"
    run_dir = tmp_path / "run"
    options = *options, "--divergence_steps=3", f"--run_dir={run_dir}"
    output_of(start_recipe("plain_vs_residual.py", *options))
    with open(run_dir / "losses.csv", encoding="utf-8") as file:
        losses = {row["network"]: row for row in csv.DictReader(file)}
    assert [*losses] == ["plain", "residual", "transferred", "dominant"]
    for key in ("start_loss", "start_penalty"):  # equivalent: equal, but for rounding
        residual, transferred = (float(losses[n][key]) for n in ("residual", "transferred"))
        assert transferred == pytest.approx(residual, rel=1e-5)
    with open(run_dir / "divergence5.csv", encoding="utf-8") as file:
        gaps = [float(row["largest_difference"]) for row in csv.DictReader(file)]
    assert len(gaps) == 3 and 0 < max(gaps) < 1e-3
    files = {path.name for path in run_dir.iterdir()}
    assert {"curves.png", "divergence5.png", "plain5", "dominant5"} <= files
    with open(run_dir / "residual5" / "weights.csv", encoding="utf-8") as file:
        rows = {(row["when"], row["entries"]): row for row in csv.DictReader(file)}
    mean = float(rows["before", "identity"]["mean"])
    assert mean == pytest.approx(1, abs=0.01)  # phi adds one to entries of 1/(9 c)
    assert rows["before", "identity"]["count"] == str(16 + 16 + 32)
    assert (run_dir / "residual5" / "weights.png").exists()
    noise = "--data=other", data, "--budget=smoke", f"--trained={run_dir}"
    output = output_of(start_recipe("noise_stability.py", *noise))
    assert "residual5: layer_cushion" in output and "dominant5: dominant_flow" in output
    found = run_dir / "noise-stability"
    assert {f"fig{n}.png" for n in (3, 11, 12, 13)} < {path.name for path in found.iterdir()}
    table = Table.from_csv(found / "plain5.csv")
    assert {"interlayer_cushion", "dominant_flow", "noise_change"} <= {*table.probes()}
    lines = [json.loads(line) for line in (found / "results.jsonl").read_text().splitlines()]
    assert len(lines) == 3 * 3 + 1 and all(line["by_block"] for line in lines)
