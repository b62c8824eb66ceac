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
        trained: The same as the run measured it before the weights were rounded.
        examples: Number of test images, or of test words.
        verified: The metric as `zoo.weights.verify` measured it, by backend.
        paper: The paper's value, or None.
        paper_of: Source of the paper's value.
        deviations: Of the training from the paper's.
        command, commit, seed, seconds, hardware, backend: Origin of the training.
        diagnosis: `zoo.diagnose` in a sentence.
        traces: Tables of this training, and of what probes measured, that the repository has.
        licence: Licence of the data.
        parameters: Number of weights in the model.
        place: "wheel" if the package has the file, "repository" if only a checkout.
        size: Size of the file, in bytes.
        sha256: Digest of the file.
    """

    name: str
    builder: str
    arguments: Mapping[str, Any]
    data: Mapping[str, Any]
    metric: str
    value: float
    trained: float
    examples: int
    verified: Mapping[str, float]
    paper: float | None
    paper_of: str
    deviations: list[str]
    command: str
    commit: str
    seed: int
    seconds: float
    hardware: str
    backend: str
    diagnosis: str
    traces: list[str]
    licence: str
    parameters: int
    place: str
    size: int
    sha256: str


def list_weights(pattern: str = "*") -> list[str]:
    """Return the names of the trained weights that match a shell pattern, sorted.

    Args:
        pattern: Of names or of builders, e.g. "ptb*" or "highway_mlp".

    Example:
    >>> list_weights("highway_mnist")
    ['mnist10k_highway']
    """
    cards = _cards()
    found = {name for name in cards if fnmatch.fnmatch(name, pattern)}
    return sorted(found | {n for n, c in cards.items() if fnmatch.fnmatch(c.builder, pattern)})


def card(name: str) -> Card:
    """Return the facts about trained weights.

    Args:
        name: One of `list_weights()`.

    Raises:
        ValueError: if there are no such weights; the message names those that there are.

    Example:
    >>> card("mnist10k_highway").parameters
    38986
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


def path(name: str) -> pathlib.Path:
    """Return the file of trained weights, after a look at its digest.

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
    is_address = "://" in source
    folders = [FOLDER, REPOSITORY]
    if source and not is_address:
        folders.append(pathlib.Path(source).expanduser())
    for folder in folders:
        file = folder / f"{name}{SUFFIX}"
        if file.is_file():
            received = _digest(file)
            if received != expected.sha256:
                raise ValueError(
                    f"Expected {file} with the SHA-256 digest {expected.sha256}. Received: "
                    f"{received}. The file is damaged or another: delete it, and install again."
                )
            return file
    cache = pathlib.Path(os.environ.get("ZOO_CACHE") or "~/.cache/zoo").expanduser() / "weights"
    file = cache / f"{name}{SUFFIX}"
    if file.is_file() and _digest(file) == expected.sha256:
        return file
    places = ", ".join(map(str, [*folders, cache]))
    if not is_address:
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


def _digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


@functools.cache
def _cards() -> dict[str, Card]:
    content = json.loads((FOLDER / "cards.json").read_text("utf-8"))
    return {name: Card(name=name, **facts) for name, facts in content.items()}
