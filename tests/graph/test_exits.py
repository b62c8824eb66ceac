"""Stochastic depth and exits: against networks put together by hand."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers import families, reference
from helpers.harness import slow_elsewhere
from zoo import callbacks, graph

WIDTH = 4
X = np.random.default_rng(0).standard_normal((40, WIDTH)).astype("float32")


def network():
    """Return a network of three sums, and a softmax."""
    x = inputs = keras.Input((WIDTH,))
    for name in "abc":
        f = keras.layers.Dense(WIDTH, name=f"f_{name}", bias_initializer="ones")(x)
        x = keras.layers.Add(name=name)([x, f])
    return keras.Model(inputs, keras.layers.Dense(3, activation="softmax", name="head")(x))


@pytest.fixture(scope="module")
def model():
    return network()


def by_hand(model, x, scales):
    """Return the state after blocks whose branches are scaled."""
    for name, scale in zip("abc", scales, strict=False):
        kernel, bias = model.get_layer(f"f_{name}").get_weights()
        x = x + scale * (x @ kernel + bias)
    return x


def head(model, x):
    kernel, bias = model.get_layer("head").get_weights()
    e = np.exp(x @ kernel + bias)
    return e / e.sum(-1, keepdims=True)


def test_rates_fall_linearly_and_scale_the_branches_in_inference(model):
    dropped = graph.drop_blocks(model, 0.6)
    rates = [dropped.get_layer(f"{name}_drop").rate for name in "abc"]
    assert rates == pytest.approx([0.2, 0.4, 0.6])
    expected = head(model, by_hand(model, X, [0.8, 0.6, 0.4]))
    np.testing.assert_allclose(ops.convert_to_numpy(dropped(X)), expected, rtol=1e-3, atol=1e-6)
    assert {id(w) for w in dropped.trainable_weights} == {id(w) for w in model.weights}


def test_blocks_are_dropped_independently_of_each_other(model):
    dropped = graph.drop_blocks(model, {"a": 0.5, "b": 0.5}, seed=1)
    outputs = ops.convert_to_numpy(dropped(X, training=True))
    cases = [(a, b) for a in (0, 1) for b in (0, 1)]
    distances = [np.abs(outputs - head(model, by_hand(model, X, [*c, 1]))).max(-1) for c in cases]
    assert np.min(distances, axis=0).max() < 1e-4
    assert {*np.argmin(distances, axis=0)} == {0, 1, 2, 3}  # each combination, of 40 examples


def test_a_network_with_stochastic_depth_is_trained_saved_and_pruned(model, tmp_path):
    dropped = graph.drop_blocks(network(), 0.5, seed=0)
    dropped.compile("sgd", "sparse_categorical_crossentropy")
    dropped.fit(X, np.arange(40) % 3, verbose=0)
    dropped.save(tmp_path / "dropped.keras")
    loaded = keras.saving.load_model(tmp_path / "dropped.keras")
    np.testing.assert_allclose(
        ops.convert_to_numpy(loaded(X)), ops.convert_to_numpy(dropped(X)), rtol=1e-5
    )


def mixed_network(*variants):
    """Return highway layers b0, b1 ... of these variants, and a softmax."""
    x = inputs = keras.Input((WIDTH,))
    for number, variant in enumerate(variants):
        x = zoo.HighwayDense(variant=variant, name=f"b{number}")(x)
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(x))
    return reference.random_weights(model)


def test_blocks_are_dropped_at_two_times(model):
    once = graph.drop_blocks(model, {"a": 1.0})
    twice = graph.drop_blocks(once, {"a": 1.0, "b": 1.0})  # "a" ends in a `DropBlock` already
    outputs = ops.convert_to_numpy(twice(X, training=True))
    expected = head(model, by_hand(model, X, [0, 0, 1]))
    np.testing.assert_allclose(outputs, expected, rtol=1e-3, atol=1e-6)


def test_a_block_without_a_skip_is_not_dropped():
    mixed = mixed_network("coupled", "plain")
    names = [layer.name for layer in graph.drop_blocks(mixed, 0.5).layers]
    assert "b0_drop" in names and "b1_drop" not in names
    with pytest.raises(ValueError, match=r"blocks with a skip, \['b0'\]. Received: rates=\['b1'\]"):
        graph.drop_blocks(mixed, {"b1": 0.5})


@slow_elsewhere
@pytest.mark.parametrize("build", [network, lambda: mixed_network("coupled", "full", "residual")])
def test_dropped_networks_are_lesioned_probed_planned_and_diagnosed(build):
    whole = build()
    names = [block.name for block in graph.find_blocks(whole)[0]]
    dropped = graph.drop_blocks(whole, dict.fromkeys(names[1:], 0.5), seed=0)
    pruned = graph.drop_blocks(graph.prune_blocks(whole, names[0]), dict.fromkeys(names[1:], 0.5))
    lesioned = graph.lesion(dropped, names[0])
    np.testing.assert_allclose(*(ops.convert_to_numpy(m(X)) for m in (lesioned, pruned)), rtol=1e-4)
    without = graph.prune_blocks(dropped, names)  # the layers that drop go with their blocks
    assert [layer.name for layer in without.layers if "drop" in layer.name] == []
    last = graph.drop_blocks(whole, {names[-1]: 0.5})
    tables = [callbacks.run([callbacks.L2Ratio()], m, X) for m in (whole, last)]
    ratios = [[*table.values("l2_ratio").values()] for table in tables]
    np.testing.assert_allclose(ratios[1], [*ratios[0][:-1], ratios[0][-1] / 2], rtol=1e-4)
    assert zoo.callbacks.depth_plan(dropped, X, 0.6)
    report = zoo.callbacks.diagnose(dropped, X, np.arange(40) % 3)
    assert "lesion_kl" in report.table.probes() and [v.block for v in report.verdicts] == names


@pytest.mark.parametrize("is_layer", [True, False])
def test_a_sum_that_is_dropped_passes_on_a_mask_where_it_did(is_layer):
    tokens = keras.Input((5,))
    x = keras.layers.Embedding(6, 4, mask_zero=True)(tokens)
    f = keras.layers.Dense(4, name="f")(x)
    y = keras.layers.Add(name="f_sum")([x, f]) if is_layer else x + f
    model = keras.Model(tokens, keras.layers.GlobalAveragePooling1D()(y))
    dropped = graph.drop_blocks(model, {"f_sum": 1e-9})
    data = np.array([[1, 2, 0, 0, 0]])
    whole, other = (ops.convert_to_numpy(m(data)) for m in (model, dropped))
    np.testing.assert_allclose(other, whole, rtol=1e-5, atol=1e-7)


def test_exits_are_early_readouts_that_run_only_the_blocks_before_them(model):
    exits = graph.add_exits(model, ["a", "b"])
    outputs = {name: ops.convert_to_numpy(y) for name, y in exits(X).items()}
    for number, name in enumerate(("a", "b", "last"), start=1):
        states = by_hand(model, X, [1] * (number if name != "last" else 3))
        np.testing.assert_allclose(outputs[name], head(model, states), rtol=1e-3, atol=1e-6)
    part = keras.Model(exits.input, exits.output["a"])
    assert [call.name for call in graph.calls.Graph(part).calls] == ["f_a", "a", "head"]


def test_new_heads_are_trained(model):
    exits = graph.add_exits(
        network(), ["b"], head=lambda name: keras.layers.Dense(3, "softmax", name=f"{name}_head")
    )
    exits.compile("sgd", {name: "sparse_categorical_crossentropy" for name in ("b", "last")})
    before = exits.get_layer("b_head").get_weights()[0]
    labels = np.arange(40) % 3
    exits.fit(X, {"b": labels, "last": labels}, verbose=0)
    assert np.abs(exits.get_layer("b_head").get_weights()[0] - before).max() > 0


@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")  # T5's attention
@pytest.mark.parametrize("name", ["t5", "albert", "gpt2"])
@slow_elsewhere
def test_blocks_of_keras_hub_are_looped_dropped_and_left(name):
    grain = "sum" if name == "gpt2" else "layer"
    whole = reference.random_weights(families.build(name), scale=0.3)
    if grain == "sum":
        whole = graph.inline(whole, families.shapes(whole))
    data = families.data(whole)
    last = graph.find_blocks(whole, grain=grain)[0][-1].name
    expected = flat(whole(data))
    for same in (
        graph.loop(whole, last, times=1, grain=grain),
        graph.drop_blocks(whole, {last: 1e-9}, grain=grain),
    ):
        for a, b in zip(flat(same(data)), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    table = callbacks.loops(whole, data, [1, 2], last, grain=grain)
    assert all(np.isfinite(row.value) for row in table) and {row.unit for row in table} >= {1, 2}
    if len(expected) > 1:
        with pytest.raises(ValueError, match="`outputs` must be a single one"):
            graph.add_exits(whole, [last], grain=grain)
        return
    exits = graph.add_exits(whole, [last], grain=grain)(data)
    np.testing.assert_array_equal(*(ops.convert_to_numpy(y) for y in exits.values()))


def flat(outputs):
    return [ops.convert_to_numpy(tensor) for tensor in keras.tree.flatten(outputs)]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda m: graph.add_exits(m, ["d"]), "`blocks` must be some of"),
        (lambda m: graph.add_exits(zoo.cifar_resnet(8), ["stage1_block00"]), "or give a `head`"),
        (lambda m: graph.drop_blocks(m, {"head": 0.5}), r"'c'\]. Received: rates=\['head'\]"),
        (lambda m: graph.drop_blocks(m, {"a": 2}), "`rates` must be a number from 0 to 1"),
        (lambda m: graph.drop_blocks(m, [0.5]), r"Received: rates=\[0.5\]"),
    ],
)
def test_bad_input_of_exits_and_drops(model, make, message):
    with pytest.raises(ValueError, match=message):
        make(model)
