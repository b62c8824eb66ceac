"""Trained weights that verify themselves: build their network, and measure it again."""

import dataclasses
from typing import NamedTuple

import keras
import numpy as np

from zoo.applications.char_lm_inference import Scorer
from zoo.applications.registry import create_model
from zoo.cards import Card as Card
from zoo.cards import card as card
from zoo.cards import list_weights as list_weights
from zoo.cards import path as path
from zoo.cards import vocabulary as vocabulary
from zoo.datasets import images, ptb
from zoo.datasets.preprocessing import RECIPES, Preprocessing
from zoo.datasets.text import Corpus
from zoo.types import PathLike

TOLERANCE = {"test_accuracy": 0.05, "test_perplexity": 0.01}  # ours: percent points; perplexity


class Verification(NamedTuple):
    """Result of `verify`.

    Attributes:
        value: The metric as measured now.
        expected: The card's value.
        examples: Number of test images or words.
        agrees: True if both agree within 0.05 percent points of accuracy, or 0.01 of perplexity.
    """

    value: float
    expected: float
    examples: int
    agrees: bool


def build(name: str) -> keras.Model:
    """Return the network of trained weights, with these weights.

    Args:
        name: One of `zoo.list_weights()`.

    Raises:
        ValueError: if there are no such weights, or their file is damaged.

    Example:
    >>> build("mnist10k_highway").count_params()
    38986
    """
    return network(card(name), weights=name)


def network(facts: Card, weights: PathLike | None = None) -> keras.Model:
    """Return the network of a card, untrained or with weights."""
    words = {"vocabulary": vocabulary(facts)} if "vocabulary" in facts.data else {}
    return create_model(facts.builder, **facts.arguments, **words, weights=weights)


def preprocessing(name: str) -> Preprocessing:
    """Return the preprocessing that trained weights for images expect.

    Args:
        name: One of `zoo.list_weights()`.

    Example:
    >>> float(preprocessing("mnist10k_highway")(np.full((1, 28, 28, 1), 128, "uint8")).max())
    0.5
    """
    return _preprocessing(card(name))


def _preprocessing(facts):
    data = facts.data
    if "preprocessing" not in data:
        raise ValueError(f"Expected weights of a network for images. Received: {facts.name!r}.")
    mean = np.array(data["mean"], "float32") if "mean" in data else 0.0
    return Preprocessing(RECIPES[data["preprocessing"]], mean, data["scale"])


def verify(name: str, data_dir: PathLike | None = None) -> Verification:
    """Measure trained weights again, and compare with their card.

    Args:
        name: One of `zoo.list_weights()`.
        data_dir: File or folder of the data, as for `zoo.datasets.images.load` or
            `zoo.datasets.ptb.load`. Default: download.

    Raises:
        ValueError: if there are no such weights, their file is damaged, or the data are others.
        DownloadError: if the data cannot be downloaded.
    """
    facts = card(name)
    value, examples = measure(build(name), facts, data_dir)
    if examples != facts.examples:
        raise ValueError(
            f"Expected {facts.examples} examples of {facts.data['name']}. Received: {examples}. "
            f"Give the data that the card names."
        )
    agrees = abs(value - facts.value) <= TOLERANCE[facts.metric]
    return Verification(value, facts.value, examples, agrees)


def measure(model: keras.Model, facts: Card, data_dir: PathLike | None = None) -> tuple[float, int]:
    """Return the metric of a network's card, and the number of examples; see `verify`."""
    if facts.metric == "test_perplexity":
        test = corpus(facts, data_dir).test
        return round(Scorer(model).contiguous(test), 3), len(test)
    x, y = test_set(facts, data_dir)
    classes = model.predict(x, 200, verbose=0).argmax(-1)
    return round(100 * float(np.mean(classes == y)), 2), len(y)


def test_set(facts: Card, data_dir: PathLike | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the test images of a card, as the network takes them, and their labels.

    Raises:
        ValueError: if the card is of images that were encoded again, and these are others.
    """
    source = images.load(facts.data["name"], data_dir)
    if facts.data.get("images", source.name) != source.name:
        raise ValueError(
            f"Expected the images {facts.data['images']}, on which the card's value was measured. "
            f"Received: {source.name}. Give these, or measure with "
            f"`zoo.weights.preprocessing({facts.name!r})` and `predict`."
        )
    if "side" in facts.data:
        source = images.averaged(source, facts.data["side"])
    x, y = (values[: facts.data.get("tested")] for values in (source.x_test, source.y_test))
    return _preprocessing(facts)(x), y


def corpus(facts: Card, data_dir: PathLike | None = None) -> Corpus:
    """Return the text of a language model's card.

    Raises:
        ValueError: if the text has another vocabulary.
    """
    text = ptb.load(data_dir, max_word_length=facts.data["max_word_length"])
    text = dataclasses.replace(text, train=text.train[: facts.data.get("tokens")])
    if "words" in facts.data:
        text = text.most_frequent(facts.data["words"])
    expected = vocabulary(facts).fingerprint
    if text.vocabulary.fingerprint != expected:
        raise ValueError(
            f"Expected a text of the vocabulary {expected}. Received: "
            f"{text.vocabulary.fingerprint}, of {data_dir}. Give the text that the card names."
        )
    return text
