"""Repeating runs of blocks: the graph, and measurements by number of loops."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from zoo import callbacks, graph

WIDTH = 3
RNG = np.random.default_rng(0)
KERNEL = 0.3 * RNG.standard_normal((WIDTH, WIDTH)).astype("float32")
X = RNG.standard_normal((6, WIDTH)).astype("float32")


def linear_network(kernel=KERNEL):
    """Return a network of one block, x + x K, and a classifier of two classes."""
    inputs = keras.Input((WIDTH,))
    branch = keras.layers.Dense(WIDTH, use_bias=False, name="branch")
    x = keras.layers.Add(name="block")([inputs, branch(inputs)])
    model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax", name="head")(x))
    branch.set_weights([kernel])
    return model


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def network():
    return linear_network()


@pytest.fixture(scope="module")
def states():
    """Return x_0, x_1 ... of the linear network, by hand."""
    found = [X]
    for _ in range(8):
        found.append(found[-1] @ (np.eye(WIDTH) + KERNEL))
    return found


@pytest.mark.parametrize("times", [0, 1, 4])
def test_a_looped_network_repeats_its_block_with_the_same_weights(network, states, times):
    looped = graph.loop(network, "block", times=times)
    kernel, bias = network.get_layer("head").get_weights()
    np.testing.assert_allclose(
        ops.convert_to_numpy(looped(X)), softmax(states[times] @ kernel + bias), atol=1e-5
    )
    assert {id(w) for w in looped.weights} <= {id(w) for w in network.weights}


def post_activation(depth=3, width=4):
    """Return a network of sums with a ReLU after each, the last one excepted."""
    inputs = keras.Input((2,))
    x = keras.layers.Dense(width)(inputs)
    for i in range(depth):
        f = keras.layers.Dense(width, name=f"f{i}")(x)
        x = keras.layers.Add(name=f"sum{i}")([x, f])
        if i < depth - 1:
            x = keras.layers.ReLU(name=f"relu{i}")(x)
    return keras.Model(inputs, keras.layers.Dense(2)(x))


def names(model):
    return [call.name.split("#")[0] for call in graph.calls.Graph(model).calls]


def test_what_follows_each_block_is_repeated_with_it():
    model = post_activation()
    inner = names(graph.loop(model, "sum0", "sum1", times=2))
    run = ["f0", "sum0", "relu0", "f1", "sum1", "relu1"]
    assert inner[1:-1] == [*run, *run, "f2", "sum2"]
    last = names(graph.loop(model, "sum2", times=2))
    assert last[-5:-1] == ["sum2", "relu1", "f2", "sum2"]


def test_an_input_that_what_lies_between_blocks_reads_reaches_every_use():
    x, other = keras.Input((4,)), keras.Input((4,))
    dense = [keras.layers.Dense(4), keras.layers.Dense(4)]
    y = keras.layers.Add(name="first")([x, dense[0](x)]) + other
    model = keras.Model([x, other], keras.layers.Add(name="second")([y, dense[1](y)]))
    looped = zoo.graph.loop(model, "second", times=2)
    a, b = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    once = ops.convert_to_numpy(model([a, b])) + b
    expected = once + ops.convert_to_numpy(dense[1](once))
    np.testing.assert_allclose(ops.convert_to_numpy(looped([a, b])), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["a0", "a1", "b0", "b1"])
def test_a_block_of_one_of_two_towers_is_repeated(name):
    inputs = {name: keras.Input((WIDTH,), name=name) for name in ("a", "b")}
    ends, counts = [], {"a": [1, 1], "b": [1, 1]}
    for tower, x in inputs.items():
        for i in range(2):
            branch = keras.layers.Dense(WIDTH, use_bias=False, name=f"f{tower}{i}")
            x = keras.layers.Add(name=f"{tower}{i}")([x, branch(x)])
            branch.set_weights([(i + 1) * KERNEL])
        ends.append(x)
    model = keras.Model(inputs, keras.layers.Concatenate()(ends))
    counts[name[0]][int(name[1])] = 3
    expected = []
    for first, second in counts.values():
        blocks = [np.eye(WIDTH) + KERNEL] * first + [np.eye(WIDTH) + 2 * KERNEL] * second
        expected.append(np.linalg.multi_dot([X, *blocks]))
    looped = graph.loop(model, name, times=3)({"a": X, "b": X})
    np.testing.assert_allclose(ops.convert_to_numpy(looped), np.hstack(expected), rtol=1e-4)


def test_side_inputs_reach_every_use():
    inputs = keras.Input((WIDTH,))
    scale = keras.Input((WIDTH,), name="scale")
    f = keras.layers.Multiply(name="f")([inputs, scale])
    f = keras.layers.Dense(WIDTH, use_bias=False, name="branch")(f)
    outputs = keras.layers.Add(name="block")([inputs, f])
    model = keras.Model([inputs, scale], outputs)
    looped = graph.loop(model, "block", times=3)
    kernel = model.get_layer("branch").get_weights()[0]
    expected = X
    for _ in range(3):
        expected = expected + (expected * 2) @ kernel
    y = looped([X, np.full_like(X, 2)])
    np.testing.assert_allclose(ops.convert_to_numpy(y), expected, rtol=1e-4)


@pytest.mark.parametrize(
    "repeat, message",
    [
        (lambda m: graph.loop(m, times=-1), "non-negative integer. Received: times=-1"),
        (lambda m: graph.loop(m, "a"), r"`block` must be one of 'block'. Received: block='a'"),
        (
            lambda m: graph.loop(post_activation(), "sum2", "sum0"),
            "`first` must be 'sum0' or a block before it",
        ),
        (lambda m: graph.loop(zoo.cifar_resnet(8)), "which keeps the shape"),
        (
            lambda m: graph.loop(keras.Model(m.input, [m.output, m.input])),
            "an output reads a tensor from before its end",
        ),
        (lambda m: callbacks.loops(m, X, times=[2, 1]), "`times` must be ascending"),
        (lambda m: callbacks.loops(m, X, times=[1.5]), "a sequence of one or more"),
        (lambda m: callbacks.loops(m, X, scale=np.nan), "`scale` must be a number"),
        (lambda m: graph.loop(m, scale=np.nan), "`scale` must be a number. Received: scale=nan"),
        (lambda m: graph.loop(m, scale="a"), "`scale` must be a number"),
    ],
)
def test_what_cannot_be_repeated_is_refused(network, repeat, message):
    with pytest.raises(ValueError, match=message):
        repeat(network)


def test_loops_measure_every_number_of_uses(network, states):
    labels = np.arange(len(X)) % 2
    table = callbacks.loops(network, (X, labels), times=range(1, 5), batch_size=4)
    kernel, bias = network.get_layer("head").get_weights()
    p = {t: softmax(states[t] @ kernel + bias) for t in range(1, 5)}
    for t in range(1, 5):
        row = {r.probe: r.value for r in table if r.unit == t}
        assert row["loop_accuracy"] == pytest.approx(np.mean(p[t].argmax(-1) == labels))
        loss = -np.log(p[t][np.arange(len(X)), labels]).mean()
        assert row["loop_loss"] == pytest.approx(loss, rel=1e-4)
        step = states[t] - states[t - 1]
        size = np.linalg.norm(step, axis=1) / np.linalg.norm(states[t - 1], axis=1)
        assert row["loop_step_norm"] == pytest.approx(size.mean(), rel=1e-4)
        if t < 4:
            kl = (p[t] * np.log(p[t] / p[t + 1])).sum(-1).mean()
            assert row["loop_kl"] == pytest.approx(kl, abs=1e-5)
    unlabelled = callbacks.loops(network, X, times=[1, 4])
    assert {row.probe for row in unlabelled} == {"loop_step_norm", "loop_kl"}
