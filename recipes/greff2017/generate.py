"""Text from a trained language model: `ptb_char_lm.py --generate`.

`ptb_char_lm.py` imports it from beside itself.
"""


def generate(model, vocabulary, text, num_words, seed):
    """`text` and `num_words` more words, each drawn from the ten likeliest.

    Words that the vocabulary lacks are read as its unknown word, which is never drawn.
    """
    import keras
    import keras_nlp

    from zoo.applications import char_lm_inference

    stateful = char_lm_inference.with_state(model)
    given = vocabulary.encode(text)[:-1]  # without the end of the sentence
    if not len(given):
        given = [vocabulary.end_of_sentence]
    ops, state = keras.ops, char_lm_inference.zero_state(stateful, 1)
    prompt = ops.array([[*map(int, given), *[0] * num_words]], "int32")
    if len(given) > 1:
        _, *state = stateful([prompt[:, : len(given) - 1], *state])
    never = -1 if vocabulary.unknown is None else vocabulary.unknown
    closed = ops.where(ops.arange(len(vocabulary)) == never, 1e9, 0.0)

    def next_word(prompt, state, index):
        word = ops.slice(prompt, (0, index - 1), (1, 1))
        logits, *state = stateful([word, *state])
        return logits[:, 0] - closed, None, state

    sampler = keras_nlp.samplers.TopKSampler(k=min(10, len(vocabulary)), seed=seed)
    ids = sampler(next_word, prompt, cache=state, index=len(given))
    return vocabulary.decode(ops.convert_to_numpy(ids)[0])
