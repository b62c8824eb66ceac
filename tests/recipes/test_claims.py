"""Claims: verdicts by their intervals, and the way from a command to a line of claims.jsonl."""

import dataclasses
import math

import pytest

import reproduce
from helpers.harness import start_recipe, without_backend
from helpers.recipes import refused
from helpers.test_data import write_images
from report import claims, claims_page, verdicts

pytestmark = [without_backend, pytest.mark.usefixtures("forked_help")]
CLAIM = claims.CLAIMS[1]  # a ratio, at least 100


def test_a_verdict_is_that_of_the_whole_interval():
    assert verdicts.verdict(CLAIM, [200, 210, 190]) == "shown"
    assert verdicts.verdict(CLAIM, [50, 51, 49]) == "contradicted"
    assert verdicts.verdict(CLAIM, [200, 90, 150]) == "undecided"
    assert verdicts.verdict(CLAIM, [200, 210]) == "undecided"  # too few
    assert verdicts.verdict(CLAIM, [200, 210, math.inf]) == "undecided"


def test_an_end_of_an_interval_is_not_rounded_onto_the_criterion():
    row = {"criterion": "perplexity: at most 1", "value": 1.021, "interval": [1.005, 1.0362]}
    assert claims_page.number(row) == "1.02 (1.005 to 1.04)"
    assert claims_page.number(row | {"value": 1.0, "interval": None}) == "1"
    assert claims_page.number(row | {"value": 1234.5}) == "1,234 (1.005 to 1.04)"


def test_the_interval_is_students():
    low, high = verdicts.interval([1.0, 2.0, 3.0], ratio=False)
    assert (low, high) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert verdicts.interval([math.e, math.e**2, math.e**3], ratio=True) == pytest.approx(
        (math.exp(low), math.exp(high))
    )


def test_a_ratio_that_is_zero_in_one_seed_leaves_the_claim_undecided():
    values = iter([2.0, 0.0, 4.0])
    claim = dataclasses.replace(CLAIM, measure=lambda lines: next(values))
    line = verdicts.evaluate(claim, {seed: [] for seed in range(3)}, seconds=1.0)
    assert (line["verdict"], line["interval"], line["value"]) == ("undecided", None, 2.0)


def test_a_criterion_has_one_bound_and_names_are_unique():
    for claim in claims.CLAIMS:
        assert (claim.least is None) != (claim.most is None), claim.name
    assert len({claim.name for claim in claims.CLAIMS}) == len(claims.CLAIMS)
    most = dataclasses.replace(CLAIM, least=None, most=3)
    assert most.criterion.endswith("at most 3") and most.holds(3) and not most.holds(3.1)


def test_two_claims_run_once_and_are_saved(tmp_path, monkeypatch, capsys):
    write_images(tmp_path / "noise.npz", (4, 4, 1), 200, 200)
    begun = []

    def run(words, environment):
        begun.append((words, environment["KERAS_BACKEND"]))
        child = start_recipe("mnist_depth_search.py", *words[2:])
        child.communicate(300)
        return child.returncode

    monkeypatch.setattr(verdicts.process, "run", run)
    monkeypatch.setattr(verdicts, "PATH", tmp_path / "claims.jsonl")
    monkeypatch.setattr(verdicts.records, "MINIATURES", tmp_path / "claims")
    data = f"--data_dir={tmp_path / 'noise.npz'}", "--data=noise"
    options = "--budget=smoke", "--configurations=1", "--depths=10,100", "--seeds=2"
    words = ["claims", "S1", "S2", *data, *options, f"--run_dir={tmp_path / 'runs'}", "--keep"]
    assert reproduce.main([*words, "--dry_run"]) == 0
    assert not begun and not (tmp_path / "claims.jsonl").exists()
    assert reproduce.main(words) == 0
    assert len(begun) == 2 and {backend for _, backend in begun} == {"jax"}  # S2 shares S1's runs
    rows = verdicts.load()
    assert [row["claim"] for row in rows] == ["S1", "S2"]
    assert rows[0]["seeds"] == [0, 1] and rows[0]["verdict"] == "undecided"
    assert rows[0]["seconds"] >= 0 and rows[0]["data"] == "noise"
    assert reproduce.main(words) == 0
    assert len(begun) == 2 and verdicts.load() == rows
    assert (tmp_path / "claims" / "srivastava2015" / "fig1.png").exists()
    assert "S2: undecided" in capsys.readouterr().out
    assert "Expected claims of S1" in refused(["claims", "S99"], capsys)
    assert "at most. Received: 11" in refused(["claims", "S1", "--seeds=11"], capsys)
    assert all(row["statement"] in claims_page.page(rows) for row in rows)
