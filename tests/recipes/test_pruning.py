"""Blocks and channels of trained networks: the same smaller networks, and claims by hand."""

import dataclasses

import keras
import numpy as np
import pytest
import torch

import zoo
from helpers import reference
from helpers.harness import slow_elsewhere
from helpers.test_data import write_images
from zoo import callbacks
from zoo.graph import cost
from zoo.recipes import trained_resnets
from zoo.recipes.benchmarks.torch_peers import HeResNet
from zoo.recipes.experiment import Options, Run, characters
from zoo.recipes.pruning import depth, transformer

on_torch = pytest.mark.skipif(
    keras.config.backend() != "torch", reason="compiling each smaller network takes minutes"
)


@pytest.fixture
def case(tmp_path):
    """Return a case of a random network of 20 layers, and its PyTorch twin."""
    torch.manual_seed(0)
    peer = HeResNet(20)
    for block in peer.blocks:
        torch.nn.init.uniform_(block.bn1.running_mean, -0.5, 0.5)
    (tmp_path / "resnets").mkdir()
    torch.save({"state_dict": peer.state_dict()}, tmp_path / "resnets" / "resnet20-1.th")
    write_images(tmp_path / "cifar10.npz", (32, 32, 3), train=8, test=8, classes=10, step=20)
    options = Options(runs=str(tmp_path / "runs"), data_dir=str(tmp_path / "cifar10.npz"))
    settings = depth.SCALES["smoke"]
    run = Run(tmp_path / "run", 0, options)
    return depth.Case(settings, run, run.load_images(settings), 20), peer


@slow_elsewhere
def test_a_network_with_fewer_channels_is_that_of_torch_pruning(case):
    case, peer = case
    widths = peer.prune_channels(0.3)
    assert widths == [11] * 3 + [22] * 3 + [44] * 3  # 0.7 of 16, 32, 64, rounded down
    smaller = case.with_widths(widths)
    smaller.set_weights(trained_resnets.arrays(peer.state_dict()))
    p = keras.ops.convert_to_numpy(smaller(case.x_test))
    with torch.no_grad():
        logits = peer.cpu()(torch.tensor(case.x_test.transpose(0, 3, 1, 2)))
    np.testing.assert_allclose(p, logits.softmax(-1).numpy(), atol=1e-5)


@on_torch
def test_blocks_and_channels_are_removed_to_equal_cost_and_healed(case):
    case, _ = case
    assert case.counts == {0.75: 2}
    order = case.order()
    assert {*order} == {*depth.SCORES} and len(order["plan"]) == 2
    influence = callbacks.run([callbacks.BlockInfluence()], case.intact, case.scored)
    values = influence.values("block_influence")
    assert order["influence"] == sorted(case.names, key=values.get) != case.names
    loss = callbacks.lesions(case.intact, (case.scored, case.labels)).values("lesion_loss")
    assert order["lesion_loss"][0] == min(case.names, key=loss.get)
    found = {name: case.smaller(name, (), 2) for name in ("channels", "channels8")}
    found |= {name: case.smaller(name, order[name][:2], 2) for name in ("plan", "random")}
    # a block has 2 * 9 * 16^2 * 32^2 multiply-adds
    share = 1 - 2 * 4_718_592 / cost(case.intact).operations
    assert found["random"]["operations"] == pytest.approx(share)
    assert 0.95 * share < found["channels"]["operations"] <= share
    assert found["channels8"]["operations"] <= share
    assert {width % 8 for width in found["channels8"]["widths"]} == {0}
    times = case.latencies({"0.75": found}, "backend")
    assert {*times} == {"intact", "0.75"} and {*times["0.75"]} == {*depth.TIMED}


