"""The networks for images are weighed by what they compute; merged convolutions are the same."""

import functools
import importlib.util
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from absl import flags
from keras import layers

import zoo
from helpers.gradients import numpy_of
from helpers.harness import ROOT

SCRIPT = ROOT / "recipes" / "benchmark.py vision"
SHAPE = {"side": 6, "channels": 3, "filters": 2, "kernel": 3, "strides": 2}


@pytest.fixture
def benchmark(monkeypatch):
    """The script as a module, with flags of its own: other recipes have flags of the same names."""
    own = flags.FlagValues()
    for name in dir(flags):
        if name.startswith("DEFINE_") or name == "register_validator":
            bound = functools.partial(getattr(flags, name), flag_values=own)
            monkeypatch.setattr(flags, name, bound)
    monkeypatch.setattr(flags, "FLAGS", own)
    spec = importlib.util.spec_from_file_location("benchmark_vision", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    own(["benchmark.py vision"])
    return module


def test_multiply_adds_are_counted_in_every_branch_and_for_every_use(benchmark):
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, 2, padding="same")(inputs)
    x = zoo.ResidualBlock(2, 2, bottleneck=True, preactivation=False, variant="coupled")(x)
    shared = zoo.ResidualBlock(8, uses=2)
    x = shared(shared(x, use=0), use=1)
    x = layers.GlobalAveragePooling2D()(zoo.HighwayConv2D(8)(x))
    model = keras.Model(inputs, layers.Dense(5)(x))
    by_hand = [
        4 * 4 * (9 * 3 * 4),  # stem, 4 x 4 pixels; from here on 2 x 2
        2 * 2 * 2 * (4 * 2 + 9 * 2 * 2 + 2 * 8),  # H and T
        2 * 2 * (4 * 8),  # the shortcut
        2 * 2 * 2 * (2 * 9 * 8 * 8),  # two uses of two convolutions
        2 * 2 * 2 * (9 * 8 * 8),  # H and T
        8 * 5,
    ]
    assert benchmark.multiply_adds(model) == sum(by_hand)


def test_resnet50_costs_what_the_paper_says(benchmark):
    counted = benchmark.multiply_adds(benchmark.make("resnet50"))
    stages = 112**2 * 49 * 3 * 64 + 2048 * 1000  # stem and classifier
    for stage, (width, blocks) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True)):
        before = 64 if stage == 0 else 2 * width
        first = before * width + 9 * width**2 + 4 * width**2 + before * 4 * width
        others = 4 * width * width + 9 * width**2 + 4 * width**2
        stages += (56 >> stage) ** 2 * (first + (blocks - 1) * others)
    assert counted == stages
    assert 3.8e9 <= counted < 3.9e9  # He et al. (2015), Table 1: 3.8e9


def test_a_network_that_does_more_in_an_image_may_take_longer_for_it(benchmark):
    speeds = {benchmark.PEER: np.array([10.0, 20.0]), "highway_resnet50": np.array([8.0, 18.0])}
    adds = {benchmark.PEER: 4, "highway_resnet50": 5}
    faster, weighed = benchmark.ratios(speeds, adds, "highway_resnet50")
    np.testing.assert_allclose(faster, [0.8, 0.9])
    np.testing.assert_allclose(weighed, [1.0, 1.125])
    assert benchmark.verdict("highway_resnet50", 0.9) == "0.9: met"
    assert benchmark.verdict("resnet50", 0.99) == "1.0: missed"
    assert benchmark.verdict("cifar_resnet", 0.5) == ""


def test_the_seconds_are_those_of_a_step(benchmark, monkeypatch):
    clock, taken = [0.0], []

    def take(seconds, name, steps):
        clock[0] += seconds * steps
        taken.append((name, steps))

    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: clock[0])
    benchmark.FLAGS(["", "--rounds=2", "--steps=3", "--modes=infer"])
    slow, fast = (functools.partial(take, *args) for args in ((2.0, "slow"), (0.5, "fast")))
    times = benchmark.measure({"slow": {"infer": slow}, "fast": {"infer": fast}})
    assert {name: list(t) for name, t in times["infer"].items()} == {
        "slow": [2.0, 2.0],
        "fast": [0.5, 0.5],
    }
    warm, in_turn = [("slow", 2), ("fast", 2)], [("slow", 3), ("fast", 3)]
    assert taken == [*warm, *in_turn, *in_turn]


