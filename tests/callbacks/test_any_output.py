"""Outputs of any rank, dictionaries of inputs, no labels: probes and sweeps against NumPy."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from scipy import special

import zoo
from helpers import reference
from helpers.harness import slow_elsewhere
from zoo import callbacks

STEPS, WORDS, WIDTH = 5, 7, 4
RNG = np.random.default_rng(0)
X = {
    "token_ids": RNG.integers(0, WORDS, (6, STEPS)),
    "padding_mask": np.arange(STEPS) < RNG.integers(2, STEPS + 1, (6, 1)),
}
Y = RNG.integers(0, WORDS, (6, STEPS))
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
NAMES = ["attention0_sum", "dense0_sum", "attention1_sum", "dense1_sum"]


def transformer(end):
    """Return a language model of two pre-norm layers whose inputs are a dictionary."""
    inputs = {
        "token_ids": keras.Input((STEPS,), dtype="int32", name="token_ids"),
        "padding_mask": keras.Input((STEPS,), dtype="bool", name="padding_mask"),
    }
    x = layers.Embedding(WORDS, WIDTH)(inputs["token_ids"])
    x = x * ops.expand_dims(ops.cast(inputs["padding_mask"], "float32"), -1)
    for i in range(2):
        f = layers.LayerNormalization()(x)
        f = layers.MultiHeadAttention(2, 2, name=f"attention{i}")(f, f, use_causal_mask=True)
        x = layers.Add(name=f"attention{i}_sum")([x, f])
        f = layers.LayerNormalization()(x)
        f = layers.Dense(WIDTH)(layers.Dense(6, "relu")(f))
        x = layers.Add(name=f"dense{i}_sum")([x, f])
    outputs = end(layers.LayerNormalization(name="norm")(x))
    return reference.random_weights(keras.Model(inputs, outputs))


@pytest.fixture(scope="module")
def model():
    return transformer(layers.Dense(WORDS, name="words"))


def log_probabilities(model, x=X):
    return special.log_softmax(np.asarray(ops.convert_to_numpy(model(x)), "float64"), axis=-1)


def scores(intact, other, labels=None, weights=None):
    """Return accuracy and loss, or three distances, averaged over positions, then examples."""
    if labels is None:
        kl = (np.exp(intact) * (intact - other)).sum(-1)
        moved = abs(np.exp(other) - np.exp(intact)).sum(-1) / 2
        pair = kl, moved, intact.argmax(-1) == other.argmax(-1)
    else:
        loss = -np.take_along_axis(other, labels[..., None], -1)[..., 0]
        pair = other.argmax(-1) == labels, loss
    weights = np.ones_like(pair[0], "float64") if weights is None else weights
    return [np.average(v, axis=1, weights=weights).mean() for v in pair]


def columns(table, *names):
    return np.array([[row.value for row in table.of_probe(name)] for name in names]).T


@slow_elsewhere
def test_a_language_model_s_lesions_have_losses_and_distances_without_labels(model):
    intact = log_probabilities(model)
    others = [intact] + [log_probabilities(zoo.graph.lesion(model, name)) for name in NAMES]
    table = callbacks.lesions(model, (X, Y), LOSS, batch_size=4)
    expected = [[*scores(intact, v, Y), *scores(intact, v)] for v in others]
    names = ["lesion_accuracy", "lesion_loss", "lesion_kl", "lesion_variation", "lesion_agreement"]
    assert table.probes() == names
    np.testing.assert_allclose(columns(table, *names), expected, rtol=1e-4, atol=1e-6)
    bare = callbacks.lesions(model, X, LOSS, batch_size=4)  # a dictionary, no labels
    assert bare.probes() == names[2:]
    np.testing.assert_allclose(columns(bare, *names[2:]), columns(table, *names[2:]), atol=1e-6)
    batches = [{key: v[:4] for key, v in X.items()}, {key: v[4:] for key, v in X.items()}]
    np.testing.assert_allclose(
        columns(callbacks.lesions(model, batches, LOSS), *names[2:]), columns(bare, *names[2:])
    )
    assert table.values("lesion_kl")[None] == 0 and table.values("lesion_agreement")[None] == 1


@slow_elsewhere
def test_sample_weights_and_ignored_classes_weigh_an_example_s_positions(model):
    weights = X["padding_mask"].astype("float32")
    intact = log_probabilities(model)
    other = log_probabilities(zoo.graph.lesion(model, NAMES[0]))
    expected = [*scores(intact, other, Y, weights), *scores(intact, other, weights=weights)]
    names = ["lesion_accuracy", "lesion_loss", "lesion_kl", "lesion_variation", "lesion_agreement"]
    ignoring = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    hidden = np.where(X["padding_mask"], Y, -1)
    cases = ((X, Y, weights), LOSS), ((X, Y, weights[..., None]), LOSS), ((X, hidden), ignoring)
    for data, loss in cases:
        table = callbacks.lesions(model, data, loss, blocks=NAMES)
        np.testing.assert_allclose(columns(table, *names)[1], expected, rtol=1e-4)
    accuracy = callbacks.run([callbacks.IntermediateAccuracy()], model, (X, Y, weights), LOSS)
    last = accuracy.values("intermediate_accuracy")[NAMES[-1]]
    assert last == pytest.approx(scores(intact, intact, Y, weights)[0])
    run = {"first": NAMES[2], "last": NAMES[3]}
    once, twice = (log_probabilities(zoo.graph.loop(model, **run, times=times)) for times in (1, 2))
    loops = callbacks.loops(model, (X, Y, weights), (1, 2), **run, loss=LOSS)
    kl = scores(once, twice, weights=weights)[0]
    assert columns(loops, "loop_kl")[0, 0] == pytest.approx(kl, rel=1e-4)
    loss = [scores(v, v, Y, weights)[1] for v in (once, twice)]
    np.testing.assert_allclose(columns(loops, "loop_loss")[:, 0], loss, rtol=1e-4)
    with pytest.raises(ValueError, match="a position of each example counts"):
        callbacks.lesions(model, (X, Y, 0 * weights), LOSS)


@slow_elsewhere
def test_borderline_examples_of_a_language_model_are_positions(model):
    p = np.exp(log_probabilities(model))
    true = np.take_along_axis(p, Y[..., None], -1)[..., 0]
    margins = np.abs(true - np.where(np.eye(WORDS, dtype=bool)[Y], 0, p).max(-1))
    limit = float(np.sort(margins.ravel())[9:11].mean())  # of 30 positions, 10 are borderline
    table = callbacks.run([callbacks.BorderlineExamples(1, limit)], model, (X, Y), LOSS)
    value = table.values("borderline_examples_borderline_share")[NAMES[-1]]
    assert value == pytest.approx(1 / 3)
    loss = table.values("borderline_examples_borderline_loss")[NAMES[-1]]
    assert loss == pytest.approx(-np.log(true[margins < limit]).mean(), rel=1e-4)


def states(model, name):
    inner = keras.Model(model.inputs, model.get_layer(name).output)
    return np.asarray(ops.convert_to_numpy(inner([X[v.name] for v in model.inputs])), "float64")


@slow_elsewhere
def test_a_logit_lens_equals_the_tail_applied_to_each_block(model):
    table = callbacks.run([callbacks.LogitLens()], model, (X, Y), LOSS, batch_size=4)
    intact = log_probabilities(model)
    for name in NAMES:
        y = model.get_layer("words")(model.get_layer("norm")(states(model, name)))
        early = special.log_softmax(np.asarray(ops.convert_to_numpy(y), "float64"), axis=-1)
        kl, _, agreement = scores(intact, early)
        accuracy, loss = scores(intact, early, Y)
        expected = {"kl": kl, "agreement": agreement, "accuracy": accuracy, "loss": loss}
        for key, value in expected.items():
            actual = table.values(f"logit_lens_{key}")[name]
            assert actual == pytest.approx(value, rel=1e-3, abs=1e-6)
    unlabeled = callbacks.run([callbacks.LogitLens()], model, X, LOSS)
    assert unlabeled.probes() == ["logit_lens_kl", "logit_lens_agreement"]
    with pytest.raises(ValueError, match="distribution over classes"):
        callbacks.run([callbacks.LogitLens()], model, X)


def test_block_influence_is_the_angle_of_each_position(model):
    x, y = (states(model, name) for name in NAMES[:2])

    def cosine(u, v):
        return (u * v).sum(-1) / np.linalg.norm(u, axis=-1) / np.linalg.norm(v, axis=-1)

    table = callbacks.run([callbacks.BlockInfluence()], model, X, batch_size=4)
    assert [*table.values("block_influence")] == NAMES
    value = table.values("block_influence")[NAMES[1]]
    assert value == pytest.approx((1 - cosine(x, y)).mean(), rel=1e-4)


@slow_elsewhere
def test_outputs_that_are_no_distribution_have_a_relative_change():
    def end(x):
        return {"sequence": layers.Dense(3)(x), "pooled": layers.GlobalMaxPooling1D()(x)}

    model = transformer(end)
    table = callbacks.lesions(model, X)
    assert table.probes() == ["lesion_change"] and table.values("lesion_change")[None] == 0

    def outputs(model):
        outputs = model(X)
        flat = [ops.convert_to_numpy(outputs[key]).reshape(6, -1) for key in sorted(outputs)]
        return np.concatenate(flat, axis=1)

    old, new = outputs(model), outputs(zoo.graph.lesion(model, NAMES[2]))
    expected = (np.linalg.norm(new - old, axis=1) / np.linalg.norm(old, axis=1)).mean()
    assert table.values("lesion_change")[NAMES[2]] == pytest.approx(expected, rel=1e-4)
    assert len(callbacks.run([callbacks.L2Ratio()], model, X).values("l2_ratio")) == 4
    with pytest.raises(ValueError, match="compare with labels"):
        callbacks.run([callbacks.CosineLoss()], model, X)


@slow_elsewhere
def test_a_segmentation_s_lesions_average_over_pixels():
    inputs = keras.Input((4, 4, 2))
    x = inputs
    for i in range(2):
        x = layers.Add(name=f"sum{i}")([x, layers.Conv2D(2, 3, padding="same")(x)])
    outputs = layers.Conv2D(3, 1, activation="softmax")(x)
    model = reference.random_weights(keras.Model(inputs, outputs))
    x, y = reference.images(5, 4, 4, 2), np.arange(80).reshape(5, 4, 4) % 3
    table = callbacks.lesions(model, (x, y), batch_size=3)
    p = ops.convert_to_numpy(zoo.graph.lesion(model, "sum1")(x))
    assert table.values("lesion_accuracy")["sum1"] == pytest.approx((p.argmax(-1) == y).mean())
    loss = -np.log(np.take_along_axis(p, y[..., None], -1)).mean()
    assert table.values("lesion_loss")["sum1"] == pytest.approx(loss, rel=1e-4)
    probes = [callbacks.IntermediateAccuracy(), callbacks.CosineLoss(), callbacks.LogitLens()]
    assert np.isfinite([row.value for row in callbacks.run(probes, model, (x, y))]).all()


@slow_elsewhere
def test_padding_changes_no_number():
    lengths = (5, 3)
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH, mask_zero=True)(inputs)
    x = zoo.HighwayDense(name="block")(x)
    x = layers.Add(name="sum0")([x, layers.MultiHeadAttention(2, 2, name="attention")(x, x)])
    x = layers.Add(name="sum1")([x, layers.Dense(WIDTH, "tanh", name="inner")(x)])
    model = reference.random_weights(keras.Model(inputs, layers.Dense(3, "softmax")(x)))
    ids = np.random.default_rng(3).integers(1, WORDS, (2, STEPS))
    labels = ids % 3
    probes = [callbacks.L2Ratio(), callbacks.BlockInfluence(), callbacks.CosineLoss()]
    probes += [callbacks.TaylorTerm(), callbacks.GradientNorm(), callbacks.ActivationNorm()]
    probes += [callbacks.BlockOutputs(), callbacks.IntermediateAccuracy(), callbacks.LogitLens()]

    def measure(*data):
        table = callbacks.run(probes, model, data)
        table += callbacks.run([callbacks.GateActivity()], model, data, blocks=["block"])
        table += callbacks.lesions(model, data)
        table += callbacks.loops(model, data, (1, 2), "sum1", scale=0.5)
        table += callbacks.lesions(keras.Model(inputs, x), data[0])  # their change
        return {row[:4]: row.value for row in table if "std" not in row.probe and row.block}

    padded = np.where(np.arange(STEPS) < np.array(lengths)[:, None], ids, 0)
    whole = measure(padded, labels)
    alone = [measure(ids[[i], :n], labels[[i], :n]) for i, n in enumerate(lengths)]
    for key, value in whole.items():
        expected = np.mean([numbers[key] for numbers in alone])
        assert value == pytest.approx(expected, rel=2e-4, abs=1e-6), key
    table = callbacks.run([callbacks.EstimationError()], model, padded)
    inner = keras.Model(inputs, [model.get_layer(f"sum{i}").output for i in range(2)])
    first, last = (ops.convert_to_numpy(v).astype("float64") for v in inner(padded))
    hidden = np.broadcast_to((padded == 0)[..., None], first.shape)
    error = np.ma.array(first - last, mask=hidden)  # means over the examples that have a position
    name = "estimation_error"
    assert table.values(name)["sum0"] == pytest.approx(error.mean(0).mean(), rel=1e-4)
    assert table.values(f"{name}_std")["sum0"] == pytest.approx(error.std(0).mean(), rel=1e-3)
