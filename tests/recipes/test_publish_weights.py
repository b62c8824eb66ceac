"""Publishing writes cards that can be read back, and leaves those of other sets as they are."""

import csv
import dataclasses
import json

import pytest
from absl import app

import zoo
from helpers.harness import ROOT, without_backend
from helpers.recipes import recipe

pytestmark = without_backend


def test_only_the_cards_that_are_asked_for_change(tmp_path, monkeypatch):
    with recipe("publish_weights", "--task=verify", "--only=mnist10k_plain20") as module:
        before = (module.FOLDER / "cards.json").read_text(encoding="utf-8")
        content = json.loads(before)
        assert module.as_json(content) == before  # a line for each fact, in the cards' order
        (tmp_path / "cards.json").write_text(before, encoding="utf-8")
        monkeypatch.setattr(module, "FOLDER", tmp_path)
        card = zoo.weights.card("mnist10k_plain20")
        found = zoo.weights.Verification(1.5, 1.5, 5000, agrees=True)
        monkeypatch.setattr(zoo.weights, "verify", lambda name, data_dir: found)
        module.main([""])
        after = json.loads((tmp_path / "cards.json").read_text(encoding="utf-8"))
    assert after["mnist10k_plain20"].pop("verified") == {**card.verified, "torch": 1.5}
    content["mnist10k_plain20"].pop("verified")
    assert after == content


def test_a_set_that_does_not_verify_keeps_its_card(monkeypatch):
    with recipe("publish_weights", "--task=verify", "--only=mnist10k_plain20") as module:
        found = zoo.weights.Verification(1.0, 2.0, 5000, agrees=False)
        monkeypatch.setattr(zoo.weights, "verify", lambda name, data_dir: found)
        with pytest.raises(app.UsageError, match="Expected the value of the card"):
            module.main([""])


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
            module.main([""])


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
