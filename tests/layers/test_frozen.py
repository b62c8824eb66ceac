"""A layer that is not trainable stays so when it is built, saved and loaded."""

import keras
import pytest

import zoo
from zoo.io import load_model

IMAGES, VECTORS = (8, 8, 4), (4,)
LAYERS = {
    "dense": (zoo.HighwayDense, {"variant": "full"}, VECTORS),
    "stack": (zoo.HighwayDenseStack, {"depth": 3}, VECTORS),
    "conv": (zoo.HighwayConv2D, {}, IMAGES),
    "block": (zoo.ResidualBlock, {"filters": 8, "strides": 2, "variant": "coupled"}, IMAGES),
    "plain": (zoo.SimplifiedPlain, {"filters": 4}, IMAGES),
    "residual": (zoo.SimplifiedResidual, {"filters": 4}, IMAGES),
    "dominant": (zoo.SimplifiedDominant, {"filters": 4}, IMAGES),
    "batch_norm": (zoo.UnsharedBatchNormalization, {}, IMAGES),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_frozen_layer_stays_frozen(name, tmp_path):
    layer, arguments, shape = LAYERS[name]
    inputs = keras.Input(shape)
    model = keras.Model(inputs, layer(**arguments, trainable=False)(inputs))
    assert not model.trainable_weights
    assert not keras.models.clone_model(model).trainable_weights
    model.save(tmp_path / "model.keras")
    assert not load_model(tmp_path / "model.keras").trainable_weights


@pytest.mark.parametrize("name", ["dense", "conv", "block"])
def test_frozen_blocks_stay_frozen_in_pruned_and_lesioned_networks(name, tmp_path):
    layer, arguments, shape = LAYERS[name]
    inputs = keras.Input(shape)
    arguments = {**arguments, "variant": "full", "trainable": False}
    outputs = layer(**arguments, name="block1")(layer(**arguments, name="block0")(inputs))
    model = keras.Model(inputs, outputs)
    lesioned = zoo.graph.lesion(model, "block0", mode="closed")
    for changed in (zoo.graph.prune_blocks(model, "block0"), lesioned):
        assert changed.weights and not changed.trainable_weights
        changed.save(tmp_path / "model.keras")
        assert not load_model(tmp_path / "model.keras").trainable_weights
