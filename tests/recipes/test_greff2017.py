"""Experiments of Greff et al. (2017): numbers that their modules compute themselves."""

import dataclasses
import types

import keras
import numpy as np
import pytest

import zoo
from helpers.harness import measured_by, slow_elsewhere, without_backend
from zoo.recipes import ptb_char_lm, trained_resnets
from zoo.recipes.experiment import catalog, pages
from zoo.recipes.greff2017 import imagenet, lesions


@slow_elsewhere
def test_50_layer_networks_are_trained_inspected_and_drawn(run, tmp_path):
    networks = "resnet_bn", "highway_bn_1x1"
    settings = dataclasses.replace(
        imagenet.SCALES["smoke"], data="other", networks=networks, blocks=(2, 3)
    )
    one = imagenet.measure(settings, run)
    assert imagenet.metric_of(one) == "top5_error"
    for name in networks:
        trained, facts = one["trained"][name], one["inspected"][name]
        assert 0 <= trained["top5_error"][-1] <= trained["top1_error"][-1] <= 100
        assert facts["stage"].tolist() == [1, 1, 2, 2, 2]
        last = [1, 4]  # the last block of a stage is what the others estimate
        assert not facts["estimation_error"][last].any()
        assert not facts["estimation_error_std"][last].any()
        assert np.all(facts["relative_residual_mean"] <= 1 + 1e-6)
    untrained = one["untrained"]["inspected"]["resnet_bn"]
    assert untrained["estimation_error_std"].shape == (5,)
    assert imagenet.POINTWISE in run.deviations
    experiment = catalog.load("greff2017/imagenet")
    pages.draw(experiment, [one, one], tmp_path / "figures")
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"table1b.csv", "fig3.png", "fig5.png", "section3.2.png"}
    with pytest.raises(ValueError, match="at most the 16 training images"):
        imagenet.measure(dataclasses.replace(settings, batch=30), run)


@slow_elsewhere
def test_networks_that_others_trained_are_inspected_and_drawn_apart(run, tmp_path, monkeypatch):
    draw = np.random.default_rng(0).integers
    images = {"x_test": draw(0, 256, (12, 32, 32, 3), "uint8"), "y_test": draw(0, 10, 12)}
    data = types.SimpleNamespace(images=types.SimpleNamespace(name="CIFAR-10", **images))
    settings = trained_resnets.Trained(probe_examples=8, batch=4)
    seeds = []
    for depth in (14, 20):
        made = {"model": zoo.he_resnet(depth), "untrained": zoo.he_resnet(depth)}
        network = types.SimpleNamespace(name=f"resnet{depth}", data=data, **made)
        monkeypatch.setattr(trained_resnets, "open_network", lambda *_, found=network: found)
        run.folder = tmp_path / f"{depth}"
        seeds.append(imagenet.measure(settings, run))
    stages = [one["inspected"]["resnet_bn"]["stage"].tolist() for one in seeds]
    assert stages == [[1, 1, 2, 2, 3, 3], [1, 1, 1, 2, 2, 2, 3, 3, 3]]
    for one in seeds:
        values = [np.array(measured_by(imagenet, name, one)) for name in ("G1", "G2", "G9")]
        assert np.all(np.isfinite(values)) and values[0][0] != values[0][1]
    pages.draw(catalog.load("greff2017/imagenet"), seeds, tmp_path / "figures")
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"fig3.png", "section3.2.png"}


