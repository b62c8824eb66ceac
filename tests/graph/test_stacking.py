"""Conversion of networks of single layers to networks of stacks, and back."""

import inspect
import sys

import keras
import numpy as np
import pytest

import zoo
from helpers.gradients import assert_close, numpy_of
from helpers.harness import few_elsewhere, without_backend
from zoo.graph import stacking
from zoo.layers.highway_stack import HighwayDenseStack

DEPTH, WIDTH = 3, 4


def inputs(*shape):
    return np.random.default_rng(1).normal(size=shape).astype("float32")


def random_stack(depth=DEPTH, **kwargs):
    stack = HighwayDenseStack(depth, **kwargs)
    stack.build((None, WIDTH))
    rng = np.random.default_rng(2)
    stack.set_weights([rng.normal(scale=0.5, size=w.shape) for w in stack.weights])
    return stack


def chained(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def mlp(layers, width=WIDTH):
    x = keras.Input((7,))
    z = keras.layers.Dense(width, activation="tanh", name="in")(x)
    model = keras.Model(x, keras.layers.Dense(3, name="out")(chained(layers, z)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss)
    return model


# Sizes at which slices of one array start at any address, and products of any remainder.
SIZES = [(50, 16), (71, 5), (3, 1), (64, 100)]


@pytest.mark.parametrize("size", few_elsewhere(SIZES, SIZES[:2]))
def test_both_conversions_keep_the_models_outputs_to_the_last_bit(size):
    width, batch = size
    config = {"activation": "tanh", "kernel_initializer": "he_normal", "gate_bias": -0.5}
    model = mlp([zoo.HighwayDense(variant="full", **config) for _ in range(4)], width)
    stacked = stacking.to_stack(model)
    restored = stacking.to_layers(stacked)
    assert [type(layer).__name__ for layer in stacked.layers[2:-1]] == ["HighwayDenseStack"]
    assert [layer.name for layer in restored.layers].count("highway_dense") == 0
    assert len(restored.layers) == len(model.layers)
    x = inputs(batch, 7)
    y = model(x)
    assert_close(stacked(x), y, 0)
    assert_close(restored(x), y, 0)
    if batch == 16:
        assert_close(stacked.predict(x, verbose=0), y, 1e-6)  # compiled; values of 1


def test_a_round_trip_returns_the_same_layers():
    stack = random_stack(variant="t_only", stage=3, activation="tanh", name="deep")
    model = mlp([stack])
    layers = stacking.to_layers(model)
    assert [v.name for v in layers.layers[2:-1]] == [f"deep_layer{i}" for i in (1, 2, 3)]
    restacked = stacking.to_stack(layers)
    assert restacked.layers[2].get_config() == stack.get_config()
    assert_close(restacked.get_weights(), model.get_weights(), 0)
    assert restacked.compiled
    assert restacked.optimizer.get_config() == model.optimizer.get_config()


def test_the_copy_has_its_own_weights():
    model = mlp([zoo.HighwayDense() for _ in range(2)])
    before = numpy_of(model.weights)
    stacked = stacking.to_stack(model)
    stacked.train_on_batch(inputs(6, 7), np.arange(6) % 3)
    assert_close(numpy_of(model.weights), before, 0)
    changes = zip(stacked.get_layer("in").get_weights(), before[:2], strict=True)
    assert all(np.any(a != b) for a, b in changes)
    assert len(model.get_layer("in")._inbound_nodes) == 1  # the original graph is not changed


def depths(model):
    """Return the depths of the skip layers after `to_stack`, 0 for single layers."""
    layers = [v for v in stacking.to_stack(model).layers if isinstance(v, zoo.Skip)]
    return [getattr(layer, "depth", 0) for layer in layers]


def named_layers(letters, **options):
    layers = {x: zoo.HighwayDense(name=x, **options.get(x, {})) for x in letters}
    return [layers[x] for x in letters]


@pytest.mark.parametrize(
    "option",
    [
        {"variant": "full"},
        {"activation": "tanh"},
        {"stage": 1},
        {"dtype": "mixed_bfloat16"},
        {"trainable": False},
    ],
    ids=lambda option: next(iter(option)),
)
def test_a_run_ends_where_a_layer_is_of_another_kind(option):
    model = mlp(named_layers("abcdef", c=option))
    assert depths(model) == [2, 0, 3]
    assert_close(stacking.to_stack(model)(inputs(3, 7)), model(inputs(3, 7)), 0)


def test_a_run_ends_where_an_output_is_used_twice_or_is_the_models():
    a, b, c, d, e, f = named_layers("abcdef")
    x = keras.Input((4,), name="x")
    fork = b(a(x))
    join = d(c(fork)) + fork
    model = keras.Model({"x": x}, {"top": f(e(join)), "middle": join})
    assert depths(model) == [2, 2, 2]
    two_outputs = keras.Model(x, [fork, chained([c, d, e], fork)])
    assert depths(two_outputs) == [2, 3]
    for network, v in ((model, {"x": inputs(3, 4)}), (two_outputs, inputs(3, 4))):
        for convert in (stacking.to_stack, lambda m: stacking.to_layers(stacking.to_stack(m))):
            converted = keras.tree.flatten(convert(network)(v))
            assert_close(converted, keras.tree.flatten(network(v)), 0)


def test_a_layer_that_is_called_twice_is_in_no_run():
    a, b, c, *_ = named_layers("abc")
    x = keras.Input((4,))
    model = keras.Model(x, chained([a, b, c, c, c, c], x))
    assert depths(model) == [2, 0]
    assert_close(stacking.to_stack(model)(inputs(3, 4)), model(inputs(3, 4)), 0)
    stack = random_stack()
    twice = keras.Model(x, stack(stack(x)))
    single = stacking.to_layers(twice)
    assert len(single.layers) == 1 + DEPTH
    assert_close(single(inputs(3, 4)), twice(inputs(3, 4)), 0)


@without_backend
def test_a_layer_of_the_same_run_in_another_model_does_not_matter():
    layers = named_layers("abc")
    x = keras.Input((4,))
    y = chained(layers, x)
    keras.Model(x, [layers[0](x), layers[1](y)])  # further calls, not of the model below
    assert depths(keras.Model(x, y)) == [3]


@without_backend
def test_only_a_graph_can_be_converted():
    model = keras.Sequential([keras.Input((4,)), zoo.HighwayDense(), zoo.HighwayDense()])
    for convert in (stacking.to_stack, stacking.to_layers):
        for other in (keras.Sequential([zoo.HighwayDense()]), zoo.HighwayDense()):
            with pytest.raises(ValueError, match=r"Functional model or a built Sequential"):
                convert(other)
    assert depths(model) == [2]


@without_backend
def test_a_graph_too_deep_for_python_is_an_error_that_says_what_to_do():
    model = mlp([random_stack(depth=110)])
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(len(inspect.stack()) + 100)
        with pytest.raises(ValueError, match=r"stacks of \[110\] layers.*setrecursionlimit"):
            stacking.to_layers(model)
    finally:
        sys.setrecursionlimit(limit)
