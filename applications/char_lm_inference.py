"""A language model's layers in other graphs: with states as arguments, scored, to be inspected."""

from collections.abc import Callable, Iterable

import keras
import numpy as np
from keras import ops

from zoo import backend
from zoo.checks import require
from zoo.datasets.text import check_ids
from zoo.layers.carry_lstm import CarryLSTM, ExplicitState
from zoo.layers.char_words import CharWordEmbedding
from zoo.types import Tensor

CHUNK = 256  # ours: words that are encoded at once


def with_state(model: keras.Model, characters: bool = False) -> keras.Model:
    """Return `model`'s layers in a new graph that takes and returns the LSTMs' states.

    It looks word vectors up in a table of all words, computed now; call `refresh_table` after the
    weights have changed.

    With `characters` it takes those of words, `(batch, steps, slots)` as of `Vocabulary.spell`,
    instead of their ids, and needs no table; the words need not be in the vocabulary.

    The model is from `{"words", "h1", "c1", "h2", "c2"}` to `{"logits", "h1", "c1", "h2", "c2"}`,
    for any batch size and number of steps: words `(batch, steps)`, states `(batch, units)`, logits
    `(batch, steps, words)`. Zeros start a text, and the returned states continue it. It shares
    `model`'s weights; `zoo.export` writes it.
    """
    slots = [model.get_layer("word_embedding").word_length] if characters else []
    x = words = keras.Input((None, *slots), dtype="int32", name="words")
    states: dict[str, Tensor] = {}
    new_states: dict[str, Tensor] = {}
    for layer in model.layers[1:]:  # a chain
        if isinstance(layer, CharWordEmbedding) and not characters:
            x = keras.layers.Embedding(
                layer.num_words,
                layer.encoder.output_shape[-1],
                embeddings_initializer="zeros",
                trainable=False,
                dtype=layer.encoder.dtype_policy,
                name="word_vectors",
            )(x)
        elif isinstance(layer, CarryLSTM):
            number = len(states) // 2 + 1
            state = {f"{k}{number}": keras.Input((layer.units,), name=f"{k}{number}") for k in "hc"}
            x, *new_state = _explicit(layer)(x, *state.values())
            states |= state
            new_states |= dict(zip(state, new_state, strict=True))
        else:
            x = layer(x)
    inputs = {"words": words, **states}
    stateful = keras.Model(inputs, {"logits": x, **new_states}, name=f"{model.name}_state")
    if not characters:
        refresh_table(model, stateful)
    return stateful


def flat(model: keras.Model, num_steps: int = 35) -> keras.Model:
    """Return `model`'s layers in a graph whose blocks are its layers between CNN and LSTM.

    In `model`, a `char_lm`, they are inside of `word_embedding`. Probes, lesions, exits and
    `diagnose` find them in this graph, from word ids `(batch, num_steps)` to logits `(batch,
    num_steps, words)`. Each row is a text of its own: the states start at zero.

    Example:
    >>> from zoo.applications.char_lm import char_lm
    >>> from zoo.graph.blocks import find_blocks
    >>> [block.name for block in find_blocks(flat(char_lm("large"), 5))[0]]
    ['highway1', 'highway2']
    """
    x = words = keras.Input((num_steps,), dtype="int32", name="words")
    for layer in model.layers[1:]:  # a chain
        if isinstance(layer, CharWordEmbedding):
            (table,) = backend.numpy_values([layer.table])
            characters = ops.take(table, x, axis=0)
            cnn, *others = layer.encoder.layers[1:]
            vectors = cnn(ops.reshape(characters, (-1, layer.word_length)))
            x = ops.reshape(vectors, (-1, num_steps, vectors.shape[-1]))
            for inner in others:
                x = inner(x)
        elif isinstance(layer, CarryLSTM):
            zeros = ops.repeat(ops.zeros_like(x[:, 0, :1]), layer.units, axis=-1)
            x, _, _ = _explicit(layer)(x, zeros, zeros)
        else:
            x = layer(x)
    return keras.Model(words, x, name=f"{model.name}_flat")


def _explicit(layer):
    return ExplicitState(layer, name=f"{layer.name}_state", dtype=layer.dtype_policy)


