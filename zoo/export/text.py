"""Raw text as the input of a SavedModel: TensorFlow's string operations in a Keras layer."""

from collections.abc import Sequence
from typing import Any

import keras

from zoo.datasets.text import END, END_OF_SENTENCE, SPECIAL_CHARACTERS, START, UNKNOWN
from zoo.types import Tensor

# What Python's `str.split` takes for white space, beside the end of a line
WHITE_SPACE = r"[\t\x{0b}-\r\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}"
WHITE_SPACE += r"\x{202f}\x{205f}\x{3000}]+"


@keras.saving.register_keras_serializable("zoo")
class SpellText(keras.layers.Layer):
    """`zoo.datasets.text.Vocabulary.prompt` in TensorFlow's graph, for a batch of texts.

    Another backend can build and save the layer, but not call it. Where `prompt` raises an error,
    because a word has no known character, the word here is its start and end alone.

    Args:
        characters: Characters of the vocabulary, each of length 1.
        word_length: Length to which words are cut, start and end included.
        slots: Length to which words are padded.
        **kwargs: `name`, `dtype`.

    Input shape: `(batch,)`, strings in UTF-8.
    Output shape: int32 characters `(batch, words, slots)`, and numbers of words `(batch,)`, beyond
        which there are pads.
    """

    def __init__(
        self, characters: Sequence[str], word_length: int, slots: int, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.characters = list(characters)
        self.word_length = word_length
        self.slots = slots

    def call(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the characters of the words, and the number of words of each text."""
        import tensorflow as tf

        texts = tf.strings.regex_replace(texts, "<unk>", UNKNOWN)
        texts = tf.strings.regex_replace(texts, rf"[\{START}\{END}]", "")
        texts = tf.strings.regex_replace(texts, "\n", f" {END_OF_SENTENCE} ")
        texts = tf.strings.strip(tf.strings.regex_replace(texts, WHITE_SPACE, " "))
        texts = tf.where(texts == "", END_OF_SENTENCE, texts)
        words = tf.strings.split(texts, " ")
        spelled = self._spell(tf.strings.regex_replace(words.flat_values, r"^\|.*", UNKNOWN))
        return words.with_flat_values(spelled).to_tensor(), tf.cast(words.row_lengths(), "int32")

    def _spell(self, words):
        """Return the characters `(n, slots)` of the words `(n,)`."""
        import tensorflow as tf

        pad, start, end = range(len(SPECIAL_CHARACTERS))
        alphabet = sorted((ord(c), i) for i, c in enumerate(self.characters) if i > end)
        code_points, ids = (tf.constant(column, "int32") for column in zip(*alphabet, strict=True))
        found = tf.strings.unicode_decode(words, "UTF-8")
        places = tf.searchsorted(code_points, found.flat_values)
        places = tf.minimum(places, len(alphabet) - 1)
        known = found.with_flat_values(tf.gather(code_points, places) == found.flat_values)
        spelled = found.with_flat_values(tf.gather(ids, places))
        spelled = tf.ragged.boolean_mask(spelled, known)
        columns = tf.ones((tf.shape(words)[0], 1), "int32")
        if UNKNOWN in self.characters:
            unknown = columns * self.characters.index(UNKNOWN)
            nothing = (spelled.row_lengths() == 0)[:, None]
            spelled = tf.concat([spelled, tf.ragged.boolean_mask(unknown, nothing)], axis=1)
        spelled = tf.concat([start * columns, spelled, end * columns], axis=1)
        return spelled[:, : self.word_length].to_tensor(pad, shape=(None, self.slots))

    def compute_output_spec(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output's shapes and dtypes, on any backend."""
        (batch,) = texts.shape
        return (
            keras.KerasTensor((batch, None, self.slots), "int32"),
            keras.KerasTensor((batch,), "int32"),
        )

    def get_config(self) -> dict[str, Any]:
        """Return the layer's configuration."""
        own = {
            "characters": self.characters,
            "word_length": self.word_length,
            "slots": self.slots,
        }
        return {**super().get_config(), **own}
