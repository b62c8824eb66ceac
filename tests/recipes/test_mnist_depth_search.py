"""Fig. 1 of Srivastava et al.: the search, its samples and what it leaves."""

import csv
import json
import signal
import time

import keras
import numpy as np
import pytest
from absl import app

import zoo
from experiment import run_dirs
from helpers.harness import output_of, slow_elsewhere, start_recipe, without_backend
from helpers.recipes import recipe
from helpers.test_data import lines_of, rows_of, write_images
from srivastava2015 import search
from zoo.datasets import images


@without_backend
def test_a_larger_search_begins_with_the_smaller_one():
    samples = [search.sample("highway", 50, index, 3) for index in range(200)]
    assert samples[:5] == [search.sample("highway", 50, index, 3) for index in range(5)]
    assert {one.gate_bias for one in samples} == {*range(-10, 0)}  # section 3.1: from -1 to -10
    assert {one.activation for one in samples} == {"relu", "tanh"}
    assert len({one.seed for one in samples}) == 200
    assert all(1e-3 <= one.rate <= 10**-0.5 and 0.5 <= one.momentum <= 0.99 for one in samples)
    assert search.sample("plain", 50, 0, 3).gate_bias is None
    assert search.sample("plain", 50, 0, 3) != search.sample("plain", 50, 0, 4)
    small, large = ([*search.groups_of("plain", 20, size, 6, 3)] for size in (12, 24))
    assert small == large[: len(small)]
    assert sorted(one.index for group in large for one in group.members) == [*range(24)]


@without_backend
def test_the_time_left_is_that_of_the_whole_search():
    plain, highway = (search.Group(kind, 2, "relu", 0, (0, 1, 2)) for kind in search.UNITS)
    pace = search.Pace([plain, highway], 2)  # work of an epoch: 6, 12
    pace.skip(plain, 1)  # of an earlier process: neither to do, nor a measure of this one
    pace.start -= 10
    pace.advance(plain)
    assert pace.describe(plain) == "group 1 of 2, 0:00:10 so far, about 0:00:40 left"
    pace.start -= 20
    pace.advance(highway)
    assert pace.describe(highway) == "group 2 of 2, 0:00:30 so far, about 0:00:20 left"


def write_noise(folder, count=200):
    return write_images(folder / "noise.npz", (5, 5, 1), count, count)


def start(run_dir, *options):
    return start_recipe("mnist_depth_search.py", f"--run_dir={run_dir}", "--data=noise", *options)


@slow_elsewhere
def test_a_search_leaves_the_figure_and_a_line_for_each_kind_and_depth(tmp_path):
    data, run = write_noise(tmp_path), tmp_path / "run"
    options = data, "--budget=smoke", "--depths=2,3", "--configurations=3"
    output = output_of(start(run, *options))
    assert "12 of 800 configurations (3 of 100 a kind and depth), 1 of 400 epochs" in output
    files = {path.name for path in run.iterdir() if path.is_file()}
    assert files == {"fig1.png", "fig1.csv", "fig1-configurations.csv", "results.jsonl"}
    found = rows_of(run / "fig1-configurations.csv")
    assert len(found) == 12 and {row["diverged"] for row in found} <= {"True", "False"}
    lines = lines_of(run)
    names = ["plain_mlp2", "highway_mlp2", "plain_mlp3", "highway_mlp3", "mlps2", "mlps3"]
    assert [line["model"] for line in lines] == names
    for plain, highway, both in zip(lines[:4:2], lines[1:4:2], lines[4:], strict=True):
        assert both["value"] == plain["value"] / highway["value"]
        assert both["metric"] == "plain_over_highway_loss" and both["paper"] is None
    for line in lines[:4]:
        kind, depth = line["model"].split("_mlp")
        assert line["config"] == {"kind": kind, "depth": int(depth)}  # the user's, not the draw's
        own = [r for r in found if f"{r['kind']}_mlp{r['depth']}" == line["model"]]
        assert line["value"] == min(float(row["lowest_loss"]) for row in own)
        assert line["departures"][:2] == ["3 of 100 configurations", "1 of 400 epochs"]
        assert line["verdict"] == "not comparable" and line["top"] == 1
    panels = [row["panel"] for row in rows_of(run / "fig1.csv")]
    assert (panels.count("left"), panels.count("right")) == (4, 4)
    refused = output_of(start(run, *options, "--seed=1"), 1)
    assert "seed: 0 there, 1 here" in refused and "Traceback" not in refused
    elsewhere = {"backend": keras.backend.backend(), "hardware": "another", "commit": "earlier"}
    for path in run.glob("plain2-*/trained.json"):
        path.write_text(json.dumps(elsewhere))
    output_of(start(run, *options))  # trains nothing
    assert lines_of(run)[:6] == lines and len(lines_of(run)) == 8
    changed = {line["model"]: line for line in lines_of(run)[6:]}
    assert {key: changed["plain_mlp2"][key] for key in elsewhere} == elsewhere
    assert changed["mlps2"]["commit"] == f"earlier, {lines[1]['commit']}"


