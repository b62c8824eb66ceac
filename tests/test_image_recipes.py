"""The recipes that train a network for images and then look inside it, as their users meet them."""

import csv
import json

import numpy as np
import pytest

from harness import output_of, start_recipe
from zoo.callbacks import Table

RECIPES = {  # script, side of its images, files beside those of every run, what it prints
    "iterative_inference": (
        32,
        {"probes-train.csv", "probes-train.html", "probes-test.csv", "probes-test.html",
         "training.csv", "unrolling.csv"},
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
