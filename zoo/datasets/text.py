"""Text for word-level language models: folders, an embedded corpus, and batches of streams.

The conventions are Kim et al.'s (`BatchLoaderUnk.lua`); `Vocabulary` explains those about words.

Reference: Kim, Jernite, Sontag, Rush (2016), "Character-Aware Neural Language Models",
arXiv:1508.06615; code: yoonkim/lstm-char-cnn, `util/BatchLoaderUnk.lua` and `main.lua`.
"""

import hashlib
import platform
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zoo.datasets.vocabulary import MAX_WORD_LENGTH
from zoo.datasets.vocabulary import Vocabulary as Vocabulary

SPLITS = ("train", "valid", "test")

# Mikolov's 10,000-word Penn Treebank; the MD5s of these bytes are the ones torchtext publishes.
PTB_SHA256 = {
    "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}


@dataclass(frozen=True, eq=False)
class Corpus:
    """Train, validation and test text as word ids.

    Args:
        name: "PTB" only for Mikolov's Penn Treebank; "pydoc"; or a folder's name.
        vocabulary: The `Vocabulary` of the three parts.
        train: int32 array of shape `(num_tokens,)`.
        valid: int32 array of shape `(num_tokens,)`.
        test: int32 array of shape `(num_tokens,)`.
        notice: Warning that belongs to every number measured on this corpus, or "".
    """

    name: str
    vocabulary: Vocabulary
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    notice: str = ""

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
        if vocabulary.num_cut:
            notice = (
                f"{notice} Cut to {vocabulary.word_length} slots, start of word included: "
                f"{vocabulary.num_cut} of {len(vocabulary)} words, which may now be spelled alike."
            ).strip()
        train, valid, test = map(vocabulary.encode, texts)
        return cls(name, vocabulary, train, valid, test, notice)


def find_files(folder: str | Path) -> dict[str, Path] | None:
    """Return the paths of a folder's train, valid and test text by split, or `None`.

    They are named `ptb.train.txt` and so on, as Mikolov's, or `train.txt` and so on, as Kim's.
    """
    for prefix in ("ptb.", ""):
        paths = {split: Path(folder) / f"{prefix}{split}.txt" for split in SPLITS}
        if all(path.is_file() for path in paths.values()):
            return paths
    return None


def read_texts(folder: str | Path) -> dict[str, str]:
    """Read the train, valid and test text of a folder.

    Raises:
        ValueError: If the folder or a file is missing, empty, or not UTF-8.
    """
    folder = Path(folder).expanduser()
    paths = find_files(folder)
    if paths is None:
        content = "which is not a folder"
        if folder.is_dir():
            content = f"which has {sorted(path.name for path in folder.iterdir())[:12]}"
        raise ValueError(
            "`data_dir` must be a folder with train.txt, valid.txt and test.txt, or ptb.train.txt, "
            f"ptb.valid.txt and ptb.test.txt. Received: data_dir={str(folder)!r}, {content}. "
            "Give the folder that has the three files, or rename them."
        )
    return {split: _read_text(path) for split, path in paths.items()}


def _read_text(path):
    content = path.read_bytes()
    try:
        text = content.decode().removeprefix("\ufeff")  # the byte order mark of some editors
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be UTF-8 text. Received: byte 0x{content[error.start]:02x} at byte "
            f"offset {error.start}. Convert it, for example: iconv -f latin1 -t utf-8"
        ) from error
    if not text.strip():
        raise ValueError(
            f"{path} must have words in it, one sentence a line. "
            f"Received: an empty text ({len(content)} bytes). Copy the file again."
        )
    return text


