"""Characters of a corpus for language models: their ids, and examples of them."""

import dataclasses

import numpy as np

from zoo.checks import require
from zoo.datasets import text
from zoo.recipes.experiment.run import Run


@dataclasses.dataclass(frozen=True)
class Characters:
    """Ids of training, validation and test text, and the number of distinct characters."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    count: int

    @property
    def unigram_loss(self) -> float:
        """Cross entropy of the test text by the frequencies of training, nats."""
        counts = np.bincount(self.train, minlength=self.count) + 1.0
        return float(-np.log(counts / counts.sum())[self.test].mean())


def load_text(run: Run, limit: int | None) -> Characters:
    """Return the characters of the corpus that a run's options name, or of Penn Treebank."""
    corpus = text.load(run.options.data_dir)
    run.check_data("text", corpus.checksum)
    run.data.append(f"characters of {corpus.name}")
    if corpus.notice:
        run.deviations.append(corpus.notice)
    return of_corpus(corpus, limit)


def of_corpus(corpus: text.Corpus, limit: int | None = None) -> Characters:
    """Return the characters of a corpus, of validation and test text the first `limit`."""
    parts = [corpus.vocabulary.decode(ids) for ids in (corpus.train, corpus.valid, corpus.test)]
    known = {character: i for i, character in enumerate(sorted({*"".join(parts)}))}
    train, *others = [np.array([known[c] for c in part], "int32") for part in parts]
    validation, test = (part[:limit] for part in others)
    return Characters(train, validation, test, len(known))


def check_test_text(characters: int | None, steps: int) -> None:
    """Raise ValueError unless the test text, None: all of it, is longer than an example."""
    is_longer = characters is None or characters > steps
    require(is_longer, f"more than the {steps} of an example", test_characters=characters)


def windows(ids: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets, `(examples, steps)`, of which each character is a target once."""
    count = (len(ids) - 1) // steps
    x, y = (ids[shift : shift + count * steps] for shift in (0, 1))
    return x.reshape(count, steps), y.reshape(count, steps)


def random_examples(
    ids: np.ndarray, steps: int, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets, `(count, steps)`, from random places of a text."""
    starts = np.random.default_rng(seed).integers(0, len(ids) - steps, count)
    examples = ids[starts[:, None] + np.arange(steps + 1)]
    return examples[:, :-1], examples[:, 1:]
