"""Publishing writes cards that can be read back, and leaves those of other sets as they are."""

import hashlib
import json

import numpy as np
import pytest

import publish_weights
import zoo
from helpers.harness import without_backend
from zoo import cards
from zoo.datasets import images, preprocessing
from zoo.recipes.experiment import pages

pytestmark = without_backend
FACTS = {
    "builder": "highway_mlp",
    "arguments": {"depth": 3, "units": 8, "input_shape": [8, 8, 1]},
    "data": {"name": "digits", "preprocessing": "miniature"},
    "metric": "test_accuracy",
    "trained": 12.0,
    "paper": None,
    "paper_of": "",
    "deviations": ["two epochs"],
    "command": "python recipes/small.py",
    "commit": "0123456789ab",
    "seed": 3,
    "seconds": 1.5,
    "hardware": "a computer",
    "backend": "torch",
    "traces": [],
    "licence": "free",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Cards and files of `tmp_path`, with a copy of the package's cards; return that folder."""
    content = (cards.FOLDER / "cards.json").read_text(encoding="utf-8")
    monkeypatch.setattr(publish_weights, "PAGES", tmp_path / "pages")
    monkeypatch.setattr(pages, "WEIGHTS", tmp_path / "weights.md")
    monkeypatch.setattr(cards, "FOLDER", tmp_path / "package")
    monkeypatch.setattr(cards, "REPOSITORY", tmp_path / "repository")
    monkeypatch.setattr(cards, "_cards", cards._cards.__wrapped__)  # not those read before
    cards.FOLDER.mkdir()
    (cards.FOLDER / "cards.json").write_text(content, encoding="utf-8")
    return tmp_path


def test_a_network_becomes_weights_a_card_and_a_page(folder, monkeypatch, capsys):
    monkeypatch.setattr(publish_weights, "LARGEST_IN_WHEEL", 0)  # the file is for a checkout only
    monkeypatch.setattr(publish_weights, "EXAMPLES", 32)
    trained = zoo.highway_mlp(3, 8, input_shape=(8, 8, 1))
    digits = images.digits()
    prepare = preprocessing.fit("miniature", digits.x_train[:100])
    with pytest.raises(ValueError, match="Missing: licence"):
        facts = {key: value for key, value in FACTS.items() if key != "licence"}
        publish_weights.publish("small", trained, prepare=prepare, **facts)
    others = publish_weights._read()
    publish_weights.publish("small", trained, prepare=prepare, **FACTS)

    card, path = zoo.weights.card("small"), cards.path("small")
    assert card.provenance["place"] == "repository" and path.parent == folder / "repository"
    assert card.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert card.provenance["size"] == path.stat().st_size
    assert card.provenance["parameters"] == trained.count_params()
    loaded = zoo.weights.build("small").get_weights()
    for value, original in zip(loaded, trained.get_weights(), strict=True):
        assert np.array_equal(value, original.astype("float16"))  # the precision of the file
    classes = trained.predict(prepare(digits.x_test), verbose=0).argmax(-1)
    expected = 100 * np.mean(classes == digits.y_test)
    assert card.value == pytest.approx(expected, abs=zoo.weights.TOLERANCE["test_accuracy"])
    assert card.examples == 297
    assert card.provenance["verified"] == {"torch": card.value}
    assert card.provenance["diagnosis"].startswith("2 blocks: ")
    page = (folder / "pages" / "small.html").read_text(encoding="utf-8")
    assert "small: " in page and "Verdicts" in page

    trained.save(folder / "model.keras")
    publish_weights.main(["small", f"--model={folder / 'model.keras'}"])  # with the card's facts
    content = publish_weights._read()
    assert {key: content["small"][key] for key in FACTS.keys() - {"data"}} == {
        key: value for key, value in FACTS.items() if key != "data"
    }
    publish_weights.main(["small"])
    assert "## small\n\n- `zoo.highway_mlp(depth=3" in pages.WEIGHTS.read_text("utf-8")
    assert f"small: test_accuracy {card.value} with torch" in capsys.readouterr().out
    assert publish_weights._read() == content == {**others, "small": content["small"]}


def test_verifying_changes_the_metric_of_its_backend_only(folder, monkeypatch):
    name = "mnist10k_plain20"
    path = cards.FOLDER / "cards.json"
    before = path.read_text(encoding="utf-8")
    content = json.loads(before)
    assert publish_weights.as_json(content) == before  # a line for each fact, in the cards' order

    def measured(name, data_dir):
        """Return a value, while another process writes that of JAX."""
        publish_weights._update(name, {}, {"jax": 2.5})
        return zoo.weights.Verification(1.5, 1.5, 5000, agrees=True)

    monkeypatch.setattr(zoo.weights, "verify", measured)
    publish_weights.verify(name)
    content[name]["verified"] |= {"jax": 2.5, "torch": 1.5}
    assert json.loads(path.read_text(encoding="utf-8")) == content

    found = zoo.weights.Verification(1.0, 2.0, 5000, agrees=False)
    monkeypatch.setattr(zoo.weights, "verify", lambda name, data_dir: found)
    with pytest.raises(ValueError, match="Expected 2.0, .* publish the set again"):
        publish_weights.verify(name)
    assert json.loads(path.read_text(encoding="utf-8")) == content
