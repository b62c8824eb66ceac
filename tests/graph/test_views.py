"""Counting and opening layers change neither Keras nor the user's layers, not even meanwhile."""

import concurrent.futures
import functools
import threading

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference
from helpers.families import Adding
from helpers.harness import few_elsewhere, slow_elsewhere
from zoo.graph.blocks import find_blocks

X = reference.images(4, 5)
CLASSES = [keras.Layer, keras.Operation, layers.Dense, Adding]
NODES = {"_inbound_nodes", "_outbound_nodes"}  # a layer that stays whole is called once more


def contents(value):
    """Return a value's identity, and those of what its containers hold."""
    if isinstance(value, dict):
        return {key: contents(v) for key, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [contents(v) for v in value]
    return value if isinstance(value, (str, int, float, bool)) else id(value)


def snapshot(model, nodes=True):
    """Return all attributes of Keras's classes and of the layers of a model, at any depth."""
    known = [contents(vars(kind).copy()) for kind in CLASSES]
    for layer in model._flatten_layers(include_self=False):
        found = contents(vars(layer).copy())
        if not nodes and layer in model.layers:
            found = {key: v for key, v in found.items() if key not in NODES}
        known.append((type(layer), found))
    return known


class Watching(Adding):
    """A layer that calls a function from within its own call."""

    watch = None

    def build(self, shape):
        super().build(shape)
        self.mlp = keras.Sequential([layers.Dense(3), layers.Dense(shape[-1])], name="mlp")
        self.mlp.build(shape)

    def call(self, x):
        if Watching.watch is not None:
            Watching.watch()
        y = x + self.second(self.first(x))
        return y + self.mlp(y)


def network():
    inputs = keras.Input((5,))
    x = Watching(name="inner")(Adding(name="adding")(inputs))
    return reference.random_weights(keras.Model(inputs, layers.Dense(2, name="top")(x)))


@pytest.mark.parametrize("function", [zoo.graph.cost, zoo.graph.inline])
def test_no_attribute_changes_not_even_from_within_a_layer_s_call(function, monkeypatch):
    model = network()
    model(X)
    take = functools.partial(snapshot, model, nodes=function is zoo.graph.cost)
    before = take()
    seen = []
    monkeypatch.setattr(Watching, "watch", staticmethod(lambda: seen.append(take() == before)))
    result = function(model)
    assert seen and all(seen) and take() == before
    if function is zoo.graph.inline:
        assert [b.name for b in find_blocks(result)[0]][0] == "adding_first_sum"
        assert {id(v) for v in result.weights} == {id(v) for v in model.weights}


@slow_elsewhere
@pytest.mark.parametrize("shared", few_elsewhere([True, False], [True]))
@pytest.mark.parametrize("function", [zoo.graph.cost, zoo.graph.inline])
def test_four_threads_at_once_while_a_fifth_calls_a_layer(function, shared):
    models = [network()] * 4 if shared else [network() for _ in range(4)]
    expected = function(models[0])
    layer = models[0].get_layer("adding")
    eager = ops.convert_to_numpy(layer(X))
    calls = keras.Layer.__call__, keras.Operation.symbolic_call
    done = threading.Event()
    barrier = threading.Barrier(5)

    def repeat(model):
        barrier.wait()
        return [function(model) for _ in range(3)]

    def call():
        barrier.wait()
        while not done.is_set():
            assert type(layer) is Adding
            assert (keras.Layer.__call__, keras.Operation.symbolic_call) == calls
            assert np.array_equal(ops.convert_to_numpy(layer(X)), eager)

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        fifth = pool.submit(call)
        try:
            results = [*pool.map(repeat, models)]
        finally:
            done.set()
        fifth.result()
    for model, found in zip(models, results, strict=True):
        for result in found:
            if function is zoo.graph.cost:
                assert result == expected
                continue
            names = [block.name for block in find_blocks(result)[0]]
            assert names == [block.name for block in find_blocks(expected)[0]]
            assert np.array_equal(*map(ops.convert_to_numpy, (result(X), model(X))))
