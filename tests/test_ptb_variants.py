"""All variants of the language model by one command."""

import csv
import json

import pytest

from harness import output_of, slow_elsewhere, start_recipe

WORDS = "one two three four five six seven"


@pytest.mark.slow
@slow_elsewhere
def test_six_variants_are_run_compared_and_not_run_again(tmp_path):
    for part, count in (("train", 400), ("valid", 110), ("test", 110)):
        (tmp_path / f"{part}.txt").write_text(f"{WORDS}\n" * count)
    options = f"--data_dir={tmp_path}", "--budget=smoke", "--export=false", "--variant", "all"
    folder = tmp_path / "run"
    for again in (False, True):
        output = output_of(start_recipe("ptb_char_lm.py", *options, f"--run_dir={folder}"))
        assert "Kendall's tau between the two orders" in output
        assert ("epoch 1/1 done" in output) is not again  # the second time from checkpoints
    with open(folder / "table1a.csv", encoding="utf-8") as file:
        table = {row["variant"]: float(row["test_perplexity"]) for row in csv.DictReader(file)}
    assert [*table] == ["plain", "residual", "t_only", "c_only", "coupled", "full"]
    (line,) = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    assert line["test_perplexity"] == pytest.approx(table) and len({*table.values()}) > 3
    assert line["verdict"] in ("same order", "another order")
