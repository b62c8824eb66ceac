"""The tables of results say what the lines say, and nothing else."""

import json
import re

import pytest

from experiment import results
from greff2017 import variants
from helpers.harness import without_backend
from report import claims_page, gallery, markdown, records, verdicts, weights_page

pytestmark = without_backend
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
    "readings": ["batch of 20"],
    "verdict": "not comparable",
    "command": "python recipes/ptb_char_lm.py --data_dir DATA --run_dir runs",
    "commit": "0123456789ab",
    "backend": "jax",
    "hardware": "2 cores",
    "seconds": 600.0,
}


def test_tables_and_gallery_equal_the_lines_on_record():
    rows = records.merged(records.lines())
    claims = verdicts.load()
    assert markdown.PATH.read_text(encoding="utf-8") == markdown.page(rows)
    page = (records.FOLDER / "index.html").read_text(encoding="utf-8")
    assert gallery.page(claims, rows, records.FOLDER) == page
    assert claims_page.PATH.read_text(encoding="utf-8") == claims_page.page(claims)
    assert weights_page.PATH.read_text(encoding="utf-8") == weights_page.page()
    assert claims_page.short_table(claims) in claims_page.README.read_text(encoding="utf-8")


def test_every_line_on_record_has_the_keys_of_a_result():
    rows = records.lines()
    result = results.Result(artifact="paper/table1", model="net", metric="accuracy", value=None)
    assert len(rows) > 50
    assert all(result.line().keys() <= row.keys() for row in rows)


def test_a_row_shows_value_paper_verdict_and_time():
    assert markdown.table_row(ROW) == (
        "| table1a | char_lm small, full (jax) | test perplexity | 91.235 | 79.09 "
        "| not comparable | PTB | 2 | 1 | 2 cores, 10 min |"
    )


def test_rows_that_do_not_compare_are_in_no_table(tmp_path):
    full = {**ROW, "verdict": "+1.4, one seed", "departures": []}
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(ROW)}\n{json.dumps(full)}\n")
    assert records.lines(tmp_path) == [full]
    text = markdown.page([full])
    assert text.count("| table1a |") == 1 and "## Jastrzebski" not in text
    assert "    python recipes/ptb_char_lm.py --data_dir DATA  # 0123456789ab" in text


def test_cells_of_tables_are_shown_as_they_are():
    row = {**ROW, "artifact": "greff2017/a|<img onerror=x>", "model": "a|b"}
    line = markdown.table_row(row)
    assert "a\\|&lt;img onerror=x&gt;" in line and "a\\|b small" in line


def test_tables_name_no_folder_of_the_machine_that_ran_the_command():
    command = "python recipes/x.py --data_dir=DATA --run_dir b --results=c --seed 1"
    assert markdown.without_outputs(command) == "python recipes/x.py --data_dir=DATA --seed 1"
    text = markdown.PATH.read_text(encoding="utf-8")
    assert not any(folder in text for folder in ("/root", "/home", "/tmp", "/work"))


def test_seeds_become_mean_and_deviation_and_other_settings_do_not():
    other = {**ROW, "seeds": [2], "value": 93.234567}
    longer = {**ROW, "epochs": 3}
    one, two = records.merged([ROW, other, longer])
    assert one["seeds"] == [1, 2] and one["seconds"] == 1200
    assert one["value"] == pytest.approx(92.234567) and one["std"] == pytest.approx(2**0.5)
    assert two == longer
    assert records.merged([ROW, ROW]) == [ROW]  # the same seed again is no second sample


def test_the_mean_of_seeds_is_judged_by_the_paper_s_mean_not_by_its_best_run():
    """Srivastava et al., Table 3: 92.40 is the best of five, whose mean is 92.31 +- 0.12."""
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
    """Kendall's tau, for example: the mean of several orders is not an order."""
    tau = {**ROW, "paper": 1.0, "departures": [], "verdict": "same order", "value": 1.0}
    rows = [tau, {**tau, "seeds": [2], "verdict": "another order", "value": 0.6}]
    (row,) = records.merged(rows)
    assert row["verdict"] == "same order: 1 of 2, another order: 1 of 2" and row["value"] == 0.8


def test_seeds_that_diverged_are_counted_and_do_not_spoil_the_mean():
    rows = [{**ROW, "seeds": [seed], "value": value} for seed, value in enumerate((1.0, 3.0, None))]
    (row,) = records.merged(rows)
    assert row["value"] == 2 and records.number(row) == "2 ± 1.41, 1 of 3 not finite"
    (row,) = records.merged([{**row, "value": None} for row in rows])
    assert records.number(row) == "not finite"


def test_seeds_of_one_kind_of_processor_are_one_row_whatever_its_cores():
    on = [{**ROW, "seeds": [n], "hardware": f"{n} cores of X"} for n in (1, 2)]
    assert len(records.merged(on)) == 1
    assert len(records.merged([on[0], {**on[1], "hardware": "2 cores of Y"}])) == 2


def test_a_broken_line_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(ROW) + "\n{\n")
    with pytest.raises(ValueError, match="a.jsonl, line 2, is not JSON"):
        records.lines(tmp_path)


