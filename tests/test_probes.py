"""Every probe against a NumPy spelling of its definition, in double precision."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import spelled
import zoo
from spelled import sigmoid
from zoo import callbacks
from zoo.callbacks import Probe

CLASSES, UNITS, BLOCKS = 3, 4, 3
X = spelled.images(7, 5)
Y = np.array([0, 1, 2, 1, 0, 2, 2])


@pytest.fixture
def model():
    """A stem, three coupled highway layers, a softmax; fixed weights."""
    inputs = keras.Input((5,))
    x = layers.Dense(UNITS, activation="tanh", name="stem")(inputs)
    for i in range(BLOCKS):
        x = zoo.HighwayDense(activation="tanh", name=f"block{i}", stage=1)(x)
    outputs = layers.Dense(CLASSES, activation="softmax", name="top")(x)
    return spelled.random_weights(keras.Model(inputs, outputs))


class Spelled:
    """The same network in NumPy, float64, whose states can be replaced."""

    def __init__(self, model):
        weights = {v.path: spelled.as_float64(v)[0] for v in model.variables}
        self.stem = weights["stem/kernel"], weights["stem/bias"]
        self.top = weights["top/kernel"], weights["top/bias"]
        self.blocks = [
            [weights[f"block{i}/{part}"] for part in (
                "transform/kernel", "transform/bias", "transform_gate/kernel", "transform_gate/bias"
            )]
            for i in range(BLOCKS)
        ]  # fmt: skip

    def states(self, x):
        """What each block reads, and what the last one returns."""
        states = [np.tanh(x @ self.stem[0] + self.stem[1])]
        for i in range(BLOCKS):
            states.append(self.block(i, states[-1]))
        return states

    def gates(self, i, x):
        wh, bh, wt, bt = self.blocks[i]
        return np.tanh(x @ wh + bh), sigmoid(x @ wt + bt)

    def block(self, i, x):
        h, t = self.gates(i, x)
        return h * t + x * (1 - t)

    def probabilities(self, x, first):
        """The classifier's output if block `first` reads x."""
        for i in range(first, BLOCKS):
            x = self.block(i, x)
        logits = x @ self.top[0] + self.top[1]
        p = np.exp(logits - logits.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)

    def losses(self, x, first):
        return -np.log(self.probabilities(x, first)[np.arange(len(x)), Y])

    def gradient(self, x, first, step=1e-6):
        """Of each example's loss at x, by central differences."""
        found = np.zeros_like(x)
        for j in range(x.shape[1]):
            e = np.zeros(x.shape[1])
            e[j] = step
            found[:, j] = (self.losses(x + e, first) - self.losses(x - e, first)) / (2 * step)
        return found


def rows(u):
    return np.linalg.norm(u, axis=1)


def cosines(u, v):
    return (u * v).sum(1) / (rows(u) * rows(v))


def values(probe, model, name=None, **more):
    more = {"batch_size": 3, **more}
    return callbacks.run([probe], model, (X, Y), **more).values(name or probe.name)


def spell(model):
    """The spelled network, its states, and what each block adds."""
    net = Spelled(model)
    states = net.states(X.astype("float64"))
    return net, states, [states[i + 1] - states[i] for i in range(BLOCKS)]


def check(found, expected, **tolerance):
    tolerance = tolerance or {"rtol": 1e-4, "atol": 1e-6}
    numbers = [value for block, value in found.items() if block]
    np.testing.assert_allclose(numbers, expected, **tolerance)


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


def test_values_do_not_depend_on_the_batch_size(model):
    probes = [callbacks.CosineLoss(), callbacks.CosineLoss("block"), callbacks.EstimationError()]
    probes += [callbacks.IntermediateAccuracy(), callbacks.GateActivity()]
    found = [callbacks.run(probes, model, (X, Y), batch_size=n) for n in (1, 2, 3, 7, 100)]
    for other in found[1:]:
        pairs = [(a.value, b.value) for a, b in zip(found[0], other, strict=True)]
        np.testing.assert_allclose(*zip(*pairs, strict=True), rtol=1e-4, atol=1e-6)


def test_data_may_be_batches_and_labels_one_hot(model):
    probe = callbacks.IntermediateAccuracy()
    whole = callbacks.run([probe], model, (X, Y)).values(probe.name)
    pieces = [(X[:4], Y[:4]), (X[4:], Y[4:])]
    assert callbacks.run([probe], model, pieces).values(probe.name) == whole
    hot = np.eye(CLASSES, dtype="float32")[Y]
    found = callbacks.run([probe], model, (X, hot), loss="categorical_crossentropy")
    assert found.values(probe.name) == whole


