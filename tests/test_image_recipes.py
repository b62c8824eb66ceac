"""The recipes that train a network for images and then look inside it, as their users meet them."""

import csv
import json

import numpy as np
import pytest

from harness import fresh_python, output_of, slow_elsewhere, start_recipe, without_backend
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


REFINED = (2, 3, 4, 5, 6, 7, 13, 14, 20)  # figures
MORE = {"metrics.csv", "model.keras", "state.npz", "training.csv", "gradients.csv"}


def refine(tmp_path, *options):
    """iterative_inference.py at smoke; returns the folders of its network and of its figures."""
    data = write_images(tmp_path / "images.npz", 32), "--budget=smoke", "--export=false"
    where = f"--runs={tmp_path / 'runs'}", f"--run_dir={tmp_path / 'run'}"
    output = output_of(start_recipe("iterative_inference.py", *data, *where, *options))
    assert "cosine loss negative in" in output
    (kept,) = (tmp_path / "runs").iterdir()
    return kept, tmp_path / "run"


def names(figures, network, end=""):
    return {f"fig{n}-{network}{end}.{kind}" for n in figures for kind in ("png", "csv")}


def test_a_smoke_run_leaves_a_network_and_what_its_blocks_do(tmp_path):
    kept, run = refine(tmp_path, "--data=other")
    network = "cifar_resnet14"
    assert MORE < {path.name for path in kept.iterdir()}
    probes = {f"probes-{network}-{split}.{kind}" for split in ("train", "test")
              for kind in ("csv", "html")}  # fmt: skip
    assert {path.name for path in run.iterdir()} == {
        *(f"unrolling-{network}.csv", "results.jsonl"), *names(REFINED, network), *probes
    }  # fmt: skip
    table = Table.from_csv(run / f"probes-{network}-test.csv")
    assert {"l2_ratio", "cosine_loss", "lesion_accuracy"} <= {*table.probes()}
    assert all(np.isfinite(row.value) for row in table)
    (trained,) = lines_of(kept)
    assert trained["artifact"] == "jastrzebski2018/fig5" and trained["paper"] is None
    ten_classes = 467_946 - 3 * (565_386 - 467_946)  # Table 1: ResNet-32 and -38, a block a stage
    assert trained["trainable_parameters"] == ten_classes - 8 * 65
    spared, cosine, *_ = lines = lines_of(run)
    accuracies = table.values("lesion_accuracy")
    floor = accuracies.pop(None) - 0.05
    assert spared["artifact"] == "jastrzebski2018/fig3"
    assert spared["value"] == sum(value >= floor for value in accuracies.values())
    last = [*table.values("cosine_loss").values()][-1]
    assert cosine["value"] == pytest.approx(last, abs=1e-4)
    few = "8 training and 8 test images are probed"
    assert all(few in line["departures"] for line in lines) and few not in trained["departures"]


@pytest.mark.slow
def test_cifar_100_has_figures_of_other_numbers_and_images_can_be_held_out(tmp_path):
    kept, run = refine(tmp_path, "--data=cifar100", "--validation=6", "--schedule=later")
    network, others = "cifar_resnet14", (11, 12, 10, 17, 15, 16)
    end = names((6, 7, 20), network, "-cifar100")
    assert {path.name for path in run.glob("fig*")} == names(others, network) | end
    (line,) = lines_of(kept)
    assert (line["artifact"], line["metric"]) == ("jastrzebski2018/fig17", "test_accuracy")
    assert len(line["validation_accuracy_by_epoch"]) == 1 and line["config"]["validation"] == 6
    assert "the later code's learning rates, not those printed" in line["departures"]
    assert "the last 6 training images are held out" in " ".join(line["readings"])
    assert json.loads((kept / "config.json").read_text())["images"] == 10
    artifacts = {line["artifact"].split("/")[1] for line in lines_of(run)}
    assert {"fig10", "fig12"} <= artifacts <= {"fig7", "fig10", "fig12"}


CHOICES = """
import json, pathlib, sys
sys.path.insert(0, "recipes")
from absl import flags
import iterative_inference as recipe
from zoo.callbacks.table import Row, Table

for options in (["--budget=paper"], ["--budget=minutes", "--data=cifar100"], ["--depth=38"]):
    flags.FLAGS.unparse_flags()
    flags.FLAGS(["iterative_inference.py", *options])
    path = str(recipe.path_of(pathlib.Path("run"), 5, recipe.network()[0]))
    print(json.dumps([recipe.network(), recipe.refinement_recipe.probed(), path]))

def told(*values, **more):
    print(json.dumps([*values[:4], more]))

for accuracies in ((0.5, 0.25, 0.75), ()):
    rows = [
        Row(f"borderline_examples_borderline_{key}", f"block{i}", 3, None, None, value)
        for key, values in (("accuracy", accuracies), ("share", (0.02, 0.02, 0.02)))
        for i, value in enumerate(values)
    ]
    recipe.tell_borderline(Table(rows), recipe.MARKS, told, 200, scale=0.5)
"""


