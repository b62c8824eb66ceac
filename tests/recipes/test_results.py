"""Results: concurrent writers, verdicts, and reading back."""

import dataclasses
import json

import pytest

from experiment import results
from experiment.results import ROOT, Result, append, without_paths
from helpers.forked import server
from helpers.harness import without_backend
from helpers.recipes import recipe
from helpers.test_data import append_lines
from zoo.io import locked

RESULT = {"artifact": "paper/table1", "model": "net", "metric": "accuracy", "value": 92.2}


@without_backend
def test_a_result_is_compared_with_the_paper_unless_it_deviates():
    result = Result(**RESULT, paper=92.4, assumptions=["batch 100"], more={"best_epoch": 3})
    line = result.line()
    assert line["verdict"] == "-0.2; the paper gives no spread"
    assert line["readings"] == ["batch 100"] and line["best_epoch"] == 3
    assert line["departures"] == () and "assumptions" not in line and "more" not in line
    spread = dataclasses.replace(result, more={"spread": (92.31, 0.12)})
    assert spread.line()["verdict"] == "within the paper's spread"
    deviating = dataclasses.replace(result, deviations=["one epoch"])
    assert deviating.line()["verdict"] == "not comparable"


@without_backend
def test_a_line_separator_in_a_text_is_no_end_of_a_line(tmp_path):
    line = {"artifact": "a\u2028b\u0085c"}
    for _ in range(2):
        append(tmp_path / "a.jsonl", line)
    assert results.read(tmp_path / "a.jsonl") == [line]


@without_backend
@pytest.mark.parametrize("broken", ['{"artifact": "cut', "[1, 2]", "\xff"])
def test_a_broken_file_of_results_is_named_with_its_line(tmp_path, broken):
    path = tmp_path / "a.jsonl"
    append(path, {"artifact": "whole"})
    with open(path, "ab") as file:
        file.write(broken.encode("latin-1"))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="a.jsonl. Received in line 2"):
        append(path, {"artifact": "new"})
    assert path.read_bytes() == before


@without_backend
@pytest.mark.parametrize(
    ("name", "flag"), [("results.jsonl", ""), ("trained.json", ""), ("a.jsonl", "--results")]
)
def test_a_broken_file_is_noticed_before_the_training(tmp_path, name, flag):
    (tmp_path / name).write_text("broken")
    options = [f"{flag}={tmp_path / name}"] if flag else []
    with recipe("highway_conv", *options):
        from experiment import run_dirs

        with pytest.raises(ValueError, match=f"{name}.*broken"):
            run_dirs.open_folder(tmp_path, {}, 1)


@without_backend
def test_a_command_has_no_path_of_one_machine():
    arguments = ["--data_dir", "/data/mnist.npz", "--data_dir=/data", f"--results={ROOT}/a.jsonl"]
    assert without_paths([*arguments, "--runs=/mnt/runs"]) == [
        "--data_dir",
        "DATA",
        "--data_dir=DATA",
        "--results=a.jsonl",
        "--runs=runs",
    ]


def read(path):
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    return sorted((line["writer"], line["line"]) for line in lines)


@without_backend
def test_lines_that_several_recipes_append_at_once_are_all_kept(tmp_path):
    path = tmp_path / "new" / "lines.jsonl"
    writers = [server().Process(target=append_lines, args=(path, i, 25)) for i in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert read(path) == [(writer, line) for writer in range(4) for line in range(25)]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lines.jsonl"]


@without_backend
def test_a_writer_waits_for_the_lock(tmp_path):
    # The test above may not need the lock, when writers happen not to meet.
    path = tmp_path / "lines.jsonl"
    started = server().Event()
    writer = server().Process(target=append_lines, args=(path, 0, 1, started))
    with locked(path):
        writer.start()
        assert started.wait(60)
        writer.join(0.5)
        assert writer.is_alive() and path.read_text() == ""
    writer.join(60)
    assert writer.exitcode == 0 and read(path) == [(0, 0)]
