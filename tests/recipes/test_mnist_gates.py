"""Gates and lesions, and a thousand layers: the recipes, as their users meet them."""

import csv
import json

import numpy as np
import pytest

from helpers.harness import output_of, slow_elsewhere, start_recipe
from helpers.test_data import rows_of, write_images
from zoo.callbacks import Table

pytestmark = slow_elsewhere

RECIPES = {  # script, side of its images, files beside those of every run, what it prints
    "mnist_deep": (14, {"section2.2.png", "section2.2.csv"}, "stall"),
    "mnist_gates": (
        14,
        {"probes.csv", "probes.html"}
        | {f"fig{n}.{kind}" for n in (2, 3, 4) for kind in ("png", "csv")},
        "by less than a tenth",
    ),
}  # fmt: skip
SMALL = {
    "mnist_gates": ("--probe_examples=30",),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_smoke_run_leaves_a_network_and_what_was_found_in_it(name, tmp_path):
    side, files, words = RECIPES[name]
    data = write_images(tmp_path / "images.npz", (side, side, 3))
    options = data, "--data=other", "--budget=smoke", "--export=false", *SMALL.get(name, ())
    output = output_of(start_recipe(f"{name}.py", f"--run_dir={tmp_path / 'run'}", *options))
    assert words in output
    usual = "config.json trained.json metrics.csv accuracy.png state.npz model.keras".split()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {*usual, "results.jsonl", *files}
    row = json.loads((tmp_path / "run" / "results.jsonl").read_text())
    assert row["verdict"] == "not comparable" and row["departures"]
    for csv_file in {"probes.csv", "probes-test.csv"} & files:
        table = Table.from_csv(tmp_path / "run" / csv_file)
        assert {"l2_ratio", "cosine_loss", "lesion_accuracy"} <= {*table.probes()}
        assert all(np.isfinite(row.value) for row in table)
    metrics = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert len([*csv.DictReader(metrics)]) == 1


def test_a_thousand_layers_report_their_training_loss_and_gates_their_idle_layers(tmp_path):
    options, lines = (write_images(tmp_path / "a.npz"), "--budget=smoke", "--export=false"), {}
    for name, data in (("mnist_deep", "--data=other"), ("mnist_gates", "--data=cifar100")):
        run = tmp_path / name
        output_of(start_recipe(f"{name}.py", *options, data, f"--run_dir={run}"))
        lines[name] = json.loads((run / "results.jsonl").read_text())
    deep, gates = lines["mnist_deep"], lines["mnist_gates"]
    losses = [float(row["loss"]) for row in rows_of(tmp_path / "mnist_deep" / "section2.2.csv")]
    assert (deep["metric"], deep["value"]) == ("training_loss", round(losses[-1], 5))
    assert "20 layers, not more than 1,000" in deep["departures"]
    rows = rows_of(tmp_path / "mnist_gates" / "fig4-cifar100.csv")
    idle = sum(float(row["loss_without"]) < 1.1 * float(row["loss"]) for row in rows)
    assert (gates["metric"], gates["value"]) == ("idle_layers_percent", 100 * idle / 5)
    assert "6 layers, not 50" in gates["departures"] and gates["paper"] is None
    pictures = {path.name for path in (tmp_path / "mnist_gates").glob("fig*.png")}
    assert pictures == {f"fig{number}-cifar100.png" for number in (2, 3, 4)}
    for line in lines.values():
        assert not any("schedule" in told for told in line["departures"])  # theirs do not scale
        assert line["test_accuracy"] == line["test_accuracy_by_epoch"][-1]
