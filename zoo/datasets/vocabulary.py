"""The vocabulary of a character-aware word model: ids of words, and their spelling.

The conventions are Kim et al.'s (`BatchLoaderUnk.lua`): `<unk>` becomes the one-character word `|`,
every line ends in the word `+`, and `{`, `}` are taken out of the text because they mark where a
word starts and ends. A word of the text that is `+`, or begins with `|`, is that special word.

Reference: Kim, Jernite, Sontag, Rush (2016), "Character-Aware Neural Language Models",
arXiv:1508.06615; code: yoonkim/lstm-char-cnn, `util/BatchLoaderUnk.lua` and `main.lua`.
"""

import hashlib
import json
import re
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from zoo.io import replace

UNKNOWN, END_OF_SENTENCE = "|", "+"  # Kim et al., main.lua: opt.tokens
_, START, END = SPECIAL_CHARACTERS = " ", "{", "}"  # ibid.; pad, start, end: ids 0, 1, 2
MAX_WORD_LENGTH = 65  # Kim et al., main.lua: -max_word_l


def tokenize(text):
    """The words of `text`, with the word `+` after each line.

    Example:

    >>> tokenize("the <unk> {sat}")
    ['the', '|', 'sat', '+']
    """
    if text and not text.endswith("\n"):
        text += "\n"
    text = text.replace("<unk>", UNKNOWN).replace(START, "").replace(END, "")
    words = text.replace("\n", f" {END_OF_SENTENCE} ").split()
    # Departure: Kim's loader spells `|-word` by its own characters; here a word id has one spelling
    return [UNKNOWN if word[0] == UNKNOWN else word for word in words]


