"""Every probe against a NumPy spelling of its definition, in double precision."""

import numpy as np
import pytest
from keras import ops

from helpers.reference_highway import (
    BLOCKS,
    CLASSES,
    Spelled,
    X,
    Y,
    check,
    cosines,
    highway_model,
    rows,
    spell,
    values,
)
from zoo import callbacks


@pytest.fixture
def model():
    return highway_model()


def test_the_l2_ratio_is_what_a_block_adds_over_what_it_carries(model):
    _, states, added = spell(model)
    ratios = [rows(f) / rows(x) for f, x in zip(added, states[:-1], strict=True)]
    check(values(callbacks.L2Ratio(), model), [r.mean() for r in ratios])
    check(values(callbacks.L2Ratio(), model, "l2_ratio_std"), [r.std() for r in ratios], rtol=1e-3)


def test_the_cosine_loss_is_the_angle_to_the_gradient_of_each_example_s_loss(model):
    net, states, added = spell(model)
    expected = [cosines(f, net.gradient(states[i], i)).mean() for i, f in enumerate(added)]
    check(values(callbacks.CosineLoss(), model), expected)


def test_the_cosine_loss_of_the_classifier_plugged_in_ignores_later_blocks(model):
    net, states, added = spell(model)
    expected = [cosines(f, net.gradient(states[i], BLOCKS)).mean() for i, f in enumerate(added)]
    check(values(callbacks.CosineLoss(classifier="block"), model), expected)


def test_taylor_terms_are_the_losses_first_order_changes(model):
    net, states, added = spell(model)
    expected = [(f * net.gradient(states[i], BLOCKS)).sum(1).mean() for i, f in enumerate(added)]
    check(values(callbacks.TaylorTerm(), model), expected)


def test_for_small_blocks_the_taylor_terms_sum_to_the_change_of_the_loss(model):
    for i in range(BLOCKS):  # gates nearly closed: f is small
        bias = model.get_layer(f"block{i}").transform_gate.bias
        bias.assign(ops.full(bias.shape, -9.0))
    net, states, _ = spell(model)
    change = (net.losses(states[-1], BLOCKS) - net.losses(states[0], BLOCKS)).mean()
    total = sum(values(callbacks.TaylorTerm(), model).values())
    np.testing.assert_allclose(total, change, rtol=1e-2)


def test_gradient_norms_and_their_ratio(model):
    net, states, _ = spell(model)
    norms = [rows(net.gradient(states[i], i)).mean() for i in range(BLOCKS)]
    check(values(callbacks.GradientNorm(), model), norms)
    for i, layer in enumerate(model.layers[2:5]):
        layer.stage = i  # then blocks are stages
    name = "gradient_norm_first_to_last_stage"
    np.testing.assert_allclose(
        values(callbacks.GradientNorm(), model, name)[None], norms[0] / norms[-1], rtol=1e-4
    )


def test_the_activation_norm_is_of_what_a_block_returns(model):
    _, states, _ = spell(model)
    check(values(callbacks.ActivationNorm(), model), [rows(y).mean() for y in states[1:]])


def test_the_estimation_error_compares_with_the_stage_s_last_block(model):
    _, states, _ = spell(model)
    errors = [y - states[-1] for y in states[1:]]
    check(values(callbacks.EstimationError(), model), [e.mean() for e in errors])
    spread = [e.std(0).mean() for e in errors]
    check(values(callbacks.EstimationError(), model, "estimation_error_std"), spread, atol=1e-4)
    errors = [np.maximum(y, 0) - np.maximum(states[-1], 0) for y in states[1:]]
    check(values(callbacks.EstimationError(rectified=True), model), [e.mean() for e in errors])


def test_intermediate_accuracy_reads_every_block_with_the_last_one_s_classifier(model):
    net, states, _ = spell(model)
    p = [net.probabilities(y, BLOCKS) for y in states[1:]]
    check(values(callbacks.IntermediateAccuracy(), model), [(q.argmax(1) == Y).mean() for q in p])
    losses = [net.losses(y, BLOCKS).mean() for y in states[1:]]
    check(values(callbacks.IntermediateAccuracy(), model, "intermediate_accuracy_loss"), losses)


@pytest.mark.parametrize("at", ["first", "last"])
def test_borderline_examples_are_a_small_change_from_another_class(model, at):
    net, states, _ = spell(model)
    p = [net.probabilities(y, BLOCKS) for y in states[2:]]
    base = p[0 if at == "first" else -1]
    others = np.where(np.eye(CLASSES)[Y] > 0, -1, base).max(1)
    borderline = np.abs(base[np.arange(7), Y] - others) < 0.5
    right = (base.argmax(1) == Y) & ~borderline
    assert borderline.any() and right.any()
    probe = callbacks.BorderlineExamples(blocks=2, margin=0.5, at=at)
    table = callbacks.run([probe], model, (X, Y), batch_size=2)
    for group, mask in (("borderline", borderline), ("correct", right), ("all", borderline >= 0)):
        entropy = [-(q * np.log(q)).sum(1)[mask].mean() for q in p]
        accuracy = [(q.argmax(1) == Y)[mask].mean() for q in p]
        losses = [net.losses(y, BLOCKS)[mask].mean() for y in states[2:]]
        name = f"{probe.name}_{group}"
        check(table.values(f"{name}_share"), [mask.mean()] * 2)
        check(table.values(f"{name}_entropy"), entropy)
        check(table.values(f"{name}_accuracy"), accuracy)
        check(table.values(f"{name}_loss"), losses)


def test_gates_units_and_classes(model):
    net, states, _ = spell(model)
    gates = [net.gates(i, states[i])[1] for i in range(BLOCKS)]
    probes = [callbacks.GateActivity(), callbacks.ClassGates(2, CLASSES), callbacks.GateBias()]
    table = callbacks.run([*probes, callbacks.BlockOutputs()], model, (X, Y), batch_size=3)
    check(table.values("gate_activity_t"), [t.mean() for t in gates])
    check(table.values("gate_activity_t_std"), [t.std() for t in gates], rtol=1e-3)
    close = {"rtol": 1e-4, "atol": 1e-6}
    means = np.array([t.mean(0) for t in gates])
    np.testing.assert_allclose(table.array("gate_activity_t_units"), means, **close)
    by_class = np.array([t[Y == 2].mean(0) - t.mean(0) for t in gates])
    np.testing.assert_allclose(table.array("class_gates_2_units"), by_class, **close)
    check(table.values("class_gates_2_distance"), np.abs(by_class).mean(1))
    biases = np.array([weights[3] for weights in net.blocks])
    np.testing.assert_allclose(table.array("gate_bias_units"), biases, **close)
    outputs = np.array([y.mean(0) for y in states[1:]])
    np.testing.assert_allclose(table.array("block_outputs_units"), outputs, **close)


def test_weight_statistics_are_of_a_block_s_kernels(model):
    net = Spelled(model)
    kernels = [np.concatenate([w[0].ravel(), w[2].ravel()]) for w in net.blocks]
    table = callbacks.run([callbacks.WeightStatistics()], model, (X, Y))
    check(table.values("weight_statistics_l1"), [np.abs(w).sum() for w in kernels])
    check(table.values("weight_statistics_std"), [w.std() for w in kernels])
