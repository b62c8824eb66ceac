"""The language model as a SavedModel or ONNX: a text at once, step by step, or as raw strings."""

from typing import Any

import keras
import numpy as np
from keras import ops

from zoo.applications import char_lm_inference
from zoo.datasets.text import Vocabulary
from zoo.export import check
from zoo.export import export as export_model
from zoo.export.signatures import in_float32
from zoo.export.text import SpellText
from zoo.layers.carry_lstm import CarryLSTM, ZeroState
from zoo.types import PathLike

TEXTS = ("", "{0} {1}", "un{1}ed {0}\n{2}")  # to check `next_word` with; fields are words


def export(
    model: keras.Model,
    path: PathLike,
    vocabulary: Vocabulary | None = None,
    format: str = "saved_model",
) -> float:
    """Write a `char_lm` as a SavedModel or an ONNX file, which need neither zoo nor Keras.

    Any batch size and number of steps:

    - `serve`: `words` `(batch, steps)`, int32, to `logits` `(batch, steps, words)`; the state
      starts at zero. Not in ONNX, which has one endpoint.
    - `step`: `{"words", "h1", "c1", "h2", "c2"}` to `{"logits", "h1", "c1", "h2", "c2"}`, with
      states `(batch, units)`; zeros start a text, and the returned states continue it. ONNX calls
      the returned states `new_h1` and so on.
    - `next_word`: `text` `(batch,)`, strings, to `probabilities` `(batch, words)` of the word that
      follows each text, in the order of the labels. Texts are split into words as
      `Vocabulary.prompt` does; every word is read by its characters, also outside the vocabulary.
      In a SavedModel with a vocabulary only.

    `serve` and `step` look word vectors up in a table. With a vocabulary the words are the
    artifact's labels: "|" is the unknown word, "+" the end of a sentence.

    Args:
        model: A `char_lm`.
        path: Path of the artifact, as in `zoo.export`.
        vocabulary: The model's `Vocabulary`; `None` for no labels and no `next_word`.
        format: "saved_model" or "onnx"; LiteRT lacks the operations of a recurrent layer.

    Returns:
        The largest absolute deviation of the artifact's outputs from the model's.

    Raises:
        ValueError: if the vocabulary is not the model's, or `path` exists and is no artifact.
        RuntimeError: if a package is not installed, TensorFlow fails, or the deviation is too
            large.

    Example:
    ```python
    char_lm_export.export(model, "artifacts/char_lm", corpus.vocabulary)
    artifact = tf.saved_model.load("artifacts/char_lm")  # anywhere
    probabilities = artifact.next_word(tf.constant(["the company"]))["probabilities"]
    zeros = tf.zeros((1, 300))
    state = {"h1": zeros, "c1": zeros, "h2": zeros, "c2": zeros}
    state = artifact.step({"words": [[5, 7]], **state})
    logits = state.pop("logits")  # `state` continues the text
    ```
    """
    num_words = model.output_shape[-1]
    random = np.random.default_rng(0)
    units = [layer.units for layer in model.layers if isinstance(layer, CarryLSTM)]
    words = random.integers(0, num_words, (2, 5)).astype("int32")
    states = {
        f"{name}{number}": random.uniform(-1, 1, (2, size)).astype("float32")
        for number, size in enumerate(units, 1)
        for name in "hc"
    }
    examples: dict[str, Any] = {"serve": words, "step": {"words": words, **states}}
    models = endpoints if format == "saved_model" else step
    if vocabulary is None:
        return export_model(model, path, format, endpoints=models, examples=examples)

    _check_vocabulary(vocabulary, model)
    if format == "saved_model":
        examples["next_word"] = _expected_next_word(model, vocabulary)
        model = with_spelling(model, vocabulary)
    return export_model(model, path, format, vocabulary.words, endpoints=models, examples=examples)


