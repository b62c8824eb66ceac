"""Blocks and channels of trained networks: the same smaller networks, and claims by hand."""

import keras
import numpy as np
import pytest
import torch

from helpers.test_data import write_images
from zoo.graph import cost
from zoo.recipes import trained_resnets
from zoo.recipes.benchmarks.torch_peers import HeResNet
from zoo.recipes.experiment import Options, Run
from zoo.recipes.pruning import depth

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
def test_blocks_and_channels_are_removed_to_equal_cost_and_healed(case, tmp_path):
    case, _ = case
    assert case.counts == {0.75: 2}
    order = case.order()
    assert all(len(order[score]) >= 2 for score in depth.SCORES)
    random = case.smaller("random", order["random"][:2], 2)
    channels = case.smaller("channels", (), 2)
    # a block has 2 * 9 * 16^2 * 32^2 multiply-adds
    assert random["operations"] == pytest.approx(1 - 2 * 4_718_592 / cost(case.intact).operations)
    assert 0.97 * random["operations"] < channels["operations"] <= random["operations"]
    times = case.latencies({"0.75": {"plan": random, "channels": channels}})
    assert {*times} == {"intact", "0.75"} and times["0.75"]["plan"] > 0


def measured(plan, channels, seconds):
    """Return what a seed measured of one network, of which other methods have 80 %."""
    share = {
        method: {"accuracy": 80.0, "operations": 0.5, "unhealed": 10.0} for method in depth.METHODS
    }
    share["plan"] = {**share["plan"], "accuracy": plan}
    share["channels"] = {**share["channels"], "accuracy": channels}
    intact = {"intact": {"accuracy": 92.0, "operations": 1.0, "unhealed": 92.0}}
    times = {"intact": {"intact": 2.0}, "0.5": {"plan": seconds, "channels": 1.6}}
    return {"resnet20": {"intact": intact, "0.5": share, "milliseconds": times}}


def test_claims_by_hand():
    one = measured(plan=84.0, channels=90.0, seconds=1.8)
    first, second, third = depth.CLAIMS
    assert first.value(one) == pytest.approx(4) and first.control.value(one) == 0
    assert second.value(one) == pytest.approx(84 - 91)  # halfway from 1.6 to 2.0 ms
    assert second.control.value(one) == pytest.approx(80 - 91)
    assert third.value(one) == pytest.approx(1.8 / 1.6)
    assert third.control.value(one) == pytest.approx(2.0 / 1.6)
    faster = measured(plan=84.0, channels=90.0, seconds=1.2)
    assert second.value(faster) == pytest.approx(84 - 90)  # that of the smallest
    rows = depth.table([one, faster])
    assert [row["accuracy"] for row in rows if row["removed"] == "nothing"] == [92]
    assert len(rows) == 1 + len(depth.METHODS)
    assert depth.figure([one, faster]).axes
