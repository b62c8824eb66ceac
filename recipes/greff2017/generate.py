"""Text from a trained language model: `ptb_char_lm.py --generate`."""

import keras
import numpy as np
from keras import ops

from zoo.applications import char_lm_inference
from zoo.datasets.text import Vocabulary

LIKELIEST = 10  # ours: words to sample from


def generate(
    model: keras.Model, vocabulary: Vocabulary, text: str, num_words: int, seed: int
) -> str:
    """Continue a text by words that are sampled from the ten likeliest, but never the unknown word.

    Words of the text outside the vocabulary are read by their characters.

    Returns:
        The text and its continuation.

    Raises:
        ValueError: if the vocabulary is not the model's, or cannot spell the text.
    """
    if len(vocabulary) != model.output_shape[-1]:
        raise ValueError(
            f"`vocabulary` must be the one of the model, which has {model.output_shape[-1]} "
            f"words. Received: {vocabulary!r}. Give the vocabulary the model was built for."
        )
    reader = char_lm_inference.with_state(model, characters=True)
    writer = char_lm_inference.with_state(model)
    characters = char_lm_inference.pad_slots(model, vocabulary.prompt(text))
    state = char_lm_inference.zero_state(reader, 1)
    logits, state = _run(reader, characters[None], state)
    random = np.random.default_rng(seed)
    sampled: list[int] = []
    while len(sampled) < num_words:
        scores = logits[0, -1].astype("float64")
        if vocabulary.unknown is not None:
            scores[vocabulary.unknown] = -np.inf
        likeliest = np.argsort(-scores, kind="stable")[:LIKELIEST]
        weights = np.exp(scores[likeliest] - scores.max())
        sampled.append(random.choice(likeliest, p=weights / weights.sum()))
        logits, state = _run(writer, np.array([sampled[-1:]], "int32"), state)
    continuation = vocabulary.decode(sampled)
    separator = "" if text[-1:].isspace() or continuation[:1] == "\n" else " "
    return f"{text}{separator}{continuation}".removeprefix(" ")


def _run(stateful, words, state):
    """Return logits and states; `predict_on_batch` compiles once, where JAX's eager scan would not.

    A Keras model does not mix arrays and tensors.
    """
    inputs = {name: ops.convert_to_tensor(x) for name, x in {"words": words, **state}.items()}
    outputs = stateful.predict_on_batch(inputs)
    return outputs.pop("logits"), outputs
