"""Options that all layers have: regularizers, `trainable`, arguments of earlier versions."""

import keras
import numpy as np
import pytest
from keras import regularizers

import zoo
from helpers.reference import as_float64, images, penalty, random_weights
from zoo.io import load_model

OPTIONS = {"kernel_regularizer": regularizers.L2(0.5), "bias_regularizer": regularizers.L1(0.25)}
IMAGES, VECTORS = (2, 4, 4, 4), (2, 4)
LAYERS = {
    "dense": (zoo.HighwayDense, {"variant": "full"}, VECTORS),
    "conv": (zoo.HighwayConv2D, {"variant": "full"}, IMAGES),
    "block": (zoo.ResidualBlock, {"filters": 8, "strides": 2, "use_bias": True}, IMAGES),
    "plain": (zoo.SimplifiedPlain, {"filters": 4}, IMAGES),
    "residual": (zoo.SimplifiedResidual, {"filters": 4}, IMAGES),
    "dominant": (zoo.SimplifiedDominant, {"filters": 4}, IMAGES),
}
OTHERS = {
    "stack": (zoo.HighwayDenseStack, {"depth": 3}, VECTORS),
    "batch_norm": (zoo.UnsharedBatchNormalization, {}, IMAGES),
}


def built(name, **options):
    """Return a layer with random weights."""
    layer_class, arguments, shape = LAYERS[name]
    layer = layer_class(**arguments, **options)
    layer.build(shape)
    return random_weights(layer)


@pytest.mark.parametrize("name", LAYERS)
def test_penalties_are_those_of_all_kernels_and_biases_also_after_a_round_trip(name):
    layer = built(name, **OPTIONS)
    values = {w.path: as_float64(w)[0] for w in layer.trainable_weights}
    kernels, biases = (
        [v for path, v in values.items() if path.endswith(kind)] for kind in ("kernel", "bias")
    )
    expected = 0.5 * sum((w**2).sum() for w in kernels) + 0.25 * sum(
        np.abs(b).sum() for b in biases
    )
    np.testing.assert_allclose(penalty(layer), expected, rtol=1e-6)
    copy = type(layer).from_config(layer.get_config())
    assert copy.get_config() == layer.get_config() and copy.kernel_regularizer.l2 == 0.5


@pytest.mark.parametrize("layer", [zoo.HighwayDense, zoo.HighwayConv2D])
def test_an_activity_regularizer_is_of_the_output_and_a_mean_over_the_batch(layer):
    shape = VECTORS if layer is zoo.HighwayDense else IMAGES
    layer, x = layer(activity_regularizer=regularizers.L2(0.5)), images(*shape)
    (y,) = as_float64(layer(x))
    np.testing.assert_allclose(penalty(layer), 0.5 * (y**2).sum() / 2, rtol=1e-5)


@pytest.mark.parametrize("option", [*OPTIONS, "activity_regularizer"])
def test_regularized_layers_are_not_stacked(option):
    with pytest.raises(ValueError, match="no regularizers.*single `zoo.HighwayDense`"):
        zoo.HighwayDenseStack(2, **{option: "l2"})


@pytest.mark.parametrize("name", [*LAYERS, *OTHERS])
def test_a_frozen_layer_stays_frozen(name, tmp_path):
    layer, arguments, shape = (LAYERS | OTHERS)[name]
    inputs = keras.Input(shape[1:])
    model = keras.Model(inputs, layer(**arguments, trainable=False)(inputs))
    assert not model.trainable_weights
    assert not keras.models.clone_model(model).trainable_weights
    model.save(tmp_path / "model.keras")
    assert not load_model(tmp_path / "model.keras").trainable_weights


@pytest.mark.parametrize("name", ["dense", "conv", "block"])
def test_frozen_blocks_stay_frozen_in_pruned_and_lesioned_networks(name, tmp_path):
    layer, arguments, shape = LAYERS[name]
    inputs = keras.Input(shape[1:])
    arguments = {**arguments, "variant": "full", "trainable": False}
    outputs = layer(**arguments, name="block1")(layer(**arguments, name="block0")(inputs))
    model = keras.Model(inputs, outputs)
    lesioned = zoo.graph.lesion(model, "block0", mode="closed")
    for changed in (zoo.graph.prune_blocks(model, "block0"), lesioned):
        assert changed.weights and not changed.trainable_weights
        changed.save(tmp_path / "model.keras")
        assert not load_model(tmp_path / "model.keras").trainable_weights
