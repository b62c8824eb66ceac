"""A SavedModel computes what the model computes, without zoo and Keras, or is not written.

Tolerance 1e-5: float32 logits of order one, products summed in another order; measured 1e-7.
From JAX and torch a child process of TensorFlow writes the same files: there the slow tests.
"""

import json
import sys

import keras
import numpy as np
import pytest

import zoo
from helpers.harness import fresh_python, slow_unless_tensorflow, without_backend
from zoo.applications import char_lm_export, char_lm_inference
from zoo.datasets.text import Vocabulary
from zoo.export import export, in_float32, serve

TEXTS = [  # the words of the first four are in the vocabulary
    "the cat sat on",
    "",
    "the cat\n",
    "{the}\u3000sät\x85<unk>-like",
    "the hat",
    "a mat is chosen",
    "世界 sat",
    "incomprehensibilities\r\n\tsa\u200bt",
]
SHAPES = {"its_own": (2, 3), "another": (5, 7)}  # batch, steps

CONSUMER = """
import json, os
import numpy as np, tensorflow as tf

folder = os.environ["FOLDER"]
artifact = tf.saved_model.load(folder + "/artifact")
words = dict(np.load(folder + "/words.npz"))
result = {name: artifact.serve(words[name])["logits"] for name in words}

parts, state = [], {name: tf.zeros((5, 300)) for name in ("h1", "c1", "h2", "c2")}
for part in np.split(words["another"], [4], axis=1):
    state = artifact.step({"words": part, **state})
    parts.append(state.pop("logits"))
result["in_two_steps"] = np.concatenate(parts, 1)

step = artifact.signatures["step"]
default = artifact.signatures["serving_default"](words=tf.constant(words["its_own"]))
result["by_default"] = default["logits"]

texts = json.load(open(folder + "/texts.json"))
result["next_word"] = artifact.next_word(tf.constant(texts))["probabilities"]
alone = [artifact.next_word(tf.constant([text]))["probabilities"][0] for text in texts]
result["next_word_alone"] = np.stack(alone)
np.savez(folder + "/result.npz", **result)
names = {"inputs": sorted(step.structured_input_signature[1])}
print(json.dumps({**names, "outputs": sorted(step.structured_outputs)}))
"""


