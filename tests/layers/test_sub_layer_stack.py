"""A stack of sub-layers computes and trains as its sub-layers do."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.harness import few_elsewhere, slow_elsewhere
from zoo import callbacks

SIZES = {"vocabulary": 11, "steps": 6, "width": 8, "depth": 4, "heads": 2, "seed": 3}
CASES = {
    "pre": {},
    "coupled": {"variant": "coupled"},
    "post": {"rule": "post"},
    "scaled": {"rule": "scaled"},
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
    "exact": {"rule": "mhc", "options": {"streams": 3, "exact": True}},
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


@pytest.mark.parametrize("case", few_elsewhere([*CASES], ["keel", "rezero"]))
def test_a_stack_computes_what_its_sub_layers_compute(case, tmp_path):
    stacked, single = pair(case)
    expected = ops.convert_to_numpy(single(tokens(0)))
    np.testing.assert_allclose(stacked.predict(tokens(0), verbose=0), expected, atol=1e-5)
    stacked.save(tmp_path / "stacked.keras")
    loaded = keras.saving.load_model(tmp_path / "stacked.keras")
    one, other = (ops.convert_to_numpy(model(tokens(0))) for model in (loaded, stacked))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", few_elsewhere(["pre", "dhc", "rezero"], []))
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


def groups(rule="pre", depth=2, inner=keras.layers.Dense, **options):
    made = [inner(4, **options) for _ in range(depth)]
    return [[zoo.SubLayer(f, rule, i, depth, per_layer=1)] for i, f in enumerate(made)]


DIFFERENT = [[zoo.SubLayer(keras.layers.Dense(4, name))] for name in ("relu", "tanh")]
FORMS = [[zoo.SubLayer(keras.layers.Dense(4), variant=name)] for name in ("t_only", "c_only")]


@pytest.mark.parametrize(
    ("sub_layers", "depth", "message"),
    [
        (groups("attnres"), 2, "one without slots for sub-layers"),
        (groups("lns", 4), 4, "input_scale: 1.0 and 0.7"),
        (groups("lns", 4)[:1], 4, "input_scale: 1.0 and 0.5"),
        (groups("keel", 3), 3, "Keel.* alpha: 1.0 and 3.0"),
        (groups("keel"), 2, "those of the first group"),
        (DIFFERENT, 2, "layer: .*relu.* and .*tanh"),
        (FORMS, 2, "layer: .*t_only.* and .*c_only"),
        (groups(), 3, "one group or depth=3 groups, all the same. Received"),
        ([[*groups()[0], *groups()[0]], groups()[0]], 2, "sizes=.2, 1."),
        ([[]], 2, "lists of `zoo.SubLayer`s"),
        (3, 3, "lists of `zoo.SubLayer`s. Received: groups=3"),
        ([3], 1, "lists of `zoo.SubLayer`s"),
        ([[keras.layers.Dense(4)]], 2, "lists of `zoo.SubLayer`s"),
        (groups(kernel_regularizer="l2"), 2, "one without regularizers"),
        (groups(activity_regularizer="l2"), 2, "one without regularizers"),
        (groups(inner=lambda units: keras.layers.Dropout(0.5)), 2, "dropout.*seed_generator_state"),
        (groups(inner=lambda units: keras.layers.BatchNormalization()), 2, "moving_mean"),
    ],
)
def test_what_has_no_stack_is_refused(sub_layers, depth, message):
    with pytest.raises(ValueError, match=message):
        zoo.SubLayerStack(sub_layers, depth).build((None, 3, 4))


def test_one_group_is_the_start_of_all(tmp_path):
    stack = zoo.SubLayerStack(groups()[:1], 3)
    with pytest.raises(ValueError, match="`layer` must be built"):
        stack.to_layers()
    inputs = keras.Input((3, 4))
    model = keras.Model(inputs, stack(inputs))
    x = expected = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    model.trainable = False
    layers = stack.to_layers()
    assert not any(layer.trainable_weights for layer in layers)
    assert len({layer.name for layer in layers}) == 3
    for layer in layers:
        expected = layer(expected)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), ops.convert_to_numpy(expected), atol=1e-5
    )


def test_a_stack_is_no_block():
    model = zoo.transformer_lm(**SIZES, stacked=True)
    with pytest.raises(ValueError, match="a scanned stack hides its layers"):
        zoo.graph.find_blocks(model, ["stack"])
    with pytest.raises(ValueError, match="of all blocks of a network"):
        callbacks.run([callbacks.BlockInfluence()], model, tokens(0), view="read")


@slow_elsewhere
@pytest.mark.parametrize("how", ["remat", "scope"])
def test_rematerialization_does_not_change_the_training(how):
    if how == "scope" and keras.backend.backend() != "torch":
        pytest.skip("Keras loses gradients of layers inside of others there, or refuses them")
    losses = []
    for changed in (False, True):
        with keras.RematScope("full") if changed and how == "scope" else contextlib.nullcontext():
            model = zoo.transformer_lm(**SIZES, stacked=True)
        if changed and how == "remat":
            assert zoo.graph.remat(model).get_layer("stack")._remat_mode is not None
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        losses.append([float(model.train_on_batch(tokens(1), tokens(2))) for _ in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
