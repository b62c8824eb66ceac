"""Lines of results on disk, whoever writes them."""

import json

from harness import fresh_python, without_backend

WRITERS = """
import contextlib, multiprocessing, sys
from zoo import report

def write(writer):
    for line in range(25):
        report.append({path!r}, {{"writer": writer, "line": line}})

{change}
fork = multiprocessing.get_context("fork")
writers = [fork.Process(target=write, args=(writer,)) for writer in range(4)]
for one in writers:
    one.start()
for one in writers:
    one.join()
"""


def written(path, change=""):
    """The lines that four processes at once, of 25 each, leave in `path`."""
    fresh_python(WRITERS.format(path=str(path), change=change))
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    return sorted((line["writer"], line["line"]) for line in lines)


@without_backend
def test_lines_that_several_recipes_add_at_once_are_all_kept(tmp_path):
    wanted = [(writer, line) for writer in range(4) for line in range(25)]
    assert written(tmp_path / "new" / "lines.jsonl") == wanted
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lines.jsonl"]
    without = "report.locked = contextlib.nullcontext"
    assert len(written(tmp_path / "unlocked.jsonl", without)) < 100  # what it is there for
