"""Trained weights: their cards, their files, and their metric measured again."""

import dataclasses
import fnmatch
import hashlib
import inspect
import json
import pathlib
import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

from zoo import types
from zoo.applications.char_lm_inference import Scorer
from zoo.checks import check_choice, require
from zoo.datasets import images
from zoo.datasets import text as texts
from zoo.datasets.preprocessing import RECIPES, Preprocessing
from zoo.datasets.text import Corpus, Vocabulary
from zoo.io import HUB, from_hub
from zoo.types import PathLike

FOLDER = pathlib.Path(types.__file__).resolve().parent / "pretrained"
SUFFIX = ".weights.h5"
TOLERANCE = {"test_accuracy": 0.05, "test_perplexity": 0.01}  # ours: percent points; perplexity
BUILDERS: dict[str, Callable[..., keras.Model]] = {}  # all that `registry.builder` decorates
NOT_COMPARED = {  # arguments of a builder that may differ from those of trained weights
    *("include_top", "classifier_activation", "weights", "name"),
    "input_shape",  # convolutions fit any; Keras compares the shapes of weights
    *("gamma", "gate_bias", "limit"),  # initial values
    *("batch_size", "num_steps", "max_distinct", "products", "vocabulary"),
}


def read_cards() -> dict[str, dict[str, Any]]:
    """Return the facts of all sets, by name."""
    return json.loads((FOLDER / "cards.json").read_text("utf-8"))


def list_weights(pattern: str = "*") -> list[str]:
    """Return the trained weights whose name or builder matches a shell pattern, sorted.

    Example:
    >>> list_weights("highway_mnist")
    ['mnist_highway']
    """
    cards = read_cards().items()
    return sorted(n for n, facts in cards if fnmatch.filter([n, facts["builder"]], pattern))


def card(name: str) -> SimpleNamespace:
    """Return the facts about trained weights, one of `list_weights()`.

    Attributes are `name`; `builder` and its `arguments`, see `zoo.create_model`; `data` of training
    and test, with all that reading them takes; `metric`, "test_accuracy", in percent, or
    "test_perplexity"; `value`, that of these weights as the file holds them; `examples`, the number
    of test images or words; `sha256` of the file; and others that docs/weights.md shows.

    Raises:
        ValueError: if there are no such weights.

    Example:
    >>> card("mnist_highway").builder
    'highway_mnist'
    """
    cards = read_cards()
    check_choice(sorted(cards), weights=name)
    return SimpleNamespace(name=name, **cards[name])


def vocabulary(card: SimpleNamespace) -> Vocabulary:
    """Return the words and characters of a language model's card."""
    return Vocabulary.load(FOLDER / card.data["vocabulary"])


def path(name: str) -> pathlib.Path:
    """Return the file of trained weights, one of `list_weights()`, after verifying its SHA-256.

    Raises:
        ValueError: if there are no such weights, or the file is missing or has another digest.
    """
    expected = card(name).sha256
    file = FOLDER / f"{name}{SUFFIX}"
    received = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "no such file"
    advice = f"{expected}, of {file}, which is damaged or missing: install again"
    require(received == expected, advice, **{"SHA-256": received})
    return file


def path_for(weights: PathLike, builder: str, given: Mapping[str, Any]) -> pathlib.Path:
    """Return the file of weights, a path or a name, for the network of a builder's arguments.

    Raises:
        ValueError: if there is no such file, or its network is known to be another.
    """
    if str(weights).startswith(HUB):
        return from_hub(str(weights)) / f"model{SUFFIX}"  # as `keras.Model.save` writes it there
    if str(weights).endswith(SUFFIX) and pathlib.Path(weights).is_file():
        return pathlib.Path(weights)
    kind = f"None, a name of `zoo.list_weights()` or the path of a {SUFFIX} file that exists"
    require(isinstance(weights, str) and "." not in weights, kind, weights=weights)
    facts = card(str(weights))
    parameters = inspect.signature(BUILDERS[facts.builder]).parameters
    expected: Any = {key: one.default for key, one in parameters.items()} | facts.arguments
    ignored = NOT_COMPARED | (set() if given.get("include_top", True) else {"classes"})
    values = {key: value for key, value in given.items() if key not in ignored}
    different = [key for key in values if not np.array_equal(values[key], expected.get(key))]
    words = given.get("vocabulary")
    if words is not None and words.fingerprint != vocabulary(facts).fingerprint:
        different.append("vocabulary")
    if builder != facts.builder or different:
        arguments = ", ".join(f"{key}={value!r}" for key, value in facts.arguments.items())
        others = ", ".join(f"{key}={given[key]!r}" for key in different)
        raise ValueError(
            f"`weights` must be those of this very network. Received: weights={weights!r}, of "
            f"zoo.{facts.builder}({arguments}), for zoo.{builder}({others}). "
            f"zoo.weights.build({weights!r}) makes the network of these weights."
        )
    return path(str(weights))


