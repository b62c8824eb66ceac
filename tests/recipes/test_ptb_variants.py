"""All variants of the language model by one command."""

import csv
import json

import pytest

from greff2017 import claims
from helpers.harness import output_of, slow_elsewhere, start_recipe

WORDS = "one two three four five six seven"


@slow_elsewhere
def test_six_variants_are_run_compared_and_not_run_again(tmp_path):
    for part, count in (("train", 400), ("valid", 110), ("test", 110)):
        (tmp_path / f"{part}.txt").write_text(f"{WORDS}\n" * count)
    options = f"--data_dir={tmp_path}", "--budget=smoke", "--export=false"
    options += "--vocabulary=6", "--filters=10,20", "--units=20"
    folder = tmp_path / "run"
    for again in (False, True):
        start = start_recipe("ptb_char_lm.py", *options, "--variant", "all", f"--run_dir={folder}")
        output = output_of(start)
        assert "Kendall's tau between the two orders" in output
        assert ("epoch 1/1 done" in output) is not again  # the second time from checkpoints
    with open(folder / "table1a.csv", encoding="utf-8") as file:
        table = {row["variant"]: float(row["test_perplexity"]) for row in csv.DictReader(file)}
    assert [*table] == ["plain", "residual", "t_only", "c_only", "coupled", "full"]
    (line,) = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    assert line["test_perplexity"] == pytest.approx(table) and len({*table.values()}) > 3
    assert line["verdict"] == "not comparable"  # it deviates from the paper
    assert claims.gain_of_carry_gates([line]) > 0 and claims.distance([line]) >= 0
    assert claims.gain_of_transform_gates([line]) == table["t_only"] / table["residual"]

    # one of the six is the network that is trained alone
    alone = start_recipe(
        "ptb_char_lm.py", *options, "--variant=full", f"--run_dir={tmp_path / 'a'}"
    )
    output_of(alone)
    (line,) = map(json.loads, (tmp_path / "a" / "results.jsonl").read_text().splitlines())
    assert line["value"] == table["full"]
    assert line["paper"] is None  # of another text
    config = {"size": "small", "variant": "full", "filters": [10, 20], "units": 20}
    assert line["config"] == config
    assert {"8 words of vocabulary", "units 20"} <= {*line["departures"]}  # | and + beside the six
