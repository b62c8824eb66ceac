"""Contenders take turns; image networks are compared per operation, and with the same in torch."""

import json

import keras
import numpy as np
import pytest

import benchmark
import zoo
from benchmarks import cifar, harness, vision
from helpers.harness import output_of, start_recipe, without_backend
from zoo.graph.cost import cost


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
    seconds = {vision.PEER: np.array([1.0, 0.5]), "highway_resnet50": np.array([1.25, 5 / 9])}
    operations = {vision.PEER: 4, "highway_resnet50": 5}
    faster, weighted = vision.ratios(seconds, operations, "highway_resnet50")
    np.testing.assert_allclose(faster, [0.8, 0.9])
    np.testing.assert_allclose(weighted, [1.0, 1.125])
    assert harness.spread(weighted) == "1.06 (1.00 to 1.12)"


class Contender:
    """A contender without a process, whose calls take longer each time."""

    tasks = ("train", "infer")

    def __init__(self, name, seconds, calls):
        self.name, self.seconds, self.calls = name, seconds, calls

    def ask(self, task):
        """Return seconds and a value."""
        self.calls.append(f"{self.name} {task}")
        self.seconds += 1
        return self.seconds, task


@without_backend
def test_contenders_take_turns_backwards_in_every_second_round():
    calls = []
    contenders = {"ours": Contender("ours", 0, calls), "torch": Contender("torch", 10, calls)}
    seconds, values = harness.measure(contenders, rounds=2)
    turns = ["ours train", "ours infer", "torch train", "torch infer"]
    assert calls == [*turns, *turns, *turns[::-1]]  # the first of a warm-up
    assert seconds["train"]["ours"].tolist() == [3, 6]
    assert seconds["infer"]["torch"].tolist() == [14, 15]
    assert values["infer"] == {"ours": "infer", "torch": "infer"}


@without_backend
def test_every_benchmark_is_listed_with_a_sentence_and_explains_its_flags(capsys):
    with pytest.raises(SystemExit, match="0"):
        benchmark.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name in benchmark.NAMES:
        assert f"{name} {benchmark.describe(name).splitlines()[0]}" in text
        with pytest.raises(SystemExit, match="0"):
            benchmark.main([name, "--help"])
        flags = capsys.readouterr().out.split("\noptions:")[1].split("\n  --")[1:]
        assert len(flags) > 4 and all("(default: " in " ".join(f.split()) for f in flags), name


@without_backend
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["vision", "--models=resnet51"], "expected some of resnet50, highway_resnet50"),
        (["cifar", "--batch=0"], "expected a positive number"),
        (["mnist"], "invalid choice: 'mnist'"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_built(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(words)
    assert message in capsys.readouterr().err


@without_backend
@pytest.mark.parametrize("name", cifar.MODELS)
def test_the_torch_peer_of_an_image_network_has_as_many_weights_and_trains(name):
    pytest.importorskip("torch")
    from benchmarks.cifar_torch import Peer

    ours, peer = zoo.create_model(name, **cifar.MODELS[name]), Peer(name, "float32")
    count = sum(int(np.prod(weight.shape)) for weight in ours.trainable_weights)
    assert sum(weight.numel() for weight in peer.model.parameters()) == count
    rng = np.random.default_rng(0)
    batch = rng.random((4, 32, 32, 3), "float32"), np.arange(4)
    np.testing.assert_allclose(peer.infer([batch]).numpy().sum(1), 1, rtol=1e-5)
    first = next(peer.model.parameters())
    before = first.detach().clone()
    peer.train([batch])
    assert (first != before).any()
    assert all(weight.grad is not None for weight in peer.model.parameters())


def run_benchmark(path, *words):
    """Return the lines of results of a benchmark in a new process, and what it printed."""
    backend = f"--backend={keras.backend.backend()}"
    process = start_recipe("benchmark.py", *words, backend, "--rounds=2", f"--results={path}")
    printed = output_of(process)
    return [json.loads(line) for line in path.read_text().splitlines()], printed


@pytest.mark.slow
def test_networks_and_their_peer_are_measured_in_one_run(tmp_path):
    flags = "--image_size=32", "--batch=2", "--steps=1", "--models=resnet50,highway_full_resnet50"
    rows, printed = run_benchmark(tmp_path / "lines.jsonl", "vision", *flags)
    assert [row["model"] for row in rows] == ["resnet50", "highway_full_resnet50"] * 2
    assert [row["metric"][:5] for row in rows] == ["train"] * 2 + ["infer"] * 2
    for row in rows:
        speeds, adds = row["images_per_second"], row["multiply_adds"]
        name, peer = row["model"], vision.PEER
        each = np.array(speeds[name]) * adds[name] / (np.array(speeds[peer]) * adds[peer])
        assert row["value"] == pytest.approx(np.median(each), abs=1e-3)
        assert row["min"] == pytest.approx(min(each), abs=1e-3)
        assert harness.spread(each) in printed
        assert row["backend"] == keras.backend.backend() and row["commit"] and row["hardware"]
        assert row["command"].split()[2:4] == ["recipes/benchmark.py", "vision"]
    assert rows[0]["multiply_adds"]["resnet50"] == rows[0]["multiply_adds"][vision.PEER]


@pytest.mark.slow
def test_an_image_network_is_measured_beside_plain_torch_and_probes_beside_steps(tmp_path):
    path = tmp_path / "lines.jsonl"
    rows, _ = run_benchmark(path, "cifar", "--batch=2", "--steps=2")
    assert [row["metric"] for row in rows] == ["train_speed_over_torch", "infer_speed_over_torch"]
    for row in rows:
        ours, torch = (np.array(row["images_per_second"][key]) for key in ("ours", "torch"))
        assert row["value"] == pytest.approx(np.median(ours / torch), abs=1e-3)
    *_, probes, sweep = run_benchmark(path, "probes", "--depth=14", "--batch=4")[0]
    rounds = {task: np.array(seconds) for task, seconds in probes["rounds"].items()}
    assert probes["value"] == pytest.approx(np.median(rounds["probes"] / rounds["step"]), abs=1e-3)
    each = rounds["sweep"] / rounds["forward"] / 6  # blocks
    assert sweep["value"] == pytest.approx(np.median(each), abs=1e-3)
