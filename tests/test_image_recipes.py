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
    "mnist_deep": (14, {"section2.2.png", "section2.2.csv"}, "stall"),
    "mnist_gates": (
        14,
        {"probes.csv", "probes.html"}
        | {f"fig{n}.{kind}" for n in (2, 3, 4) for kind in ("png", "csv")},
        "by less than a tenth",
    ),
}  # fmt: skip
SMALL = {
    "iterative_inference": ("--depth=14", "--probe_examples=12", "--unroll=2"),
    "mnist_gates": ("--probe_examples=30",),
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
    options, lines = (write_images(tmp_path / "a.npz", 32), "--budget=smoke", "--export=false"), {}
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


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def test_plain_and_residual_networks_are_trained_side_by_side_and_then_inspected(tmp_path):
    options = write_images(tmp_path / "images.npz", 32), "--data=other", "--budget=smoke"
    options = *options, f"--runs={tmp_path / 'runs'}", "--export=false", "--depths=5"
    run_dir = tmp_path / "run"
    where = "--divergence_steps=3", f"--run_dir={run_dir}"
    output_of(start_recipe("plain_vs_residual.py", *options, *where))
    losses = {row["network"]: row for row in rows_of(run_dir / "losses.csv")}
    assert [*losses] == ["plain", "residual", "transferred", "dominant"]
    for key in ("start_loss", "start_penalty"):  # equivalent: equal, but for rounding
        residual, transferred = (float(losses[n][key]) for n in ("residual", "transferred"))
        assert transferred == pytest.approx(residual, rel=1e-5)
    gaps = [float(row["largest_difference"]) for row in rows_of(run_dir / "fig6.csv")]
    assert len(gaps) == 3 * 2 and 0 < max(gaps) < 1e-3  # from both starts
    own = {name: float(row["start_own_penalty"]) for name, row in losses.items()}
    assert own["plain"] == pytest.approx(float(losses["plain"]["start_penalty"]), rel=1e-5)
    assert own["residual"] < 0.1 * own["transferred"]  # what Table 4 prints is its own weights'
    pictures = {path.name for path in run_dir.glob("*.png")}
    assert pictures == {
        *("fig6.png", "fig8.png", "fig9.png"),
        *(f"fig7-{network}5.png" for network in ("plain", "residual", "transferred")),
    }
    assert all((run_dir / name).with_suffix(".csv").exists() for name in pictures)
    rows = {(r["when"], r["entries"]): r for r in rows_of(run_dir / "table3-residual5.csv")}
    mean = float(rows["before", "identity"]["mean"])
    assert mean == pytest.approx(1, abs=0.01)  # phi adds one to entries of 1/(9 c)
    assert rows["before", "identity"]["count"] == str(16 + 16 + 32)
    folders = {path.name: path for path in (tmp_path / "runs").iterdir()}
    assert len(folders) == 4  # the divergence's network is the residual one's start
    states = {name: (path / "state.npz").read_bytes() for name, path in folders.items()}

    output = output_of(start_recipe("noise_stability.py", *options, f"--run_dir={run_dir}"))
    assert "residual5: layer_cushion" in output and "dominant5: dominant_flow" in output
    assert "5: dominance, residual over plain, deep" in output
    assert {f"fig{n}.png" for n in (3, 10, 12)} <= {path.name for path in run_dir.iterdir()}
    table = Table.from_csv(run_dir / "plain5.csv")
    assert {"interlayer_cushion", "dominant_flow", "noise_change"} <= {*table.probes()}
    lines = [json.loads(line) for line in (run_dir / "results.jsonl").read_text().splitlines()]
    assert len(lines) == 3 * 3 + 1 + 2 and all(len(line["departures"]) > 1 for line in lines)
    trained = {name: (path / "state.npz").read_bytes() for name, path in folders.items()}
    assert trained == states  # found, not trained again
    flows = rows_of(run_dir / "fig12.csv")
    assert {row["iteration"] for row in flows} == {"first", "last"}


@pytest.mark.slow
def test_fully_fledged_networks_have_cushions_and_dominance_too(tmp_path):
    data = write_images(tmp_path / "images.npz", 32), "--data=other", "--budget=smoke"
    networks = "--networks=full_plain,full_residual", "--depths=8", "--export=false"
    where = f"--runs={tmp_path / 'runs'}", f"--run_dir={tmp_path / 'run'}"
    output = output_of(start_recipe("noise_stability.py", *data, *networks, *where))
    assert "full_residual8: interlayer_cushion" in output
    assert "full_8: dominance, residual over plain, shallow" in output
    table = Table.from_csv(tmp_path / "run" / "full_plain8.csv")
    assert table.array("layer_cushion_convolutions").shape == (3, 2)


def test_dominance_that_can_be_worked_out_is_drawn_beside_its_simulation(tmp_path):
    options = "--budget=smoke", f"--run_dir={tmp_path}"
    output = output_of(start_recipe("trivial_dominance.py", *options))
    gap = float(output.split("differ by ")[1].split()[0])
    assert 0 < gap < 0.1
    rows = rows_of(tmp_path / "fig11.csv")
    flat = [float(r["simulated"]) for r in rows if r["parameter"] == "feature_sigma"]
    assert len({*flat[::2]}) == len({*flat[1::2]}) == 1  # does not depend on it
    assert (tmp_path / "fig13.png").exists()
