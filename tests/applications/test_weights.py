"""Trained weights: cards tell the truth about their files, and metrics can be measured again."""

import hashlib

import numpy as np
import pytest

import zoo
from helpers.harness import CORPORA, without_backend
from zoo import cards
from zoo.applications import weights

NAMES = zoo.list_weights()
needs_data = pytest.mark.skipif(not CORPORA.exists(), reason="needs the data beside the checkout")


@without_backend
def test_names_are_found_by_their_own_or_their_builder_s_pattern():
    assert zoo.list_weights("mnist10k_hi*") == ["mnist10k_highway", "mnist10k_highway50"]
    assert zoo.list_weights("char_lm") == ["ptb_miniature_coupled"]
    assert zoo.list_weights("nothing") == []


@without_backend
@pytest.mark.parametrize("name", NAMES)
def test_a_card_has_the_facts_of_its_file(name):
    card = zoo.weights.card(name)
    file = cards.FOLDER / f"{name}.weights.h5"
    assert file.stat().st_size == card.size
    assert hashlib.sha256(file.read_bytes()).hexdigest() == card.sha256
    assert weights.untrained(card).count_params() == card.parameters
    assert abs(card.value - card.trained) <= weights.TOLERANCE[card.metric]
    assert card.command.startswith("KERAS_BACKEND=") and len(card.commit) == 12
    assert {file.stem.removesuffix(".weights") for file in cards.FOLDER.glob("*.h5")} == {*NAMES}


@without_backend
def test_all_files_together_are_small_enough_for_a_wheel():
    assert sum(file.stat().st_size for file in cards.FOLDER.iterdir()) < 5e6


def test_weights_are_loaded_by_name():
    model = zoo.highway_mnist(weights="mnist10k_highway")
    for loaded, built, started in zip(
        model.get_weights(),
        zoo.weights.build("mnist10k_highway").get_weights(),
        zoo.highway_mnist().get_weights(),
        strict=True,
    ):
        assert np.array_equal(loaded, built) and not np.array_equal(loaded, started)
        assert loaded.dtype == "float32"


@needs_data
def test_the_smallest_set_verifies_itself():
    found = zoo.weights.verify("mnist10k_highway", CORPORA)
    assert found.agrees and found.examples == 10_000 and found.value == found.expected


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", NAMES)
def test_every_set_verifies_itself(name):
    found = zoo.weights.verify(name, CORPORA)
    assert found.agrees, found


@without_backend
@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: zoo.weights.card("mnist10k_highwy"), "such as mnist10k_highway"),
        (lambda: zoo.resnet50(weights="imagenet"), "no weights of ImageNet"),
        (lambda: zoo.highway_mnist(width=8, weights="mnist10k_highway"), "zoo.weights.build"),
    ],
)
def test_unknown_names_and_other_networks_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@without_backend
def test_a_damaged_file_and_a_missing_one_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "FOLDER", tmp_path)
    cards._cards.cache_clear()
    content = (weights.FOLDER / "cards.json").read_bytes()
    (tmp_path / "cards.json").write_bytes(content)
    monkeypatch.setenv("ZOO_WEIGHTS", str(weights.FOLDER))
    assert cards.path("mnist10k_highway").parent == weights.FOLDER  # the other folder
    (tmp_path / "mnist10k_highway.weights.h5").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="SHA-256"):
        cards.path("mnist10k_highway")
    monkeypatch.delenv("ZOO_WEIGHTS")
    with pytest.raises(ValueError, match="Set ZOO_WEIGHTS"):
        cards.path("mnist10k_highway50")