@without_backend
def test_the_paper_s_network_is_chosen_by_the_budget_and_its_unrolling_gets_a_line():
    *chosen, line, none = fresh_python(CHOICES).stdout.splitlines()
    assert [json.loads(one) for one in chosen] == [
        [["cifar_resnet110", 110], None, "run/fig5-cifar_resnet110.png"],
        [["cifar_resnet20", 20], 2000, "run/fig17-cifar_resnet20.png"],
        [["cifar_resnet38", 38], 2000, "run/fig5-cifar_resnet38.png"],
    ]
    facts = {"before": 50.0, "borderline_examples": 4, "scale": 0.5}
    assert json.loads(line) == ["fig7", "borderline_accuracy_unrolled", 75.0, 53, facts]
    assert none == "no borderline example: no line of Fig. 7"


def lines_of(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def test_plain_and_residual_networks_are_trained_side_by_side_and_then_inspected(tmp_path):
    options = write_images(tmp_path / "images.npz", 32), "--data=other", "--budget=smoke"
    options = *options, f"--runs={tmp_path / 'runs'}", "--export=false"
    run_dir = tmp_path / "run"
    output = output_of(start_recipe("plain_vs_residual.py", *options, f"--run_dir={run_dir}"))
    assert "network 4 of 4: dominant5" in output
    rows = rows_of(run_dir / "table4.csv")
    losses = {row["network"]: row for row in rows if row["when"] == "before"}
    assert [*losses] == ["plain", "residual", "transferred"]
    for key in ("training_loss", "penalty"):  # equivalent: equal, but for rounding
        residual, transferred = (float(losses[n][key]) for n in ("residual", "transferred"))
        assert transferred == pytest.approx(residual, rel=1e-5)
    own = {name: float(row["own_penalty"]) for name, row in losses.items()}
    assert own["plain"] == pytest.approx(float(losses["plain"]["penalty"]), rel=1e-5)
    assert own["residual"] < 0.1 * own["transferred"]  # what Table 4 prints is its own weights'
    figures = {"fig7-depth5", "fig8-depth5", "fig9"}
    tables = {"table1", "table2", "table4", "table5"}
    tables |= {f"table3-{network}5" for network in losses}
    written = {path.name for path in run_dir.iterdir()}
    pictures = {f"{name}.png" for name in figures}
    assert written == {f"{name}.csv" for name in tables | figures} | pictures | {"results.jsonl"}
    rows = {(r["when"], r["entries"]): r for r in rows_of(run_dir / "table3-residual5.csv")}
    mean = float(rows["before", "identity"]["mean"])
    assert mean == pytest.approx(1, abs=0.01)  # phi adds one to entries of 1/(9 c)
    assert rows["before", "identity"]["count"] == str(16 + 16 + 32)
    (ratio,) = [line for line in lines_of(run_dir) if line["model"] == "nets 5"]
    assert ratio["value"] == pytest.approx(own["plain"] / own["residual"], abs=0.01)
    folders = {path.name: path for path in (tmp_path / "runs").iterdir()}
    assert len(folders) == 4
    (line,) = lines_of(next(path for name, path in folders.items() if name.startswith("plain5")))
    for one in (*lines_of(run_dir), line):  # not the paper's images: none of its numbers
        assert not [key for key in one if key.startswith("paper") and one[key] is not None]
    states = {name: (path / "state.npz").read_bytes() for name, path in folders.items()}

    output = output_of(start_recipe("noise_stability.py", *options, f"--run_dir={run_dir}"))
    assert "residual5: layer_cushion" in output and "dominant5: dominant_flow" in output
    assert "5: dominance, residual over plain, deep" in output
    assert {f"fig{n}-depth5.png" for n in (3, 10, 12)} <= {path.name for path in run_dir.iterdir()}
    table = Table.from_csv(run_dir / "section5-plain5.csv")
    assert {"interlayer_cushion", "layer_cushion", "noise_change"} <= {*table.probes()}
    found = [line for line in lines_of(run_dir) if line["artifact"].endswith("fig3")]
    assert [line["config"] for line in found] == [{"images": 8}] * 4  # of three, and of a pair
    assert found[-1]["metric"] == "layers_without_larger_cushion" and found[-1]["layers"] == 3
    trained = {name: (path / "state.npz").read_bytes() for name, path in folders.items()}
    assert trained == states  # found, not trained again
    flows = rows_of(run_dir / "fig12-depth5.csv")
    assert {row["iteration"] for row in flows} == {"first", "last"}


@pytest.mark.slow
def test_equivalent_networks_part_by_rounding_alone_and_go_on_exactly(tmp_path):
    options = write_images(tmp_path / "images.npz", 32), "--data=other", "--budget=smoke"

    def run(name, *more, runs="runs"):
        where = f"--runs={tmp_path / runs}", f"--run_dir={tmp_path / name}"
        output_of(start_recipe("divergence.py", *options, *where, *more))
        single = "--precision=float32" in more
        rows = rows_of(tmp_path / name / ("fig6-float32.csv" if single else "fig6.csv"))
        return [float(row["largest_difference"]) for row in rows]

    exact = run("double")
    assert len(exact) == 4 and max(exact) < 1e-14  # an ulp of 1, or some
    single = "--precision=float32", "--starts=kaiming"
    run("part", *single, "--steps=2")
    gaps, whole = run("part", *single, "--steps=4"), run("whole", *single, "--steps=4", runs="anew")
    assert len(gaps) == 4 and gaps == whole
    assert 1e6 * max(exact) < max(gaps) < 1e-3
    line = lines_of(tmp_path / "part")[-1]
    assert (
        line["value"] == gaps[-1] and "float32; the paper: double precision" in line["departures"]
    )


@pytest.mark.slow
def test_fully_fledged_networks_have_cushions_and_dominance_too(tmp_path):
    data = write_images(tmp_path / "images.npz", 32), "--data=other", "--budget=smoke"
    networks = "--networks=full_plain,full_residual", "--export=false"
    where = f"--runs={tmp_path / 'runs'}", f"--run_dir={tmp_path / 'run'}"
    output = output_of(start_recipe("noise_stability.py", *data, *networks, *where))
    assert "full_residual8: interlayer_cushion" in output
    assert "full_8: dominance, residual over plain, shallow" in output
    table = Table.from_csv(tmp_path / "run" / "section5-full_plain8.csv")
    assert table.array("layer_cushion_convolutions").shape == (3, 2)
    assert (tmp_path / "run" / "fig12-full-depth8.png").exists()


def test_a_network_that_diverges_does_not_end_the_others(tmp_path):
    """A rate of 1e30, without the clip, instead of the recipe's, for plain networks."""
    code = f"""
import sys
sys.path.insert(0, "recipes")
sys.argv = ["plain_vs_residual.py", {write_images(tmp_path / "images.npz", 32)!r},
            "--data=other", "--budget=smoke", "--export=false", "--artifact=table1",
            "--runs={tmp_path / "runs"}", "--run_dir={tmp_path / "run"}"]
import plain_vs_residual as recipe
ours, study = recipe.plain_nets.optimizer, recipe.plain_nets.study
def studied(network):
    def optimizer(iterations):
        import keras
        return keras.optimizers.SGD(1e30) if network == "plain" else ours(iterations)
    import dataclasses
    return dataclasses.replace(study(network), optimizer=optimizer)
recipe.plain_nets.study = studied
recipe.app.run(recipe.main)
"""
    with pytest.raises(AssertionError, match="plain5: .* Last good checkpoint: none") as failure:
        fresh_python(code)
    assert "rc 1" in str(failure.value)
    rows = rows_of(tmp_path / "run" / "table1.csv")
    assert [row["network"] for row in rows] == ["residual"]


def test_the_paper_s_numbers_stand_beside_its_images_only():
    code = """
import sys
sys.path.insert(0, "recipes")
import json, plain_nets, plain_tables as tables
losses = dict.fromkeys(("before", "after"), tables.Losses(2.0, 1e-3, 1e-3))
for known in (True, False):
    trained = plain_nets.Trained("plain", 32, {}, known, {})
    found = tables.Found(trained, losses, None, 0.5)
    both = tables.told(found) | tables.outcome(found)
    print(json.dumps(both | tables.paper_weights(found)))
"""
    known, other = map(json.loads, fresh_python(code).stdout.splitlines()[-2:])
    assert known["paper_training_loss"] == 0.1225 and known["paper_cost"] == 0.1234  # Table 1
    assert known["paper_test_error"] == 0.1349 and known["entries_over_0_7"] == [1, 26]
    assert known["cost"] == 2.001
    assert not [value for key, value in other.items() if key.startswith("paper") and value]
    assert "entries_over_0_7" not in other


def test_dominance_that_can_be_worked_out_is_drawn_beside_its_simulation(tmp_path):
    options = "--budget=smoke", f"--run_dir={tmp_path}", f"--results={tmp_path / 'all.jsonl'}"
    output = output_of(start_recipe("trivial_dominance.py", *options))
    gap = float(output.split("differ by ")[1].split()[0])
    assert 0 < gap < 0.1
    rows = rows_of(tmp_path / "fig11.csv")
    flat = [float(r["simulated"]) for r in rows if r["parameter"] == "feature_sigma"]
    assert len({*flat[::2]}) == len({*flat[1::2]}) == 1  # does not depend on it
    assert (tmp_path / "fig13.png").exists()
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line["artifact"].split("/")[1] for line in lines] == ["fig11", "fig13"]
    assert gap <= lines[0]["value"] < 0.1 and 0 < lines[1]["value"] < 0.02
    assert lines == lines_of(tmp_path)