def next_word(model, vocabulary, text):
    """Return softmax of the last logits in NumPy, without state and table of words."""
    reader = char_lm_inference.with_state(model, characters=True)
    states = char_lm_inference.zero_state(reader, 1)
    spelled = char_lm_inference.pad_slots(model, vocabulary.prompt(text)[None])
    logits = reader.predict_on_batch([keras.ops.convert_to_tensor(spelled), *states])[0][0, -1]
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Export over an earlier artifact, and read it in a process without zoo and Keras."""
    folder = tmp_path_factory.mktemp("export")
    earlier = folder / "artifact" / "assets"
    earlier.mkdir(parents=True)
    (earlier / "stale.txt").write_text("from an earlier artifact")
    (folder / "artifact" / "saved_model.pb").write_bytes(b"")

    zoo.seed_everything(0)
    vocabulary = Vocabulary.from_texts("the cat sat on the mat\nthe <unk> sät\n")
    model = zoo.char_lm("small", vocabulary=vocabulary, batch_size=2, num_steps=3)
    for weight in model.trainable_weights:
        weight.assign(8 * weight)  # for logits of order one: those of a new model are 0.1
    words = {
        name: np.random.default_rng(0).integers(0, len(vocabulary), shape).astype("int32")
        for name, shape in SHAPES.items()
    }
    np.savez(folder / "words.npz", **words)
    (folder / "texts.json").write_text(json.dumps(TEXTS))
    deviation = char_lm_export.export(model, folder / "artifact", vocabulary)
    output = fresh_python(CONSUMER, env={"FOLDER": str(folder)}, block=["zoo", "keras"]).stdout

    by_characters = char_lm_inference.with_state(model, characters=True)
    states = char_lm_inference.zero_state(by_characters, 5)
    spelled = char_lm_inference.pad_slots(model, vocabulary.table()[words["another"]])
    another = keras.ops.convert_to_tensor(spelled)
    expected = {
        "its_own": model.predict_on_batch(words["its_own"]),
        "another": by_characters.predict_on_batch([another, *states])[0],
    }
    expected["next_word"] = [next_word(model, vocabulary, text) for text in TEXTS]
    return {
        "folder": folder / "artifact",
        "deviation": deviation,
        "vocabulary": vocabulary,
        "model": model,
        "names": json.loads(output.splitlines()[-1]),
        "result": dict(np.load(folder / "result.npz")),
        "expected": expected,
    }


@pytest.fixture
def tiny():
    """Return a model of one weight."""
    x = keras.Input((1,))
    return keras.Model(x, keras.layers.Dense(1, use_bias=False)(x))


@slow_unless_tensorflow
@pytest.mark.parametrize("name", SHAPES)
def test_served_logits_are_the_model_s_for_any_batch_and_length(exported, name):
    expected = exported["expected"][name]
    assert np.abs(expected).max() > 1
    assert 0 <= exported["deviation"] <= 1e-5
    np.testing.assert_allclose(exported["result"][name], expected, rtol=0, atol=1e-5)


@slow_unless_tensorflow
def test_steps_that_pass_on_the_state_equal_the_text_served_at_once(exported):
    result = exported["result"]
    np.testing.assert_allclose(result["in_two_steps"], result["another"], rtol=0, atol=1e-5)


@slow_unless_tensorflow
def test_raw_text_gives_the_probabilities_of_the_next_word(exported):
    expected = np.stack(exported["expected"]["next_word"])
    assert np.ptp(expected, axis=0).max() > 0.05  # texts differ
    for name in ("next_word", "next_word_alone"):  # also those of other lengths in one batch
        np.testing.assert_allclose(exported["result"][name], expected, rtol=0, atol=1e-5)


@slow_unless_tensorflow
def test_words_of_raw_text_that_the_vocabulary_has_are_read_as_their_ids(exported):
    vocabulary, model = exported["vocabulary"], exported["model"]
    stateful = char_lm_inference.with_state(model)
    states = char_lm_inference.zero_state(stateful, 1)
    for text, probabilities in zip(TEXTS[:4], exported["result"]["next_word"][:4], strict=True):
        ids = vocabulary.encode(f"{text}\n")[:-1] if text else [vocabulary.end_of_sentence]
        ids = keras.ops.convert_to_tensor([[*map(int, ids)]], "int32")
        logits = stateful.predict_on_batch([ids, *states])[0][0, -1].astype("float64")
        expected = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-5)


@slow_unless_tensorflow
def test_the_words_are_the_labels_of_the_artifact(exported):
    labels = exported["folder"] / "assets.extra" / "labels.txt"
    words = labels.read_text(encoding="utf-8").split("\n")
    assert tuple(words) == exported["vocabulary"].words
    assert (words[0], words[6]) == ("|", "+")


@slow_unless_tensorflow
def test_tensorflow_serving_finds_the_inputs_and_outputs_by_name(exported):
    assert exported["names"]["inputs"] == ["c1", "c2", "h1", "h2", "words"]
    assert exported["names"]["outputs"] == ["c1", "c2", "h1", "h2", "logits"]
    result = exported["result"]
    np.testing.assert_array_equal(result["by_default"], result["its_own"])


@slow_unless_tensorflow
def test_all_endpoints_share_one_copy_of_the_weights_they_need(exported):
    names = ("word_embedding", "lstm1", "lstm2", "logits")
    layers = [exported["model"].get_layer(name) for name in names]
    weights = [weight for layer in layers for weight in layer.trainable_weights]
    needed = sum(int(np.prod(weight.shape)) for weight in weights)
    needed += 525 * len(exported["vocabulary"])  # and a vector a word, computed beforehand
    (data,) = exported["folder"].glob("variables/*.data-*")
    assert data.stat().st_size == pytest.approx(4 * needed, rel=1e-3)


@slow_unless_tensorflow
def test_an_export_replaces_an_earlier_artifact_as_a_whole(exported):
    assert not (exported["folder"] / "assets" / "stale.txt").exists()
    names = {path.name for path in exported["folder"].parent.iterdir()}
    assert names == {"artifact", "words.npz", "texts.json", "result.npz"}


def test_a_folder_of_something_else_is_refused_and_kept(tiny, tmp_path):
    precious = tmp_path / "thesis.tex"
    precious.write_text("Once")
    for path in (tmp_path, precious):
        with pytest.raises(ValueError, match="`path` must be"):
            export(tiny, path)
    assert list(tmp_path.iterdir()) == [precious]


def test_without_tensorflow_the_error_says_what_to_do(tiny, tmp_path, backend, monkeypatch):
    if backend == "tensorflow":
        pytest.skip("Keras itself runs on TensorFlow here")
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # the import then fails
    with pytest.raises(RuntimeError, match="pip install tensorflow"):
        export(tiny, tmp_path / "artifact")
    assert not list(tmp_path.iterdir())


@without_backend
def test_a_model_that_hides_its_graph_is_refused(tmp_path):
    class Doubled(keras.Model):
        def call(self, x, **context):
            return super().call(2 * x)

    inputs = keras.Input((4,))
    doubled = Doubled(inputs, keras.layers.Dense(4)(inputs))
    for model in (doubled, keras.Sequential([keras.layers.Dense(1)])):
        with pytest.raises(ValueError, match="without a `call` of its own"):
            export(model, tmp_path / "doubled")


def test_endpoints_that_no_other_process_could_import_are_refused(tiny, tmp_path):
    with pytest.raises(ValueError, match="top level of a module"):
        export(tiny, tmp_path / "artifact", endpoints=lambda model: serve(model))


@without_backend
def test_the_vocabulary_must_be_the_model_s(tmp_path):
    model = zoo.char_lm("small", vocabulary=Vocabulary.from_texts("to be or not\n"))
    for others in ("a rose\n", "to bee or not\n", "to be not or\n"):
        with pytest.raises(ValueError, match="must be the one of the model"):
            char_lm_export.export(model, tmp_path / "artifact", Vocabulary.from_texts(others))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_in_float32_changes_every_layer_cell_and_input(policy):
    keras.config.set_dtype_policy(policy)
    try:
        x = keras.Input((4, 3))
        inner = keras.Sequential([keras.Input((4, 3)), keras.layers.Dense(2, name="inner")])
        cell = keras.layers.LSTMCell(2, recurrent_initializer="ones")
        y = keras.layers.RNN(keras.layers.StackedRNNCells([cell]))(inner(x))
        model = keras.Model(x, zoo.HighwayDense(2)(y))
    finally:
        keras.config.set_dtype_policy("float32")
    copy = in_float32(model)
    dtypes = {la.compute_dtype for la in copy._flatten_layers()} | {w.dtype for w in copy.weights}
    assert dtypes == {copy.inputs[0].dtype} == {copy.outputs[0].dtype} == {"float32"}
    for old, new in zip(model.get_weights(), copy.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old.astype("float32"))


def test_a_model_trained_in_mixed_precision_is_served_in_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        layer = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)
        model = keras.Sequential([keras.Input((1,)), layer])
    finally:
        keras.config.set_dtype_policy("float32")
    x = np.array([[1 + 2**-10]], "float32")  # bfloat16 has 7 bits after the binary point
    assert float(model.predict_on_batch(x)[0, 0]) == 1
    assert float(in_float32(model).predict_on_batch(x)[0, 0]) == 1 + 2**-10