@without_backend
def test_a_search_in_which_all_networks_diverge_says_so(tmp_path, monkeypatch, capsys):
    def train(group, resume, images, epochs, pace):
        run_dirs.save_metadata(resume.path.parent, trained=True)
        converges = group.kind == "highway" and group.depth == 2
        losses = [0.5 if converges else float("inf")]
        return [search.Trained(settings, losses, seconds=1.0) for settings in group.members]

    monkeypatch.setattr(search, "train", train)
    options = write_noise(tmp_path), "--data=noise", f"--run_dir={tmp_path / 'run'}"
    with recipe("mnist_depth_search", *options, "--budget=smoke", "--depths=2,3") as module:
        module.main()
    output = capsys.readouterr().out
    assert "depth 2: all networks of a kind diverged, there is no ratio" in output
    lines = {line["model"]: line for line in lines_of(tmp_path / "run")}
    names = ["plain_mlp2", "highway_mlp2", "plain_mlp3", "highway_mlp3"]
    assert {name: lines[name]["value"] for name in lines} == dict.fromkeys(names) | {names[1]: 0.5}
    assert lines["plain_mlp2"]["settings"] is None and lines["plain_mlp2"]["diverged"] == 2
    points = rows_of(tmp_path / "run" / "fig1.csv")
    right = [point["loss"] for point in points if point["panel"] == "right"]
    assert right == ["inf", "0.5", "inf", "inf"]
    assert (tmp_path / "run" / "fig1.png").exists()


@without_backend
def test_a_search_is_of_one_backend(tmp_path):
    write_noise(tmp_path)
    noise = images.load("noise", tmp_path / "noise.npz")
    assert search.identity_of(noise, 0)["backend"] == keras.backend.backend()


class InterruptedTrainingError(Exception):
    """As if the process had ended."""


@slow_elsewhere
def test_an_interrupted_group_ends_as_an_uninterrupted_one(monkeypatch, tmp_path):
    write_noise(tmp_path)
    noise = images.load("noise", tmp_path / "noise.npz")
    (group,) = search.groups_of("highway", 4, 1, 1, 0)
    whole_path, interrupted_path = (tmp_path / n / "state.npz" for n in ("whole", "interrupted"))
    on_epoch_end = search.GroupProgress.on_epoch_end

    def interrupt(callback, epoch, logs=None):
        on_epoch_end(callback, epoch, logs)
        if epoch == 2:  # before `Resume` has written it
            raise InterruptedTrainingError

    def train(path, epochs):
        return search.train(group, zoo.checkpoint.Resume(path), noise, epochs)

    with recipe("mnist_depth_search", "--strategy=one"):
        whole = train(whole_path, 4)
        with monkeypatch.context() as patch, pytest.raises(InterruptedTrainingError):
            patch.setattr(search.GroupProgress, "on_epoch_end", interrupt)
            train(interrupted_path, 4)
        assert zoo.checkpoint.Resume(interrupted_path).read()["epoch"] == 2
        resumed = train(interrupted_path, 4)
        (shorter,) = train(whole_path, 2)
    assert [network.losses for network in resumed] == [network.losses for network in whole]
    arrays = [np.load(path) for path in (whole_path, interrupted_path)]
    for name in set(arrays[0].files) - {"facts"}:
        np.testing.assert_array_equal(arrays[1][name], arrays[0][name])
    assert shorter.losses == whole[0].losses[:2]


@pytest.mark.slow
def test_a_killed_search_ends_as_an_uninterrupted_one(tmp_path):
    data = write_noise(tmp_path, 400)
    options = data, "--depths=30", "--configurations=2", "--epochs=6", "--at_once=1"
    output_of(start(tmp_path / "whole", *options))
    killed = start(tmp_path / "killed", *options)
    while len([*(tmp_path / "killed").glob("*/state.npz")]) < 2:  # in the second group
        assert killed.poll() is None, killed.communicate()[0]
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    output_of(start(tmp_path / "killed", *options))
    whole = sorted((tmp_path / "whole").glob("*/state.npz"))
    assert len(whole) == 4
    for path in whole:
        kept, resumed = np.load(path), np.load(tmp_path / "killed" / path.parent.name / "state.npz")
        for name in set(kept.files) - {"facts"}:
            np.testing.assert_array_equal(resumed[name], kept[name])
    for name in ("fig1-configurations.csv", "fig1.csv"):
        texts = [(tmp_path / which / name).read_text() for which in ("whole", "killed")]
        assert texts[0] == texts[1]


@without_backend
@pytest.mark.parametrize(
    "option, message",
    [
        ("--depths=10,one", "Expected --depths of 2 or more layers"),
        ("--depths=", "such as --depths=10,100. Received: --depths="),
        ("--data_dir=none.npz", "none.npz"),
    ],
)
def test_bad_depths_and_missing_data_end_the_search_before_it_starts(option, message, tmp_path):
    options = f"--run_dir={tmp_path / 'run'}", "--data=noise", option
    with recipe("mnist_depth_search", *options) as module:
        with pytest.raises((app.UsageError, SystemExit), match=message):
            module.main()
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="devices that the shell can make")
@pytest.mark.slow
def test_a_search_on_two_devices_finds_the_losses_of_one(tmp_path):
    losses, data = [], write_noise(tmp_path, 400)
    for count in (1, 2):
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}
        folder = tmp_path / str(count)
        options = "--budget=smoke", "--depths=3", "--data=noise", f"--run_dir={folder}", data
        output = output_of(start_recipe("mnist_depth_search.py", *options, **flags))
        assert ("2 replicas: data_parallel" in output) is (count == 2)
        with open(folder / "fig1-configurations.csv", encoding="utf-8") as file:
            losses.append([float(row["lowest_loss"]) for row in csv.DictReader(file)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
