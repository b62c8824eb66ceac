"""The recipe on blocks that share convolutions: what a run leaves and reports."""

import json
import sys

import pytest
from absl import app

from experiment import training
from helpers.harness import output_of, slow_elsewhere, start_recipe, without_backend
from helpers.recipes import recipe
from helpers.test_data import lines_of, rows_of, write_images
from jastrzebski2018 import claims, figures, sharing
from zoo.callbacks import Table
from zoo.callbacks.probes.table import Row

FILES = (
    "config.json trained.json metrics.csv accuracy.png state.npz model.keras results.jsonl "
    "training.csv "
    "gradients.csv start-train.csv start-test.csv"
).split()


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


@slow_elsewhere
def test_the_miniature_leaves_what_the_claims_measure(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "DEPTHS", {True: 44, False: 14})
    monkeypatch.setattr(sharing, "USES", 2)
    run_dir = tmp_path / "run"
    start = [write_images(tmp_path / "images.npz"), "--data=other", "--epochs=1", "--export=false"]
    with recipe("shared_blocks", *start, f"--runs={tmp_path}", f"--run_dir={run_dir}") as module:
        module.main()
    lines = lines_of(run_dir)
    names = ("unshared", "naive", "statistics", "gamma", "ubn")
    assert [line["config"]["network"] for line in lines] == [*names, *names]
    for claim in claims.CLAIMS:
        if claim.commands[0].startswith("shared_blocks.py"):
            assert isinstance(claim.measure(lines), float), claim.name
    assert len(rows_of(run_dir / "fig9-miniature.csv")) == len(names)
    for averages in ("initial-averages", "batch-statistics"):
        assert len(rows_of(run_dir / f"fig8-start-{averages}.csv")) == 2 * 3 + 4 * 7 * 3
    assert (run_dir / "fig9-miniature.png").exists()


@without_backend
def test_the_miniature_refuses_a_depth():
    with recipe("shared_blocks", "--depth=44") as module:
        with pytest.raises(app.UsageError, match="Expected --depth with --budget paper"):
            module.main()


@pytest.mark.slow
def test_a_network_that_is_done_is_not_trained_again(tmp_path):
    start = *options(tmp_path), f"--run_dir={tmp_path / 'run'}"
    output_of(start_recipe("iterative_inference.py", *start, "--depth=38"))
    everything = "--networks=unshared,naive", "--ablation"
    output = output_of(start_recipe("shared_blocks.py", *start, *everything))
    assert output.count("test accuracy on other") == 5 and output.count("Resuming after") == 1
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


@slow_elsewhere
def test_a_network_that_explodes_is_drawn_and_the_others_are_trained(tmp_path, monkeypatch):
    prepare = training.prepare

    def exploding(study, name, *rest, **more):
        run = prepare(study, name, *rest, **more)
        if name.startswith("naive"):
            kernel = run.model.trainable_variables[0]
            kernel.assign(kernel * float("inf"))
        return run

    monkeypatch.setattr(training, "prepare", exploding)
    monkeypatch.setattr(sys, "argv", ["shared_blocks.py"])
    start = [*options(tmp_path), f"--run_dir={tmp_path / 'run'}", "--networks=naive,unshared"]
    with recipe("shared_blocks", *start) as module:
        with pytest.raises(SystemExit, match="naive: shared_blocks.py: .*checkpoint: none"):
            module.main()
    networks = {row["network"] for row in rows_of(tmp_path / "run" / "fig8-depth44.csv")}
    assert networks == {"unshared 38", "naive 44, diverged"}
    assert (kept(tmp_path, "cifar_resnet38") / "results.jsonl").exists()
    assert not (kept(tmp_path, "naive44") / "results.jsonl").exists()


def table_of(name, epoch, value):
    rows = [Row(name, None, None, None, epoch, value)]
    rows += [Row("activation_norm", f"block{i}", 1, None, epoch, value + i) for i in (0, 1)]
    return Table(rows)


def measured(module, value):
    start = {split: table_of(module.RATIO, 0, value) for split in ("train", "test")}
    return module.Measured(
        depth=44,
        folder=None,
        history={"accuracy": [0.25, 0.5], "val_accuracy": [0.2, 0.4]},
        paper=(99.0, None),
        start=start,
        training=table_of(module.RATIO, 2, 3.0),
        gradients=Table(),
        failure=None,
    )


@without_backend
def test_curves_and_norms_of_networks_are_drawn_from_their_tables(tmp_path):
    path = tmp_path / "fig9.png"
    with recipe("shared_blocks") as module:
        networks = {"naive": measured(module, 10.0), "gamma": measured(module, 20.0)}
        figures.fig8(path, module.curve_rows(networks))
        figures.fig9(tmp_path / "fig9-start.png", module.start_rows(networks))
    assert path.exists() and (tmp_path / "fig9-start.png").exists()
    rows = rows_of(path.with_suffix(".csv"))
    assert [(row["network"], row["epoch"]) for row in rows[:5]] == [
        *(("naive 44", str(epoch)) for epoch in (0, 1, 2)),
        ("naive 44, the paper", "2"),
        ("gamma 44", "0"),
    ]
    assert (rows[3]["training_accuracy"], rows[3]["test_accuracy"]) == ("99.0", "")
    ratios = [(row["test_ratio"], row["training_ratio"]) for row in rows[:3]]
    assert ratios == [("10.0", "10.0"), ("", ""), ("3.0", "")]
    assert [row["test_accuracy"] for row in rows[:3]] == ["", "20.0", "40.0"]
    starts = rows_of(tmp_path / "fig9-start.csv")
    assert [row["activation_norm"] for row in starts] == ["10.0", "11.0", "20.0", "21.0"]


@without_backend
@pytest.mark.parametrize("flag", ["--networks=ubn,nave", "--depth=45", "--networks="])
def test_unknown_networks_and_depths_are_refused_with_the_known_ones(flag):
    with recipe("shared_blocks", "--budget=paper", flag) as module:
        with pytest.raises(app.UsageError, match="unshared, naive, statistics, gamma, ubn.*6 n"):
            module.main()


@without_backend
def test_too_few_training_images_end_the_run_before_it_starts(tmp_path):
    data = write_images(tmp_path / "images.npz"), "--data=other", f"--run_dir={tmp_path / 'run'}"
    with recipe("shared_blocks", "--budget=paper", *data, "--train_examples=1") as module:
        with pytest.raises(SystemExit, match="up to 260.*Received: 1, of 1 classes"):
            module.main()
    assert not (tmp_path / "run").exists()
