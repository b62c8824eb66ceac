"""The table of results says what the lines say, and nothing else."""

import importlib.util

import pytest

from harness import ROOT, without_backend

pytestmark = without_backend

spec = importlib.util.spec_from_file_location(
    "results_table", ROOT / "recipes" / "results_table.py"
)
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)

ROW = {
    "artifact": "greff2017/table1a",
    "model": "char_lm",
    "config": {"size": "small", "variant": "full"},
    "metric": "test_perplexity",
    "value": 91.234567,
    "std": None,
    "seeds": [1],
    "paper": 79.09,
    "data": "PTB",
    "budget": "minutes",
    "epochs": 2,
    "departures": ["2 of 25 epochs"],
    "verdict": "not comparable",
    "command": "python recipes/ptb_char_lm.py",
    "commit": "0123456789ab",
    "backend": "jax",
    "hardware": "2 cores",
    "seconds": 600.0,
}


def test_the_table_in_the_readme_equals_the_lines_on_record():
    text = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    assert table.with_table(text, table.lines(ROOT / "recipes" / "results")) == text


def test_a_row_shows_value_paper_departures_and_time():
    assert table.cells(ROW) == (
        "| char_lm small, full (jax) | PTB | 2 | 1 | 91.235 | 79.09 | not comparable "
        "| 2 of 25 epochs | 2 cores, 10 min |"
    )


def test_a_text_without_the_marks_is_refused():
    with pytest.raises(ValueError, match="made by results_table"):
        table.with_table("no marks", [ROW])
