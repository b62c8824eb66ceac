"""Trained weights that the package has: where the files are, and what is known of them."""

import dataclasses
import difflib
import fnmatch
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from zoo.datasets.text import Vocabulary

FOLDER = pathlib.Path(__file__).resolve().parent / "pretrained"
REPOSITORY = FOLDER.parents[1] / "recipes" / "weights"  # of a checkout; for larger files
SUFFIX = ".weights.h5"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """Facts about one set of trained weights.

    Attributes:
        name: Name of the set, as `weights=` of its builder takes it.
        builder: Name of the builder; see `zoo.create_model`.
        arguments: The builder's other arguments.
        data: Data that it was trained and tested on, with all that reading them takes; see
            `zoo.weights.verify`.
        metric: "test_accuracy", in percent, or "test_perplexity".
        value: The metric of these weights, as the file holds them.
        examples: Number of test images, or of test words.
        sha256: Digest of the file.
        provenance: Origin of the training, and other facts that docs/weights.md shows.
    """

    name: str
    builder: str
    arguments: Mapping[str, Any]
    data: Mapping[str, Any]
    metric: str
    value: float
    examples: int
    sha256: str
    provenance: Mapping[str, Any]


def list_weights(pattern: str = "*") -> list[str]:
    """Return the names of the trained weights that match a shell pattern, sorted.

    Args:
        pattern: Of names or of builders, e.g. "ptb*" or "highway_mlp".

    Example:
    >>> list_weights("highway_mnist")
    ['mnist10k_highway']
    """
    cards = _cards().items()
    return sorted(n for n, c in cards if fnmatch.filter([n, c.builder], pattern))


def card(name: str) -> Card:
    """Return the facts about trained weights.

    Args:
        name: One of `list_weights()`.

    Raises:
        ValueError: if there are no such weights; the message names those that there are.

    Example:
    >>> card("mnist10k_highway").builder
    'highway_mnist'
    """
    cards = _cards()
    if name not in cards:
        near = difflib.get_close_matches(str(name), cards) or sorted(cards)
        raise ValueError(
            f"Expected the name of trained weights, such as {', '.join(near)}. Received: "
            f"{name!r}. `zoo.list_weights()` lists all; a path ends in {SUFFIX}."
        )
    return cards[name]


def vocabulary(card: Card) -> Vocabulary:
    """Return the words and characters of a language model's card."""
    return Vocabulary.load(FOLDER / card.data["vocabulary"])


def path(name: str) -> pathlib.Path:
    """Return the file of trained weights, after verifying its SHA-256.

    It is looked for in the package, in the folder `recipes/weights` of a checkout, and in the
    folder that the environment variable ZOO_WEIGHTS names.

    Args:
        name: One of `list_weights()`.

    Raises:
        ValueError: if there are no such weights, the file is in none of the folders, or it has
            another digest.
    """
    expected = card(name).sha256
    folders = [FOLDER, REPOSITORY]
    if source := os.environ.get("ZOO_WEIGHTS"):
        folders.append(pathlib.Path(source).expanduser())
    files = [folder / f"{name}{SUFFIX}" for folder in folders]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise ValueError(
            f"Expected one of the files {', '.join(map(str, files))}. Received: no such file. "
            f"Set ZOO_WEIGHTS to the folder that has it."
        )
    received = hashlib.sha256(found.read_bytes()).hexdigest()
    if received != expected:
        raise ValueError(
            f"Expected {found} with the SHA-256 digest {expected}. Received: {received}. The file "
            f"is damaged or another: delete it, and install again."
        )
    return found


@functools.cache
def _cards() -> dict[str, Card]:
    fields = {field.name for field in dataclasses.fields(Card)}
    cards = {}
    for name, facts in json.loads((FOLDER / "cards.json").read_text("utf-8")).items():
        known = {key: value for key, value in facts.items() if key in fields}
        others = {key: value for key, value in facts.items() if key not in fields}
        cards[name] = Card(name=name, provenance=others, **known)
    return cards
