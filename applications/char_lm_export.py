"""The language model as a SavedModel: for a whole text at once, and step by step."""

import keras
import numpy as np
from keras import ops

from zoo.applications import char_lm_state
from zoo.export import saved_model
from zoo.layers.carry_lstm import CarryLSTM


def export(model, path, vocabulary=None):
    """Writes a `char_lm` as a TensorFlow SavedModel that needs neither this package nor Keras.

    Word vectors are tabulated. Any batch size and number of steps:

    - `serve`: words `(batch, steps)`, int32, to logits `(batch, steps, words)`; the state
      starts at zero.
    - `step`: `{"words", "h1", "c1", "h2", "c2"}` to `{"logits", "h1", "c1", "h2", "c2"}`, with
      states `(batch, units)`; zeros start a text, and what comes out continues it.

    Args:
        model: A `char_lm`.
        path: Folder of the artifact; a SavedModel that is there is replaced.
        vocabulary: The model's `Vocabulary`; its words go to `assets.extra/words.txt`, in
            UTF-8, the word of id i on line i (from 0). `None` writes no such file.

    Returns:
        The largest absolute deviation of the artifact's logits and states from the model's.

    Raises:
        ValueError: if the vocabulary is not the model's, or `path` something else than a
            SavedModel.
        RuntimeError: if TensorFlow is not installed or fails, or the deviation exceeds 1e-4.

    Example:

    ```python
    char_lm_export.export(model, "artifacts/char_lm", corpus.vocabulary)
    artifact = tf.saved_model.load("artifacts/char_lm")  # anywhere
    zeros = tf.zeros((1, 300))
    state = {"h1": zeros, "c1": zeros, "h2": zeros, "c2": zeros}
    state = artifact.step({"words": [[5, 7]], **state})
    logits = state.pop("logits")  # `state` continues the text
    ```
    """
    num_words, files = model.output_shape[-1], {}
    if vocabulary is not None:
        if len(vocabulary) != num_words:
            raise ValueError(
                f"`vocabulary` must be the one of the model, which has {num_words} words. "
                f"Received: {vocabulary!r}. Give the vocabulary the model was built for."
            )
        files["words.txt"] = "".join(f"{word}\n" for word in vocabulary.words)

    random = np.random.default_rng(0)
    units = [layer.units for layer in model.layers if isinstance(layer, CarryLSTM)]
    words = random.integers(0, num_words, (2, 5)).astype("int32")
    states = {
        f"{name}{number}": random.uniform(-1, 1, (2, size)).astype("float32")
        for number, size in enumerate(units, 1)
        for name in "hc"
    }
    examples = {"serve": words, "step": {"words": words, **states}}
    return saved_model(model, path, endpoints, examples, files)


def endpoints(model):
    """The models behind the endpoints `serve` and `step` of `export`, with shared weights.

    Example:

    >>> from zoo import char_lm
    >>> from zoo.datasets.text import Vocabulary
    >>> models = endpoints(char_lm("small", vocabulary=Vocabulary.from_texts("to be or not")))
    >>> sorted(models["step"].output)
    ['c1', 'c2', 'h1', 'h2', 'logits']
    >>> models["serve"](ops.ones((1, 2), "int32")).shape == (1, 2, 5)
    True
    """
    stateful = char_lm_state.with_state(model)
    _, *states = stateful.inputs
    logits, *new_states = stateful.outputs
    outputs = {state.name: new for state, new in zip(states, new_states, strict=True)}
    step = keras.Model(
        {tensor.name: tensor for tensor in stateful.inputs}, {"logits": logits, **outputs}
    )
    words = keras.Input((None,), dtype="int32", name="words")
    zeros = [ZeroState(state.shape[-1])(words) for state in states]
    return {"serve": keras.Model(words, stateful([words, *zeros])[0]), "step": step}


@keras.saving.register_keras_serializable("zoo")
class ZeroState(keras.layers.Layer):
    """The state with which a text begins, for as many rows as the input has.

    Args:
        units: Size of the state.

    Input shape: `(batch, ...)`.
    Output shape: `(batch, units)`.

    Example:

    >>> ZeroState(3)(ops.ones((2, 5), "int32")).shape == (2, 3)
    True
    """

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def call(self, x):
        return ops.zeros((ops.shape(x)[0], self.units), self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.units)

    def get_config(self):
        return {**super().get_config(), "units": self.units}
