"""The same language model with its state as an argument: for scoring, sampling and serving."""

import weakref

import keras
from keras import ops

from zoo.layers.carry_lstm import CarryLSTM, ExplicitState
from zoo.layers.char_words import CharWordEmbedding

_alone = weakref.WeakKeyDictionary()  # word encoders by those of models


def with_state(model, tabulate=True):
    """`model`'s layers in a new graph that takes and returns the LSTMs' states.

    Args:
        model: A `char_lm`.
        tabulate: Whether word vectors are looked up in a table of all words, computed now
            (call `refresh_table` when the weights have changed), or computed from characters.

    Returns:
        A `keras.Model` from `[words, h1, c1, h2, c2]` to `[logits, h1, c1, h2, c2]`, for any
        batch size and number of steps: words `(batch, steps)`, states `(batch, units)`,
        logits `(batch, steps, words)`. It shares `model`'s weights.
    """
    words = keras.Input((None,), dtype="int32", name="words")
    x, states, new_states = words, [], []
    for layer in model.layers[1:]:  # a chain
        if isinstance(layer, CharWordEmbedding) and tabulate:
            x = _lookup(layer)(x)
        elif isinstance(layer, CarryLSTM):
            number = len(states) // 2 + 1
            state = [keras.Input((layer.units,), name=f"{name}{number}") for name in "hc"]
            x, *new = ExplicitState(layer, name=f"{layer.name}_state")(x, *state)
            states += state
            new_states += new
        else:
            x = layer(x)
    stateful = keras.Model([words, *states], [x, *new_states], name=f"{model.name}_state")
    if tabulate:
        refresh_table(model, stateful)
    return stateful


def refresh_table(model, stateful):
    """Computes the vectors of all words anew, after a change of `model`'s weights."""
    embedding = model.get_layer("word_embedding")
    table = ops.convert_to_numpy(embedding.table)
    encoder = embedding.encoder
    if encoder not in _alone:  # built under a strategy, it would predict with all workers
        _alone[encoder] = keras.Model(encoder.inputs, encoder.outputs[0])
    vectors = _alone[encoder].predict(table, batch_size=512, verbose=0)
    stateful.get_layer("word_vectors").embeddings.assign(vectors)


def zero_state(stateful, batch_size):
    """The states with which a text begins: a list of zeros `(batch_size, units)`."""
    return [ops.zeros((batch_size, s.shape[-1]), s.dtype) for s in stateful.inputs[1:]]


def _lookup(embedding):
    return keras.layers.Embedding(
        embedding.num_words,
        embedding.encoder.output_shape[-1],
        embeddings_initializer="zeros",
        trainable=False,
        name="word_vectors",
    )