def test_each_use_of_a_shared_block_is_its_own_row():
    inputs = keras.Input((UNITS,))
    shared = zoo.HighwayDense(name="shared")
    model = keras.Model(inputs, shared(shared(inputs)))
    table = callbacks.run([callbacks.L2Ratio()], model, X[:, :UNITS])
    assert [*table.values("l2_ratio")] == ["shared", "shared#1"]


def test_the_gradient_at_an_input_that_a_block_reads_itself():
    inputs = keras.Input((2,))
    x = layers.Add(name="sum")([inputs, layers.Dense(2, use_bias=False, name="f")(inputs)])
    model = keras.Model(inputs, x)
    w = np.array([[1.0, 2.0], [0.0, -1.0]], "float32")
    model.get_layer("f").set_weights([w])
    x = np.array([[1.0, 2.0]], "float32")
    table = callbacks.run([callbacks.GradientNorm()], model, (x, x), loss="mean_squared_error")
    gradient = (x @ w) @ (np.eye(2) + w).T  # y - x = x W; half the squared error's gradient is it
    np.testing.assert_allclose(table.values("gradient_norm")["sum"], np.linalg.norm(gradient))


def test_a_projected_block_s_gradient_is_at_what_it_carries():
    images = keras.Input((4, 4, 2))
    x = zoo.ResidualBlock(3, strides=2, name="block")(images)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    model = spelled.random_weights(keras.Model(images, x))
    data = spelled.images(2, 4, 4, 2), spelled.images(2, 3)
    table = callbacks.run(
        [callbacks.TaylorTerm("network"), callbacks.GradientNorm()], model, data, loss="mse"
    )
    block = model.get_layer("block")
    parts = {k: spelled.as_float64(v)[0] for k, v in block.parts(data[0], training=False).items()}
    gradient = 2 / 3 * (parts["y"].mean((1, 2)) - data[1]) / 4  # of the mean over three channels
    term = (parts["h"] * gradient[:, None, None]).sum((1, 2, 3)).mean()
    np.testing.assert_allclose(table.values("taylor_term")["block"], term, rtol=1e-4)


def test_not_a_number_is_reported_and_not_averaged_away(model, caplog):
    x = X.copy()
    x[3] = np.nan
    table = callbacks.run([callbacks.L2Ratio()], model, (x, Y), batch_size=2)
    assert all(np.isnan(value) for value in table.values("l2_ratio").values())
    assert "Not finite" in caplog.text and "block0" in caplog.text


def test_bad_input_is_refused_before_any_work(model):
    with pytest.raises(ValueError, match="cosine_loss.*compare with labels"):
        callbacks.run([callbacks.CosineLoss()], model, X)
    with pytest.raises(ValueError, match="at least one probe"):
        callbacks.run([], model, X)
    with pytest.raises(ValueError, match="at least one example"):
        callbacks.run([callbacks.L2Ratio()], model, (X[:0], Y[:0]))
    with pytest.raises(ValueError, match="Received: 'loss'"):
        callbacks.CosineLoss(classifier="loss")
    with pytest.raises(ValueError, match="of=3"):
        callbacks.ClassGates(3, CLASSES)
    plain = keras.Sequential([keras.Input((5,)), layers.Dense(2)])
    with pytest.raises(ValueError, match="Found no block"):
        callbacks.run([callbacks.L2Ratio()], plain, X)


def test_a_probe_of_what_no_block_has_is_an_error():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, inputs + layers.Dense(3)(inputs))
    for probe in (callbacks.GateActivity(), callbacks.GateBias()):
        with pytest.raises(ValueError, match="gate_"):
            callbacks.run([probe], model, X[:, :3])


def test_a_probe_of_one_s_own_needs_a_few_lines(model):
    class Positive(Probe):
        def measure(self, block, stage):
            return {"positive": ops.mean(ops.cast(block["y"] > 0, "float32"), axis=1)}

    _, states, _ = spell(model)
    check(values(Positive(), model), [(y > 0).mean() for y in states[1:]])


def test_a_probe_follows_the_protocol_of_a_metric():
    probe = callbacks.L2Ratio(name="ratio")
    probe.update_state({"block": {"mean": 3.0, "square": 5.0}}, 2)
    probe.update_state({"block": {"mean": 1.0, "square": 1.0}}, 2)
    assert probe.result() == {"block": {"ratio": 1.0, "std": np.sqrt(1.5 - 1.0)}}
    probe.reset_state()
    assert probe.result() == {}
