"""Experiments of Srivastava et al. (2015): numbers that their modules compute themselves."""

import dataclasses

import numpy as np
import pytest

from helpers.harness import measured_by, without_backend
from zoo.recipes.experiment import catalog, pages
from zoo.recipes.srivastava2015 import convolutional, depth_search, gates, thousand_layers

pytestmark = without_backend
TINY = {"train_examples": 40, "test_examples": 20, "batch": 20}


def test_gates_are_measured_and_drawn(run, tmp_path):
    settings = dataclasses.replace(gates.SCALES["smoke"], depth=4, **TINY)
    one = gates.measure(settings, run)
    assert one["bias"].shape == one["mean_gates"].shape == (3, 50)
    assert one["loss_without"].shape == (3,) and set(one["classes"]) == {"0", "7"}
    np.testing.assert_allclose(one["bias"], -2, atol=0.1)
    pages.draw(catalog.load("srivastava2015/gates"), [one, one], tmp_path / "figures")
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"fig2.png", "fig3.png", "fig4.png"}


def test_claims_of_gates_by_hand():
    trained = {
        "initial_bias": -2.0,
        "bias": np.repeat(np.linspace(-3.0, -1.1, 20)[:, None], 2, axis=1),  # a step of 0.1
        "bias_of_h": np.array([[-1.0, 1.0, 1.0, 1.0]]),
        "training_accuracy": 98.0,
        "accuracy_without": np.where(np.arange(49) < 14, 97.4, 97.5),
        "sparsity": np.ones(20),
        "mean_gates": np.full((20, 4), 0.25),
        "change": np.ones(45),
        "classes": {"0": np.full((20, 4), 0.1), "7": np.full((20, 4), -0.1)},
    }
    alike = dict.fromkeys(("0", "7"), np.zeros((20, 4)))
    equal = {**trained, "accuracy_without": np.full(49, 97.5), "classes": alike}
    one = {**trained, "untrained": equal}
    assert measured_by(gates, "S5", one) == (50, 25)
    assert measured_by(gates, "S6", one)[0] == 1  # one gate alone is open; the means are equal
    assert measured_by(gates, "S7", one)[0] == pytest.approx(100 / 3)  # 15 of 45 equal changes
    assert measured_by(gates, "S8", one) == (pytest.approx(0.8), 0)
    assert measured_by(gates, "S9", one) == (100, 0)
    (idle, rise) = gates.CIFAR_CLAIMS
    assert idle.value(one, equal | {"untrained": equal}) == pytest.approx(-1400 / 49)
    assert idle.control.value(one, one) == 0
    flat = {"bias": np.zeros((20, 2))}
    assert rise.value(flat, one) == pytest.approx(1.0)
    assert rise.control.value(flat, one) == 0


def test_networks_of_a_search_depend_on_their_index_only():
    settings = depth_search.SCALES["full"]
    one = depth_search.sample(settings, "highway", 50, 3, seed=0)
    assert one == depth_search.sample(settings, "highway", 50, 3, seed=0)
    assert one != depth_search.sample(settings, "highway", 50, 4, seed=0)
    assert 1e-3 <= one.rate <= 10**-0.5 and -10 <= one.gate_bias <= -1


def test_a_network_that_diverges_is_left_out_of_the_search(run):
    settings = dataclasses.replace(
        depth_search.SCALES["smoke"], depths=(2,), rates=(38, 38.5), epochs=3, **TINY
    )
    losses = depth_search.measure(settings, run)["plain"]["2"]
    assert losses["losses"].shape == (2, 3)
    assert np.isinf(depth_search.lowest_losses(losses)).all()


def test_claims_of_the_search_by_hand():
    losses = {
        ("plain", "10"): [[1.0, 0.05], [np.nan, 0.01]],  # the second has diverged
        ("plain", "100"): [[1.0, 0.5], [2.0, 2.0]],
        ("highway", "10"): [[0.05, 0.02], [1.0, 1.0]],
        ("highway", "100"): [[0.09, 0.04], [1.0, 1.0]],
    }
    one = {"plain": {}, "highway": {}}
    for (kind, depth), values in losses.items():
        one[kind][depth] = {"losses": np.array(values)}
    assert depth_search.lowest_losses(one["plain"]["10"]).tolist() == [0.05, np.inf]
    assert measured_by(depth_search, "S1", one) == pytest.approx((0.5 / 0.05, 0.04 / 0.02))
    assert measured_by(depth_search, "S2", one) == pytest.approx((0.5 / 0.04, 0.05 / 0.02))
    assert depth_search.epochs_to(one, "plain", 100) == 2  # never: all epochs
    assert measured_by(depth_search, "S3", one)[0] == pytest.approx(((2 / 1) * (2 / 1)) ** 0.5)
    one["plain"]["10"]["losses"] = np.array([[1.0, 0.05], [0.02, 0.01]])
    control = measured_by(depth_search, "S3", one)[1]
    assert control == pytest.approx(2**0.5)  # 2 epochs and 1, 2 and 2


def test_the_search_trains_all_networks(run):
    settings = dataclasses.replace(depth_search.SCALES["smoke"], depths=(2,), **TINY)
    one = depth_search.measure(settings, run)
    assert one["plain"]["2"]["losses"].shape == one["highway"]["2"]["losses"].shape == (2, 1)
    assert np.isfinite(one["highway"]["2"]["losses"]).all()
    with pytest.raises(ValueError, match="`depths` must be 2 or more layers"):
        dataclasses.replace(settings, depths=(1,))


def test_deep_and_convolutional_networks_train(run):
    settings = dataclasses.replace(thousand_layers.SCALES["smoke"], depth=5, **TINY)
    one = thousand_layers.measure(settings, run)
    assert one["guessing"] == pytest.approx(np.log(10))
    lengths = {name: len(losses) for name, losses in one["loss_by_epoch"].items()}
    assert lengths == {"highway": 1, "plain": 1}
    falls = {"loss_by_epoch": {"highway": np.array([2.0, 0.5]), "plain": np.array([2.0, 2.0])}}
    (claim,) = catalog.load("srivastava2015/thousand_layers").claims
    assert (claim.value(falls), claim.control.value(falls)) == (0.25, 1)
    smoke = catalog.load("srivastava2015/table1").scales["smoke"]
    settings = dataclasses.replace(smoke, networks=("mnist16",), **TINY)
    one = convolutional.measure(settings, run)
    (row,) = convolutional.table([one])
    assert row["parameters"] == 38_986 and row["paper"] == 99.43
