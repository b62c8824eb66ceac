"""Loss, classes and labels of a network's outputs: softmax, sigmoid and linear ones."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference
from helpers.harness import slow_elsewhere, without_backend
from helpers.reference import relu, sigmoid
from helpers.reference_highway import CLASSES, X, Y, cosines, highway_model
from zoo import callbacks

PROBES = [callbacks.CosineLoss("block"), callbacks.IntermediateAccuracy()]


def one_block(units, activation, end="dense"):
    """Return y = x + relu(x A), a classifier of it, and the weights A, W, b."""
    x = keras.Input((5,))
    y = layers.Add(name="sum")([x, layers.Dense(5, "relu", use_bias=False, name="f")(x)])
    top = layers.Dense(units, activation if end == "dense" else None, name="top")
    outputs = top(y)
    if end == "layer":
        outputs = layers.Activation(activation)(outputs)
    if end == "operation":
        outputs = getattr(keras.ops, activation)(outputs)
    model = reference.random_weights(keras.Model(x, outputs))
    return model, reference.as_float64(*model.get_weights())


def numbers(table):
    return [row.value for row in table]


@pytest.mark.parametrize("end", ["dense", "layer", "operation"])
@pytest.mark.parametrize("loss", [None, keras.losses.SparseCategoricalCrossentropy(name="mine")])
def test_confident_mistakes_have_the_gradient_of_their_logits(end, loss):
    model, (a, w, b) = one_block(CLASSES, "softmax", end)
    model.get_layer("top").set_weights([72 * w, 72 * b])
    z = 72 * (X.astype("float64") @ w + b)
    wrong = z.argmin(1)  # probabilities of exp(-100) and less
    assert (z.max(1) - z.min(1)).max() > 144
    p = np.exp(z - z.max(1, keepdims=True))
    gradient = (p / p.sum(1, keepdims=True) - np.eye(CLASSES)[wrong]) @ w.T
    expected = cosines(relu(X @ a), gradient).mean()
    table = callbacks.run(PROBES, model, (X, wrong), loss=loss)
    np.testing.assert_allclose(table.values("cosine_loss")["sum"], expected, rtol=1e-4)
    linear, _ = one_block(CLASSES, None)
    linear.set_weights(model.get_weights())
    of_logits = callbacks.run(PROBES, linear, (X, wrong))
    np.testing.assert_allclose(numbers(of_logits), numbers(table), rtol=1e-5, atol=1e-6)


def test_a_sigmoid_s_confident_mistakes_have_the_gradient_of_their_logits():
    model, (a, w, b) = one_block(1, "sigmoid")
    model.get_layer("top").set_weights([72 * w, 72 * b])
    wrong = (X @ w + b)[:, 0] < 0
    gradient = np.where(wrong, -1, 1)[:, None] * w.T
    table = callbacks.run([callbacks.CosineLoss("block")], model, (X, wrong.astype("int32")))
    expected = cosines(relu(X @ a), gradient).mean()
    np.testing.assert_allclose(table.values("cosine_loss")["sum"], expected, rtol=1e-4)


@slow_elsewhere
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize("loss", [None, "binary_crossentropy"])
def test_one_sigmoid_output_has_the_accuracy_and_loss_that_keras_has(shape, loss):
    model, (a, w, b) = one_block(1, "sigmoid")
    labels = Y % 2
    y = X + relu(X @ a)

    def scores(states):
        p = sigmoid(states @ w + b)[:, 0]
        entropy = -np.log(np.where(labels == 1, p, 1 - p))
        return ((p > 0.5) == labels).mean(), entropy.mean()

    data = X, labels.reshape(shape)
    table = callbacks.run(PROBES, model, data, loss=loss, batch_size=3)
    table += callbacks.lesions(model, data, loss=loss)
    for name, states in (("intermediate_accuracy", y), ("lesion_accuracy", X)):
        accuracy, entropy = scores(states)
        assert table.values(name)["sum"] == pytest.approx(accuracy)
        of_loss = name.replace("lesion_accuracy", "lesion") + "_loss"
        assert table.values(of_loss)["sum"] == pytest.approx(entropy, rel=1e-4)
    model.compile(loss="binary_crossentropy", metrics=["accuracy"])
    evaluated = model.evaluate(*data, verbose=0)
    whole = [table.values(f"lesion_{metric}")[None] for metric in ("loss", "accuracy")]
    np.testing.assert_allclose(whole, evaluated, rtol=1e-4)


@pytest.mark.parametrize("units", [1, 4])
def test_a_regression_has_losses_and_neither_accuracy_nor_divergence(units):
    model, (a, w, b) = one_block(units, None)
    targets = reference.images(7, units, seed=3)
    y = X + relu(X @ a)
    error = y @ w + b - targets
    gradient = (X @ w + b - targets) @ w.T
    table = callbacks.run([callbacks.CosineLoss("block")], model, (X, targets), loss="mse")
    expected = cosines(relu(X @ a), gradient).mean()
    np.testing.assert_allclose(table.values("cosine_loss")["sum"], expected, rtol=1e-4)
    lesions = callbacks.lesions(model, (X, targets), loss="mean_squared_error")
    assert lesions.probes() == ["lesion_loss", "lesion_change"]
    np.testing.assert_allclose(lesions.values("lesion_loss")[None], (error**2).mean(), rtol=1e-4)
    loops = callbacks.loops(model, (X, targets), (1, 2), loss="mse")
    assert loops.probes() == ["loop_loss", "loop_step_norm"]
    assert callbacks.loops(model, X, (1, 2)).probes() == ["loop_step_norm"]
    for probe in (callbacks.IntermediateAccuracy(), callbacks.LogitLens()):
        with pytest.raises(ValueError, match="a distribution over classes"):
            callbacks.run([probe], model, (X, targets), loss="mse")


@pytest.mark.parametrize("loss", ["mse", keras.losses.Huber()])
@pytest.mark.parametrize("units, shape", [(4, (7, 1)), (4, (7,)), (1, (7, 4)), (4, (7, 2, 4))])
def test_labels_that_a_regression_would_broadcast_are_refused(units, shape, loss):
    message = rf"outputs \(None, {units}\).*Received: labels=\({', '.join(map(str, shape))}"
    with pytest.raises(ValueError, match=message):
        callbacks.lesions(one_block(units, None)[0], (X, np.ones(shape)), loss=loss)


def test_a_loss_of_the_user_gets_labels_as_fit_casts_them():
    model, _ = one_block(1, None)
    kinds = []

    def loss(labels, outputs):
        kinds.append(keras.backend.standardize_dtype(labels.dtype))
        return ops.mean(ops.square(labels - outputs), axis=-1)

    callbacks.lesions(model, (X, (Y % 2).astype("int64")), loss=loss)
    assert {*kinds} == {"float32"}


def test_outputs_and_losses_without_a_value_for_each_example_are_explained():
    model, _ = one_block(1, None)
    flat = keras.Model(model.input, layers.Reshape(())(model.output))
    pairs = keras.Model(model.input, ops.matmul(model.output, ops.transpose(model.output)))
    with pytest.raises(ValueError, match=r"known number of values.*\(None, None\)"):
        zoo.callbacks.lesions(pairs, X)
    with pytest.raises(ValueError, match=r"Reshape\(\(1,\)\)"):
        callbacks.lesions(flat, X)
    with pytest.raises(ValueError, match="not one for the batch. Received: .*Dice"):
        data = X, np.eye(CLASSES)[Y]
        callbacks.lesions(one_block(CLASSES, "softmax")[0], data, keras.losses.Dice())


def test_blocks_after_the_first_output_are_refused():
    model, _ = one_block(CLASSES, "softmax")
    y = model.get_layer("sum").output
    late = layers.Add(name="late")([y, layers.Dense(5)(y)])
    both = keras.Model(model.input, [model.output, layers.Dense(2)(late)])
    assert [*callbacks.run([callbacks.L2Ratio()], both, X).values("l2_ratio")] == ["sum", "late"]
    for measure in (MEASUREMENTS[0], MEASUREMENTS[1]):
        with pytest.raises(ValueError, match=r"Name others, .* Received: blocks=\['late'\]"):
            measure(both, (X, Y))
    assert "sum" in callbacks.lesions(both, (X, Y), blocks=["sum"]).values("lesion_loss")


@pytest.mark.parametrize("units", [1, 2])
def test_a_network_that_tells_no_loss_is_asked_for_one(units):
    model, _ = one_block(units, None)
    with pytest.raises(ValueError, match="loss='mean_squared_error'"):
        callbacks.run([callbacks.CosineLoss()], model, (X, reference.images(7, units)))


MEASUREMENTS = [
    lambda model, data: callbacks.run([callbacks.CosineLoss()], model, data, batch_size=2),
    lambda model, data: callbacks.lesions(model, data, batch_size=2),
    lambda model, data: callbacks.dominant_flow(model, data),
]


@slow_elsewhere
@pytest.mark.parametrize("measure", MEASUREMENTS)
@pytest.mark.parametrize("label", [-1, CLASSES, 99, 0.5, np.nan])
def test_labels_out_of_range_are_refused_before_any_work(measure, label):
    labels = Y.astype("float32")
    labels[-1] = label
    for data in ((X, labels), [(X, labels)]):
        with pytest.raises(ValueError, match="whole numbers from 0 to 2"):
            measure(highway_model(), data)


@pytest.mark.parametrize("labels", [2 * Y, np.full(7, np.nan)])
def test_labels_of_binary_cross_entropy_lie_between_0_and_1(labels):
    model, _ = one_block(1, "sigmoid")
    with pytest.raises(ValueError, match="`labels` must be from 0 to 1"):
        callbacks.lesions(model, (X, labels))


@slow_elsewhere
def test_smoothed_one_hot_labels_have_keras_s_loss():
    model, _ = one_block(CLASSES, "softmax")
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    labels = np.eye(CLASSES, dtype="float32")[Y]
    table = callbacks.lesions(model, (X, labels), loss=loss)
    expected = float(loss(labels, keras.ops.convert_to_numpy(model(X))))
    assert table.values("lesion_loss")[None] == pytest.approx(expected, rel=1e-4)
    one_hot, sparse = (numbers(callbacks.lesions(model, (X, y))) for y in (labels, Y))
    assert one_hot == pytest.approx(sparse)


def test_examples_whose_class_is_ignored_are_refused():
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=0)
    with pytest.raises(ValueError, match="Leave out examples whose labels are all 0"):
        callbacks.lesions(one_block(CLASSES, "softmax")[0], (X, Y), loss)


@pytest.mark.parametrize("kind", [str, object])
def test_labels_that_are_texts_are_refused(kind):
    model, _ = one_block(3, "softmax")
    labels = np.array(["cat", "dog", "cow"], kind)
    for measure in (callbacks.diagnose, lambda *data: callbacks.run(PROBES, model, data[1:])):
        with pytest.raises(ValueError, match=r"array of numbers.*Received: labels=array\(\['cat'"):
            measure(model, X[:3], labels)


@pytest.mark.parametrize("probes", [callbacks.CosineLoss, [callbacks.CosineLoss], "cosine", []])
def test_classes_and_names_of_probes_are_explained(probes):
    for measure in (lambda: callbacks.run(probes, None, X), lambda: callbacks.RunProbes(probes, X)):
        with pytest.raises(ValueError, match="no classes or names"):
            measure()


@pytest.mark.parametrize("data", [X.tolist(), (X, Y.tolist()), (X, [*Y])])
def test_lists_in_place_of_arrays_are_explained(data):
    with pytest.raises(ValueError, match="Convert lists with numpy.asarray"):
        callbacks.run([callbacks.L2Ratio()], highway_model(), data)


@pytest.mark.parametrize("data", [None, "mnist", 3, (), {}, (None, Y)])
@pytest.mark.parametrize("measure", [callbacks.diagnose, callbacks.lesions])
def test_what_is_no_data_is_refused_with_the_way_to_load_some(measure, data):
    with pytest.raises(ValueError, match="in place of an array.*zoo.datasets.images.load"):
        measure(highway_model(), data)


@pytest.mark.parametrize("values", [X.astype(object), X.astype(str)])
def test_inputs_that_are_no_numbers_are_refused(values):
    with pytest.raises(ValueError, match=r"that of numbers. .*x.astype\('float32'\)"):
        callbacks.lesions(highway_model(), (values, Y))


@pytest.mark.parametrize(
    "labels, loss, message",
    [
        (np.eye(CLASSES)[Y], "sparse_categorical_crossentropy", "for one-hot labels 'categorical"),
        (Y, "categorical_crossentropy", "For class indices give loss='sparse_categorical"),
        (np.eye(CLASSES + 1)[Y], "categorical_crossentropy", r"outputs \(None, 3\).*\(7, 4\)"),
        (Y, "foo", "`loss` must be a loss of Keras, .* Received: loss='foo'"),
        (Y, ["mse", "mse"], "`loss` must be a loss of Keras"),
    ],
)
def test_labels_and_losses_that_do_not_fit_are_refused(labels, loss, message):
    with pytest.raises(ValueError, match=message):
        callbacks.lesions(highway_model(), (X, labels), loss)


def test_gradients_of_a_network_in_half_precision_come_from_its_logits():
    x = keras.Input((5,))
    y = zoo.HighwayDense(name="block", dtype="mixed_float16")(x)
    outputs = layers.Dense(CLASSES, "softmax", dtype="float32", name="top")(y)
    model = reference.random_weights(keras.Model(x, outputs))
    table = callbacks.run(PROBES, model, (X, Y))
    p = np.asarray(keras.ops.convert_to_numpy(model(X)), "float64")
    loss = -np.log(p[np.arange(7), Y]).mean()
    assert table.values("intermediate_accuracy_loss")["block"] == pytest.approx(loss, rel=2e-3)


@without_backend
def test_of_several_outputs_the_loss_and_the_labels_are_the_first_one_s():
    model, _ = one_block(CLASSES, "softmax")
    loss = keras.losses.SparseCategoricalCrossentropy()
    expected = callbacks.lesions(model, (X, Y), loss=loss).values("lesion_loss")
    second = layers.Dense(1)(model.output)
    for outputs, losses in (
        ([model.output, second], [loss, "mse"]),
        ({"second": second, "first": model.output}, {"second": "mse", "first": loss}),
    ):
        both = keras.Model(model.input, outputs)
        both.compile(loss=losses)
        of_both = {"first": Y, "second": X} if isinstance(outputs, dict) else [Y, X]
        for labels in (Y, of_both):
            data = (X, labels)
            assert callbacks.lesions(both, data).values("lesion_loss") == expected
            assert callbacks.lesions(both, [data]).values("lesion_loss") == expected
            assert "lesion_loss" in callbacks.diagnose(both, *data).table.probes()
    with pytest.raises(ValueError, match="those of the first output, 'first'"):
        callbacks.lesions(both, (X, {"second": Y}))


LABELS = np.random.default_rng(5).integers(0, 2, (7, 4))
FROM_LOGITS = keras.losses.BinaryCrossentropy(from_logits=True)


@slow_elsewhere
@pytest.mark.parametrize(
    "end, loss", [("dense", None), ("operation", "binary_crossentropy"), (None, FROM_LOGITS)]
)
def test_several_sigmoids_are_labels_of_two_classes_each(end, loss):
    model, (a, w, b) = one_block(4, end and "sigmoid", end or "dense")
    states = [X.astype("float64")]
    for _ in range(2):
        states.append(states[-1] + relu(states[-1] @ a))
    without, once, twice = (sigmoid(y @ w + b) for y in states)

    def divergence(p, q):
        return (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).sum(1).mean()

    def entropy(p, y=LABELS):
        return -(y * np.log(p) + (1 - y) * np.log(1 - p))

    lesions = callbacks.lesions(model, (X, LABELS), loss, batch_size=3)
    loops = callbacks.loops(model, (X, LABELS), (1, 2), loss=loss, batch_size=3)
    measured = callbacks.run([callbacks.IntermediateAccuracy()], model, (X, LABELS), loss)
    for table, name, expected in (
        (lesions, "lesion_accuracy", ((without > 0.5) == LABELS).mean()),
        (lesions, "lesion_loss", entropy(without).mean()),
        (lesions, "lesion_kl", divergence(once, without)),
        (lesions, "lesion_agreement", ((without > 0.5) == (once > 0.5)).mean()),
        (loops, "loop_kl", divergence(once, twice)),
        (measured, "intermediate_accuracy", ((once > 0.5) == LABELS).mean()),
        (measured, "intermediate_accuracy_loss", entropy(once).mean()),
    ):
        actual = next(row.value for row in table.of_probe(name) if row.block == "sum")
        assert actual == pytest.approx(expected, rel=1e-4)
    assert divergence(once, without) > 0.1
    limit = float(np.sort(np.abs(2 * once - 1), None)[8:10].mean())  # of 28 labels, 9 are near 1/2
    near = np.abs(2 * once - 1) < limit
    probe = callbacks.BorderlineExamples(1, limit)
    table = callbacks.run([probe], model, (X, LABELS), loss, batch_size=3)
    for name, value in (
        ("share", 9 / 28),
        ("accuracy", ((once > 0.5) == LABELS)[near].mean()),
        ("loss", entropy(once)[near].mean()),
        ("entropy", entropy(once, once)[near].mean()),
    ):
        actual = table.values(f"borderline_examples_borderline_{name}")["sum"]
        assert actual == pytest.approx(value, rel=1e-4)
    metric = keras.metrics.BinaryAccuracy(threshold=0.5 if end else 0.0)
    model.compile(loss=loss or "binary_crossentropy", metrics=[metric])
    whole = [lesions.values(f"lesion_{name}")[None] for name in ("loss", "accuracy")]
    np.testing.assert_allclose(whole, model.evaluate(X, LABELS, verbose=0), rtol=1e-4)
    with pytest.raises(ValueError, match="For class indices give.*for several sigmoids"):
        callbacks.lesions(model, (X, LABELS[:, 0]), loss)


def own_loss(labels, logits):
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


@slow_elsewhere
@pytest.mark.parametrize("kind", ["own loss", "own softmax"])
def test_class_indices_or_a_loss_of_probabilities_tell_a_classifier(kind):
    softmax, _ = one_block(CLASSES, "softmax")
    model, _ = one_block(CLASSES, None)
    loss = own_loss
    if kind == "own softmax":  # which no layer's activation tells
        p = keras.ops.exp(model.output)
        outputs = layers.Lambda(lambda p: p / keras.ops.sum(p, axis=-1, keepdims=True))(p)
        model, loss = keras.Model(model.input, outputs), "sparse_categorical_crossentropy"
    for measure in (callbacks.lesions, lambda *given: callbacks.run(PROBES, *given)):
        expected, actual = measure(softmax, (X, Y)), measure(model, (X, Y), loss)
        assert actual.probes() == expected.probes()
        np.testing.assert_allclose(numbers(actual), numbers(expected), rtol=1e-4, atol=1e-6)
