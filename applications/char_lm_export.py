"""The language model as a SavedModel or ONNX: for a whole text at once, and step by step."""

import keras
import numpy as np
from keras import ops

from zoo.applications import char_lm_inference
from zoo.datasets.text import Vocabulary
from zoo.export import export as export_model
from zoo.layers.carry_lstm import CarryLSTM
from zoo.types import PathLike, Shape, Tensor


def export(
    model: keras.Model,
    path: PathLike,
    vocabulary: Vocabulary | None = None,
    format: str = "saved_model",
) -> float:
    """Write a `char_lm` as a SavedModel or an ONNX file, which need neither zoo nor Keras.

    Word vectors are tabulated. Any batch size and number of steps:

    - `serve`: `words` `(batch, steps)`, int32, to `logits` `(batch, steps, words)`; the state
      starts at zero. Not in ONNX, which has one endpoint.
    - `step`: `{"words", "h1", "c1", "h2", "c2"}` to `{"logits", "h1", "c1", "h2", "c2"}`, with
      states `(batch, units)`; zeros start a text, and the returned states continue it. ONNX calls
      the returned states `new_h1` and so on.

    Args:
        model: A `char_lm`.
        path: Path of the artifact, as in `zoo.export`.
        vocabulary: The model's `Vocabulary`, whose words are the artifact's labels; `None` for
            no labels.
        format: "saved_model" or "onnx"; LiteRT lacks the operations of a recurrent layer.

    Returns:
        The largest absolute deviation of the artifact's logits and states from the model's.

    Raises:
        ValueError: if the vocabulary is not the model's, or `path` exists and is no artifact.
        RuntimeError: if a package is not installed, TensorFlow fails, or the deviation is too
            large.

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
    num_words = model.output_shape[-1]
    labels = None if vocabulary is None else vocabulary.words
    if labels is not None and len(labels) != num_words:
        raise ValueError(
            f"`vocabulary` must be the one of the model, which has {num_words} words. "
            f"Received: {vocabulary!r}. Give the vocabulary the model was built for."
        )

    random = np.random.default_rng(0)
    units = [layer.units for layer in model.layers if isinstance(layer, CarryLSTM)]
    words = random.integers(0, num_words, (2, 5)).astype("int32")
    states = {
        f"{name}{number}": random.uniform(-1, 1, (2, size)).astype("float32")
        for number, size in enumerate(units, 1)
        for name in "hc"
    }
    examples = {"serve": words, "step": {"words": words, **states}}
    models = endpoints if format == "saved_model" else step
    return export_model(model, path, format, labels, endpoints=models, examples=examples)


def step(model: keras.Model) -> dict[str, keras.Model]:
    """Return the model of the endpoint `step` of `export`, by its name."""
    stateful = char_lm_inference.with_state(model)
    _, *states = stateful.inputs
    logits, *new_states = stateful.outputs
    outputs = {state.name: new for state, new in zip(states, new_states, strict=True)}
    inputs = {tensor.name: tensor for tensor in stateful.inputs}
    return {"step": keras.Model(inputs, {"logits": logits, **outputs}, name=stateful.name)}


def endpoints(model: keras.Model) -> dict[str, keras.Model]:
    """Return the models of the endpoints `serve` and `step` of `export`; they share weights.

    Example:
    >>> from zoo import char_lm
    >>> models = endpoints(char_lm("small", vocabulary=Vocabulary.from_texts("to be or not")))
    >>> sorted(models["step"].output)
    ['c1', 'c2', 'h1', 'h2', 'logits']
    >>> models["serve"](ops.ones((1, 2), "int32"))["logits"].shape == (1, 2, 5)
    True
    """
    step_model = step(model)["step"]
    words = keras.Input((None,), dtype="int32", name="words")
    states = {name: x for name, x in step_model.input.items() if name != "words"}
    zeros = {name: ZeroState(state.shape[-1])(words) for name, state in states.items()}
    logits = step_model({"words": words, **zeros})["logits"]
    return {"serve": keras.Model(words, {"logits": logits}), "step": step_model}


@keras.saving.register_keras_serializable("zoo")
class ZeroState(keras.layers.Layer):
    """The initial state of a text, with as many rows as the input has.

    Args:
        units: Size of the state.

    Input shape: `(batch, ...)`.
    Output shape: `(batch, units)`.

    Example:
    >>> ZeroState(3)(ops.ones((2, 5), "int32")).shape == (2, 3)
    True
    """

    def __init__(self, units: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.units = units

    def call(self, x: Tensor) -> Tensor:
        """Return zeros."""
        return ops.zeros((ops.shape(x)[0], self.units), self.compute_dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return `(batch, units)`."""
        return (input_shape[0], self.units)

    def get_config(self) -> dict:
        """Return the layer's configuration."""
        return {**super().get_config(), "units": self.units}
