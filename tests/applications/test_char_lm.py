"""The language model has the paper's sizes, and its serving forms compute the same."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.forked import Forked
from helpers.gradients import assert_close, numpy_of
from helpers.harness import output_of, slow_elsewhere, without_backend
from zoo.applications.char_lm_inference import (
    Scorer,
    flat,
    pad_slots,
    refresh_table,
    sequence_nll,
    with_state,
    zero_state,
)
from zoo.datasets.text import Vocabulary
from zoo.graph.blocks import find_blocks

TEXT = "the cat sat on the mat <unk>\na dog or two ran by and all of them barked at it\n"
VOCABULARY = Vocabulary.from_texts(TEXT)  # 20 words, 8 slots
BATCH, STEPS = 2, 5
SHAPE = {"batch_size": BATCH, "num_steps": STEPS}


def char_lm(**kwargs):
    return zoo.char_lm(**{"size": "small", "vocabulary": VOCABULARY, **SHAPE, **kwargs})


def lstms(model):
    return [model.get_layer(name) for name in ("lstm1", "lstm2")]


@pytest.fixture(scope="module")
def compiled_model():
    zoo.seed_everything(0)
    return char_lm()


@pytest.fixture
def model(compiled_model):
    """One model for all tests that leave its weights alone; its state starts at zero."""
    for layer in lstms(compiled_model):
        layer.h.assign(ops.zeros(layer.h.shape))
        layer.c.assign(ops.zeros(layer.c.shape))
    return compiled_model


@pytest.fixture(scope="module")
def scorer(compiled_model):
    return Scorer(compiled_model)


@slow_elsewhere
def test_other_graphs_of_a_model_compute_in_its_precision(compiled_model, scorer):
    text = np.arange(20)
    logits = ops.convert_to_numpy(flat(compiled_model, STEPS)(text.reshape(4, STEPS)))
    expected = scorer.contiguous(text)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        stateful, blocks = with_state(compiled_model), flat(compiled_model, STEPS)
        assert Scorer(compiled_model).contiguous(text) == expected
    finally:
        keras.config.set_dtype_policy("float32")
    assert stateful.output["h1"].dtype == "float32"
    other = ops.convert_to_numpy(blocks(text.reshape(4, STEPS)))
    np.testing.assert_array_equal(other, logits)


def ids(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, len(VOCABULARY), shape).astype("int32")


def numpy_nll(logits, targets):
    """-log softmax(logits)[target] in float64, `(batch, steps)`."""
    z = ops.convert_to_numpy(logits).astype("float64")
    log_p = z - np.log(np.exp(z).sum(axis=-1, keepdims=True))  # logits below 10: no overflow
    return -np.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]


# Greff et al. (2017), Table 1a, counted with Keras's one bias vector in an LSTM; the paper's Torch
# has two: 2 x 4 x 650 more, 19,373,165, which Kim et al. round to 19 M. By hand in card E.
COUNTS = {
    ("large", "coupled"): 19_367_965,
    ("large", "t_only"): 19_367_965,
    ("large", "c_only"): 19_367_965,
    ("large", "residual"): 19_367_965,
    ("large", "full"): 21_790_165,
    ("large", "plain"): 15_734_665,
    ("small", "coupled"): 5_310_115,
}


@without_backend
@pytest.mark.parametrize(("size", "variant"), COUNTS)
def test_parameters_are_those_of_table_1a(size, variant):
    model = zoo.char_lm(size, variant)
    assert sum(int(np.prod(w.shape)) for w in model.trainable_weights) == COUNTS[size, variant]
    # Kim et al., Table 2, and card E: 10,000 words, spelled in 21 slots with 51 characters.
    assert (model.input_shape, model.output_shape) == ((20, 35), (20, 35, 10_000))
    embedding = model.get_layer("word_embedding")
    assert (embedding.num_words, embedding.word_length) == (10_000, 21)
    assert embedding.encoder.get_layer("cnn").num_characters == 51


def test_the_layers_between_cnn_and_lstm_are_as_many_as_in_table_1a():
    # Kim et al.'s small model has 1; those of the large one are counted above.
    for variant, expected in (("plain", 1), ("residual", 2), ("coupled", 1)):
        encoder = char_lm(variant=variant).get_layer("word_embedding").encoder
        names = [la.name for la in encoder.layers if isinstance(la, zoo.HighwayDense)]
        assert names == [f"highway{i}" for i in range(1, expected + 1)]


def test_filters_and_units_replace_those_of_a_size_and_others_are_refused():
    model = char_lm(filters=(25, 50, 75, 100), units=100)
    cnn = model.get_layer("word_embedding").encoder.get_layer("cnn")
    assert (cnn.widths, cnn.filters) == ([1, 2, 3, 4], [25, 50, 75, 100])
    assert [layer.units for layer in lstms(model)] == [100, 100]
    for arguments, message in (
        ({"size": "medium"}, "`size` must be one of 'small', 'large'.*'medium'"),
        ({"variant": "gated"}, "`variant` must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            char_lm(**arguments)


def test_the_model_s_word_table_is_the_vocabulary_s():
    table = ops.convert_to_numpy(char_lm().get_layer("word_embedding").table)
    assert VOCABULARY.word_length == 8 == table.shape[1]
    np.testing.assert_array_equal(table, VOCABULARY.spell(VOCABULARY.words))
    short = Vocabulary.from_texts("a b\n")  # three slots; the widest filter needs six
    model = zoo.char_lm("small", vocabulary=short, **SHAPE)
    table = ops.convert_to_numpy(model.get_layer("word_embedding").table)
    np.testing.assert_array_equal(table, np.pad(short.spell(short.words), ((0, 0), (0, 3))))


def test_a_model_without_a_number_of_steps_accepts_any_number():
    any_number = char_lm(num_steps=None)
    for steps in (3, STEPS):
        fixed = char_lm(num_steps=steps)
        fixed.set_weights(any_number.get_weights())  # the state too
        x = ids(BATCH, steps)
        assert_close(any_number.predict_on_batch(x), fixed.predict_on_batch(x), 1e-6)  # float32


LOAD = """
import keras, numpy as np, sys
import zoo
model = keras.saving.load_model(sys.argv[1] + "/model.keras")
assert model.loss.__name__ == "sequence_nll"
x = np.load(sys.argv[1] + "/x.npy")
np.save(sys.argv[1] + "/y.npy", np.stack([model.predict(v, verbose=0) for v in x]))
"""


@pytest.mark.slow
def test_a_saved_model_gives_the_same_logits_in_another_process(model, tmp_path):
    x = ids(2, BATCH, STEPS)
    model.compile("sgd", loss=sequence_nll)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "load.py").write_text(LOAD)
    output_of(Forked(str(tmp_path / "load.py"), str(tmp_path)))
    expected = np.stack([model.predict(v, verbose=0) for v in x])  # two chunks of one text
    assert_close(np.load(tmp_path / "y.npy"), expected, 0)


def test_the_model_with_its_state_as_an_argument_is_the_same_model(model):
    x = ids(3, BATCH, STEPS)
    stateful = with_state(model)
    state = start = zero_state(stateful, BATCH)
    assert {name: tuple(s.shape) for name, s in state.items()} == dict.fromkeys(
        ["h1", "c1", "h2", "c2"], (BATCH, 300)
    )
    for chunk in x:
        logits, state = run(stateful, chunk, state)
        assert_close(logits, model.predict_on_batch(chunk), 1e-6)  # float32, logits below 1
    assert_close([state[name] for name in ("h1", "c1", "h2", "c2")], carried(model), 1e-6)
    text = np.concatenate(list(x), axis=1)  # any number of steps, and any batch size
    assert_close(run(stateful, text, start)[0][:, -STEPS:], logits, 1e-6)
    alone, _ = run(stateful, text[:1], zero_state(stateful, 1))
    assert_close(alone[:, -STEPS:], logits[:1], 1e-6)


def test_words_may_be_given_by_their_characters(model):
    x = ids(BATCH, STEPS)
    reader = with_state(model, characters=True)
    logits, _ = run(reader, VOCABULARY.spell(VOCABULARY.words)[x], zero_state(reader, BATCH))
    assert_close(logits, model.predict_on_batch(x), 1e-6)  # float32, logits below 1
    for character in (-1, len(VOCABULARY.characters)):
        with pytest.raises(ValueError, match="Give the vocabulary of the model"):
            pad_slots(model, np.array([[0, character]]))


@slow_elsewhere
def test_a_flat_graph_is_the_same_model_with_its_highway_layers_as_blocks():
    model = char_lm(size="large", limit=0.1)
    x = ids(3, STEPS)  # any number of texts, each from a state of zeros
    stateful = with_state(model)
    graph = flat(model, STEPS)
    expected, _ = run(stateful, x, zero_state(stateful, 3))
    assert_close(graph.predict_on_batch(x), expected, 1e-5)  # float32, logits below 1
    blocks, _ = find_blocks(graph)
    assert [block.name for block in blocks] == ["highway1", "highway2"]
    without = zoo.graph.lesion(graph, "highway2").predict_on_batch(x)
    assert np.abs(without - expected).max() > 1e-3


def run(stateful, words, state):
    """Return the logits and the new state."""
    inputs = {name: ops.convert_to_tensor(v) for name, v in {"words": words, **state}.items()}
    outputs = stateful.predict_on_batch(inputs)
    return outputs.pop("logits"), outputs


def carried(model):
    return numpy_of(v for la in lstms(model) for v in (la.h, la.c))


def test_refreshing_the_table_recomputes_word_vectors_from_changed_weights(model):
    x = ids(BATCH, STEPS)
    stateful = with_state(model)
    state = zero_state(stateful, BATCH)
    before = run(stateful, x, state)[0]
    encoder = model.get_layer("word_embedding").encoder
    weights = encoder.get_weights()
    encoder.set_weights([3 * w for w in weights])
    assert_close(run(stateful, x, state)[0], before, 0)
    refresh_table(model, stateful)
    after = run(stateful, x, state)[0]
    expected = model.predict_on_batch(x)
    encoder.set_weights(weights)
    assert np.abs(after - before).max() > 1e-3
    assert_close(after, expected, 1e-6)  # float32, logits below 1


def test_perplexity_is_exp_of_the_mean_nll_of_predicts_logits(model, scorer):
    x, y = ids(3, BATCH, STEPS), ids(3, BATCH, STEPS, seed=1)
    perplexity = scorer.perplexity(x, y)
    logits = np.stack([model.predict(chunk, verbose=0) for chunk in x])  # the state is carried
    expected = np.exp(np.mean(numpy_nll(logits, y)))
    np.testing.assert_allclose(perplexity, expected, rtol=1e-6)  # float32


def test_a_contiguous_pass_counts_every_token_once(scorer):
    model = char_lm(batch_size=1, num_steps=None)
    for weight, saved in zip(model.trainable_weights, scorer.model.trainable_weights, strict=True):
        weight.assign(ops.convert_to_numpy(saved))
    for length in (3, 14, 17):  # in chunks of 7: short, two, ragged
        text = ids(length)
        for layer in lstms(model):
            layer.h.assign(np.zeros((1, 300)))
            layer.c.assign(np.zeros((1, 300)))
        logits = model.predict_on_batch(text[None])  # all at once
        targets = np.roll(text, -1)[None]  # the last target wraps
        expected = np.exp(np.mean(numpy_nll(logits, targets)))
        perplexity = scorer.contiguous(text, num_steps=7)
        np.testing.assert_allclose(perplexity, expected, rtol=1e-6)  # float32


def test_scoring_refuses_word_ids_outside_the_vocabulary(scorer):
    for word in (-1, len(VOCABULARY)):
        text = ids(BATCH, STEPS)
        text[0, 1] = word
        with pytest.raises(ValueError, match=rf"from 0 to 19.*Received: word_ids=\[{word}"):
            scorer.perplexity([text], [ids(BATCH, STEPS)])
        with pytest.raises(ValueError, match="integers from 0 to 19"):
            scorer.contiguous(text[0])
    with pytest.raises(ValueError, match="Expected at least one word"):
        scorer.contiguous(text[0, :0])


def test_scoring_neither_reads_nor_changes_the_state_of_training(model, scorer):
    x = ids(2, BATCH, STEPS)
    first = scorer.perplexity(x, x)
    model.predict(x[0], verbose=0)  # a text has begun
    before = carried(model)
    assert scorer.perplexity(x, x) == first
    assert_close(carried(model), before, 0)
    assert all(v.any() for v in before)


@slow_elsewhere
def test_mixed_precision_gives_float32_logits_and_rounds_no_word_id():
    # bfloat16 has 8 bits: of the ids above 512 it keeps every fourth.
    many = Vocabulary.from_texts(" ".join(f"w{i}" for i in range(600)) + "\n")
    x = np.arange(541, 551, dtype="int32").reshape(BATCH, STEPS)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = zoo.char_lm("small", vocabulary=many, max_distinct=None, **SHAPE)
        bias = np.random.default_rng(0).normal(size=601)  # so that ids differ in their loss
        model.get_layer("logits").bias.assign(bias)
        for name in ("dropout1", "dropout2"):
            model.get_layer(name).rate = 0.0  # its masks are random
        logits = model.predict_on_batch(x)
        for name in ("lstm1", "lstm2"):
            for state in (model.get_layer(name).h, model.get_layer(name).c):
                state.assign(np.zeros((BATCH, 300)))
        model.compile(keras.optimizers.SGD(0.0), loss=sequence_nll)
        loss = model.fit(x, x, batch_size=BATCH, verbose=0).history["loss"][0]
    finally:
        keras.config.set_dtype_policy("float32")
    assert logits.dtype == "float32"
    assert {la.compute_dtype for la in model.layers if "lstm" in la.name} == {"bfloat16"}
    assert {w.dtype for w in model.weights} == {"float32", "int32"}
    # One id taken for its neighbour is 0.5 off on average. The hidden units have 8 bits, and
    # XLA may round them elsewhere in another graph: measured, 3e-6.
    expected = np.mean(np.sum(numpy_nll(logits, x), axis=-1))
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-4)
