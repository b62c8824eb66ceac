"""Publishing writes cards that can be read back, and leaves those of other sets as they are."""

import csv
import dataclasses
import hashlib
import json

import numpy as np
import pytest
from absl import app

import zoo
from helpers.harness import ROOT, without_backend
from helpers.recipes import recipe
from zoo import cards
from zoo.datasets import images, preprocessing

pytestmark = without_backend


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Return a function that has a recipe's files written to and read from `tmp_path`."""

    def redirect(module):
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setattr(module, "PAGES", tmp_path / "pages")
        for owner in (module, cards):
            monkeypatch.setattr(owner, "FOLDER", tmp_path / "package")
        monkeypatch.setattr(cards, "REPOSITORY", tmp_path / "repository")
        monkeypatch.setattr(cards, "_cards", cards._cards.__wrapped__)  # not those read before
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "cards.json").write_text("{}", encoding="utf-8")

    return redirect


def write_run_directory(folder):
    """Write what a recipe leaves of a small highway network, and return the network."""
    folder.mkdir(parents=True)
    model = zoo.highway_mlp(3, 8, input_shape=(8, 8, 1))
    model.save(folder / "model.keras")
    line = {
        "metric": "test_accuracy",
        "value": [11.0, 12.0],
        "departures": ["two epochs"],
        "paper": 98.0,
        "data": "digits",
        "command": "python recipes/small.py",
        "commit": "0123456789ab",
        "seeds": [3],
        "seconds": 1.5,
        "hardware": "a computer",
        "backend": "torch",
    }
    shorter = {**line, "value": [11.0], "departures": ["one epoch"]}  # before the run went on
    lines = f"{json.dumps(shorter)}\n{json.dumps(line)}\n"
    (folder / "results.jsonl").write_text(lines, encoding="utf-8")
    (folder / "config.json").write_text('{"images": 100}', encoding="utf-8")
    (folder / "metrics.csv").write_text("epoch,loss\n1,2.5\n", encoding="utf-8")
    return model


def test_a_run_directory_becomes_weights_a_card_and_pages(tmp_path, monkeypatch, elsewhere):
    trained = write_run_directory(tmp_path / "runs" / "small-seed3")
    with recipe("publish_weights", f"--run_dir={tmp_path / 'runs'}") as module:
        elsewhere(module)
        source = module.Source(
            builder="highway_mlp",
            arguments={"depth": 3, "units": 8, "input_shape": [8, 8, 1]},
            data={"name": "digits", "preprocessing": "miniature"},
            licence="free",
            folder="small-*",
        )
        monkeypatch.setattr(module, "SETS", {"small": source})
        monkeypatch.setattr(module, "LARGEST_IN_WHEEL", 0)  # the file is for a checkout only
        monkeypatch.setattr(module, "EXAMPLES", 32)
        module.main()
        card = zoo.weights.card("small")
        path = cards.path("small")
        content = (module.FOLDER / "cards.json").read_bytes()

        (module.PAGES / "small.html").unlink()
        for module.FLAGS.task in ("diagnose", "verify"):
            module.main()
        assert (module.FOLDER / "cards.json").read_bytes() == content  # both found the same again
        page = (module.PAGES / "small.html").read_text(encoding="utf-8")
        loaded = zoo.weights.build("small").get_weights()

    assert card.place == "repository" and path.parent == tmp_path / "repository"
    assert card.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert card.size == path.stat().st_size and card.parameters == trained.count_params()
    for value, original in zip(loaded, trained.get_weights(), strict=True):
        assert np.array_equal(value, original.astype("float16"))  # the precision of the file
    digits = images.digits()
    prepare = preprocessing.fit("miniature", digits.x_train[:100])
    classes = trained.predict(prepare(digits.x_test), verbose=0).argmax(-1)
    expected = 100 * np.mean(classes == digits.y_test)
    assert card.value == pytest.approx(expected, abs=zoo.weights.TOLERANCE["test_accuracy"])
    assert card.trained == 12.0 and card.examples == 297 and card.seed == 3
    assert card.verified == {"torch": card.value}
    assert card.paper is None  # a shorter training is not comparable
    assert card.traces == ["pages/small.csv"]
    assert (tmp_path / card.traces[0]).read_text(encoding="utf-8") == "epoch,loss\n1,2.5\n"
    assert card.diagnosis.startswith("2 blocks: ") and "mean transform gates 0.1" in card.diagnosis
    assert "small: " in page and "Verdicts" in page


