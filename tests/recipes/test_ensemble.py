"""Networks that train side by side, as mnist_depth_search.py's do, train as each does alone."""

import importlib

import keras
import numpy as np
import pytest

import zoo
from helpers.harness import ROOT, without_backend

SEEDS, BIASES = (11, 12, 13), (-1, -4, -2)
BUILDERS = {
    "plain": lambda depth, act, bias, **more: zoo.plain_mlp(depth, 71, act, **more),
    "highway": lambda depth, act, bias, **more: zoo.highway_mlp(
        depth, 50, act, gate_bias=bias, **more
    ),
}
UNITS = {"plain": 71, "highway": 50}


@pytest.fixture
def side_by_side(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "recipes")
    return importlib.import_module("side_by_side")


class Chosen:
    """What the search would draw."""

    def __init__(self, rate, momentum, decay):
        self.rate, self.momentum, self.decay = rate, momentum, decay


CHOSEN = Chosen(0.05, 0.9, 0.9), Chosen(0.3, 0.5, 1.0), Chosen(0.01, 0.99, 0.95)


def images(count=60):
    random = np.random.default_rng(0)
    return random.random((count, 6, 6, 1), "float32"), np.arange(count) % 4


def alone(kind, depth, activation, place, x, y, steps):
    """One of the networks as the zoo builds it, trained by Keras's optimizer: model and history."""
    zoo.seed_everything(SEEDS[place])
    more = {"input_shape": x.shape[1:], "classes": 4, "classifier_activation": None}
    model = BUILDERS[kind](depth, activation, BIASES[place], **more)
    chosen = CHOSEN[place]
    rate = keras.optimizers.schedules.ExponentialDecay(chosen.rate, steps, chosen.decay)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, chosen.momentum), loss)
    return model, model.fit(x, y, 20, epochs=3, shuffle=False, verbose=0).history["loss"]


def together(side_by_side, kind, depth, activation, x, y, settings=CHOSEN):
    shape = kind, depth, UNITS[kind], activation, SEEDS, BIASES, x.shape[1:], 4
    model = side_by_side.build(*shape)
    side_by_side.compile_networks(model, settings, len(x) // 20)
    history = model.fit(x, y, 20, epochs=3, shuffle=False, verbose=0).history
    return model, [history[side_by_side.key(place)] for place in range(3)]


@pytest.mark.parametrize("kind, activation", [("plain", "relu"), ("highway", "tanh")])
def test_networks_side_by_side_train_as_each_does_alone(side_by_side, kind, activation):
    x, y = images()
    model, losses = together(side_by_side, kind, 5, activation, x, y)
    logits = keras.ops.convert_to_numpy(model(x))
    for place in range(3):
        single, history = alone(kind, 5, activation, place, x, y, steps=3)
        np.testing.assert_allclose(losses[place], history, rtol=2e-5)  # float32, nine steps
        wanted = keras.ops.convert_to_numpy(single(x))
        np.testing.assert_allclose(logits[:, place], wanted, rtol=1e-3, atol=1e-4)
        assert history[-1] != history[0]


def test_initial_networks_are_those_of_the_builders(side_by_side):
    x, _ = images(8)
    for kind in UNITS:
        shape = kind, 12, UNITS[kind], "relu", SEEDS, BIASES, x.shape[1:], 4
        logits = keras.ops.convert_to_numpy(side_by_side.build(*shape)(x))
        zoo.seed_everything(SEEDS[1])
        more = {"input_shape": x.shape[1:], "classes": 4, "classifier_activation": None}
        wanted = BUILDERS[kind](12, "relu", BIASES[1], **more)(x)
        np.testing.assert_allclose(
            logits[:, 1], keras.ops.convert_to_numpy(wanted), rtol=1e-4, atol=1e-5
        )


def test_a_network_that_diverges_leaves_the_others_alone(side_by_side):
    x, y = images()
    _, calm = together(side_by_side, "plain", 5, "relu", x, y)
    wild = (CHOSEN[0], Chosen(1e30, 0.5, 1.0), CHOSEN[2])
    _, losses = together(side_by_side, "plain", 5, "relu", x, y, wild)
    assert not np.isfinite(losses[1]).all()
    assert (losses[0], losses[2]) == (calm[0], calm[2])


def test_bfloat16_trains_nearly_as_float32_and_classifies_in_it(side_by_side):
    x, y = images()
    _, exact = together(side_by_side, "highway", 5, "tanh", x, y)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model, losses = together(side_by_side, "highway", 5, "tanh", x, y)
        assert keras.backend.standardize_dtype(model(x).dtype) == "float32"
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_allclose(losses, exact, rtol=4e-3)  # 8 bits; measured: 7.5e-4
    assert losses != exact


COUNTS = {"highway": (85_660, 136_660, 289_660, 544_660)}  # card A, summed by hand
COUNTS["plain"] = (102_463, 153_583, 306_943, 562_543)


@without_backend
def test_networks_have_the_paper_s_parameters(side_by_side):
    for kind, counts in COUNTS.items():
        for depth, count in zip((10, 20, 50, 100), counts, strict=True):
            shape = kind, depth, UNITS[kind], "tanh", (0, 1), (-1, -1), (28, 28, 1), 10
            assert side_by_side.build(*shape).count_params() == 2 * count
