"""Probes and sweeps of twelve families of networks, and their values on two of them."""

import functools

import keras
import numpy as np
import pytest
from keras import layers, ops

from helpers import families, reference
from helpers.harness import few_elsewhere, slow_elsewhere, without_backend
from zoo import callbacks, graph
from zoo.graph.blocks import find_blocks

# T5's attention does not support the masks that its embedding makes
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")

CLASSES = 3
DECODER = ["transformer_decoder_layer_0", "transformer_decoder_layer_1"]  # T5 has two chains
TRANSFORMERS = ["gpt2", "gemma", "llama", "bert", "albert", "t5", "vit"]
IMAGES = ["convnext", "efficientnet_v2", "mobilenet_v3"]
FEW = ["adding"]  # the others' graphs differ, which are the same on all backends
EVERY = [
    callbacks.ActivationNorm(),
    callbacks.L2Ratio(),
    callbacks.BlockInfluence(),
    callbacks.EstimationError(),
    callbacks.ResidualMean(),
    callbacks.BlockOutputs(),
    callbacks.CosineLoss(),
    callbacks.TaylorTerm(),
    callbacks.GradientNorm(),
    callbacks.IntermediateAccuracy(),
    callbacks.BorderlineExamples(),
    callbacks.LogitLens(),
]


@functools.cache
def classifier(name):
    """Return a family's network, inlined, with a softmax at each position of its first output."""
    model = families.build(name)
    model = graph.inline(model, families.shapes(model))
    first = model.outputs[0]
    if name not in IMAGES:
        outputs = layers.Dense(CLASSES, "softmax", name="classes")(first)
        model = keras.Model(model.input, outputs)
    return reference.random_weights(model, scale=0.3)


def data(model):
    x = families.data(model)
    shape = [3 if size is None else size for size in model.output_shape[:-1]]
    return x, np.random.default_rng(1).integers(0, CLASSES, shape)


def probabilities(model):
    return np.asarray(ops.convert_to_numpy(model(families.data(model))), "float64")


@pytest.mark.parametrize("name", few_elsewhere([*TRANSFORMERS, *IMAGES, "adding"], FEW))
def test_every_probe_measures_every_family(name):
    model = classifier(name)
    table = callbacks.run(EVERY, model, data(model))
    assert np.isfinite([row.value for row in table]).all()
    names = {block.name for block in find_blocks(model)[0]}
    for probe in ("l2_ratio", "cosine_loss", "block_influence"):
        assert names <= {row.block for row in table if row.probe.startswith(probe)}


@pytest.mark.parametrize("name", few_elsewhere(["gpt2", "albert", "adding"], FEW))
def test_lesions_equal_lesioned_networks(name):
    model = classifier(name)
    table = callbacks.lesions(model, data(model))
    last = find_blocks(model)[0][-1].name
    p, q = probabilities(model), probabilities(graph.lesion(model, last))
    kl = (p * np.log(p / q)).sum(-1).mean()
    assert table.values("lesion_kl")[last] == pytest.approx(kl, rel=1e-2, abs=1e-6)
    assert min(table.values("lesion_kl").values()) == 0


@slow_elsewhere
@pytest.mark.parametrize("name", ["bert", "t5"])
def test_whole_layers_of_encoders_and_decoders_are_measured_and_left_out(name):
    blocks = DECODER if name == "t5" else None
    model = reference.random_weights(families.build(name), scale=0.3)
    x = families.data(model)
    table = callbacks.run([callbacks.L2Ratio()], model, x, blocks=blocks, grain="layer")
    table += callbacks.lesions(model, x, blocks=blocks, grain="layer")
    names = [name for name in table.values("lesion_change") if name]
    assert len(names) == 2 and [*table.values("l2_ratio")] == names
    outputs = [keras.tree.flatten(model.get_layer(name).output)[0] for name in names]
    states = keras.Model(model.input, outputs)
    before, after = (np.asarray(ops.convert_to_numpy(v), "float64") for v in states(x))
    ratio = np.linalg.norm((after - before).reshape(3, -1), axis=1)
    ratio /= np.linalg.norm(before.reshape(3, -1), axis=1)
    assert table.values("l2_ratio")[names[1]] == pytest.approx(ratio.mean(), rel=1e-4)


@without_backend
def test_lesions_are_of_the_blocks_of_an_encoder_and_a_decoder():
    model = reference.random_weights(families.build("t5"), scale=0.3)
    x = families.data(model)
    table = callbacks.lesions(model, x, grain="layer").values("lesion_change")
    names = [block.name for block in find_blocks(model, grain="layer")[0]]
    assert [*table] == [None, *names] and {*DECODER} < {*names}

    def outputs(network):
        arrays = [ops.convert_to_numpy(y) for y in keras.tree.flatten(network(x))]
        return np.concatenate([a.reshape(len(a), -1) for a in arrays], axis=1)

    whole = outputs(model)
    for name in (names[0], DECODER[0]):
        change = outputs(graph.lesion(model, name, grain="layer")) - whole
        ratios = np.linalg.norm(change, axis=1) / np.linalg.norm(whole, axis=1)
        assert table[name] == pytest.approx(ratios.mean(), rel=1e-4)


def test_cushions_are_of_the_layers_of_any_branch():
    x = reference.images(3, 5)
    inputs = keras.Input((5,))
    f = layers.Dense(4, name="inner")(layers.LayerNormalization(name="norm")(inputs))
    f = layers.Dense(5, use_bias=False, name="outer")(layers.ReLU(name="relu")(f))
    model = reference.random_weights(keras.Model(inputs, layers.Add(name="sum")([inputs, f])))
    table = callbacks.run([callbacks.LayerCushion()], model, x)
    outputs = [model.get_layer(name).output for name in ("norm", "inner", "relu", "outer")]
    normed, z, y, f = (
        np.asarray(ops.convert_to_numpy(v), "float64") for v in keras.Model(inputs, outputs)(x)
    )
    (inner, bias), (outer,) = (model.get_layer(name).get_weights() for name in ("inner", "outer"))
    steps = ((inner, normed, z - bias), (outer, y, f))
    cushions = [
        np.linalg.norm(b, axis=1) / np.linalg.norm(kernel) / np.linalg.norm(a, axis=1)
        for kernel, a, b in steps
    ]
    assert table.values("layer_cushion")["sum"] == pytest.approx(np.mean(cushions), rel=1e-4)