@dataclass(frozen=True, repr=False)
class Vocabulary:
    """The words of a corpus, the characters they are spelled with, and the room for a word.

    Ids count from 0: `|` if the corpus has it, then the words as they first appear, as in
    `BatchLoaderUnk.lua`, whose ids count from 1. So are the characters, after pad, start and end.

    Args:
        words: Distinct words, the end of sentence `+` among them; a word's id is its position.
        characters: Distinct characters, of which the first are pad, start and end of word.
        word_length: Slots for one word, in characters, start and end included.

    Raises:
        ValueError: if these do not make a vocabulary.

    Example:

    >>> vocabulary = Vocabulary.from_texts("the cat sat\\nthe <unk> sat\\n")
    >>> vocabulary.words
    ('|', 'the', 'cat', 'sat', '+')
    >>> vocabulary.encode("the dog sat")  # `dog` is unknown, and the line ends
    array([1, 0, 3, 4], dtype=int32)
    >>> "".join(vocabulary.characters[i] for i in vocabulary.table()[2])
    '{cat}'

    Reference: Kim et al. (2016), section 3; `BatchLoaderUnk.lua`, `text_to_tensor`.
    """

    words: tuple[str, ...]
    characters: tuple[str, ...]
    word_length: int

    def __post_init__(self):
        def expect(truth, expected, received):
            if not truth:
                raise ValueError(
                    f"Not a vocabulary: {expected}. Received: {received}. "
                    "Make one with `Vocabulary.from_texts(train, valid, test)`."
                )

        for name in ("words", "characters"):
            value = getattr(self, name)
            fine = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
            expect(fine, f"`{name}` must be a tuple of strings", f"{name}={value!r:.80}")
            twice = [item for item, count in Counter(value).items() if count > 1]
            expect(not twice, f"`{name}` must be distinct", f"{twice[:5]} more than once")
        first = self.characters[:3]
        expect(first == SPECIAL_CHARACTERS, f"`characters` start with {SPECIAL_CHARACTERS}", first)
        expect(END_OF_SENTENCE in self.words, f"`words` must have {END_OF_SENTENCE!r}", "none")
        spelling = set(self.characters) - set(SPECIAL_CHARACTERS)
        odd = [word for word in self.words if not word or not spelling.issuperset(word)]
        expect(not odd, "`characters` must spell every word", f"words={odd[:5]}")
        fine = type(self.word_length) is int and self.word_length >= 3
        expect(fine, "`word_length` must be an int of 3 or more", f"{self.word_length!r}")

    @classmethod
    def from_texts(cls, *texts, max_word_length=MAX_WORD_LENGTH):
        """The vocabulary of `texts`, in the order train, valid, test.

        Args:
            texts: Contents of files, one sentence a line.
            max_word_length: Most slots for one word, in characters, start and end included; what a
                longer word has beyond them, its end among it, is cut.

        Returns:
            A `Vocabulary`.

        Raises:
            ValueError: if `max_word_length` has no room for a character, or there is no text.
        """
        if max_word_length < 3:
            raise ValueError(
                "`max_word_length` must be at least 3: the start of a word, one character and the "
                f"end. Received: max_word_length={max_word_length!r}"
            )
        words = list(dict.fromkeys(word for text in texts for word in tokenize(text)))
        if not words:
            raise ValueError(
                "`texts` must have at least one line between them. "
                f"Received: {len(texts)} texts without any. Give the text of the training set."
            )
        characters = SPECIAL_CHARACTERS + tuple(dict.fromkeys("".join(words)))
        words.sort(key=lambda word: word != UNKNOWN)  # `|` first; the sort is stable
        longest = max(map(len, words)) + 2
        return cls(tuple(words), characters, int(min(max_word_length, longest)))

    def __len__(self):
        return len(self.words)

    def __repr__(self):
        sizes = f"{len(self)} words, {len(self.characters)} characters, {self.word_length} slots"
        return f"<Vocabulary {self.fingerprint}: {sizes}>"

    @cached_property
    def _ids(self):
        return {word: i for i, word in enumerate(self.words)}

    @property
    def unknown(self):
        """Id of the word `|` that stands for unknown words, or None."""
        return self._ids.get(UNKNOWN)

    @property
    def end_of_sentence(self):
        """Id of the word `+` that ends every line."""
        return self._ids[END_OF_SENTENCE]

    @cached_property
    def num_cut(self):
        """Distinct words that do not fit into `word_length` slots."""
        return sum(len(word) + 2 > self.word_length for word in self.words)

    @cached_property
    def fingerprint(self):
        """16 hexadecimal digits that change with any word, character, id, or the word length."""
        content = json.dumps([self.words, self.characters, self.word_length])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def table(self):
        """The spelling of every word, as ids of characters.

        Returns:
            int32 array of shape `(num_words, word_length)`: start, characters, end, then pads.
        """
        ids = {character: i for i, character in enumerate(self.characters)}
        table = np.zeros((len(self), self.word_length), "int32")  # 0 is the pad
        for row, word in zip(table, self.words, strict=True):
            spelled = [ids[character] for character in START + word + END][: self.word_length]
            row[: len(spelled)] = spelled
        return table

    def encode(self, text):
        """The word ids of `text`, with an end of sentence after each line.

        Returns:
            int32 array of shape `(num_tokens,)`.

        Raises:
            ValueError: if a word is not in the vocabulary and there is no unknown word either.
        """
        words = tokenize(text)
        if self.unknown is None:
            strange = next((word for word in words if word not in self._ids), None)
            if strange is not None:
                raise ValueError(
                    "`text` must keep to the words of the vocabulary, which has no `<unk>` to "
                    f"stand for others. Received: the word {strange!r}. Replace it, or build the "
                    "vocabulary from a text where rare words are `<unk>`."
                )
        ids = (self._ids.get(word, self.unknown) for word in words)
        return np.fromiter(ids, "int32", count=len(words))

    def decode(self, ids):
        """The text of word ids: a line for each end of sentence, `<unk>` for the unknown word.

        Example:

        >>> Vocabulary.from_texts("to be or\\nnot\\n").decode([0, 1, 3, 4])
        'to be\\nnot'
        """
        shown = {UNKNOWN: "<unk>", END_OF_SENTENCE: "\n"}
        words = (self.words[i] for i in np.asarray(ids, "int64"))
        return re.sub(" ?\n ?", "\n", " ".join(shown.get(word, word) for word in words))

    def save(self, path):
        """Write the vocabulary to the JSON file `path`, whole or not at all."""
        content = asdict(self) | {"fingerprint": self.fingerprint}
        text = json.dumps(content, ensure_ascii=False)
        replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    @classmethod
    def load(cls, path):
        """The vocabulary that `save` wrote to `path`.

        Raises:
            ValueError: if the file is not one that `save` wrote, or has been changed since.
        """
        try:
            content = json.loads(Path(path).read_bytes())
            words, characters = tuple(content["words"]), tuple(content["characters"])
            vocabulary = cls(words, characters, content["word_length"])
            if vocabulary.fingerprint != content["fingerprint"]:
                raise ValueError(
                    f"its fingerprint must be {vocabulary.fingerprint}. "
                    f"Received: {content['fingerprint']!r}"
                )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path} must be a vocabulary as `Vocabulary.save` writes it. "
                f"Received: {type(error).__name__}: {error}. Save it again, or delete the file."
            ) from error
        return vocabulary
