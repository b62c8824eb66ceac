"""Sweeps of lesions, shuffles and exits against single modified networks."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference
from helpers.harness import slow_elsewhere
from zoo import callbacks, graph
from zoo.callbacks.probes.sweep import Trials
from zoo.graph.chain import Step
from zoo.graph.surgery import lesion_plan

X = reference.images(10, 4)
Y = np.arange(10) % 3


@pytest.fixture
def model():
    """Return a stem, four highway layers in two stages with a dense layer between, a softmax."""
    inputs = keras.Input((4,))
    x = layers.Dense(4, name="stem")(inputs)
    for i in range(4):
        x = zoo.HighwayDense(variant="full", name=f"block{i}", stage=i // 2)(x)
        x = layers.Dense(4, name="between")(x) if i == 1 else x
    outputs = layers.Dense(3, activation="softmax", name="top")(x)
    return reference.random_weights(keras.Model(inputs, outputs))


def scores(model):
    """Return accuracy and mean loss of the model's own output."""
    p = ops.convert_to_numpy(model(X))
    return np.mean(p.argmax(1) == Y), -np.log(p[np.arange(10), Y]).mean()


def pairs(table, name):
    """Return accuracy and loss of each row, the unmodified network's first."""
    columns = [[r.value for r in table.of_probe(f"{name}_{m}")] for m in ("accuracy", "loss")]
    return np.array(columns).T


@pytest.mark.parametrize("mode", ["removed", "closed"])
def test_a_sweep_of_lesions_equals_the_lesioned_networks(model, mode):
    table = callbacks.lesions(model, (X, Y), mode=mode, batch_size=4)
    names = [f"block{i}" for i in range(4)]
    expected = [scores(model)] + [scores(graph.lesion(model, name, mode=mode)) for name in names]
    np.testing.assert_allclose(pairs(table, "lesion"), expected, rtol=1e-4)
    assert [row.block for row in table.of_probe("lesion_loss")] == [None, *names]
    assert [row.stage for row in table.of_probe("lesion_loss")] == [None, 0, 0, 1, 1]


def test_a_sweep_of_exits_equals_networks_without_the_later_blocks(model):
    names = [f"block{i}" for i in range(4)]
    exits = [scores(graph.lesion(model, *names[i + 1 :])) for i in range(4)]
    table = callbacks.early_exits(model, (X, Y), batch_size=4)
    np.testing.assert_allclose(pairs(table, "exit")[1:], exits, rtol=1e-4)


@slow_elsewhere
@pytest.mark.parametrize("skip", [lambda x: 0.5 * x, layers.Identity()], ids=["scaled", "layer"])
def test_exits_leave_out_blocks_whose_skip_is_more_than_their_input(skip):
    inputs = x = keras.Input((4,))
    for i in range(3):
        x = layers.Add(name=f"sum{i}")([skip(x), layers.Dense(4, "tanh", name=f"f{i}")(x)])
    model = reference.random_weights(keras.Model(inputs, layers.Dense(3, "softmax")(x)))
    names = ["sum0", "sum1", "sum2"]
    exits = [scores(graph.lesion(model, *names[i + 1 :])) for i in range(3)]
    table = callbacks.early_exits(model, (X, Y))
    np.testing.assert_allclose(pairs(table, "exit")[1:], exits, rtol=1e-4)
    assert callbacks.depth_plan(model, X, keep=0.5)


def test_a_stage_of_two_blocks_has_one_other_order(model):
    table = callbacks.shuffles(model, (X, Y), swaps=(1, 2), repeats=1)
    order = {"block0": "block1", "block1": "block0", "block2": "block3", "block3": "block2"}
    other = scores(graph.shuffle(model, order))
    expected = [scores(model), other, scores(model)]  # swapped back
    np.testing.assert_allclose(pairs(table, "shuffle"), expected, rtol=1e-4)
    assert [row.value for row in table.of_probe("shuffle_tau")] == [-1.0, 1.0]


def test_a_sweep_runs_the_blocks_before_a_lesion_once(model, monkeypatch):
    trials = Trials(model)
    keys = []

    def call(key, function, *arguments):
        keys.append(key)
        return function(*arguments)

    monkeypatch.setattr(trials, "_call", call)
    trials.run([lesion_plan(trials.chain, [f"block{i}"]) for i in range(4)], (X, Y))
    steps = [key for key in keys if isinstance(key, Step)]
    after_lesions = sum(3 - i for i in range(4))
    assert len(steps) == 4 + after_lesions  # the unmodified network's four, once


def test_probes_measure_each_repetition_with_its_scale(model):
    probes = [callbacks.L2Ratio(), callbacks.CosineLoss("block"), callbacks.ActivationNorm()]
    table = callbacks.run(probes, graph.loop(model, "block3", times=3, scale=0.5), (X, Y))
    assert [row.stage for row in table.of_probe("l2_ratio")] == [0, 0, 1, 1, 1, 1]
    x, block = ops.convert_to_numpy(model.get_layer("stem")(X)), model.get_layer
    for name in ("block0", "block1", "between", "block2", "block3"):
        x = ops.convert_to_numpy(block(name)(x))
    for i in (4, 5):
        f = 0.5 * (ops.convert_to_numpy(block("block3")(x)) - x)
        ratio = np.linalg.norm(f, axis=1) / np.linalg.norm(x, axis=1)
        assert [*table.values("l2_ratio").values()][i] == pytest.approx(ratio.mean(), rel=1e-4)
        x = x + f
        norm = np.linalg.norm(x, axis=1).mean()
        assert [*table.values("activation_norm").values()][i] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_loops_equal_the_networks_whose_last_block_is_repeated(model, scale):
    times = range(1, 4)
    table = callbacks.loops(model, (X, Y), times, "block3", scale=scale, batch_size=4)
    expected = [scores(graph.loop(model, "block3", times=n, scale=scale)) for n in times]
    np.testing.assert_allclose(pairs(table, "loop"), expected, rtol=1e-4)


@slow_elsewhere
def test_spans_of_unmodified_blocks_equal_single_blocks(model, monkeypatch):
    single = callbacks.lesions(model, (X, Y))
    monkeypatch.setattr("zoo.callbacks.probes.sweep.SPAN", 2)
    in_spans = callbacks.lesions(model, (X, Y))
    for a, b in zip(single, in_spans, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-5)


@pytest.mark.parametrize(
    "sweep, message",
    [
        (lambda m: callbacks.lesions(m, (X[:0], Y[:0])), "at least one example"),
        (lambda m: callbacks.lesions(m, (X, Y), blocks=["top"]), "no block has that name"),
        (lambda m: callbacks.shuffles(m, X, swaps="a"), "`swaps` must be a non-negative integer"),
        (lambda m: callbacks.shuffles(m, X, swaps=[-1]), "or a sequence of one or more"),
        (lambda m: callbacks.shuffles(m, X, repeats=0), "`repeats` must be a positive integer"),
        (lambda m: callbacks.shuffles(m, X, seed="a"), "`seed` must be a non-negative integer"),
        (lambda m: callbacks.lesions(m, X, progress=3), "`progress` must be a function"),
        (lambda m: callbacks.diagnose(m, X, seed="a"), "`seed` must be a non-negative integer"),
        (lambda m: callbacks.depth_plan(m, X, keep="a"), "`keep` must be a number from 0 to 1"),
        (lambda m: callbacks.depth_plan(m, X, keep=np.nan), "`keep` must be a number from 0 to 1"),
    ],
)
def test_bad_input_of_sweeps(model, sweep, message):
    with pytest.raises(ValueError, match=message):
        sweep(model)
