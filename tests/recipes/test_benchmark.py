"""Contenders take turns; image networks have as many weights in torch."""

import types

import numpy as np
import pytest

import zoo
from helpers.harness import run_benchmark, without_backend
from zoo.graph.cost import cost
from zoo.recipes.benchmarks import harness, images, probes


@without_backend
def test_resnet50_has_the_multiply_adds_that_the_paper_reports():
    counted = cost(zoo.resnet50()).operations
    assert 3.8e9 <= counted < 3.9e9  # He et al. (2015), Table 1: 3.8e9


class Contender:
    """A contender without a process, whose work per second grows each time."""

    tasks = ("train", "infer")

    def __init__(self, name, rate, calls):
        self.name, self.rate, self.calls = name, rate, calls

    def ask(self, task):
        """Return work per second and a value."""
        self.calls.append(f"{self.name} {task}")
        self.rate += 1
        return self.rate, task


@without_backend
def test_contenders_take_turns_backwards_in_every_second_round():
    calls = []
    contenders = {"ours": Contender("ours", 0, calls), "torch": Contender("torch", 10, calls)}
    rates, values = harness.measure(contenders, rounds=2)
    turns = ["ours train", "ours infer", "torch train", "torch infer"]
    assert calls == [*turns, *turns, *turns[::-1]]  # the first of a warm-up
    assert rates["ours", "train"].tolist() == [3, 6]
    assert rates["torch", "infer"].tolist() == [14, 15]
    assert values["torch", "infer"] == "infer"


@without_backend
def test_every_benchmark_explains_its_flags_and_refuses_wrong_ones(capsys):
    for name in harness.NAMES:
        with pytest.raises(SystemExit, match="0"):
            harness.main([name, "--help"])
        flags = capsys.readouterr().out.split("\noptions:")[1].split("\n  --")[1:]
        assert len(flags) > 3 and all("(default: " in " ".join(f.split()) for f in flags), name
    with pytest.raises(SystemExit, match="2"):
        harness.main(["images", "--model=resnet51"])
    assert "choose from" in capsys.readouterr().err


@without_backend
def test_results_are_written_to_a_new_folder(tmp_path, monkeypatch):
    process = types.SimpleNamespace(shutdown=lambda: None)
    monkeypatch.setattr(harness, "Contender", lambda *_: types.SimpleNamespace(process=process))
    keys = [(probes.NAME, task) for task in ("step", "probes", "forward", "sweep")]
    measured = dict.fromkeys(keys, np.ones(1)), dict.fromkeys(keys)
    monkeypatch.setattr(harness, "measure", lambda *_: measured)
    path = tmp_path / "new" / "results.jsonl"
    harness.main(["probes", "--rounds=1", f"--results={path}"])
    assert len(path.read_text("utf-8").splitlines()) == 2


@without_backend
@pytest.mark.parametrize("name", images.SMALL)
def test_the_torch_peer_of_an_image_network_has_as_many_weights_and_trains(name):
    pytest.importorskip("torch")
    from zoo.recipes.benchmarks.torch_peers import ImagePeer

    ours = zoo.create_model(name, **images.SMALL[name])
    peer = ImagePeer(name, "float32", images.LEARNING_RATE, images.MOMENTUM)
    count = sum(int(np.prod(weight.shape)) for weight in ours.trainable_weights)
    assert sum(weight.numel() for weight in peer.model.parameters()) == count
    rng = np.random.default_rng(0)
    batch = rng.random((4, 32, 32, 3), "float32"), np.arange(4)
    first = next(peer.model.parameters())
    before = first.detach().clone()
    peer.train([batch])
    assert (first != before).any()
    assert all(weight.grad is not None for weight in peer.model.parameters())


@pytest.mark.slow
def test_a_resnet_and_that_of_keras_are_measured_in_one_run(tmp_path):
    flags = "--image_size=32", "--batch=2", "--steps=1", "--model=resnet50"
    train, infer = run_benchmark(tmp_path / "lines.jsonl", "images", *flags)
    assert train["metric"] == f"train_speed_over_{images.RESNET}"
    for task, row in (("train", train), ("infer", infer)):
        rates = row["multiply_adds_per_second"]
        each = np.array(rates[f"ours {task}"]) / np.array(rates[f"{images.RESNET} {task}"])
        assert row["value"] == pytest.approx(np.median(each))
        assert row["min"] == pytest.approx(min(each))
        assert row["backend"] and row["commit"] and row["hardware"]
        assert row["command"].split()[2:4] == ["recipes/benchmarks", "images"]


@pytest.mark.slow
def test_an_image_network_is_measured_beside_plain_torch_and_probes_beside_steps(tmp_path):
    path = tmp_path / "lines.jsonl"
    rows = run_benchmark(path, "images", "--batch=2", "--steps=2")
    metrics = ["train_speed_over_torch", "train_speed_over_keras"]
    assert [row["metric"] for row in rows] == metrics
    *_, probes, sweep = run_benchmark(path, "probes", "--depth=14", "--batch=4")
    for row, one, other in ((probes, "step", "probes"), (sweep, "forward", "sweep")):
        rates = row["passes_per_second"]
        each = np.array(rates[f"cifar_resnet {one}"]) / np.array(rates[f"cifar_resnet {other}"])
        assert row["value"] == pytest.approx(np.median(each))
