"""Penn Treebank as a TFDS dataset. Importing this module imports tensorflow_datasets.

It is a catalogue entry around `zoo.datasets.ptb`, which finds the files without TFDS, and it needs
no TensorFlow if the file format is array_record.
"""

import tensorflow_datasets as tfds

from zoo.datasets import ptb, text


class PennTreebank(tfds.core.GeneratorBasedBuilder):
    """Mikolov's 10,000-word Penn Treebank, one line of text an example, in the corpus' order.

    The files come from TFDS' manual folder if they are there, else from `zoo.datasets.ptb`, its
    cache and its single attempt at a download (TFDS' own makes ten, over more than a minute).

    >>> builder = PennTreebank(file_format="array_record")  # doctest: +SKIP
    >>> builder.download_and_prepare()  # doctest: +SKIP
    >>> builder.as_data_source(split="train")[0]["text"]  # doctest: +SKIP
    b'aer banknote berlitz calloway centrust cluett fromstein gitano guterman ...'
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "Mikolov's files as they are."}
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Optional: put ptb.train.txt, ptb.valid.txt and ptb.test.txt into the manual folder. "
        "Otherwise they are taken from the cache of zoo.datasets.ptb, or downloaded into it."
    )

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description="Penn Treebank in Mikolov's version: 10,000 words, one sentence a line.",
            features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
            homepage="https://catalog.ldc.upenn.edu/LDC99T42",
            disable_shuffling=True,  # a language model reads the lines in their order
        )

    def _split_generators(self, dl_manager):
        try:
            folder = dl_manager.manual_dir
        except AssertionError:  # TFDS' way to say that it is missing or empty
            folder = None
        if folder is None or text.find_files(folder) is None:
            folder = ptb.find()
        texts = text.read_texts(folder)
        names = {"train": "train", "valid": "validation", "test": "test"}  # tfds.Split's
        return {names[split]: self._generate_examples(texts[split]) for split in text.SPLITS}

    def _generate_examples(self, content):
        for i, line in enumerate(content.removesuffix("\n").split("\n")):
            yield i, {"text": line.strip()}