def load(model: keras.Model, path: PathLike) -> None:
    """Load the weights that `model.save_weights` wrote.

    Raises:
        ValueError: if they do not fit the model.
    """
    try:
        with warnings.catch_warnings():  # Keras warns of layers that the file does not have
            warnings.simplefilter("error", UserWarning)
            model.load_weights(path)
    except (OSError, ValueError, KeyError, UserWarning) as error:  # damaged, or of another network
        raise ValueError(
            f"`weights` must be those of this very network. Received: weights={str(path)!r}. "
            f"Keras says: {error}"
        ) from error


def build(name: str) -> keras.Model:
    """Return the network of trained weights, one of `list_weights()`, with these weights.

    Raises:
        ValueError: if there are no such weights, or their file is damaged.

    Example:
    >>> from zoo import highway_mnist
    >>> build("mnist_highway").count_params()
    38986
    """
    return network(card(name), weights=name)


def network(facts: SimpleNamespace, weights: PathLike | None = None) -> keras.Model:
    """Return the network of a card, untrained or with weights."""
    words = {"vocabulary": vocabulary(facts)} if "vocabulary" in facts.data else {}
    return BUILDERS[facts.builder](**facts.arguments, **words, weights=weights)


def preprocessing(name: str | SimpleNamespace) -> Preprocessing:
    """Return the preprocessing that trained weights for images, or their card, expect.

    Raises:
        ValueError: if there are no such weights, or they are of a language model.

    Example:
    >>> float(preprocessing("mnist_highway")(np.full((1, 28, 28, 1), 128, "uint8")).max())
    0.5
    """
    facts = name if isinstance(name, SimpleNamespace) else card(name)
    require("preprocessing" in facts.data, "those of a network for images", weights=facts.name)
    mean = np.array(facts.data.get("mean", 0.0), "float32")
    recipe = RECIPES[facts.data["preprocessing"]]
    return dataclasses.replace(recipe, mean=mean, scale=facts.data["scale"])


def verify(name: str, data_dir: PathLike | None = None) -> float:
    """Measure trained weights again, and return the metric if it is the one of their card.

    Accuracies agree within 0.05 percent points, perplexities within 0.01. The data are those of
    `zoo.datasets.images.load` or `zoo.datasets.text.load`.

    Raises:
        ValueError: if there are no such weights, their file is damaged, or the metric or the
            number of examples is not the card's.
        DownloadError: if the data cannot be downloaded.
    """
    facts = card(name)
    value, examples = measure(build(name), facts, data_dir)
    same = examples == facts.examples and abs(value - facts.value) <= TOLERANCE[facts.metric]
    expected = f"{facts.value} of the {facts.examples} examples of the card's data, "
    expected += facts.data.get("images", facts.data["name"])
    require(same, expected, **{facts.metric: f"{value} of {examples}"})
    return value


def measure(
    model: keras.Model, facts: SimpleNamespace, data_dir: PathLike | None = None
) -> tuple[float, int]:
    """Return the metric of a network's card, and the number of examples; see `verify`."""
    if facts.metric == "test_perplexity":
        test = corpus(facts, data_dir).test
        return round(Scorer(model).contiguous(test), 3), len(test)
    x, y = test_set(facts, data_dir)
    classes = model.predict(x, 200, verbose=0).argmax(-1)
    return round(100 * float(np.mean(classes == y)), 2), len(y)


def test_set(
    facts: SimpleNamespace, data_dir: PathLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the test images of a card, as the network takes them, and their labels."""
    source = images.load(facts.data["name"], data_dir)
    if "side" in facts.data:
        source = images.averaged(source, facts.data["side"])
    x, y = (values[: facts.data.get("tested")] for values in (source.x_test, source.y_test))
    return preprocessing(facts)(x), y


def corpus(facts: SimpleNamespace, data_dir: PathLike | None = None) -> Corpus:
    """Return the text of a language model's card; another vocabulary is a ValueError."""
    text = texts.load(data_dir, facts.data["max_word_length"])
    text = dataclasses.replace(text, train=text.train[: facts.data.get("tokens")])
    if "words" in facts.data:
        text = text.most_frequent(facts.data["words"])
    if text.vocabulary.fingerprint != vocabulary(facts).fingerprint:
        raise ValueError(f"Expected the text of the card {facts.name}. Received: other words.")
    return text