@on_torch
def test_healing_trains_on_the_images_of_the_seed(case):
    case, _ = case
    before = case.intact.get_weights()
    healed = case.healed(case.intact)
    assert healed["operations"] == 1
    moved = [
        np.abs(a - b).max() > 0 for a, b in zip(before, case.intact.get_weights(), strict=True)
    ]
    assert all(moved)
    case.intact.set_weights(before)
    case.healed(case.intact)
    after = case.intact.get_weights()
    case.intact.set_weights(before)
    case.healed(case.intact)
    for a, b in zip(after, case.intact.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def network_of(accuracies, milliseconds, intact):
    """Return what a seed measured of a network at one size."""
    share = {
        name: {"accuracy": v, "operations": 0.5, "unhealed": 9.0} for name, v in accuracies.items()
    }
    whole = {"intact": {"accuracy": 92.0, "operations": 1.0, "unhealed": 92.0}}
    return {
        "intact": whole,
        "0.5": share,
        "milliseconds": {"intact": {"intact": intact}, "0.5": milliseconds},
    }


def measured(seconds):
    """Return what a seed measured of two networks."""
    names = "plan", "influence", "lesion_loss", "first_order", "random", "channels", "channels8"
    small = dict(zip(names, (84.0, 80.0, 82.0, 70.0, 60.0, 90.0, 88.0), strict=True))
    large = dict(zip(names, (88.0, 87.0, 81.0, 70.0, 62.0, 90.0, 91.0), strict=True))
    times = {"plan": seconds, "random": 1.8, "channels": 1.6, "channels8": 1.4}
    return {
        "resnet20": network_of(small, times, 2.0),
        "resnet56": network_of(large, {**times, "channels8": 1.7}, 2.0),
    }


def test_claims_by_hand():
    one = measured(seconds=1.8)
    first, second, third, fourth = depth.CLAIMS
    assert first.value(one) == pytest.approx(86 - 83.5)  # of 83.5, 81.5 and 70
    assert first.control.value(one) == pytest.approx(61 - 83.5)
    # 20 layers: halfway from 90 at 1.6 to 92 at 2.0; 56: a third from 91 at 1.7
    assert second.value(one) == pytest.approx((84 - 91 + 88 - (91 + 1 / 3)) / 2)
    assert second.control.value(one) == pytest.approx((60 - 91 + 62 - (91 + 1 / 3)) / 2)
    assert third.value(one) == pytest.approx(1.8 / 1.6)
    assert third.control.value(one) == pytest.approx((1.4 * 1.7) ** 0.5 / 1.6)
    assert fourth.value(one) == pytest.approx(1.8 / (1.4 * 1.6) ** 0.5)  # the faster of both
    assert fourth.control.value(one) == third.control.value(one)
    faster = measured(seconds=1.2)
    assert second.value(faster) == pytest.approx((84 - 88 + 88 - 90) / 2)  # those of the fastest
    rows = [*depth.table([one, faster])]
    assert [row["accuracy"] for row in rows if row["removed"] == "nothing"] == [92, 92]
    assert len(rows) == 2 * (1 + len(depth.METHODS))
    assert [row["ONNX Runtime, ms"] for row in rows if row["removed"] == depth.METHODS["plan"]] == [
        1.5
    ] * 2
    assert depth.figure([one, faster]).axes


@pytest.fixture(scope="module")
def language_case(tmp_path_factory):
    """Return a small language model of KerasHub with random weights."""
    pytest.importorskip("keras_hub")
    folder = tmp_path_factory.mktemp("language")
    words = " ".join(f"word{i}" for i in range(60))
    for part in ("train", "valid", "test"):
        (folder / f"ptb.{part}.txt").write_text(f" {words} \n")
    run = Run(folder / "run", 0, Options(data_dir=str(folder)))
    case = transformer.Case(transformer.SCALES["smoke"], run)
    reference.random_weights(case.model)
    return case


@on_torch
def test_half_layers_are_removed_to_the_cost_of_layers(language_case):
    case = language_case
    layers = [*case.halves]
    halves = [name for pair in case.halves.values() for name in pair]
    assert len(layers) == 4 and len(halves) == 8
    # attention: 4 d^2 of projections and 2 d of products with each of 8 positions; d = 8
    attention, feed_forward = (8 * (4 * 64 + 2 * 8 * 8), 8 * 8 * 64)
    assert case.of_half == dict(zip(halves, [attention, feed_forward] * 4, strict=True))
    assert case.removed(layers[1:], 2) == [*case.halves[layers[1]], *case.halves[layers[2]]]
    only_attention = case.removed(halves[::2] + halves[1::2], 2)
    assert only_attention == halves[::2] + halves[1:2]  # 4 cost less than 2 layers
    assert case.share(only_attention) <= case.share(halves[:4]) < case.share(halves[::2])
    pruned = zoo.graph.prune_blocks(case.opened, only_attention)
    assert case.share(only_attention) == pytest.approx(cost(pruned).operations / case.operations)
    x = transformer.inputs(characters.windows(case.data.test, 8)[0])
    whole = zoo.graph.prune_blocks(case.model, layers[1:3], grain="layer")
    expected = keras.ops.convert_to_numpy(whole(x))
    found = keras.ops.convert_to_numpy(zoo.graph.prune_blocks(case.opened, halves[2:6])(x))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@on_torch
def test_layers_are_ordered_by_the_scores(language_case):
    order = language_case.order()
    assert {*order} == {*transformer.METHODS}
    layers = [*language_case.halves]
    assert order["last"] == layers[::-1]
    for name in ("once", "influence", "random"):
        assert sorted(order[name]) == layers
    assert order["plan"][0] == order["once"][0]
    assert len(order["plan"]) == 2 and len(order["halves"]) == 6


@on_torch
def test_training_and_healing_lower_the_loss(language_case):
    case = language_case
    before = case.loss(case.model)
    case.settings = dataclasses.replace(
        case.settings, updates=40, healing_updates=40, rate=0.02, healing_rate=0.02
    )
    trained = case.train()
    assert trained["loss"] < before
    weights = case.model.get_weights()
    smaller = case.smaller("plan", case.halves[[*case.halves][1]])
    assert smaller["loss"] < smaller["unhealed"]
    for a, b in zip(weights, case.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)  # healing changed none of the network's
    case.model.set_weights([np.zeros_like(w) for w in weights])
    case.model.load_weights(case.weights)
    assert case.loss(case.model) == pytest.approx(trained["loss"])


def test_claims_on_layers_by_hand():
    names = "plan", "once", "influence", "last", "random", "halves"
    one = {"intact": {"loss": 1.5}}
    for share, losses in (
        ("0.75", (2, 2.1, 2.2, 1.9, 2.5, 1.8)),
        ("0.5", (3, 3, 3.1, 3.3, 4, 3.4)),
    ):
        of_method = zip(names, losses, strict=True)
        one[share] = {name: {"loss": v, "unhealed": 5, "operations": 0.5} for name, v in of_method}
    values = [(claim.value(one), claim.control.value(one)) for claim in transformer.CLAIMS]
    assert values == [
        (pytest.approx(0.0), pytest.approx(0.75)),  # against 1.9 and 3.1
        (pytest.approx(-0.05), pytest.approx(0.7)),
        (pytest.approx(0.1), pytest.approx(0.75)),
    ]
    rows = [*transformer.table([one, one])]
    assert [row["loss"] for row in rows[:2]] == [1.5, 2]
    assert len(rows) == 1 + 2 * len(names)
    assert transformer.figure([one, one]).axes