def test_no_set_is_written_before_all_run_directories_are_there(tmp_path, monkeypatch):
    only = "--only=mnist10k_highway,ptb_coupled"
    with recipe("publish_weights", only, f"--run_dir={tmp_path}") as module:
        (tmp_path / module.SETS["mnist10k_highway"].folder).mkdir(parents=True)
        monkeypatch.setattr(module, "publish", lambda name: pytest.fail(f"{name} was published"))
        with pytest.raises(
            app.UsageError, match="one run directory ptb-small.*Train the set first"
        ):
            module.main()


def test_only_the_cards_that_are_asked_for_change(tmp_path, monkeypatch):
    with recipe("publish_weights", "--task=verify", "--only=mnist10k_plain20") as module:
        before = (module.FOLDER / "cards.json").read_text(encoding="utf-8")
        content = json.loads(before)
        assert module.as_json(content) == before  # a line for each fact, in the cards' order
        (tmp_path / "cards.json").write_text(before, encoding="utf-8")
        monkeypatch.setattr(module, "FOLDER", tmp_path)
        card = zoo.weights.card("mnist10k_plain20")
        found = zoo.weights.Verification(1.5, 1.5, 5000, agrees=True)

        def verify(name, data_dir):
            """Return a value, while another process writes that of JAX."""
            module.update(name, {"verified": {"jax": 2.5}})
            return found

        monkeypatch.setattr(zoo.weights, "verify", verify)
        module.main()
        after = json.loads((tmp_path / "cards.json").read_text(encoding="utf-8"))
    verified = after["mnist10k_plain20"].pop("verified")
    assert verified == {**card.verified, "jax": 2.5, "torch": 1.5}
    content["mnist10k_plain20"].pop("verified")
    assert after == content


def test_a_set_that_does_not_verify_keeps_its_card(monkeypatch):
    with recipe("publish_weights", "--task=verify", "--only=mnist10k_plain20") as module:
        found = zoo.weights.Verification(1.0, 2.0, 5000, agrees=False)
        monkeypatch.setattr(zoo.weights, "verify", lambda name, data_dir: found)
        with pytest.raises(ValueError, match="Expected 2.0, .* publish the set again"):
            module.main()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--only=nothing"], "Expected --only of mnist10k_highway"),
        (["--only=ptb_coupled", "--run_dir=nowhere"], "Expected one run directory ptb-small"),
    ],
)
def test_unknown_sets_and_missing_run_directories_are_named(options, message):
    with recipe("publish_weights", *options) as module:
        with pytest.raises(app.UsageError, match=message):
            module.main()


def test_every_set_names_its_card_s_builder_and_data():
    with recipe("publish_weights") as module:
        for name in zoo.list_weights():
            source = module.SETS[name]
            card = dataclasses.asdict(zoo.weights.card(name))
            assert (card["builder"], card["arguments"]) == (source.builder, {**source.arguments})
            assert {**card["data"], **source.data} == card["data"]
            assert card["traces"] == [*source.traces] or not source.traces


@pytest.mark.parametrize("name", ["mnist10k_residual20", "mnist10k_plain20"])
def test_traces_are_of_the_set_s_own_training(name):
    card = zoo.weights.card(name)
    with open(ROOT / card.traces[1], newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] == str(card.seed)]
    network = {"mnist10k_residual20": "residual", "mnist10k_plain20": "plain"}[name]
    last = [row for row in rows if row["network"] == network][-1]
    assert 100 * (1 - float(last["test_error"])) == pytest.approx(card.trained, abs=1e-3)