@without_backend
def test_claims_of_50_layer_networks_by_hand():
    errors = {"resnet": 9.0, "highway": 8.0, "resnet_bn": 5.0, "highway_bn": 6.0}
    errors["highway_bn_1x1"] = 9.0
    losses = {"resnet": 0.1, "highway": 0.1, "resnet_bn": 0.11, "highway_bn": 0.2}
    trained = {
        name: {"top1_error": np.array([90.0, value]), "loss": np.array([1, losses.get(name, 1)])}
        for name, value in errors.items()
    }
    facts = {
        "stage": np.array([1, 1, 1, 2, 2, 2]),
        "estimation_error": np.array([0.1, -0.4, 0, 9, 9, 0]),
        "estimation_error_std": np.array([1.0, 2.0, 0, 4, 2, 0]),
        "relative_residual_mean": np.array([0.1, 0.3]),
    }
    other = {"relative_residual_mean": np.array([0.5, 0.3])}
    one = {"trained": trained, "inspected": {"resnet_bn": facts}}
    assert imagenet.least_harm(one) == pytest.approx(2)  # highway's
    assert imagenet.fit_ratio(one, "highway", "highway_bn") == pytest.approx(0.5)
    assert imagenet.bias(one) == pytest.approx((0.1 / 1 + 0.4 / 2) / 2)
    assert imagenet.refinement(one) == pytest.approx((2 * 0.5) ** 0.5 * 2**0.5)  # two steps
    assert measured_by(imagenet, "G8", one) == (pytest.approx(1), pytest.approx(4))
    assert measured_by(imagenet, "G8b", one) == (pytest.approx(2), pytest.approx(1))
    assert measured_by(imagenet, "G8c", one) == (pytest.approx(0.1 / 0.11), pytest.approx(2 / 1.1))
    untrained = {**facts, "estimation_error": -facts["stage"], **other}
    one["untrained"] = {"inspected": {"resnet_bn": untrained}}
    assert measured_by(imagenet, "G9", one) == (pytest.approx(0.2), pytest.approx(0.4))
    assert measured_by(imagenet, "G1", one) == (pytest.approx(0.15), pytest.approx((1 + 0.5) / 2))
    assert measured_by(imagenet, "G2", one)[1] == imagenet.refinement(one)


@without_backend
def test_the_deviation_of_independent_steps_does_not_count_as_refinement():
    steps = np.random.default_rng(0).normal(size=(20_000, 4))
    left = np.cumsum(steps[:, ::-1], axis=1)[:, ::-1].std(axis=0)
    facts = {"stage": np.ones(5), "estimation_error": np.zeros(5)}
    one = {"inspected": {"resnet_bn": {**facts, "estimation_error_std": np.append(left, 0)}}}
    assert imagenet.refinement(one) == pytest.approx(1, abs=0.02)


@without_backend
def test_pointwise_gates_are_one_convolution_that_sees_one_pixel():
    options = {"blocks": (1, 2), "widths": (2, 4), "input_shape": (32, 32, 3), "classes": 2}
    model = imagenet.with_pointwise_gates(zoo.highway_resnet50(**options))
    kernels = [weight for weight in model.weights if "transform_gate" in weight.path]
    shapes = [tuple(kernel.shape) for kernel in kernels if kernel.path.endswith("kernel")]
    assert shapes == [(1, 1, 2, 8), (1, 1, 8, 16), (1, 1, 16, 16)]
    biases = [kernel for kernel in kernels if kernel.path.endswith("bias")]
    assert len(biases) == 3 and all(np.all(bias.numpy() == -1) for bias in biases)
    block = model.get_layer("stage2_block01")
    x = np.random.default_rng(0).normal(size=(1, 4, 4, 16)).astype("float32")
    parts = {key: keras.ops.convert_to_numpy(value) for key, value in block.parts(x).items()}
    kernel, bias = (keras.ops.convert_to_numpy(w) for w in block.transform_gate.weights)
    gates = 1 / (1 + np.exp(-(x @ kernel[0, 0] + bias)))
    np.testing.assert_allclose(parts["t"], gates, atol=1e-6)
    expected = parts["h"] * gates + x * (1 - gates)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(block(x)), expected, atol=1e-5)


