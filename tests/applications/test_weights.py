"""Trained weights: cards tell the truth about their files, and metrics can be measured again."""

import dataclasses
import hashlib
import types

import keras
import numpy as np
import pytest

import zoo
from helpers.harness import CORPORA, ROOT, slow_elsewhere, without_backend
from zoo.applications import weights

NAMES = zoo.list_weights()
needs_data = pytest.mark.skipif(not CORPORA.exists(), reason="needs the data beside the checkout")


@without_backend
def test_names_are_found_by_their_own_or_their_builder_s_pattern():
    assert zoo.list_weights("mnist*_hi*") == ["mnist_highway", "mnist_highway50"]
    assert zoo.list_weights("char_lm") == ["ptb_coupled", "ptb_miniature_coupled"]
    assert zoo.list_weights("nothing") == []


@without_backend
@pytest.mark.parametrize("name", NAMES)
def test_a_card_has_the_facts_of_its_file(name):
    card = zoo.weights.card(name)
    facts = vars(card)
    file = weights.path(name)
    assert file.parent == weights.FOLDER  # which the wheel has
    assert file.stat().st_size == facts["size"]
    assert hashlib.sha256(file.read_bytes()).hexdigest() == card.sha256
    assert weights.network(card).count_params() == facts["parameters"]
    tolerance = weights.TOLERANCE[card.metric]
    assert abs(card.value - facts["trained"]) <= tolerance
    assert {*facts["verified"]} == {"tensorflow", "jax", "torch"}
    assert all(abs(value - card.value) <= tolerance for value in facts["verified"].values())
    assert facts["command"].startswith("KERAS_BACKEND=") and len(facts["commit"]) == 12
    page = (ROOT / "recipes" / "results" / "weights" / f"{name}.html").read_text(encoding="utf-8")
    assert name in page and len(page) < 3e5
    assert all((ROOT / trace).is_file() for trace in facts["traces"])


@without_backend
def test_every_file_has_a_card_and_all_are_small_enough_for_a_wheel():
    files = weights.FOLDER.glob("*.h5")
    assert sorted(file.name.removesuffix(".weights.h5") for file in files) == NAMES
    assert sum(file.stat().st_size for file in weights.FOLDER.iterdir()) < 16e6


def test_weights_are_loaded_by_name():
    model = zoo.highway_mnist(weights="mnist_highway")
    for loaded, built, started in zip(
        model.get_weights(),
        zoo.weights.build("mnist_highway").get_weights(),
        zoo.highway_mnist().get_weights(),
        strict=True,
    ):
        assert np.array_equal(loaded, built) and not np.array_equal(loaded, started)
        assert loaded.dtype == "float32"


@slow_elsewhere
@needs_data
def test_the_smallest_set_verifies_itself():
    name = "mnist_highway"
    assert zoo.weights.verify(name, CORPORA) == zoo.weights.card(name).value


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", NAMES)
def test_every_set_verifies_itself(name):
    if weights.card(name).data["name"] == "cifar10" and not (CORPORA / "cifar10.npz").exists():
        pytest.skip("needs the lossless images as cifar10.npz in the data beside the checkout")
    zoo.weights.verify(name, CORPORA)


@without_backend
def test_other_data_are_not_what_a_card_was_measured_on(monkeypatch):
    card = zoo.weights.card("mnist_plain20")
    data = {"name": "digits", "preprocessing": "miniature", "scale": 255.0, "side": 4}
    x, y = weights.test_set(types.SimpleNamespace(name=card.name, data=data))
    assert x.shape == (297, 4, 4, 1) and len(y) == 297
    for value, examples in ((card.value, 297), (card.value + 0.1, 10000)):
        monkeypatch.setattr(weights, "measure", lambda *_, found=(value, examples): found)
        with pytest.raises(ValueError, match="`test_accuracy` must be 98.84 of the 10000 examples"):
            weights.verify(card.name)


@without_backend
@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: zoo.weights.card("mnist_highwy"), "one of .*mnist_highway"),
        (lambda: zoo.highway_mnist(width=8, weights="mnist_highway"), "zoo.weights.build"),
    ],
)
def test_unknown_names_and_other_networks_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


DEEP = {"depth": 50, "units": 50, "weights": "mnist_highway50"}


@without_backend
@pytest.mark.parametrize(
    "build, difference",
    [
        (lambda: zoo.highway_mlp(**DEEP), r"zoo.highway_mlp\(activation='relu'\)"),
        (
            lambda: zoo.highway_mlp(**DEEP, activation="tanh", variant="t_only"),
            r"\(variant='t_only'\)",
        ),
        (lambda: zoo.highway_mlp(**DEEP | {"depth": 10}, activation="tanh"), r"\(depth=10\)"),
        (lambda: zoo.highway_mlp(**DEEP, activation="tanh", classes=5), r"\(classes=5\)"),
        (
            lambda: zoo.highway_mlp(**DEEP, activation="tanh", variant="plain"),
            r"\(variant='plain'\)",
        ),
    ],
)
def test_weights_are_refused_by_a_network_that_computes_something_else(build, difference):
    message = rf"of zoo.highway_mlp\(depth=50.*activation='tanh'.*{difference}"
    with pytest.raises(ValueError, match=message):
        build()


@without_backend
def test_lists_that_a_card_leaves_out_are_the_builder_s_own(monkeypatch):
    facts = types.SimpleNamespace(builder="simplified_plain_net", arguments={}, data={})
    monkeypatch.setattr(weights, "card", lambda name: facts)
    monkeypatch.setattr(weights, "path", lambda name: name)
    own = {"widths": (16, 32, 64)}
    assert weights.path_for("name", facts.builder, own) == "name"
    with pytest.raises(ValueError, match=r"zoo.simplified_plain_net\(widths=\[16, 32\]\)"):
        weights.path_for("name", facts.builder, {"widths": [16, 32]})


def test_weights_are_refused_by_a_language_model_of_other_words():
    card = zoo.weights.card("ptb_miniature_coupled")
    words = zoo.weights.vocabulary(card)
    zoo.char_lm(**card.arguments, vocabulary=words, batch_size=2, weights=card.name)
    others = dataclasses.replace(words, words=(*words.words[1:], words.words[0]))
    with pytest.raises(ValueError, match="vocabulary=<Vocabulary"):
        zoo.char_lm(**card.arguments, vocabulary=others, weights=card.name)


@without_backend
def test_logits_features_and_other_initial_biases_are_of_the_same_network():
    expected = zoo.weights.build("mnist_highway50")
    x = np.linspace(0, 1, 784, dtype="float32").reshape(1, 28, 28, 1)
    deep = {**DEEP, "activation": "tanh", "gate_bias": -3.0, "input_shape": (28, 28, 1)}
    logits = zoo.highway_mlp(**deep, classifier_activation=None)
    features = zoo.highway_mlp(**deep, include_top=False)
    head = expected.get_layer("predictions")
    probabilities = keras.ops.convert_to_numpy(expected(x))
    for values in (keras.ops.softmax(logits(x)), head(features(x))):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(values), probabilities, atol=1e-6)


@without_backend
def test_a_missing_or_damaged_file_is_an_error(tmp_path, monkeypatch):
    name = "mnist_highway"
    facts = zoo.weights.card(name)
    monkeypatch.setattr(weights, "card", lambda name: facts)
    monkeypatch.setattr(weights, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match="install again. Received: SHA-256='no such file'"):
        weights.path(name)
    (weights.FOLDER / f"{name}.weights.h5").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="SHA-256"):
        zoo.weights.build(name)