def read_folder(data_dir: str | Path, max_word_length: int = MAX_WORD_LENGTH) -> Corpus:
    """Read the corpus `train.txt`, `valid.txt`, `test.txt` (or `ptb.train.txt` ...) of a folder.

    Args:
        data_dir: Folder of UTF-8 texts, one sentence a line, words separated by white space.
        max_word_length: Largest number of slots for a word: characters, start and end.

    Returns:
        A `Corpus`, named "PTB" if the texts are, byte by byte, Mikolov's Penn Treebank.

    Raises:
        ValueError: If the folder or a file is missing, empty, or not UTF-8.
    """
    texts = read_texts(data_dir)
    parts = list(texts.values())
    sha256 = {split: hashlib.sha256(text.encode()).hexdigest() for split, text in texts.items()}
    if sha256 == PTB_SHA256:
        return Corpus.from_texts("PTB", parts, max_word_length)
    folder = Path(data_dir).expanduser().resolve()
    notice = ""
    paths = find_files(folder)
    if paths and paths["train"].name.startswith("ptb."):
        notice = (
            f"The files in {folder} are named as Mikolov's Penn Treebank but differ from it: "
            "perplexities are not comparable with published results."
        )
    return Corpus.from_texts(folder.name, parts, max_word_length, notice)


def embedded(max_word_length: int = MAX_WORD_LENGTH) -> Corpus:
    """Return a corpus that needs no files: Python's help texts, `pydoc_data.topics`. Not PTB.

    The topics in alphabetical order, in lower case. Words (letters, digits, `_`) and single marks
    are separated by white space; `|`, `+`, `{`, `}`, which Kim et al. reserve, and lines without a
    word are dropped. The first 90% of the lines are train, then 5% valid, 5% test. A word that
    train does not have twice is `<unk>`, so that train has every word of valid and test.

    Returns:
        A `Corpus` named "pydoc", the same for the same version of Python.
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
        "NOT Penn Treebank: the embedded corpus is the help text (pydoc_data.topics) of Python "
        f"{platform.python_version()}. Perplexities are not comparable with published results, or "
        "between versions of Python."
    )
    return Corpus.from_texts("pydoc", texts, max_word_length, notice)


def streams(
    ids: Sequence[int] | np.ndarray, batch_size: int, num_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return batches of inputs and next tokens that a recurrent state can be carried across.

    The ids are cut to whole batches and arranged as `batch_size` contiguous streams: row b of batch
    k + 1 continues row b of batch k. The target of the last token is the first token.

    Kim et al. do not cut the test set, one stream: `streams(test, 1, 10)`, or another divisor,
    has all of Penn Treebank's 82,430 tokens.

    Args:
        ids: Token ids, of shape `(num_tokens,)`.
        batch_size: Number of streams.
        num_steps: Tokens per stream and batch.

    Returns:
        x and y, int32 arrays of shape `(num_batches, batch_size, num_steps)`.

    Raises:
        ValueError: If there are too few tokens for one batch.

    Example:
    >>> x, y = streams(range(9), batch_size=2, num_steps=2)
    >>> x.tolist()  # the streams are 0 1 2 3 and 4 5 6 7
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    >>> y.tolist()
    [[[1, 2], [5, 6]], [[3, 4], [7, 0]]]

    Reference: Kim et al. (2016); `BatchLoaderUnk.lua`, `create`.
    """
    if batch_size < 1 or num_steps < 1:
        raise ValueError(
            "`batch_size` and `num_steps` must be 1 or more. "
            f"Received: batch_size={batch_size!r}, num_steps={num_steps!r}"
        )
    ids = np.asarray(ids, "int32")
    if ids.ndim != 1:
        raise ValueError(
            f"`ids` must have the shape (num_tokens,). Received: shape {ids.shape}. "
            "Give one split of a corpus, such as `corpus.train`."
        )
    num_batches = len(ids) // (batch_size * num_steps)
    if num_batches == 0:
        raise ValueError(
            f"`ids` must fill one batch of batch_size={batch_size} times num_steps={num_steps}: "
            f"{batch_size * num_steps} tokens are needed. Received: {len(ids)} tokens. "
            "Use a smaller batch, fewer steps or a longer text."
        )
    ids = ids[: num_batches * batch_size * num_steps]

    def batches(ids):
        batched = ids.reshape(batch_size, num_batches, num_steps).swapaxes(0, 1)
        return batched.copy()  # (num_batches, batch_size, num_steps)

    return batches(ids), batches(np.roll(ids, -1))