@pytest.mark.parametrize(
    "line, message",
    [
        ("[1]", "expected a JSON object. Received: \\[1\\]"),
        ({}, "expected 'artifact' as str. Received: no such key"),
        ({**ROW, "config": []}, "expected 'config' as dict. Received: \\[\\]"),
        ({**ROW, "value": "1"}, "expected 'value' as int or float or null. Received: '1'"),
        ({**ROW, "artifact": "table1a"}, "expected PAPER/NAME as artifact. Received: 'table1a'"),
        ({**ROW, "departures": [1]}, "expected texts in 'departures'. Received: \\[1\\]"),
        ({**ROW, "readings": [1]}, "expected texts in 'readings'. Received: \\[1\\]"),
    ],
)
def test_json_that_is_no_result_is_named_by_file_and_line(tmp_path, line, message):
    text = line if isinstance(line, str) else json.dumps(line)
    (tmp_path / "a.jsonl").write_text(json.dumps(ROW) + f"\n{text}\n")
    with pytest.raises(ValueError, match=f"a.jsonl, line 2: {message}"):
        records.lines(tmp_path)


def test_numbers_of_another_paper_name_it():
    row = {**ROW, "paper_of": "Kim et al. (2016)"}
    assert records.cells(row)["paper"] == "79.09 (Kim et al. (2016))"
    assert records.cells({**ROW, "paper": None})["paper"] == ""


def test_a_finished_run_that_is_asked_again_adds_no_line(tmp_path):
    path = tmp_path / "lines.jsonl"
    for change in ({}, {"seconds": 1.0, "command": "other"}, {"value": float("inf")}):
        results.append(path, {**ROW, **change})
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == ROW and second == {**ROW, "value": None}


def test_the_gallery_escapes_and_shows_an_artifact_s_own_pictures(tmp_path):
    (tmp_path / "greff2017").mkdir()
    bad = "fig3-<img src=x onerror=y>.png"
    for name in ("table1a.png", "table1a-all.png", "table1ab.png", bad):
        (tmp_path / "greff2017" / name).touch()
    (tmp_path / "greff2017" / "fig4.csv").write_text("block,<i>\n1,0.123456\n")
    row = {**ROW, "departures": ["<b>"], "artifact": "greff2017/fig3"}
    odd = {**ROW, "artifact": "greff2017/<img onerror=z>"}
    page = gallery.page([], [row, odd], tmp_path)
    assert "&lt;b&gt;" in page and "<b>" not in page
    assert page.count("<img") == 3 and "table1ab.png" not in page
    assert "<img src=x" not in page and "<img onerror" not in page
    assert 'src="greff2017/fig3-%3Cimg%20src%3Dx%20onerror%3Dy%3E.png"' in page
    assert "Not run yet" in page
    assert "<td class=number>0.12346</td>" in page and "&lt;i&gt;" in page  # a table of its own
    assert page.count("<figure") == 4 and '<a href="greff2017/fig4.csv">' in page


def test_the_gallery_is_folded_and_a_claim_is_one_line():
    claim = {
        "claim": "S1",
        "paper": "Srivastava et al. (2015), Fig. 1",
        "statement": "Plain < highway.",
        "criterion": "ratio: at least 10",
        "value": 20.0,
        "interval": [8.0, 50.0],
        "values": [20.0],
        "seeds": [0],
        "verdict": "contradicted",
        "changed": "another depth",
        "reason": "a reason",
        "figure": "claims/srivastava2015/fig1",
        "command": "python recipes/reproduce.py claims S1",
        **{key: ROW[key] for key in ("commit", "backend", "hardware", "seconds", "data")},
        "departures": ["small"],
    }
    page = gallery.page([claim], [ROW], records.FOLDER)
    folded = re.sub("<details.*?</details>", "", re.sub("(?s)<summary>.*?</summary>", "", page))
    assert "Plain &lt; highway." in page and "<b class=contradicted>contradicted</b>" in page
    assert "Most likely reason: a reason." in page and "Criterion" in page
    assert "Changed after a run: another depth." in page
    while "<details" in folded:  # innermost first
        end = folded.index("</details>")
        folded = folded[: folded.rindex("<details", 0, end)] + folded[end + len("</details>") :]
    assert "<img" not in folded and "<tr>" not in folded
    assert "0 of 1 claims are shown, 1 contradicted, 0 undecided." in folded
    (line,) = claims_page.short_table([claim]).splitlines()[2:]
    assert line == "| S1 Plain &lt; highway. | **contradicted** | 20 (8 to 50) | at least 10 |"


def test_the_order_of_the_variants_is_compared_with_the_paper_s():
    assert variants.kendall([5, 4, 3], [50, 40, 30]) == 1
    assert variants.kendall([5, 3, 4], [50, 40, 30]) == pytest.approx(1 / 3)
    assert variants.kendall([1, 2], [2, 1]) == -1


def test_orders_of_truncated_runs_have_no_verdict():
    assert variants.order_verdict(1.0, []) == "same order"
    assert variants.order_verdict(0.9, []) == "another order"
    assert variants.order_verdict(1.0, ["3 of 25 epochs"]) == "not comparable"
