"""Image networks are compared per operation; contenders take turns, cases get own processes."""

import math

import keras
import numpy as np
import pytest
from keras import layers

import benchmark
import zoo
from benchmarks import cifar, harness, vision
from helpers.benchmarks import run_benchmark
from helpers.harness import without_backend
from zoo.graph.cost import cost


@without_backend
def test_multiply_adds_are_counted_in_every_branch_and_for_every_use():
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
    assert cost(model).operations == sum(by_hand)


@without_backend
def test_resnet50_has_the_multiply_adds_that_the_paper_reports():
    counted = cost(vision.create("resnet50", (224, 224, 3))).operations
    stages = 112**2 * 49 * 3 * 64 + 2048 * 1000  # stem and classifier
    for stage, (width, blocks) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True)):
        before = 64 if stage == 0 else 2 * width
        first = before * width + 9 * width**2 + 4 * width**2 + before * 4 * width
        others = 4 * width * width + 9 * width**2 + 4 * width**2
        stages += (56 >> stage) ** 2 * (first + (blocks - 1) * others)
    assert counted == stages
    assert 3.8e9 <= counted < 3.9e9  # He et al. (2015), Table 1: 3.8e9


@without_backend
def test_speed_per_operation_weights_an_image_by_its_operations():
    speeds = {vision.PEER: np.array([10.0, 20.0]), "highway_resnet50": np.array([8.0, 18.0])}
    operations = {vision.PEER: 4, "highway_resnet50": 5}
    faster, weighted = vision.ratios(speeds, operations, "highway_resnet50")
    np.testing.assert_allclose(faster, [0.8, 0.9])
    np.testing.assert_allclose(weighted, [1.0, 1.125])
    assert vision.verdict("highway_resnet50", 0.9) == "0.9: met"
    assert vision.verdict("resnet50", 0.99) == "1.0: missed"
    assert vision.verdict("highway_full_resnet50", 0.5) == ""


@without_backend
def test_contenders_take_turns_and_seconds_are_those_of_a_call(monkeypatch):
    clock, calls = [0.0], []

    def take(name, seconds):
        clock[0] += seconds
        calls.append(name)

    monkeypatch.setattr(harness.time, "perf_counter", lambda: clock[0])
    contenders = {"slow": lambda: take("slow", 2.0), "fast": lambda: take("fast", 0.5)}
    seconds = harness.alternate(contenders, 2)
    assert seconds["slow"].tolist() == [2.0, 2.0] and seconds["fast"].tolist() == [0.5, 0.5]
    assert calls == ["slow", "fast", "fast", "slow"]  # backwards in every second round
    assert harness.spread(np.array([1.0, 3.0, 2.0])) == "2.00 (1.00..3.00)"
    assert harness.statistics_of([1.0, 3.0]) == {"value": 2.0, "std": round(math.sqrt(2), 3)}
    assert harness.statistics_of([1.0])["std"] is None


@without_backend
def test_every_benchmark_is_listed_with_a_sentence_and_explains_its_flags(capsys):
    libraries = {"harness", "char_lm_torch", "cifar_torch", "xla"}
    assert {path.stem for path in benchmark.FOLDER.glob("*.py")} - libraries == {*benchmark.NAMES}
    with pytest.raises(SystemExit, match="0"):
        benchmark.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name in benchmark.NAMES:
        assert f"{name} {benchmark.summary(name)}" in text
        with pytest.raises(SystemExit, match="0"):
            benchmark.main([name, "--help"])
        flags = capsys.readouterr().out.split("\noptions:")[1].split("\n  --")[1:]
        assert len(flags) > 2 and all("(default: " in " ".join(f.split()) for f in flags), name


@without_backend
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["vision", "--models=resnet51"], "expected some of resnet50, highway_resnet50"),
        (["vision", "--modes=export"], "expected some of train, infer"),
        (["fold", "--batch=0"], "expected a positive number"),
        (["mnist"], "invalid choice: 'mnist'"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_built(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(words)
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_benchmark_measures_the_networks_and_the_peer_in_one_run(tmp_path):
    flags = "--image_size=32 --batch=2 --steps=1 --rounds=2".split()
    models = "--models=resnet50,highway_full_resnet50"
    rows, printed = run_benchmark(tmp_path / "lines.jsonl", "vision", *flags, models)
    assert [row["model"] for row in rows] == ["resnet50", "highway_full_resnet50"] * 2
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
def test_small_networks_are_measured_beside_the_same_ones_in_plain_torch(tmp_path):
    flags = "--batches=2,4 --threads=1 --rounds=2 --images=4 --precisions=float32".split()
    picture = tmp_path / "scaling.png"
    rows, _ = run_benchmark(tmp_path / "lines.jsonl", "cifar", *flags, f"--picture={picture}")
    assert [row["model"] for row in rows[::2]] == [*cifar.MODELS]
    assert [row["config"]["batch"] for row in rows] == [2, 4] * len(cifar.MODELS)
    for row in rows:
        ours, torch = (np.array(row["images_per_second"][key]) for key in ("ours", "torch"))
        assert row["value"] == pytest.approx(np.median(ours / torch), abs=1e-3)
    assert picture.stat().st_size > 10_000
    assert len(picture.with_suffix(".csv").read_text().splitlines()) == 1 + 2 * len(rows)


@pytest.mark.slow
def test_each_case_is_measured_in_a_process_of_its_own(tmp_path):
    flags = "--depths=3,6 --unrolled_depths=3 --steps=1".split()
    (row,), printed = run_benchmark(tmp_path / "lines.jsonl", "deep_stack", *flags)
    assert list(row["measured"]) == ["stack 3", "stack 6", "unrolled 3"]
    assert row["value"] == row["measured"]["stack 6"]["first"] > 0
    assert all(np.isfinite(case["loss"]) for case in row["measured"].values())
    assert row["command"].split()[2:4] == ["recipes/benchmark.py", "deep_stack"]
    assert "6 layers take" in printed
