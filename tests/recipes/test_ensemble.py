"""The ensemble of depth_search.py: networks side by side train as each does alone."""

import collections
import functools

import keras
import numpy as np
import pytest

import zoo
from zoo.recipes.srivastava2015 import ensemble

DEPTH, SEEDS, BIASES = 3, (11, 12, 13), (-1, -4, -2)
BUILDERS = {
    "plain": lambda depth, act, bias, **more: zoo.highway_mlp(depth, 71, act, "plain", **more),
    "highway": lambda depth, act, bias, **more: zoo.highway_mlp(
        depth, 50, act, gate_bias=bias, **more
    ),
}
UNITS = {"plain": 71, "highway": 50}


Settings = collections.namedtuple("Settings", ["rate", "momentum", "decay"])
SETTINGS = Settings(0.05, 0.9, 0.9), Settings(0.3, 0.5, 1.0), Settings(0.01, 0.99, 0.95)


def images(count=60):
    random = np.random.default_rng(0)
    return random.random((count, 6, 6, 1), "float32"), np.arange(count) % 4


def alone(kind, depth, activation, index, x, y, steps):
    """Return one of the networks as the zoo builds and Keras trains it, and its losses."""
    zoo.seed_everything(SEEDS[index])
    more = {"input_shape": x.shape[1:], "classes": 4, "classifier_activation": None}
    model = BUILDERS[kind](depth, activation, BIASES[index], **more)
    settings = SETTINGS[index]
    rate = keras.optimizers.schedules.ExponentialDecay(settings.rate, steps, settings.decay)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, settings.momentum), loss)
    return model, model.fit(x, y, 20, epochs=3, shuffle=False, verbose=0).history["loss"]


def together(kind, depth, activation, x, y, settings=SETTINGS):
    shape = kind, depth, UNITS[kind], activation, SEEDS, BIASES, x.shape[1:], 4
    model = ensemble.build(*shape)
    ensemble.compile_networks(model, settings, len(x) // 20)
    history = model.fit(x, y, 20, epochs=3, shuffle=False, verbose=0).history
    return model, [history[ensemble.key(index)] for index in range(3)]


@functools.cache
def exact(kind, activation):
    """Return three layers trained in float32 with `SETTINGS`, and their losses."""
    return together(kind, DEPTH, activation, *images())


@pytest.mark.parametrize("kind, activation", [("plain", "relu"), ("highway", "tanh")])
def test_networks_side_by_side_train_as_each_does_alone(kind, activation):
    x, y = images()
    model, losses = exact(kind, activation)
    logits = keras.ops.convert_to_numpy(model(x))
    for index in range(3):
        single, history = alone(kind, DEPTH, activation, index, x, y, steps=3)
        np.testing.assert_allclose(losses[index], history, rtol=2e-5)  # float32, nine steps
        wanted = keras.ops.convert_to_numpy(single(x))
        np.testing.assert_allclose(logits[:, index], wanted, rtol=1e-3, atol=1e-4)
        assert history[-1] != history[0]


def test_initial_networks_are_those_of_the_builders():
    x, _ = images(8)
    for kind in UNITS:
        shape = kind, DEPTH, UNITS[kind], "relu", SEEDS, BIASES, x.shape[1:], 4
        logits = keras.ops.convert_to_numpy(ensemble.build(*shape)(x))
        zoo.seed_everything(SEEDS[1])
        more = {"input_shape": x.shape[1:], "classes": 4, "classifier_activation": None}
        wanted = BUILDERS[kind](DEPTH, "relu", BIASES[1], **more)(x)
        np.testing.assert_allclose(
            logits[:, 1], keras.ops.convert_to_numpy(wanted), rtol=1e-4, atol=1e-5
        )


def test_a_network_that_diverges_leaves_the_others_alone():
    x, y = images()
    _, expected = exact("plain", "relu")
    diverging = (SETTINGS[0], Settings(1e30, 0.5, 1.0), SETTINGS[2])
    _, losses = together("plain", DEPTH, "relu", x, y, diverging)
    assert not np.isfinite(losses[1]).all()
    assert (losses[0], losses[2]) == (expected[0], expected[2])


def test_bfloat16_trains_nearly_as_float32_and_classifies_in_it():
    x, y = images()
    _, expected = exact("highway", "tanh")
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model, losses = together("highway", DEPTH, "tanh", x, y)
        assert keras.backend.standardize_dtype(model(x).dtype) == "float32"
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_allclose(losses, expected, rtol=4e-3)  # 8 bits; measured: 7.5e-4
    assert losses != expected
