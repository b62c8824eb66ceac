"""Publishing writes cards that can be read back, and leaves those of other sets as they are."""

import hashlib
import json

import numpy as np
import pytest

import publish_weights
import zoo
from helpers.harness import without_backend
from zoo import weights
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
    content = (weights.FOLDER / "cards.json").read_text(encoding="utf-8")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.setattr(publish_weights, "PAGES", tmp_path / "pages")
    monkeypatch.setattr(weights, "FOLDER", tmp_path / "package")
    (tmp_path / "weights.md").write_text(f"# Weights\n\n{pages.MARK}\n", encoding="utf-8")
    weights.FOLDER.mkdir()
    (weights.FOLDER / "cards.json").write_text(content, encoding="utf-8")
    return tmp_path


def test_a_network_becomes_weights_a_card_and_a_page(folder, monkeypatch, capsys):
    trained = zoo.highway_mlp(3, 8, input_shape=(8, 8, 1))
    digits = images.digits()
    prepare = preprocessing.fit("miniature", digits.x_train[:100])
    mean = {"mean": np.float64(prepare.mean).tolist(), "scale": float(prepare.scale)}
    facts = {**FACTS, "data": {**FACTS["data"], **mean}}
    with pytest.raises(ValueError, match="Missing: licence"):
        some = {key: value for key, value in facts.items() if key != "licence"}
        publish_weights.publish("small", trained, **some)
    others = weights.read_cards()
    publish_weights.publish("small", trained, **facts)

    card, path = zoo.weights.card("small"), weights.path("small")
    assert path.parent == folder / "package"
    assert card.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert card.size == path.stat().st_size
    assert card.parameters == trained.count_params()
    loaded = zoo.weights.build("small").get_weights()
    for value, original in zip(loaded, trained.get_weights(), strict=True):
        assert np.array_equal(value, original.astype("float16"))  # the precision of the file
    classes = trained.predict(prepare(digits.x_test), verbose=0).argmax(-1)
    expected = 100 * np.mean(classes == digits.y_test)
    assert card.value == pytest.approx(expected, abs=zoo.weights.TOLERANCE["test_accuracy"])
    assert card.examples == 297
    assert card.verified == {"torch": card.value}

    trained.save(folder / "model.keras")
    publish_weights.main(["small", f"--model={folder / 'model.keras'}"])  # with the card's facts
    content = weights.read_cards()
    assert {key: content["small"][key] for key in facts} == facts
    assert "small: highway_mlp3 on 297" in (folder / "pages" / "small.html").read_text("utf-8")
    publish_weights.main(["small"])
    page = (folder / "weights.md").read_text("utf-8")
    assert page.startswith("# Weights\n") and "## small\n\n- `zoo.highway_mlp(depth=3" in page
    assert f"small: test_accuracy {card.value} with torch" in capsys.readouterr().out
    assert weights.read_cards() == content == {**others, "small": content["small"]}


def test_verifying_changes_the_metric_of_its_backend_only(folder, monkeypatch):
    name = "mnist_plain20"
    path = weights.FOLDER / "cards.json"
    before = path.read_text(encoding="utf-8")
    content = json.loads(before)
    publish_weights.write_cards(content)
    assert path.read_text(encoding="utf-8") == before  # a line for each fact, in the cards' order
    monkeypatch.setattr(weights, "verify", lambda name, data_dir: 1.5)
    publish_weights.verify(name)
    content[name]["verified"]["torch"] = 1.5
    assert json.loads(path.read_text(encoding="utf-8")) == content


def test_facts_without_a_model_are_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        publish_weights.main(["mnist_plain20", "--facts=facts.json"])
    assert "--facts needs --model" in capsys.readouterr().err
