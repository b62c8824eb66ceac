"""A stack of sub-layers computes and trains as its sub-layers do."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.harness import few_elsewhere

SIZES = {"vocabulary": 11, "steps": 6, "width": 8, "depth": 4, "heads": 2, "seed": 3}
CASES = {
    "pre": {},
    "coupled": {"variant": "coupled"},
    "post": {"rule": "post"},
    "completep": {"rule": "completep"},
    "deepnorm": {"rule": "deepnorm"},
    "keel": {"rule": "keel"},
    "rezero": {"rule": "rezero"},
    "layerscale": {"rule": "layerscale"},
    "laurel": {"rule": "laurel", "options": {"rank": 2, "previous": 3}},
    "ddl": {"rule": "ddl"},
    "gru": {"rule": "gru"},
    "shc": {"rule": "shc"},
    "dhc": {"rule": "dhc", "options": {"streams": 3}},
    "mhc": {"rule": "mhc"},
    "value": {"rule": "value"},
    "x0": {"rule": "x0"},
}


def tokens(seed):
    return np.random.default_rng(seed).integers(0, 11, (3, 6))


def pair(case):
    """Return a network with a stack, of random weights, and one of the stack's sub-layers."""
    stacked = zoo.transformer_lm(**SIZES, **CASES[case], stacked=True)
    random = np.random.default_rng(0)
    for weight in stacked.weights:
        weight.assign(ops.convert_to_numpy(weight) + 0.1 * random.normal(size=weight.shape))
    x = stacked.get_layer("feed_forward1").output
    for layer in stacked.get_layer("stack").to_layers():
        x = layer(x)
    for name in ("stream_end", "logits"):
        x = stacked.get_layer(name)(x)
    return stacked, keras.Model(stacked.input, x)


@pytest.mark.parametrize("case", few_elsewhere([*CASES], ["keel", "mhc", "rezero"]))
def test_a_stack_computes_what_its_sub_layers_compute(case, tmp_path):
    stacked, single = pair(case)
    expected = ops.convert_to_numpy(single(tokens(0)))
    np.testing.assert_allclose(stacked.predict(tokens(0), verbose=0), expected, atol=1e-5)
    stacked.save(tmp_path / "stacked.keras")
    loaded = keras.saving.load_model(tmp_path / "stacked.keras")
    one, other = (ops.convert_to_numpy(model(tokens(0))) for model in (loaded, stacked))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", few_elsewhere(["pre", "dhc", "rezero"], ["dhc"]))
def test_a_stack_starts_and_trains_as_its_sub_layers_do(case):
    single = zoo.transformer_lm(**SIZES, **CASES[case])
    stacked = zoo.transformer_lm(**SIZES, **CASES[case], stacked=True)
    losses = []
    for model in (single, stacked):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss)
        losses.append([float(model.train_on_batch(tokens(1), tokens(2))) for _ in range(4)])
    assert losses[0][0] > losses[0][-1]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    costs = [zoo.graph.cost(model) for model in (single, stacked)]
    assert costs[0].parameters == costs[1].parameters
    assert costs[0].operations == costs[1].operations


@pytest.mark.slow
def test_a_thousand_sub_layers_train():
    model = zoo.transformer_lm(11, 6, 16, 500, 2, 32, "dhc", stacked=True, seed=0)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(model.train_on_batch(tokens(1), tokens(2)))
    assert all(np.isfinite(ops.convert_to_numpy(w)).all() for w in model.weights)


def groups(rule="pre", depth=2):
    dense = [keras.layers.Dense(4) for _ in range(depth)]
    return [[zoo.SubLayer(f, rule, i, depth, per_layer=1)] for i, f in enumerate(dense)]


@pytest.mark.parametrize(
    ("sub_layers", "depth", "message"),
    [
        (groups("attnres"), 2, "rule with slots for sub-layers has no stack"),
        (groups("lns", 4), 4, "input_scale=1.0, and .*input_scale=0.7"),
        (groups("keel", 3), 3, "Keel with alpha=1.0, and .* alpha=3.0"),
        (groups("keel"), 2, "weights of the same shapes"),
        (groups(), 3, "one group or depth=3 groups. Received: 2"),
    ],
)
def test_what_has_no_stack_is_refused(sub_layers, depth, message):
    with pytest.raises(ValueError, match=message):
        zoo.SubLayerStack(sub_layers, depth).build((None, 3, 4))


def test_a_stack_is_no_block():
    model = zoo.transformer_lm(**SIZES, stacked=True)
    with pytest.raises(ValueError, match="a scanned stack hides its layers"):
        zoo.graph.find_blocks(model, ["stack"])


def test_an_unbuilt_stack_and_a_regularized_one_are_refused():
    with pytest.raises(ValueError, match="has none yet"):
        zoo.SubLayerStack(groups(), 2).to_layers()
    dense = keras.layers.Dense(4, kernel_regularizer="l2")
    with pytest.raises(ValueError, match="no regularizers"):
        zoo.SubLayerStack([[zoo.SubLayer(dense)]], 2).build((None, 3, 4))
