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

from zoo.datasets import download
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
        size: Size of the file, in bytes.
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
    size: int
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
        imagenet = "There are no weights of ImageNet. " if name == "imagenet" else ""
        raise ValueError(
            f"Expected the name of trained weights, such as {', '.join(near)}. {imagenet}"
            f"Received: {name!r}. `zoo.list_weights()` lists all; a path ends in {SUFFIX}."
        )
    return cards[name]


def vocabulary(card: Card) -> Vocabulary:
    """Return the words and characters of a language model's card."""
    return Vocabulary.load(FOLDER / card.data["vocabulary"])


def path(name: str) -> pathlib.Path:
    """Return the file of trained weights, after verifying its SHA-256.

    It is looked for in the package, in the folder `recipes/weights` of a checkout, in the folder
    that the environment variable ZOO_WEIGHTS names, and in the cache, `$ZOO_CACHE/weights` or
    `~/.cache/zoo/weights`. If ZOO_WEIGHTS is the https address of a folder, the file is downloaded
    from there into the cache.

    Args:
        name: One of `list_weights()`.

    Raises:
        ValueError: if there are no such weights, the file is in none of the folders, or it has
            another digest.
        DownloadError: if it cannot be downloaded, or the server's file has another digest.
    """
    expected = card(name)
    source = os.environ.get("ZOO_WEIGHTS", "")
    cache = pathlib.Path(os.environ.get("ZOO_CACHE") or "~/.cache/zoo").expanduser() / "weights"
    folders = [FOLDER, REPOSITORY, cache]
    if source and "://" not in source:
        folders.insert(2, pathlib.Path(source).expanduser())
    for folder in folders:
        file = folder / f"{name}{SUFFIX}"
        if not file.is_file():
            continue
        received = hashlib.sha256(file.read_bytes()).hexdigest()
        if received == expected.sha256:
            return file
        if folder != cache:  # which may have that of an older version
            raise ValueError(
                f"Expected {file} with the SHA-256 digest {expected.sha256}. Received: "
                f"{received}. The file is damaged or another: delete it, and install again."
            )
    places = ", ".join(map(str, folders))
    if "://" not in source:
        raise ValueError(
            f"Expected {file.name} in one of {places}. Received: no such file. Set ZOO_WEIGHTS to "
            f"the folder that has it, or to the https address of such a folder."
        )
    address = f"{source.rstrip('/')}/{file.name}"
    try:
        download.fetch(address, file, expected.sha256, expected.size)
    except download.FAILURES as error:
        raise download.DownloadError(
            f"{file.name} is in none of {places}, and its download from {address} failed: {error}. "
            f"Put the file into {cache}, or set ZOO_WEIGHTS to the folder that has it."
        ) from error
    return file


@functools.cache
def _cards() -> dict[str, Card]:
    fields = {field.name for field in dataclasses.fields(Card)}
    cards = {}
    for name, facts in json.loads((FOLDER / "cards.json").read_text("utf-8")).items():
        known = {key: value for key, value in facts.items() if key in fields}
        others = {key: value for key, value in facts.items() if key not in fields}
        cards[name] = Card(name=name, provenance=others, **known)
    return cards
