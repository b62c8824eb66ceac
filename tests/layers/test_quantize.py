"""Quantized models are saved and loaded, and predict what they predicted."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers import reference
from helpers.harness import slow_elsewhere
from zoo.io import load_model

IMAGES, VECTORS = (8, 8, 4), (8,)
LAYERS = {
    "dense": (lambda: zoo.HighwayDense(variant="full"), VECTORS),
    "bfloat16": (lambda: zoo.HighwayDense(dtype="mixed_bfloat16"), VECTORS),
    "stack": (lambda: zoo.HighwayDenseStack(3), VECTORS),
    "conv": (zoo.HighwayConv2D, IMAGES),
    "block": (lambda: zoo.ResidualBlock(4, variant="coupled"), IMAGES),
    "simplified": (lambda: zoo.SimplifiedResidual(4), IMAGES),
}


CASES = ["dense int4", "dense float8", *(f"{name} int8" for name in LAYERS)]


@slow_elsewhere
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.parametrize("case", CASES)
def test_a_quantized_model_is_saved_and_loaded(case, tmp_path):
    name, mode = case.split()
    make, shape = LAYERS[name]
    inputs = keras.Input(shape)
    x = keras.layers.Flatten()(make()(inputs))
    model = keras.Model(inputs, keras.layers.Dense(4, dtype="float32")(x))
    reference.random_weights(model, scale=0.3)
    model.quantize(mode)
    x = reference.images(2, *shape)
    expected = ops.convert_to_numpy(model(x))
    loaded = model
    for _ in range(2):  # and what was loaded, once more
        loaded.save(tmp_path / "model.keras")
        loaded = load_model(tmp_path / "model.keras")
        assert np.array_equal(ops.convert_to_numpy(loaded(x)), expected)
    assert [w.dtype for w in loaded.weights] == [w.dtype for w in model.weights]


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@slow_elsewhere
def test_a_quantized_highway_network_is_close_to_what_it_was():
    inputs = keras.Input((50,))
    x = inputs
    for _ in range(3):
        x = zoo.HighwayDense()(x)
    model, x = keras.Model(inputs, x), reference.images(20, 50)
    before = ops.convert_to_numpy(model(x))
    model.quantize("int8")
    error = np.abs(ops.convert_to_numpy(model(x)) - before).max()
    assert 0 < error < 0.05 * np.abs(before).max()
    assert {w.dtype for w in model.weights if "kernel" == w.path.split("/")[-1]} == {"int8"}
