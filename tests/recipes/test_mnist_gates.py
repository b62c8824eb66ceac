"""Gates and lesions, and a thousand layers: what a run of these recipes leaves."""

import json

import numpy as np
import pytest

from helpers.harness import output_of, slow_elsewhere, start_recipe
from helpers.test_data import rows_of, write_images
from zoo.callbacks import Table

pytestmark = slow_elsewhere

NETWORK = {
    *("config.json", "trained.json", "metrics.csv", "accuracy.png", "state.npz", "model.keras"),
    "results.jsonl",
}
FIGURES = {f"fig{n}-cifar100.{kind}" for n in (2, 3, 4) for kind in ("png", "csv")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Smoke runs of both recipes: the folder, the output and the result of each, by name."""
    folder = tmp_path_factory.mktemp("runs")
    small = write_images(folder / "small.npz", (14, 14, 3))
    options = {
        "mnist_1000_layers": ("--data=other", small),
        "mnist_gates": ("--data=cifar100", write_images(folder / "images.npz")),
    }
    processes = {
        name: start_recipe(
            f"{name}.py", *own, "--budget=smoke", "--export=false", f"--run_dir={folder / name}"
        )
        for name, own in options.items()
    }
    outputs = {name: output_of(process) for name, process in processes.items()}
    return {
        name: (folder / name, output, json.loads((folder / name / "results.jsonl").read_text()))
        for name, output in outputs.items()
    }


def test_a_thousand_layers_leave_a_network_and_report_their_training_loss(runs):
    folder, output, line = runs["mnist_1000_layers"]
    assert "stall" in output
    assert {path.name for path in folder.iterdir()} == {
        *NETWORK,
        *("section2.2.png", "section2.2.csv"),
    }
    losses = [float(row["loss"]) for row in rows_of(folder / "section2.2.csv")]
    assert (line["metric"], line["value"]) == ("training_loss", round(losses[-1], 5))
    assert "20 layers, not more than 1,000" in line["departures"]


def test_gates_leave_a_network_its_probes_and_figures_and_report_idle_layers(runs):
    folder, output, line = runs["mnist_gates"]
    assert "by less than a tenth" in output
    names = {path.name for path in folder.iterdir()}
    assert names == {*NETWORK, *FIGURES, "probes.csv", "probes.html"}
    rows = rows_of(folder / "fig4-cifar100.csv")
    idle = sum(float(row["loss_without"]) < 1.1 * float(row["loss"]) for row in rows)
    assert (line["metric"], line["value"]) == ("idle_layers_percent", 100 * idle / 5)
    assert "6 layers, not 50" in line["departures"] and line["paper"] is None
    table = Table.from_csv(folder / "probes.csv")
    assert {"l2_ratio", "cosine_loss", "lesion_accuracy"} <= {*table.probes()}
    known = (row for row in table if not row.probe.startswith("class_gates_7"))  # has no image
    assert all(np.isfinite(row.value) for row in known)


def test_short_runs_are_not_comparable_and_say_why(runs):
    for folder, _, line in runs.values():
        assert line["verdict"] == "not comparable" and line["departures"]
        assert not any("schedule" in text for text in line["departures"])  # theirs do not scale
        assert line["test_accuracy"] == line["test_accuracy_by_epoch"][-1]
        assert len(rows_of(folder / "metrics.csv")) == 1