def refresh_table(
    model: keras.Model,
    stateful: keras.Model,
    ids: np.ndarray | None = None,
    encode: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Recompute the vectors of words after a change of `model`'s weights.

    `stateful` is its graph by `with_state`, `ids` are distinct ids of the words that will be looked
    up; the vectors of the others become NaN. `None` takes all words. `encode` is the model's
    encoder, compiled; `None` calls it as it is.
    """
    embedding = model.get_layer("word_embedding")
    (table,) = backend.numpy_values([embedding.table])
    variable = stateful.get_layer("word_vectors").embeddings
    encode = encode or embedding.encoder  # not `predict`: under a strategy, it uses all replicas
    ids = np.arange(len(table)) if ids is None else ids
    vectors = np.full(variable.shape, np.nan)
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        words = table[np.resize(chunk, CHUNK)]  # always as many, for one compilation
        vectors[chunk] = ops.convert_to_numpy(encode(words))[: len(chunk)]
    variable.assign(vectors)


def pad_slots(model: keras.Model, characters: np.ndarray) -> np.ndarray:
    """Return spelled words `(..., word_length)` with as many slots as `model` has for a word."""
    embedding = model.get_layer("word_embedding")
    slots = embedding.word_length
    count = embedding.encoder.get_layer("cnn").num_characters
    spare = slots - characters.shape[-1]
    valid = spare >= 0 and ((characters >= 0) & (characters < count)).all()
    expected = f"from 0 to {count - 1}, in at most {slots} slots. Give the vocabulary of the model"
    received = f"{np.unique(characters)} in {characters.shape[-1]} slots"
    require(valid, expected, characters=received)
    return np.pad(characters, [(0, 0)] * (characters.ndim - 1) + [(0, spare)])


def zero_state(stateful: keras.Model, batch_size: int) -> dict[str, Tensor]:
    """Return the initial states of a text: zeros of shape `(batch_size, units)`, by name."""
    states = {name: x for name, x in stateful.input.items() if name != "words"}
    return {name: ops.zeros((batch_size, x.shape[-1]), x.dtype) for name, x in states.items()}


@keras.saving.register_keras_serializable("zoo")
def sequence_nll(targets: Tensor, logits: Tensor) -> Tensor:
    """Negative log-likelihood of each sequence, summed over its steps, in nats: `(batch,)`.

    Keras averages it over the batch, which makes the gradient a sum over steps, as Kim et
    al.'s criterion has it; a loss averaged over steps would clip and step 35 times shorter.
    Targets are word ids `(batch, steps)`, logits `(batch, steps, words)`.
    """
    return ops.sum(token_nll(targets, logits), axis=-1)


def token_nll(targets: Tensor, logits: Tensor) -> Tensor:
    """Negative log-likelihood of each token, in nats: `(batch, steps)`."""
    rows = ops.reshape(logits, (-1, logits.shape[-1]))
    return ops.reshape(backend.nll(rows, ops.reshape(targets, (-1,))), ops.shape(targets))


class Scorer:
    """Perplexity = exp(mean negative log-likelihood per token) under the current weights.

    The vectors of the text's distinct words are computed once per call and looked up; the state
    starts at zero and is separate from the state that training carries.

    Reference: Kim et al. (2016), arXiv:1508.06615, equation 11.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.stateful = with_state(model)
        self.step = backend.compiled(self._step, self.stateful)
        encoder = model.get_layer("word_embedding").encoder
        self.encode = backend.compiled(encoder, encoder)

    def _step(self, words, targets, state):
        """Return the negative log-likelihoods of words, and the state after them."""
        outputs = self.stateful({"words": words, **state})
        return token_nll(targets, outputs.pop("logits")), outputs

    def perplexity(self, inputs: Iterable[np.ndarray], targets: Iterable[np.ndarray]) -> float:
        """Return the perplexity of consecutive chunks of parallel streams.

        Inputs are word ids, chunks of shape `(batch, steps)`, whose lengths may vary; targets are
        the next words.

        Raises:
            ValueError: If there is no word, or an id is not one of the model's vocabulary.
        """
        num_words = self.model.output_shape[-1]
        chunks = [
            (check_ids(x, num_words), check_ids(y, num_words))
            for x, y in zip(inputs, targets, strict=True)
        ]
        count = sum(y.size for _, y in chunks)
        if not count:
            raise ValueError("Expected at least one word, to predict the next. Received: none.")
        distinct = np.unique(np.concatenate([x.ravel() for x, _ in chunks]))
        refresh_table(self.model, self.stateful, distinct, self.encode)
        state = zero_state(self.stateful, len(chunks[0][0]))
        total = 0.0
        for x, y in chunks:
            nll, state = self.step(ops.convert_to_tensor(x), ops.convert_to_tensor(y), state)
            total += float(np.sum(ops.convert_to_numpy(nll), dtype="float64"))
        return float(np.exp(total / count))

    def contiguous(self, ids: np.ndarray, num_steps: int = 700) -> float:
        """Return the perplexity of all tokens of `ids` `(n,)` as one stream; the last target wraps.

        The state is carried from chunk to chunk of `num_steps` words.
        """
        cuts = range(num_steps, len(ids), num_steps)
        inputs = [chunk[None] for chunk in np.split(np.asarray(ids), cuts)]
        targets = [chunk[None] for chunk in np.split(np.roll(ids, -1), cuts)]
        return self.perplexity(inputs, targets)