def test_first_convolutions_are_those_of_the_networks_blocks(benchmark):
    found = benchmark.first_convolutions(benchmark.make("highway_cifar"))
    assert found == {(32, 32, 32, 3, 1): 4, (16, 80, 80, 3, 1): 5, (8, 128, 128, 3, 1): 5}
    found = benchmark.first_convolutions(benchmark.make("highway_resnet50"))
    assert found == {
        **{(56, 48, 48, 1, 1): 1, (56, 192, 48, 1, 1): 2},
        **{(56, 192, 88, 1, 2): 1, (28, 352, 88, 1, 1): 3},
        **{(28, 352, 192, 1, 2): 1, (14, 768, 192, 1, 1): 5},
        **{(14, 768, 376, 1, 2): 1, (7, 1504, 376, 1, 1): 2},
    }


def test_a_step_is_the_same_with_two_convolutions_with_one_and_with_joined_kernels(benchmark):
    rng, num = np.random.default_rng(0), 2
    models = {way: benchmark.pairs_model(way, num, **SHAPE) for way in benchmark.WAYS}
    image, *kernels = (rng.normal(size=w.shape) for w in models["two"].weights)
    assert len(kernels) == 2 * num
    merged = [np.concatenate(kernels[i : i + 2], axis=-1) for i in (0, 2)]
    given = {"two": [image, *kernels], "one": [image, *merged], "joined": [image, *kernels]}
    values, steps = {}, {}
    x = np.ones((4, 1), "float32")
    for way, model in models.items():
        model.set_weights(given[way])
        (values[way],) = numpy_of([model(x)])
        model.optimizer.learning_rate = 0.1
        benchmark.pairs(model, len(x))["train"](1)
        after = zip(numpy_of(model.weights), given[way], strict=True)
        steps[way] = [new - old for new, old in after]
    assert abs(values["two"][0]) > 0.1 and values["two"].shape == (4,)
    apart = [half for step in steps["one"][1:] for half in np.split(step, 2, axis=-1)]
    steps["one"] = [steps["one"][0], *apart]
    for way in ("one", "joined"):
        np.testing.assert_allclose(values[way], values["two"], rtol=1e-5)
        for ours, theirs in zip(steps[way], steps["two"], strict=True):
            assert np.abs(theirs).max() > 1e-3  # the image moves, too
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


def run(tmp_path, backend, *options):
    """Runs the script on tiny batches; returns its lines of results and what it printed."""
    path = tmp_path / "results.jsonl"
    tiny = "--image_size=32 --batch=2 --cifar_batch=2 --steps=1 --merge_work=0.001".split()
    done = subprocess.run(
        [sys.executable, SCRIPT, *tiny, *options, f"--results={path}"],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in path.read_text().splitlines()], done.stdout


@pytest.mark.slow
def test_the_benchmark_measures_the_networks_and_the_peer_in_one_run(tmp_path, backend):
    rows, printed = run(tmp_path, backend, "--models=resnet50,highway_cifar", "--rounds=2")
    assert [row["model"] for row in rows] == ["resnet50", "highway_cifar"] * 2
    assert [row["metric"][:5] for row in rows] == ["train"] * 2 + ["infer"] * 2
    for row in rows:
        peer, name = row["images_per_second"]
        assert (peer, name) == ("keras.applications", row["model"])
        speeds, adds = row["images_per_second"], row["multiply_adds"]
        each = np.array(speeds[name]) * adds[name] / (np.array(speeds[peer]) * adds[peer])
        assert row["value"] == pytest.approx(np.median(each), abs=1e-3)
        assert f"\n{name} " in printed and f"\n{peer} " in printed
    assert rows[0]["verdict"].startswith("1.0: ") and rows[1]["verdict"] == ""
    assert rows[0]["multiply_adds"]["resnet50"] == rows[0]["multiply_adds"]["keras.applications"]


@pytest.mark.slow
def test_the_benchmark_times_first_convolutions_in_three_ways(tmp_path, backend):
    rows, printed = run(tmp_path, backend, "--merge", "--models=highway_cifar", "--rounds=1")
    assert [row["artifact"] for row in rows] == ["benchmark/vision_merge"] * 2
    for row in rows:
        seconds = {way: times[0] for way, times in row["seconds_a_batch"].items()}
        assert list(seconds) == ["two", "one", "joined"] and min(seconds.values()) > 0
        assert row["value"] == pytest.approx(seconds["two"] / seconds["one"], abs=1e-3)
    assert "3x3,   80 to  80 at  16 px" in printed


@pytest.mark.parametrize(
    "options", [["--merge", "--models=resnet50"], ["--models=resnet51"], ["--modes=export"]]
)
def test_what_cannot_be_measured_is_refused_before_anything_is_built(benchmark, options):
    with pytest.raises((benchmark.app.UsageError, flags.IllegalFlagValueError), match="model|mode"):
        benchmark.FLAGS(["", *options])
        benchmark.main([""])
