"""Word vectors computed from characters, each distinct word of a batch once."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from zoo import backend
from zoo.checks import as_integers, check_integers, check_model, require
from zoo.initializers import Uniform, copied
from zoo.layers.configured import Configured
from zoo.types import Initializer, Shape, Tensor


@keras.saving.register_keras_serializable("zoo")
class ZeroPad(keras.constraints.Constraint):
    """A constraint that sets row 0, the pad character's vector, to zero after every update."""

    def __call__(self, w: Tensor) -> Tensor:
        """Return w with zeros in row 0."""
        return ops.concatenate([ops.zeros_like(w[:1]), w[1:]], axis=0)


@keras.saving.register_keras_serializable("zoo")
class CharCNN(Configured):
    """A word vector: each filter's largest response to any window of the word's characters.

    For a filter of width w over the character vectors e: tanh(b + max over p of
    <K, e[p : p + w]>). It equals a convolution with bias and tanh followed by max over time,
    because tanh is increasing; so bias and tanh are computed once a word, not for every slot.

    Args:
        num_characters: Size of the character vocabulary; character 0 is the pad.
        dim: Dimension of a character vector; the pad's is zero initially and after each update.
        widths: Filter widths, in characters.
        filters: Number of filters of each width.
        initializer: Initializer of every weight; `None` is U(-0.05, 0.05).

    Input shape: `(words, slots)`, integers.
    Output shape: `(words, sum(filters))`.

    Raises:
        ValueError: if `widths` and `filters` differ in length or are not positive, or a word has
            fewer slots than the widest filter.

    Reference: Kim et al. (2016), arXiv:1508.06615, section 2.2, equations 1 and 2.
    """

    def __init__(
        self,
        num_characters: int,
        dim: int,
        widths: Sequence[int],
        filters: Sequence[int],
        initializer: Initializer | None = None,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.widths = as_integers(1, widths=widths)
        self.filters = as_integers(1, filters=filters)
        paired = len(self.widths) == len(self.filters)
        require(paired, f"one entry per kind of filter, as {filters=}", widths=widths)
        self.num_characters = num_characters
        self.dim = dim
        self.initializer = keras.initializers.get(initializer or Uniform(0.05))
        self.kernels: list[keras.Variable] = []
        self.biases: list[keras.Variable] = []

    def build(self, input_shape: Shape) -> None:
        """Create the character vectors, kernels and biases."""
        slots = input_shape[-1]
        expected = f"at least {max(self.widths)}, those of the widest filter. Pad the words"
        require(slots is None or slots >= max(self.widths), expected, slots=slots)
        zero_pad = ZeroPad()

        def clone():  # an initializer of Keras's returns the same numbers again
            return copied(self.initializer)

        shape = (self.num_characters, self.dim)
        self.embeddings = self.add_weight(shape, clone(), constraint=zero_pad, name="embeddings")
        self.embeddings.assign(zero_pad(self.embeddings.value))
        for width, filters in zip(self.widths, self.filters, strict=True):
            kernel = (width, self.dim, filters)
            self.kernels.append(self.add_weight(kernel, clone(), name=f"kernel{width}"))
            self.biases.append(self.add_weight((filters,), clone(), name=f"bias{width}"))

    def call(self, characters: Tensor) -> Tensor:
        """Return the word vectors."""
        responses = backend.largest_responses(characters, self.embeddings, self.kernels)
        biases = [ops.convert_to_tensor(bias) for bias in self.biases]
        return ops.tanh(responses + ops.concatenate(biases))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the output's shape."""
        return (*input_shape[:-1], sum(self.filters))


@keras.saving.register_keras_serializable("zoo")
class CharWordEmbedding(Configured):
    """Word vectors computed from the words' characters, once per distinct word of a batch.

    The layer looks up the characters of a word in its `table` and passes them to `encoder`.
    Value and gradient equal those of encoding each occurrence. A batch with more than
    `max_distinct` distinct words is encoded occurrence by occurrence.

    Args:
        encoder: A model from characters `(words, word_length)` to vectors `(words, features)`,
            without dropout.
        num_words: Number of words in the table.
        word_length: Length of a word in the table, in characters.
        max_distinct: Largest number of distinct words in a batch that compiled code has room
            for. `None` encodes each occurrence.

    Input shape: `(batch, steps)`, integers below `num_words`; the vectors of others are NaN. Or
    `(batch, steps, word_length)`, the characters of words, which need not be in the table.
    Output shape: `(batch, steps, features)`.

    Reference: Kim et al. (2016), arXiv:1508.06615, section 2; the saving is ours.
    """

    input_dtype = "int32"  # half precision would round ids that are given as floats

    def __init__(
        self,
        encoder: keras.Model,
        num_words: int,
        word_length: int,
        max_distinct: int | None = None,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        check_integers(1, max_distinct=max_distinct, optional=True)
        check_model(encoder)  # a saved model names it
        self.encoder = encoder
        self.num_words = num_words
        self.word_length = word_length
        self.max_distinct = max_distinct

    def build(self, input_shape: Shape) -> None:
        """Create the table of the words' characters, zero until `set_table`."""
        shape = (self.num_words, self.word_length)
        self.table = self.add_weight(shape, "zeros", "int32", trainable=False, name="table")

    def set_table(self, table: np.ndarray) -> None:
        """Store the characters of each word; another shape than the table's is a `ValueError`."""
        shape = (self.num_words, self.word_length)
        expected = f"of shape {shape}, a row a word: build the model for this vocabulary"
        require(tuple(table.shape) == shape, expected, table=tuple(table.shape))
        self.table.assign(table)

    def call(self, words: Tensor) -> Tensor:
        """Return the vectors of words, given by their ids or their characters."""
        words = ops.cast(words, "int32")
        if len(words.shape) == 3:
            vectors = self.encoder(ops.reshape(words, (-1, self.word_length)))
        else:
            vectors = self._look_up(ops.reshape(words, (-1,)))
        return ops.reshape(vectors, (*ops.shape(words)[:2], vectors.shape[-1]))

    def _look_up(self, ids):
        known = ops.logical_and(ids >= 0, ids < self.num_words)
        ids = ops.clip(ids, 0, self.num_words - 1)  # backends differ in look-ups beyond the table
        if self.max_distinct is None:
            vectors = self.encode(ids)
        else:
            words, inverse, count = backend.unique(ids, self.max_distinct)
            vectors = ops.cond(
                count <= words.shape[0],
                lambda: ops.take(self.encode(words), inverse, axis=0),
                lambda: self.encode(ids),
            )
        return vectors + ops.cast(ops.where(known, 0.0, np.nan), vectors.dtype)[:, None]

    def encode(self, ids: Tensor) -> Tensor:
        """Return the encoder's vectors `(n, features)` of the words `ids` `(n,)`."""
        return self.encoder(ops.take(self.table, ids, axis=0))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the output's shape."""
        return (*input_shape[:2], self.encoder.output_shape[-1])
