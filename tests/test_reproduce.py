"""The list of every table and figure, and what runs them."""

import importlib
import pathlib
import re
import subprocess
import sys

import pytest

from harness import ROOT, without_backend

pytestmark = without_backend


@pytest.fixture(scope="module")
def reproduce():
    sys.path.insert(0, str(ROOT / "recipes"))
    yield importlib.import_module("reproduce")
    sys.path.remove(str(ROOT / "recipes"))


@pytest.fixture
def commands(reproduce, monkeypatch):
    """What would have been run."""
    found = []

    def run(command):
        found.append(command[1:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(reproduce.subprocess, "run", run)
    return found


def test_every_recipe_that_the_list_names_is_there_and_knows_its_flags(reproduce):
    for name, artifact in reproduce.ARTIFACTS.items():
        script, *flags = artifact.recipe.split()
        if script.startswith("tests/"):
            assert flags[0] == "-k" and flags[1] in (ROOT / script).read_text(encoding="utf-8"), (
                name
            )
            continue
        text = (ROOT / "recipes" / script).read_text(encoding="utf-8")
        beside = re.findall(r"^import (\w+)  # beside", text, re.MULTILINE)
        text += "".join((ROOT / "recipes" / f"{m}.py").read_text(encoding="utf-8") for m in beside)
        for flag in (word for word in flags if word.startswith("--")):
            assert f'"{flag[2:]}"' in text, (name, flag)


def test_every_line_of_results_of_a_paper_belongs_to_an_artifact(reproduce):
    papers = {name.split("/")[0] for name in reproduce.ARTIFACTS}
    for artifact in {row["artifact"] for row in reproduce.record.lines()}:
        assert artifact in reproduce.ARTIFACTS or artifact.split("/")[0] not in papers, artifact


def test_the_list_tells_what_was_run(reproduce, capsys):
    assert reproduce.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(reproduce.ARTIFACTS)
    assert " on record" in next(line for line in lines if line.startswith("greff2017/table1a"))
    assert "not run" in next(line for line in lines if line.startswith("greff2017/fig5"))
    assert "No artifact" in reproduce.main(["list", "kim*"])


def test_flags_go_to_the_recipe_once_for_every_seed(reproduce, commands):
    assert reproduce.main(["jastrzebski2018/fig4", "--seeds", "2", "--budget=smoke"]) == 0
    scripts = [pathlib.Path(command[0]).name for command in commands]
    assert scripts == ["iterative_inference.py"] * 2
    assert [command[1:] for command in commands] == [
        ["--budget=smoke", "--seed=0"],
        ["--budget=smoke", "--seed=1"],
    ]


def test_what_a_test_shows_is_run_by_pytest(reproduce, commands):
    assert reproduce.main(["greff2017/appendix_a"]) == 0
    assert commands == [["-m", "pytest", str(ROOT / "tests/test_theory.py"), "-k", "optimal"]]


def test_a_name_that_is_none_says_so(reproduce, commands):
    assert "Did you mean greff2017/table1" in reproduce.main(["greff2017/table1"])
    assert "positive number" in reproduce.main(["greff2017/table1a", "--seeds=none"])
    assert not commands
