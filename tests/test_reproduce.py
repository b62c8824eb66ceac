"""The list of every table and figure, and what runs them."""

import importlib
import pathlib
import re
import signal
import sys

import pytest

from harness import ROOT, fresh_python, without_backend

pytestmark = without_backend

PARTS = ("recipe", "data")  # of what the recipes for images share


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
        return 0

    monkeypatch.setattr(reproduce.children, "run", run)
    return found


def test_every_recipe_that_the_list_names_is_there_and_knows_its_flags(reproduce):
    for name, artifact in reproduce.ARTIFACTS.items():
        for command in filter(None, artifact.recipe.split(" && ")):
            check(name, *command.split())


def check(name, script, *flags):
    if script.startswith("tests/"):
        assert flags[0] == "-k" and flags[1] in (ROOT / script).read_text(encoding="utf-8"), name
        return
    folder = ROOT / "recipes"
    text = (folder / script).read_text(encoding="utf-8")
    for module in re.findall(r"^import (\w+)", text, re.MULTILINE):
        path = folder / f"{module}.py"
        text += path.read_text(encoding="utf-8") if path.exists() else ""
    text += "".join((folder / f"image_{part}.py").read_text(encoding="utf-8") for part in PARTS)
    for flag in (word[2:] for word in flags if word.startswith("--")):
        assert f'"{flag}"' in text, (name, flag)


def test_every_line_of_results_of_a_paper_belongs_to_an_artifact(reproduce):
    papers = {name.split("/")[0] for name in reproduce.ARTIFACTS}
    for artifact in {row["artifact"] for row in reproduce.record.lines()}:
        assert artifact in reproduce.ARTIFACTS or artifact.split("/")[0] not in papers, artifact


def test_the_list_tells_what_was_run(reproduce, capsys):
    assert reproduce.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(reproduce.ARTIFACTS)
    assert " on record" in next(line for line in lines if line.startswith("greff2017/table1a"))
    assert "not run" in next(line for line in lines if line.startswith("srivastava2015/table3"))
    assert "No artifact" in reproduce.main(["list", "kim*"])


def test_flags_go_to_the_recipe_once_for_every_seed(reproduce, commands):
    assert reproduce.main(["jastrzebski2018/fig4", "--seeds", "2", "--budget=smoke"]) == 0
    scripts = [pathlib.Path(command[0]).name for command in commands]
    assert scripts == ["iterative_inference.py"] * 2
    assert [command[1:] for command in commands] == [
        ["--budget=smoke", "--seed=0"],
        ["--budget=smoke", "--seed=1"],
    ]
    assert reproduce.of_seed(["--run_dir=a", "--x"], 3) == ["--run_dir=a/seed3", "--x", "--seed=3"]
    assert reproduce.of_seed(["--run_dir", "a"], 0) == ["--run_dir", "a/seed0", "--seed=0"]
    assert reproduce.of_seed(["--run_dir", "a"], None) == ["--run_dir", "a"]


def test_an_artifact_of_several_commands_runs_each(reproduce, commands):
    assert reproduce.main(["srivastava2015/table1", "--budget=smoke"]) == 0
    assert [command[1:] for command in commands] == [
        ["--model", "highway_mnist", "--budget=smoke"],
        ["--model", "highway_mnist", "--width", "32", "--budget=smoke"],
    ]
    assert "illustration" in reproduce.main(["greff2017/fig1"])


def test_a_recipe_ends_with_who_started_it(reproduce):
    code = (
        "import signal, sys; sys.path.insert(0, 'recipes'); import children; import os, threading"
    )
    code += "; threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()"
    code += "; print(children.run([sys.executable, '-c', 'import time; time.sleep(60)']))"
    assert fresh_python(code, timeout=30).stdout.strip() == str(-signal.SIGTERM)


def test_what_a_test_shows_is_run_by_pytest(reproduce, commands):
    assert reproduce.main(["greff2017/appendix_a"]) == 0
    assert commands == [["-m", "pytest", str(ROOT / "tests/test_theory.py"), "-k", "optimal"]]


def test_a_name_that_is_none_says_so(reproduce, commands):
    assert "Did you mean greff2017/table1" in reproduce.main(["greff2017/table1"])
    assert "positive number" in reproduce.main(["greff2017/table1a", "--seeds=none"])
    assert not commands
