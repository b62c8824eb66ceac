"""Every probe against its definition in NumPy, in double precision."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference
from helpers.reference_highway import (
    BLOCKS,
    CLASSES,
    X,
    Y,
    check,
    cosines,
    highway_model,
    norms,
    reference_run,
    values,
)
from zoo import callbacks

MARGIN = 0.5


@pytest.fixture
def model():
    return highway_model()


@pytest.fixture(scope="module")
def table():
    """All probes in one pass over batches of 3, 3 and 1 examples."""
    probes = [
        callbacks.L2Ratio(),
        callbacks.CosineLoss(),
        callbacks.CosineLoss("block", name="cosine_loss_block"),
        callbacks.TaylorTerm(),
        callbacks.GradientNorm(),
        callbacks.ActivationNorm(),
        callbacks.EstimationError(),
        callbacks.ResidualMean(),
        callbacks.EstimationError(rectified=True, name="estimation_error_rectified"),
        callbacks.IntermediateAccuracy(),
        callbacks.BorderlineExamples(2, MARGIN),
        callbacks.GateActivity(),
        callbacks.ClassGates(2, CLASSES),
        callbacks.GateBias(),
        callbacks.BlockOutputs(),
    ]
    return callbacks.run(probes, highway_model(), (X, Y), batch_size=3)


@pytest.fixture(scope="module")
def run():
    """The network in NumPy, its states, and the residual of each block."""
    return reference_run(highway_model())


def test_the_l2_ratio_is_the_norm_of_a_block_s_residual_over_its_input_s(table, run):
    _, states, residuals = run
    ratios = [norms(f) / norms(x) for f, x in zip(residuals, states[:-1], strict=True)]
    check(table.values("l2_ratio"), [r.mean() for r in ratios])
    check(table.values("l2_ratio_std"), [r.std() for r in ratios], rtol=1e-3)


def test_the_cosine_loss_is_the_angle_to_the_gradient_of_each_example_s_loss(table, run):
    net, states, residuals = run
    expected = [cosines(f, net.gradient(states[i], i)).mean() for i, f in enumerate(residuals)]
    check(table.values("cosine_loss"), expected)


def test_the_cosine_loss_of_the_early_readout_ignores_later_blocks(table, run):
    net, states, residuals = run
    expected = [cosines(f, net.gradient(states[i], BLOCKS)).mean() for i, f in enumerate(residuals)]
    check(table.values("cosine_loss_block"), expected)


def test_taylor_terms_are_the_losses_first_order_changes(table, run):
    net, states, residuals = run
    expected = [
        (f * net.gradient(states[i], BLOCKS)).sum(1).mean() for i, f in enumerate(residuals)
    ]
    check(table.values("taylor_term"), expected)


def test_for_small_blocks_the_taylor_terms_sum_to_the_change_of_the_loss(model):
    for i in range(BLOCKS):  # gates nearly closed: f is small
        bias = model.get_layer(f"block{i}").transform_gate.bias
        bias.assign(ops.full(bias.shape, -9.0))
    net, states, _ = reference_run(model)
    change = (net.losses(states[-1], BLOCKS) - net.losses(states[0], BLOCKS)).mean()
    total = sum(values(callbacks.TaylorTerm(), model).values())
    np.testing.assert_allclose(total, change, rtol=1e-2)


def test_gradient_norms_and_their_ratio_over_stages(model, table, run):
    net, states, _ = run
    expected = [norms(net.gradient(states[i], i)).mean() for i in range(BLOCKS)]
    check(table.values("gradient_norm"), expected)
    for i, layer in enumerate(model.layers[2:5]):
        layer.stage = i  # then blocks are stages
    name = "gradient_norm_first_to_last_stage"
    ratio = values(callbacks.GradientNorm(), model, name)[None]
    np.testing.assert_allclose(ratio, expected[0] / expected[-1], rtol=1e-4)


def test_the_activation_norm_is_that_of_a_block_s_output(table, run):
    _, states, _ = run
    check(table.values("activation_norm"), [norms(y).mean() for y in states[1:]])


def test_the_estimation_error_compares_with_the_stage_s_last_block(table, run):
    _, states, _ = run
    errors = [y - states[-1] for y in states[1:]]
    check(table.values("estimation_error"), [e.mean() for e in errors])
    spread = [e.std(0).mean() for e in errors]
    check(table.values("estimation_error_std"), spread, atol=1e-4)
    errors = [np.maximum(y, 0) - np.maximum(states[-1], 0) for y in states[1:]]
    check(table.values("estimation_error_rectified"), [e.mean() for e in errors])


def test_the_residual_mean_is_the_mean_of_f_over_examples(table, run):
    _, _, residuals = run
    means = [f.mean(0) for f in residuals]
    np.testing.assert_allclose(table.array("residual_mean_units"), means, rtol=1e-4, atol=1e-6)
    check(table.values("residual_mean"), [m.mean() for m in means])
    sizes = [
        np.sqrt((m**2).sum() / (f**2).sum(1).mean()) for m, f in zip(means, residuals, strict=True)
    ]
    check(table.values("residual_mean_relative"), sizes)


def test_a_normalization_at_the_end_of_f_makes_the_residual_mean_its_beta():
    images = keras.Input((4, 4, 3))
    x = layers.Conv2D(4, 1)(images)
    for i in range(2):
        x = zoo.ResidualBlock(4, preactivation=False, name=f"block{i}")(x)
    top = layers.Dense(2, "softmax")(layers.GlobalAveragePooling2D()(x))
    model = reference.random_weights(keras.Model(images, top))
    x = reference.images(8, 4, 4, 3)
    betas = [
        ops.convert_to_numpy(v) for v in model.trainable_variables if v.path.endswith("norm2/beta")
    ]
    with callbacks.batch_statistics(model, x):
        table = callbacks.run([callbacks.ResidualMean()], model, x, batch_size=3)
    np.testing.assert_allclose(table.array("residual_mean_units"), betas, atol=1e-5)
    other = callbacks.run([callbacks.ResidualMean()], model, x)  # other averages
    assert np.abs(other.array("residual_mean_units") - betas).max() > 0.1


def test_intermediate_accuracy_is_that_of_the_early_readout(table, run):
    net, states, _ = run
    p = [net.probabilities(y, BLOCKS) for y in states[1:]]
    check(table.values("intermediate_accuracy"), [(q.argmax(1) == Y).mean() for q in p])
    losses = [net.losses(y, BLOCKS).mean() for y in states[1:]]
    check(table.values("intermediate_accuracy_loss"), losses)


def test_borderline_examples_are_a_small_change_from_another_class(table, run):
    net, states, _ = run
    p = [net.probabilities(y, BLOCKS) for y in states[2:]]
    others = np.where(np.eye(CLASSES)[Y] > 0, -1, p[0]).max(1)
    borderline = np.abs(p[0][np.arange(7), Y] - others) < MARGIN
    correct = (p[0].argmax(1) == Y) & ~borderline
    assert borderline.any() and correct.any()
    name = "borderline_examples"
    for group, mask in (("borderline", borderline), ("correct", correct), ("all", borderline >= 0)):
        entropy = [-(q * np.log(q)).sum(1)[mask].mean() for q in p]
        accuracy = [(q.argmax(1) == Y)[mask].mean() for q in p]
        losses = [net.losses(y, BLOCKS)[mask].mean() for y in states[2:]]
        check(table.values(f"{name}_{group}_share"), [mask.mean()] * 2)
        check(table.values(f"{name}_{group}_entropy"), entropy)
        check(table.values(f"{name}_{group}_accuracy"), accuracy)
        check(table.values(f"{name}_{group}_loss"), losses)


def test_gates_of_units_and_classes_biases_and_outputs(table, run):
    net, states, _ = run
    gates = [net.gates(i, states[i])[1] for i in range(BLOCKS)]
    check(table.values("gate_activity_t"), [t.mean() for t in gates])
    check(table.values("gate_activity_t_std"), [t.std() for t in gates], rtol=1e-3)
    by_class = np.array([t[Y == 2].mean(0) - t.mean(0) for t in gates])
    check(table.values("class_gates_2_distance"), np.abs(by_class).mean(1))
    for name, expected in (
        ("gate_activity_t_units", [t.mean(0) for t in gates]),
        ("class_gates_2_units", by_class),
        ("gate_bias_units", [weights[3] for weights in net.blocks]),
        ("block_outputs_units", [y.mean(0) for y in states[1:]]),
    ):
        np.testing.assert_allclose(table.array(name), expected, rtol=1e-4, atol=1e-6)


def test_sums_over_examples_of_two_lengths_are_refused():
    inputs = keras.Input((None, 3))
    x = keras.layers.Add(name="sum")([inputs, keras.layers.Dense(3)(inputs)])
    x = keras.layers.Add(name="last")([x, keras.layers.Dense(3)(x)])
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    batches = [np.ones((2, length, 3), "float32") for length in (1, 5)]
    with pytest.raises(ValueError, match="`examples` must be of one shape"):
        callbacks.run([callbacks.EstimationError()], model, batches)


@pytest.mark.parametrize("kind", [list, dict])
def test_batch_statistics_of_a_network_with_two_inputs(kind):
    inputs = {name: keras.Input((3,), name=name) for name in "ab"}
    y = keras.layers.BatchNormalization()(keras.layers.Add()([*inputs.values()]))
    model = keras.Model([*inputs.values()], y)
    x = {
        name: np.random.default_rng(i).normal(size=(9, 3)).astype("float32")
        for i, name in enumerate("ab")
    }
    given = x if kind is dict else [*x.values()]
    with callbacks.batch_statistics(model, given):
        normalized = model.predict(given, verbose=0)
    total = x["a"] + x["b"]
    np.testing.assert_allclose(normalized, (total - total.mean(0)) / total.std(0), atol=2e-3)
