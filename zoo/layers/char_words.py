"""Word vectors computed from characters, each distinct word of a batch once."""

import keras
from keras import ops

from zoo import backend
from zoo.initializers import Uniform


@keras.saving.register_keras_serializable("zoo")
class ZeroPad(keras.constraints.Constraint):
    """Row 0, the pad character's vector, is put back to zero after every update."""

    def __call__(self, w):
        return ops.concatenate([ops.zeros_like(w[:1]), w[1:]], axis=0)


@keras.saving.register_keras_serializable("zoo")
class CharCNN(keras.layers.Layer):
    """A word vector: the strongest answer of each filter to any window of the word's characters.

    For a filter of width w over the character vectors e: tanh(b + max over p of
    <K, e[p : p + w]>). It equals a convolution with bias and tanh followed by max over time,
    because tanh is increasing; so bias and tanh cost one slot a word instead of all.

    Args:
        num_characters: Size of the character vocabulary; character 0 is the pad.
        dim: Length of a character vector.
        widths: Filter widths, in characters.
        filters: Number of filters of each width.
        initializer: Of every weight; the pad's vector is zero then and after each update.

    Input shape: `(words, slots)`, integers.
    Output shape: `(words, sum(filters))`.

    Raises:
        ValueError: if `widths` and `filters` differ in length, or a word has fewer slots than
            the widest filter.

    Reference: Kim et al. (2016), arXiv:1508.06615, section 2.2, equations 1 and 2.
    """

    def __init__(self, num_characters, dim, widths, filters, initializer=None, **kwargs):
        super().__init__(**kwargs)
        if len(widths) != len(filters):
            raise ValueError(
                f"`widths` and `filters` must have one entry per kind of filter. "
                f"Received: widths={widths}, filters={filters}"
            )
        self.num_characters, self.dim = num_characters, dim
        self.widths, self.filters = list(widths), list(filters)
        self.initializer = keras.initializers.get(initializer or Uniform(0.05))
        self.kernels, self.biases = [], []

    def build(self, input_shape):
        slots = input_shape[-1]
        if slots is not None and slots < max(self.widths):
            raise ValueError(
                f"`CharCNN` needs words of at least {max(self.widths)} slots, its widest filter. "
                f"Received: input shape={tuple(input_shape)}. Pad the words."
            )
        shape, pinned = (self.num_characters, self.dim), ZeroPad()
        self.embeddings = self.add_weight(
            shape=shape, initializer=self.initializer, constraint=pinned, name="embeddings"
        )
        self.embeddings.assign(pinned(self.embeddings.value))
        for width, filters in zip(self.widths, self.filters, strict=True):
            shape = (width, self.dim, filters)
            self.kernels.append(
                self.add_weight(shape=shape, initializer=self.initializer, name=f"kernel{width}")
            )
            self.biases.append(
                self.add_weight(shape=(filters,), initializer=self.initializer, name=f"bias{width}")
            )

    def call(self, characters):
        # A product, not a look-up, whose gradient is sparse on TensorFlow: from inside a `cond`
        # it makes XLA compile every batch anew.
        one_hot = ops.one_hot(characters, self.num_characters, dtype=self.compute_dtype)
        e = ops.matmul(one_hot, self.embeddings)  # (words, slots, dim)
        slots, features = e.shape[1], []
        for width, kernel, bias in zip(self.widths, self.kernels, self.biases, strict=True):
            last = slots - width + 1
            windows = ops.concatenate([e[:, i : i + last] for i in range(width)], axis=-1)
            rows = ops.reshape(windows, (-1, width * self.dim))  # one product a width
            answers = ops.matmul(rows, ops.reshape(kernel, (width * self.dim, -1)))
            answers = ops.reshape(answers, (-1, last, answers.shape[-1]))
            features.append(ops.tanh(ops.max(answers, axis=1) + bias))
        return ops.concatenate(features, axis=-1)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], sum(self.filters))

    def get_config(self):
        own = {
            "num_characters": self.num_characters,
            "dim": self.dim,
            "widths": self.widths,
            "filters": self.filters,
            "initializer": keras.initializers.serialize(self.initializer),
        }
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("zoo")
class CharWordEmbedding(keras.layers.Layer):
    """Word ids to vectors, by way of the words' characters, each distinct word once.

    The layer looks the characters of a word up in its `table` and gives them to `encoder`.
    A batch repeats its frequent words (20 x 35 words of Penn Treebank hold about 354 distinct
    ones), and the same word has the same vector, so the encoder runs on the distinct words
    and their vectors are copied to where the words stand. Value and gradient equal those of
    encoding each occurrence. A batch with more than `max_distinct` distinct words is encoded
    occurrence by occurrence.

    Args:
        encoder: A model from characters `(words, word_length)` to vectors `(words, features)`,
            without dropout.
        num_words: Rows of the table.
        word_length: Slots of the table, in characters.
        max_distinct: Distinct words a batch is planned for; compiled code has room for that
            many. `None` encodes each occurrence.

    Input shape: `(batch, steps)`, integers below `num_words`.
    Output shape: `(batch, steps, features)`.

    Reference: Kim et al. (2016), arXiv:1508.06615, section 2; the saving is ours.
    """

    def __init__(self, encoder, num_words, word_length, max_distinct=None, **kwargs):
        super().__init__(**kwargs)
        if max_distinct is not None and max_distinct < 1:
            raise ValueError(
                f"`max_distinct` must be positive, or None. Received: max_distinct={max_distinct}"
            )
        self.encoder, self.max_distinct = encoder, max_distinct
        self.num_words, self.word_length = num_words, word_length

    def build(self, input_shape):
        self.table = self.add_weight(
            shape=(self.num_words, self.word_length),
            initializer="zeros",
            dtype="int32",
            trainable=False,
            name="table",
        )

    def set_table(self, table):
        """Stores which characters each word has.

        Args:
            table: Integers of shape `(num_words, word_length)`.

        Raises:
            ValueError: if the shape differs.
        """
        if tuple(table.shape) != (self.num_words, self.word_length):
            raise ValueError(
                f"The table must have shape {(self.num_words, self.word_length)}, a row a word. "
                f"Received: {tuple(table.shape)}. Build the model for this vocabulary."
            )
        self.table.assign(table)

    def encode(self, ids):
        """The vectors `(n, features)` of the words `ids` `(n,)`, each computed."""
        return self.encoder(ops.take(self.table, ids, axis=0))

    def call(self, ids):
        flat = ops.reshape(ops.cast(ids, "int32"), (-1,))
        if self.max_distinct is None:
            vectors = self.encode(flat)
        else:
            words, inverse, count = backend.unique(flat, self.max_distinct)
            vectors = ops.cond(
                count <= words.shape[0],
                lambda: ops.take(self.encode(words), inverse, axis=0),
                lambda: self.encode(flat),
            )
        return ops.reshape(vectors, (*ops.shape(ids), vectors.shape[-1]))

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.encoder.output_shape[-1])

    def get_config(self):
        own = {
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "num_words": self.num_words,
            "word_length": self.word_length,
            "max_distinct": self.max_distinct,
        }
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config):
        encoder = keras.saving.deserialize_keras_object(config["encoder"])
        return cls(**{**config, "encoder": encoder})
