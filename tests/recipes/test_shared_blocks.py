"""The recipe that trains networks whose blocks share, as its users meet it."""

import json

import pytest

from helpers.harness import (
    ROOT,
    fresh_python,
    output_of,
    slow_elsewhere,
    start_recipe,
    without_backend,
)
from helpers.test_data import rows_of, write_images

FILES = (
    "config.json trained.json metrics.csv accuracy.png state.npz model.keras results.jsonl "
    "training.csv "
    "gradients.csv start-train.csv start-test.csv"
).split()
COMPARE = """
import json, pathlib, sys
sys.path.insert(0, {recipes!r})
import shared_blocks
from zoo.callbacks import Table
from zoo.callbacks.probes.table import Row

def table(name, epoch, value):
    rows = [Row(name, None, None, None, epoch, value)]
    rows += [Row("activation_norm", f"block{{i}}", 1, None, epoch, value + i) for i in (0, 1)]
    return Table(rows)

def one(value):
    return {{
        "depth": 44,
        "failed": None,
        "history": {{"accuracy": [0.25, 0.5], "val_accuracy": [0.2, 0.4]}},
        "paper": (99.0, None),
        "start": {{split: table(shared_blocks.RATIO, 0, value) for split in ("train", "test")}},
        "training": table(shared_blocks.RATIO, 2, 3.0),
        "gradients": Table(),
    }}

shared_blocks.compare(
    pathlib.Path({path!r}), {{"naive": one(10.0), "gamma": one(20.0)}}, ratio=True
)
"""


def options(tmp_path):
    data = write_images(tmp_path / "images.npz"), "--data=other", "--budget=smoke"
    return *data, "--export=false", f"--runs={tmp_path / 'runs'}"


def kept(tmp_path, name):
    (folder,) = (tmp_path / "runs").glob(f"{name}-*")
    return folder


@slow_elsewhere
def test_a_smoke_run_leaves_a_network_and_its_figures(tmp_path):
    run_dir = tmp_path / "run"
    start = f"--run_dir={run_dir}", "--networks=naive"
    output_of(start_recipe("shared_blocks.py", *options(tmp_path), *start))
    folder = kept(tmp_path, "naive44")
    assert {path.name for path in folder.iterdir()} == {*FILES}
    assert len(rows_of(run_dir / "fig19-depth44.csv")) == 7
    drawn = {path.name for path in run_dir.iterdir()}
    assert drawn == {"fig19-depth44.png", "fig19-depth44.csv"}  # Fig. 8 is of two
    line = json.loads((folder / "results.jsonl").read_text())
    assert line["config"]["batch_norm"] == "shared" and "training_accuracy" in line
    assert line["artifact"] == "jastrzebski2018/fig8" and line["paper"] is None
    assert line["trainable_parameters"] == 565_386 - 8 * 65  # 2 classes instead of 10
    assert "16 training and 16 test images only" in line["departures"]


@pytest.mark.slow
def test_a_network_that_is_done_is_not_trained_again(tmp_path):
    start = *options(tmp_path), f"--run_dir={tmp_path / 'run'}"
    output_of(start_recipe("iterative_inference.py", *start, "--depth=38"))
    everything = "--networks=unshared,naive", "--ablation"
    output = output_of(start_recipe("shared_blocks.py", *start, *everything))
    assert output.count("test accuracy on other") == 5 and output.count("Going on after") == 1
    for name in ("cifar_resnet38", "naive44", "statistics44", "gamma44", "ubn44"):
        path = kept(tmp_path, name) / "results.jsonl"
        assert len(path.read_text().splitlines()) == 1
    start, end = rows_of(tmp_path / "run" / "fig8-depth44.csv")[-2:]
    assert start["network"] == "naive 44" and float(start["training_ratio"]) > 1
    assert start["test_accuracy"] == "" and float(end["test_accuracy"]) >= 0
    assert len(rows_of(tmp_path / "run" / "fig8-depth44-start.csv")) == (6 + 7) * 3
    drawn = {path.name for path in (tmp_path / "run").glob("*depth44.png")}
    assert drawn == {f"fig{number}-depth44.png" for number in (8, 9, 18, 19)}
    names = {row["network"] for row in rows_of(tmp_path / "run" / "fig9-depth44.csv")}
    assert names == {"naive 44", "statistics 44", "gamma 44", "ubn 44"}


EXPLODE = """
import sys
sys.path.insert(0, "recipes")
from absl import flags
import image_recipe
import shared_blocks

sys.argv[0] = "shared_blocks.py"
flags.FLAGS([sys.argv[0], *{options!r}])
prepare = image_recipe.prepare

def exploding(study, name, *rest, **more):
    run = prepare(study, name, *rest, **more)
    if name.startswith("naive"):
        kernel = run.model.trainable_variables[0]
        kernel.assign(kernel * float("inf"))
    return run

image_recipe.prepare = exploding
shared_blocks.main(sys.argv[:1])
"""


@slow_elsewhere
def test_a_network_that_explodes_is_drawn_and_the_others_are_trained(tmp_path):
    start = [*options(tmp_path), f"--run_dir={tmp_path / 'run'}", "--networks=naive,unshared"]
    with pytest.raises(AssertionError, match="naive: shared_blocks.py: .*checkpoint: none"):
        fresh_python(EXPLODE.format(options=start))
    networks = {row["network"] for row in rows_of(tmp_path / "run" / "fig8-depth44.csv")}
    assert networks == {"unshared 38", "naive 44, diverged"}
    assert (kept(tmp_path, "cifar_resnet38") / "results.jsonl").exists()
    assert not (kept(tmp_path, "naive44") / "results.jsonl").exists()


@without_backend
def test_curves_and_norms_of_networks_are_drawn_from_their_tables(tmp_path):
    path = tmp_path / "fig9.png"
    fresh_python(COMPARE.format(recipes=str(ROOT / "recipes"), path=str(path)))
    assert path.exists()
    rows = rows_of(path.with_suffix(".csv"))
    assert [(row["network"], row["epoch"]) for row in rows[:4]] == [
        *(("naive 44", str(epoch)) for epoch in (0, 1, 2)),
        ("gamma 44", "0"),
    ]
    ratios = [(row["test_ratio"], row["training_ratio"]) for row in rows[:3]]
    assert ratios == [("10.0", "10.0"), ("", ""), ("3.0", "")]
    assert [row["test_accuracy"] for row in rows[:3]] == ["", "20.0", "40.0"]
    starts = rows_of(tmp_path / "fig9-start.csv")
    assert [row["activation_norm"] for row in starts] == ["10.0", "11.0", "20.0", "21.0"]


@without_backend
@pytest.mark.parametrize("flag", ["--networks=ubn,nave", "--depth=45", "--networks="])
def test_networks_and_depths_that_are_none_say_what_there_is(flag):
    output = output_of(start_recipe("shared_blocks.py", flag), returncode=1)
    assert "unshared, naive, statistics, gamma, ubn" in output and "6 n + 2" in output


@without_backend
def test_too_few_training_images_end_the_run_before_it_starts(tmp_path):
    data = write_images(tmp_path / "images.npz"), "--data=other", f"--run_dir={tmp_path / 'run'}"
    process = start_recipe("shared_blocks.py", *data, "--train_examples=1")
    output = output_of(process, returncode=1)
    assert "shared_blocks.py: Expected --train_examples up to 260" in output
    assert "Received: 1, of 1 classes" in output and not (tmp_path / "run").exists()