def _check_vocabulary(vocabulary, model):
    """Raise ValueError unless the model's table spells the words of the vocabulary."""
    table = ops.convert_to_numpy(model.get_layer("word_embedding").table)
    if np.array_equal(table, char_lm_inference.pad_slots(model, vocabulary.table())):
        return
    raise ValueError(
        f"`vocabulary` must be the one of the model, which has {table.shape[0]} words. "
        f"Received: {vocabulary!r}. Give the vocabulary the model was built for."
    )


def _expected_next_word(model, vocabulary):
    """Return texts, and the probabilities of their next words computed without TensorFlow."""
    words = (vocabulary.words * 3)[:3]
    texts = [text.format(*words) for text in TEXTS]
    with check.float32():
        reader = char_lm_inference.with_state(in_float32(model), characters=True)
        zeros = char_lm_inference.zero_state(reader, 1)
        logits = []
        for text in texts:
            words = char_lm_inference.pad_slots(model, vocabulary.prompt(text)[None])
            y, *_ = reader.predict_on_batch([ops.convert_to_tensor(words), *zeros])
            logits.append(y[0, -1])
    probabilities = ops.convert_to_numpy(ops.softmax(np.stack(logits)))
    return check.Expected({"text": np.array(texts)}, {"probabilities": probabilities})


def with_spelling(model: keras.Model, vocabulary: Vocabulary) -> keras.Model:
    """Return a model of `model` beside a `SpellText`, for `endpoints`: one file for a process."""
    slots = model.get_layer("word_embedding").word_length
    spell = SpellText(vocabulary.characters, vocabulary.word_length, slots, name="spelling")
    texts = keras.Input((), dtype="string", name="text")
    words = keras.Input(batch_shape=model.input_shape, dtype="int32", name="words")
    return keras.Model([texts, words], [*spell(texts), model(words)], name=f"{model.name}_spelled")


def step(model: keras.Model) -> dict[str, keras.Model]:
    """Return the model of the endpoint `step` of `export`, by its name."""
    stateful = char_lm_inference.with_state(model)
    _, *states = stateful.inputs
    logits, *new_states = stateful.outputs
    outputs = {state.name: new for state, new in zip(states, new_states, strict=True)}
    inputs = {tensor.name: tensor for tensor in stateful.inputs}
    return {"step": keras.Model(inputs, {"logits": logits, **outputs}, name=stateful.name)}


def endpoints(model: keras.Model) -> dict[str, keras.Model]:
    """Return the models of the endpoints of `export`, which share weights.

    Args:
        model: A `char_lm`; or that of `with_spelling`, which has the endpoint `next_word`, too.

    Example:
    >>> from zoo import char_lm
    >>> models = endpoints(char_lm("small", vocabulary=Vocabulary.from_texts("to be or not")))
    >>> sorted(models["step"].output)
    ['c1', 'c2', 'h1', 'h2', 'logits']
    >>> models["serve"](ops.ones((1, 2), "int32"))["logits"].shape == (1, 2, 5)
    True
    """
    (language_model,) = [x for x in model.layers if isinstance(x, keras.Model)] or [model]
    step_model = step(language_model)["step"]
    words = keras.Input((None,), dtype="int32", name="words")
    states = {name: x for name, x in step_model.input.items() if name != "words"}
    zeros = {name: ZeroState(state.shape[-1])(words) for name, state in states.items()}
    logits = step_model({"words": words, **zeros})["logits"]
    models = {"serve": keras.Model(words, {"logits": logits}), "step": step_model}
    if language_model is not model:
        models["next_word"] = _next_word(model.get_layer("spelling"), language_model)
    return models


def _next_word(spell, model):
    """Return the model from texts to the probabilities of their next words."""
    texts = keras.Input((), dtype="string", name="text")
    characters, num_words = spell(texts)
    reader = char_lm_inference.with_state(model, characters=True)
    zeros = [ZeroState(state.shape[-1])(characters) for state in reader.inputs[1:]]
    logits, *_ = reader([characters, *zeros])
    last = ops.expand_dims(num_words - 1, (1, 2))  # the words of shorter texts are followed by pads
    probabilities = ops.softmax(ops.take_along_axis(logits, last, axis=1)[:, 0])
    return keras.Model(texts, {"probabilities": probabilities})
