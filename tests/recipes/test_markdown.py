"""The table of results says what the lines say, and nothing else."""

import json
import sys

import pytest

from helpers.harness import ROOT, without_backend

pytestmark = without_backend


@pytest.fixture(scope="module", autouse=True)
def recipes():
    """The scripts beside each other, as Python finds them when it runs one."""
    sys.path.insert(0, str(ROOT / "recipes"))
    yield
    sys.path.remove(str(ROOT / "recipes"))


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


def test_tables_and_gallery_equal_the_lines_on_record():
    from report import gallery, markdown, records

    rows = records.merged(records.lines())
    text = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    assert markdown.with_table(text, rows) == text
    page = (records.FOLDER / "index.html").read_text(encoding="utf-8")
    assert gallery.page(rows, records.FOLDER) == page


def test_a_row_shows_value_paper_verdict_and_time():
    from report import markdown

    assert markdown.cells("table1a", ROW) == (
        "| table1a | char_lm small, full (jax) | test perplexity | 91.235 | 79.09 "
        "| not comparable | PTB | 2 | 1 | 2 cores, 10 min |"
    )


def test_what_was_not_run_is_an_empty_row_and_departures_stand_below():
    from report import markdown

    text = markdown.tables([ROW])
    assert "| table1b |" + " |" * 9 in text.splitlines()
    assert "- table1a, char_lm: 2 of 25 epochs." in text.splitlines()
    assert "    python recipes/ptb_char_lm.py  # 0123456789ab" in text.splitlines()


def test_seeds_become_mean_and_deviation_and_other_settings_do_not():
    from report import records

    other = {**ROW, "seeds": [2], "value": 93.234567}
    longer = {**ROW, "epochs": 3}
    one, two = records.merged([ROW, other, longer])
    assert one["seeds"] == [1, 2] and one["seconds"] == 1200
    assert one["value"] == pytest.approx(92.234567) and one["std"] == pytest.approx(2**0.5)
    assert two == longer
    assert records.merged([ROW, ROW]) == [ROW]  # the same seed again is no second sample


def test_the_mean_of_seeds_is_judged_by_the_paper_s_mean_not_by_its_best_run():
    """Srivastava et al., Table 3: 92.40 is the best of five, whose mean is 92.31 +- 0.12."""
    from report import records

    base = {**ROW, "paper": 92.40, "spread": [92.31, 0.12], "departures": []}
    first = {**base, "value": 92.2, "verdict": "within the paper's spread"}
    beyond = "-1.31, beyond the paper's spread of 0.12"
    second = {**base, "value": 91.0, "seeds": [2], "verdict": beyond, "commit": "other"}
    (row,) = records.merged([first, second])
    assert row["verdict"] == "-0.71, beyond the paper's spread of 0.12, mean of 2 seeds"
    assert records.commands(row) == [(ROW["command"], ROW["commit"]), (ROW["command"], "other")]
    (row,) = records.merged([first, {**second, "verdict": first["verdict"]}])
    assert row["verdict"] == first["verdict"]


def test_verdicts_that_are_no_differences_are_counted():
    """Of Kendall's tau, for example: the order of a mean is nobody's."""
    from report import records

    tau = {**ROW, "paper": 1.0, "departures": [], "verdict": "same order", "value": 1.0}
    rows = [tau, {**tau, "seeds": [2], "verdict": "another order", "value": 0.6}]
    (row,) = records.merged(rows)
    assert row["verdict"] == "same order: 1 of 2, another order: 1 of 2" and row["value"] == 0.8


def test_seeds_that_diverged_are_counted_and_do_not_spoil_the_mean():
    from report import records

    rows = [{**ROW, "seeds": [seed], "value": value} for seed, value in enumerate((1.0, 3.0, None))]
    (row,) = records.merged(rows)
    assert row["value"] == 2 and records.number(row) == "2 ± 1.41, 1 of 3 not"
    (row,) = records.merged([{**one, "value": None} for one in rows])
    assert records.number(row) == "none is finite"


def test_seeds_of_one_kind_of_processor_are_one_row_whatever_its_cores():
    from report import records

    on = [{**ROW, "seeds": [n], "hardware": f"{n} cores of X"} for n in (1, 2)]
    assert len(records.merged(on)) == 1
    assert len(records.merged([on[0], {**on[1], "hardware": "2 cores of Y"}])) == 2


def test_a_broken_line_is_named(tmp_path):
    from report import records

    (tmp_path / "a.jsonl").write_text(json.dumps(ROW) + "\n{\n")
    with pytest.raises(ValueError, match="a.jsonl, line 2, is not JSON"):
        records.lines(tmp_path)


def test_another_s_number_is_named_as_such():
    from report import records

    assert records.paper({**ROW, "paper_of": "Kim et al. (2016)"}) == "79.09 (Kim et al. (2016))"
    assert records.paper({**ROW, "paper": None}) == ""


def test_a_finished_run_that_is_asked_again_adds_no_line(tmp_path):
    from experiment import results

    path = tmp_path / "lines.jsonl"
    for change in ({}, {"seconds": 1.0, "command": "other"}, {"value": float("inf")}):
        results.append(path, {**ROW, **change})
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == ROW and second == {**ROW, "value": None}


def test_the_gallery_escapes_and_shows_an_artifact_s_own_pictures(tmp_path):
    from report import gallery

    (tmp_path / "greff2017").mkdir()
    for name in ("table1a.png", "table1a-all.png", "table1ab.png", "fig3.png"):
        (tmp_path / "greff2017" / name).touch()
    (tmp_path / "greff2017" / "fig4.csv").write_text("block,<i>\n1,0.123456\n")
    row = {**ROW, "departures": ["<b>"]}
    page = gallery.page([row], tmp_path)
    assert "&lt;b&gt;" in page and "<b>" not in page
    assert page.count("<img") == 3 and "table1ab.png" not in page
    assert "Nothing was run yet" in page
    assert "<td class=number>0.12346</td>" in page and "&lt;i&gt;" in page  # a table of its own
    assert page.count("<figure") == 4 and '<a href="greff2017/fig4.csv">' in page


def test_a_text_without_the_marks_is_refused():
    from report import markdown

    with pytest.raises(ValueError, match="made by results_table"):
        markdown.with_table("no marks", [ROW])


def test_the_order_of_the_variants_is_compared_with_the_paper_s():
    from greff2017 import variants

    assert variants.kendall([5, 4, 3], [50, 40, 30]) == 1
    assert variants.kendall([5, 3, 4], [50, 40, 30]) == pytest.approx(1 / 3)
    assert variants.kendall([1, 2], [2, 1]) == -1
