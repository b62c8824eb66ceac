"""Lines of results on disk, whoever writes them."""

import json
import subprocess
import sys

import pytest

from helpers.harness import fresh_python, without_backend
from zoo.io import locked

WRITERS = """
import multiprocessing
from zoo import report

def write(writer):
    for line in range(25):
        report.append({path!r}, {{"writer": writer, "line": line}})

fork = multiprocessing.get_context("fork")
writers = [fork.Process(target=write, args=(writer,)) for writer in range(4)]
for one in writers:
    one.start()
for one in writers:
    one.join()
"""


def written(path):
    """The lines that four processes at once, of 25 each, leave in `path`."""
    fresh_python(WRITERS.format(path=str(path)))
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    return sorted((line["writer"], line["line"]) for line in lines)


@without_backend
def test_lines_that_several_recipes_add_at_once_are_all_kept(tmp_path):
    wanted = [(writer, line) for writer in range(4) for line in range(25)]
    assert written(tmp_path / "new" / "lines.jsonl") == wanted
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lines.jsonl"]


@without_backend
def test_who_adds_a_line_waits_for_who_adds_another(tmp_path):
    """The lock, which the test above may not need, when writers happen not to meet."""
    path = tmp_path / "lines.jsonl"
    with locked(path):
        code = "from zoo import report; print('starts', flush=True); "
        code += f"report.append({str(path)!r}, {{}})"
        writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert writer.stdout.readline() == "starts\n"
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(0.5)
        assert path.read_text() == ""
    assert writer.communicate(timeout=60) == ("", None) and writer.returncode == 0
    assert path.read_text() == "{}\n"
