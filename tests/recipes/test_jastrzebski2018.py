"""Experiments of Jastrzebski et al. (2018): numbers that their modules compute themselves."""

import dataclasses

import numpy as np
import pytest

from helpers.harness import measured_by, without_backend
from zoo.callbacks.probes.probe import Row, Table
from zoo.recipes.experiment import Run, catalog, pages
from zoo.recipes.jastrzebski2018 import refinement, sharing, training

pytestmark = without_backend
SMALL = {"batch": 20, "epochs": 1, "train_examples": 40, "test_examples": 20}


def test_refinement_measures_the_miniature_and_draws_all_figures(run, tmp_path):
    shape = {"widths": (4, 4), "blocks": 2}
    settings = refinement.Miniature(**SMALL, **shape, probe_examples=20, unroll=2)
    one = refinement.measure(settings, run)
    assert one["blocks"]["test"]["cosine_loss"].shape == (4,)
    assert one["blocks"]["test"]["intermediate_accuracy"].shape == (2,)
    assert one["in_training"]["l2_ratio"].shape == (1, 2)
    assert one["unrolled"]["training_loss"]["1.0"].shape == (3,)  # before, and two repetitions
    assert len(refinement.repetitions(one, "unscaled")) == 2
    assert one["unrolled"]["other_block"].shape == (2,)
    is_smallest = one["unrolled"]["scale"] == min(refinement.FACTORS)
    told = "the factor of the repetitions is the smallest one tried"
    assert (told in run.deviations) == is_smallest
    untrained = one["untrained"]["blocks"]["test"]
    assert untrained["l2_ratio"].shape == untrained["cosine_loss"].shape == (4,)
    again = refinement.measure(settings, Run(tmp_path / "runs" / "again", options=run.options))
    for name, values in untrained.items():  # though the network is found trained
        np.testing.assert_array_equal(again["untrained"]["blocks"]["test"][name], values)
        assert not np.allclose(one["blocks"]["test"][name], values)
    pages.draw(catalog.load("jastrzebski2018/refinement"), [one, one], tmp_path / "figures")
    drawn = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert drawn == {f"fig{n}" for n in (2, 3, 4, 5, 6, 7, 13, 14, 20)} | {"table1"}


def test_claims_of_refinement_by_hand():
    groups = {
        "borderline": {"accuracy": np.array([0.2, 0.7]), "share": np.array([0.06, 0.06])},
        "all": {"accuracy": np.array([0.8, 0.9]), "share": np.array([1.0, 1.0])},
    }
    test = {
        "cosine_loss": np.array([0.1, -0.1, -0.2, -0.4]),
        "l2_ratio": np.array([9.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        "intermediate_accuracy": np.array([0.1, 0.2, 0.5]),
        "groups": groups,
    }
    untrained = {"cosine_loss": np.array([-0.1, 0.1, 0.1, -0.1]), "l2_ratio": np.full(6, 0.25)}

    def repeated(accuracies, cosines):
        found = {"borderline": {"accuracy": np.array(accuracies)}}
        return {"test": {"cosine_loss_block": np.array(cosines), "groups": found}}

    one = {
        "blocks": {"test": test},
        "untrained": {"blocks": {"test": untrained}},
        "in_training": {"l2_ratio": np.array([[1.0, 1.0], [2.0, 4.0], [1.0, 2.0], [6.0, 6.0]])},
        "unrolled": {
            "scale": 0.5,
            "times": 2,
            "training_loss": {"0.5": np.array([2.0, 1.5, 1.0])},
            "other_block": np.array([2.0, 2.2]),
            "scaled": repeated([0.5, 0.6, 0.75], [1.0, -0.25, -0.5]),
            "unscaled": repeated([0.5, 0.6, 0.4], [1.0, -1.0, 0.75]),
        },
    }
    expected = {
        "J1": (75, 50),
        "J1b": (-0.3, 0),
        "J2": (3, 0.25),
        "J5": (100 * 0.06 * 0.5 / 0.1, 6),
        "J6": (0.5, 1.1),
        "J6b": (25, -10),
        "J7": (-0.25, 0.75),
        "J7b": (1, 2),
    }
    for name, values in expected.items():
        assert measured_by(refinement, name, one) == pytest.approx(values), name
    rise, shuffled = measured_by(refinement, "J3", one)
    assert rise == pytest.approx((5 - 1) / 6) and abs(shuffled) < 0.2
    lesions = {"plain": {"intermediate_accuracy": np.array([0.1, 0.1, 0.9])}}
    assert measured_by(refinement, "J4", one, lesions) == pytest.approx((75, 100))


def test_the_last_stage_is_that_of_the_last_block():
    rows = [
        Row("l2_ratio", block, stage, None, epoch, value * epoch)
        for epoch in (1, 2)
        for block, stage, value in (("a", 0, 1.0), ("b", 1, 2.0), ("c", 1, 3.0))
    ]
    table = Table(rows)
    assert training.last_stage(table, "l2_ratio").tolist() == [[2, 3], [4, 6]]


def test_sharing_measures_networks_before_training_and_small_ones(run, tmp_path):
    networks = ("unshared", "naive", "affine", "ubn")
    shape = {"depth": 44, "width": 4, "uses": 2, "start_examples": 4}
    settings = sharing.Miniature(networks=networks, **shape, **SMALL)
    one = sharing.measure(settings, run)
    assert len(one["start"]["naive"]["initial averages"]) == 21  # (44 - 2) / 2 blocks
    assert len(one["start"]["unshared"]["initial averages"]) == 18
    assert one["trained"]["ubn"]["test_accuracy"].shape == (1,)
    assert 0 <= one["trained"]["affine"]["evaluated_accuracy"] <= 100
    pages.draw(catalog.load("jastrzebski2018/sharing"), [one], tmp_path / "figures")
    drawn = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert drawn >= {"fig8", "fig8-start-initial-averages", "fig8-start-batch-statistics"}
    with pytest.raises(ValueError, match="6 n \\+ 2 from 44 on"):
        dataclasses.replace(sharing.SCALES["full"], depth=38)


def test_claims_of_sharing_by_hand():
    def trained(evaluated, test_accuracy):
        return {
            "training_accuracy": np.array([0.0, 99.0]),
            "evaluated_accuracy": evaluated,
            "test_accuracy": np.array([0.0, test_accuracy]),
        }

    def start(initial, batch, ratio):
        norms = {"initial averages": initial, "batch statistics": batch}
        return {key: np.array([1.0, 5.0, n]) for key, n in norms.items()} | {
            "gradient_ratio": ratio
        }

    one = {
        "start": {
            "naive": start(100.0, 8.0, 6.0),
            "unshared": start(2.0, 2.0, 2.0),
            "ubn": start(1.0, 3.0, 3.0),
        },
        "trained": {
            "naive": trained(20.0, 20.0),
            "unshared": trained(98.0, 95.0),
            "statistics": trained(99.0, 80.0),
            "affine": trained(99.0, 39.0),
            "ubn": trained(99.0, 96.0),
        },
    }
    expected = {
        "J8": (4, 0.5),
        "J8c": (3, 1.5),
        "J9": (79, 1),
        "J10": (1, -75),
        "J10b": (100 * 60 / 76, 25),
    }
    for name, values in expected.items():
        assert measured_by(sharing, name, one) == pytest.approx(values), name


def test_the_miniature_has_the_parameters_on_record(run):
    network = training.prepare_miniature(training.Miniature(**SMALL), run)
    assert network.model.count_params() == 208_170
