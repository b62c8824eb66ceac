"""Text from a trained language model: `ptb_char_lm.py --generate`."""

import keras

from zoo.applications import char_lm_inference
from zoo.datasets.text import Vocabulary


def generate(
    model: keras.Model, vocabulary: Vocabulary, text: str, num_words: int, seed: int
) -> str:
    """Continue a text by words that are sampled from the ten likeliest.

    Args:
        model: A `zoo.char_lm`.
        vocabulary: Its vocabulary. Words that it lacks are read as its unknown word, which is never
            sampled.
        text: The beginning.
        num_words: Number of words to add.
        seed: Seed of the sampling.
    """
    import keras_nlp  # imports TensorFlow

    stateful = char_lm_inference.with_state(model)
    ids = vocabulary.encode(text)[:-1]  # without the end of the sentence
    if not len(ids):
        ids = [vocabulary.end_of_sentence]
    ops = keras.ops
    state = char_lm_inference.zero_state(stateful, 1)
    prompt = ops.array([[*map(int, ids), *[0] * num_words]], "int32")
    if len(ids) > 1:
        _, *state = stateful([prompt[:, : len(ids) - 1], *state])
    never = -1 if vocabulary.unknown is None else vocabulary.unknown
    excluded = ops.where(ops.arange(len(vocabulary)) == never, 1e9, 0.0)

    def next_word(prompt, state, index):
        word = ops.slice(prompt, (0, index - 1), (1, 1))
        logits, *state = stateful([word, *state])
        return logits[:, 0] - excluded, None, state

    sampler = keras_nlp.samplers.TopKSampler(k=min(10, len(vocabulary)), seed=seed)
    sampled = sampler(next_word, prompt, cache=state, index=len(ids))
    return vocabulary.decode(ops.convert_to_numpy(sampled)[0])