@without_backend
def test_lesions_are_measured_and_claims_by_hand(run, tmp_path):
    one = lesions.measure(lesions.SCALES["smoke"], run)
    assert {*one} == {"residual", "plain", "untrained"}
    for network, movable in (("residual", 4), ("plain", 3), ("untrained", 4)):
        assert len(one[network]["blocks"]) == movable
        assert len(one[network]["without_a_block"]["accuracy"]) == 1 + movable
        assert one[network]["intermediate_accuracy"].shape == (2,)
    assert one["untrained"]["relative_residual_mean"].shape == (4,)
    assert not np.allclose(*(one[n]["relative_residual_mean"] for n in ("residual", "untrained")))
    pages.draw(catalog.load("greff2017/lesions"), [one, one], tmp_path / "figures")
    drawn = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"section2", "section4.4"}
    alone = lesions.section2([{"plain": one["plain"]}])  # --networks plain
    assert len(alone.axes[0].lines[0].get_xdata()) == 3
    shuffled = {
        "accuracy": np.array([0.9, 0.8, 0.7, 0.3, 0.4]),
        "tau": np.array([1.0, 0.9, 0.8, 0.2, 0.1]),
        "count": np.array([0, 1, 1, 8, 8]),
    }
    one = {"without_a_block": {"accuracy": [0.9, 0.86, 0.84, 0.5, 0.95]}, "shuffled": shuffled}
    one["relative_residual_mean"] = np.array([0.1, 0.3])
    one["blocks"] = [f"stage{s}_block{i:02d}" for s in (1, 2) for i in (0, 1)]
    broken = {**shuffled, "accuracy": np.array([0.9, 0.1, 0.1, 0.1, 0.2])}
    plain = {"without_a_block": {"accuracy": [0.9, 0.1]}, "shuffled": broken}
    plain["blocks"] = one["blocks"][1:2]
    noise = {**shuffled, "accuracy": np.array([0.1, 0.2, 0.1, 0.1, 0.1])}
    untrained = {"relative_residual_mean": np.array([0.5, 0.7]), "shuffled": noise}
    one = {"residual": one, "plain": plain, "untrained": untrained}
    assert measured_by(lesions, "G1b", one) == (pytest.approx(0.2), pytest.approx(0.6))
    assert measured_by(lesions, "G3", one) == (50, 0)
    # without a plain network: of the stages' first blocks, 0.86 and 0.5 of 0.9, one is spared
    assert measured_by(lesions, "G3", {"residual": one["residual"]}) == (50, 50)
    # one pair of six; of noise two pairs of orders with another accuracy of three, tau-b
    assert measured_by(lesions, "G4", one) == (pytest.approx(4 / 6), pytest.approx(3 / 18**0.5))
    # accuracies of tau 1, 0.9 and 0.8 are on a line, the others too far to count
    assert measured_by(lesions, "G4b", one) == (
        pytest.approx(20, abs=0.01),
        pytest.approx(80, abs=15),
    )


@without_backend
def test_the_table_and_the_claims_of_language_models_by_hand():
    values = dict(zip(ptb_char_lm.VARIANTS, (100, 98, 90, 80, 81, 79), strict=True))
    seeds = [
        {
            "size": "large",
            "corpus": "PTB",
            "unigram_perplexity": 700.0,
            "variants": {name: {"test_perplexity": v + shift} for name, v in values.items()},
        }
        for shift in (0, 2)
    ]
    row = next(ptb_char_lm.table1a(seeds))
    assert (row["test perplexity"], row["paper"]) == (101, 92.60)
    assert row["deviation"] == pytest.approx(2**0.5, abs=1e-3)
    assert next(ptb_char_lm.table1a([seeds[0] | {"corpus": "pydoc"}]))["paper"] == ""
    one = {**seeds[0], "again": {"test_perplexity": 80}}
    assert measured_by(ptb_char_lm, "G5", one) == (pytest.approx(10), pytest.approx(100 / 81))
    assert measured_by(ptb_char_lm, "G6", one) == (pytest.approx(2), pytest.approx(19))
    assert measured_by(ptb_char_lm, "G7", one) == (pytest.approx(100 * 8 / 98), pytest.approx(2))
    assert "0.87" in ptb_char_lm.order(seeds).get_suptitle()  # one of 15 pairs is exchanged
