"""Initializers have the papers' distributions and NumPy's values on every backend."""

import json

import keras
import numpy as np
import pytest

import zoo
from helpers.gradients import assert_close
from zoo.initializers import Gaussian, GlorotUniform, HardtMa, KaimingNormal, Uniform, fans

SHAPE = (3, 3, 16, 32)  # fan_in 144, fan_out 288
SAMPLES = {  # the same values from a generator of NumPy
    "uniform": (Uniform(0.05, seed=3), lambda g: g.uniform(-0.05, 0.05, SHAPE)),
    "torch_linear": (Uniform(None, seed=3), lambda g: g.uniform(-1 / 12, 1 / 12, SHAPE)),
    "glorot": (
        GlorotUniform(seed=3),
        lambda g: g.uniform(-((1 / 72) ** 0.5), (1 / 72) ** 0.5, SHAPE),
    ),
    "gaussian": (Gaussian(0.1, seed=3), lambda g: g.normal(0, 0.1, SHAPE)),
    "kaiming": (KaimingNormal(seed=3), lambda g: g.normal(0, (1 / 72) ** 0.5, SHAPE)),
    "fan_out": (KaimingNormal("out", 0.5, 3), lambda g: g.normal(0, 0.5 / 12, SHAPE)),
    "hardt_ma": (HardtMa(seed=3), lambda g: g.normal(0, 1 / 288, SHAPE)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_values_are_numpy_s_on_every_backend_also_after_a_round_trip(name):
    initializer, sample = SAMPLES[name]
    expected = sample(np.random.default_rng(3))
    assert_close(initializer(SHAPE), expected, 1e-7 * np.abs(expected).max())  # float32's rounding
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(initializer)))
    again = keras.saving.deserialize_keras_object(config)
    assert_close(again(SHAPE), initializer(SHAPE), 0)


def test_unseeded_initializers_continue_one_stream():
    zoo.seed_everything(11)
    first, second = (KaimingNormal()(SHAPE) for _ in range(2))
    generator = np.random.default_rng(11)
    for found in (first, second):
        assert_close(found, generator.normal(0, (1 / 72) ** 0.5, SHAPE), 1e-7)


def test_normal_values_are_not_truncated():
    values = np.asarray(keras.ops.convert_to_numpy(KaimingNormal(seed=0)((100, 1000))))
    assert np.abs(values).max() > 3.5 * (2 / 100) ** 0.5  # Keras's he_normal ends at 2 sigma


def test_fans_include_the_receptive_field():
    assert fans((5, 7)) == (5, 7) and fans(SHAPE) == (144, 288)
    with pytest.raises(ValueError, match="`fan` must be one of 'in', 'out'. Received: fan='avg'"):
        KaimingNormal("avg")
