"""The list of every table and figure, and what runs them."""

import importlib.util
import pathlib
import subprocess

import pytest

from harness import ROOT, without_backend

pytestmark = without_backend


@pytest.fixture(scope="module")
def reproduce():
    spec = importlib.util.spec_from_file_location("reproduce", ROOT / "recipes" / "reproduce.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def unmade(reproduce, monkeypatch):
    """An artifact without a recipe."""
    name = "greff2017/unmade"
    monkeypatch.setitem(reproduce.ARTIFACTS, name, ("nothing", reproduce.NO_RECIPE))
    return name


@pytest.fixture
def commands(reproduce, monkeypatch):
    """What would have been run."""
    found = []

    def run(command):
        found.append(command[1:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(reproduce.subprocess, "run", run)
    return found


def test_every_recipe_that_the_list_names_is_there(reproduce):
    for _, recipe in reproduce.ARTIFACTS.values():
        if recipe:
            assert (ROOT / "recipes" / recipe.split()[0]).is_file(), recipe


def test_every_line_of_results_of_a_paper_belongs_to_an_artifact(reproduce):
    papers = {name.split("/")[0] for name in reproduce.ARTIFACTS}
    for artifact in reproduce.recorded():
        assert artifact in reproduce.ARTIFACTS or artifact.split("/")[0] not in papers, artifact


def test_the_list_tells_what_was_run_and_what_has_no_recipe(reproduce, unmade, capsys):
    assert reproduce.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(reproduce.ARTIFACTS)
    assert "1 on record" in next(line for line in lines if line.startswith("greff2017/table1a"))
    assert "no recipe yet" in next(line for line in lines if line.startswith(unmade))
    assert "No artifact" in reproduce.main(["list", "kim*"])


def test_flags_go_to_the_recipe_once_for_every_seed(reproduce, commands):
    assert reproduce.main(["jastrzebski2018/fig4", "--seeds", "2", "--budget=smoke"]) == 0
    scripts = [pathlib.Path(command[0]).name for command in commands]
    assert scripts == ["iterative_inference.py"] * 2
    assert [command[1:] for command in commands] == [
        ["--budget=smoke", "--seed=0"],
        ["--budget=smoke", "--seed=1"],
    ]


def test_a_name_that_is_none_or_has_no_recipe_says_so(reproduce, unmade, commands):
    assert "Did you mean greff2017/table1" in reproduce.main(["greff2017/table1"])
    assert "no recipe yet" in reproduce.main([unmade])
    assert "positive number" in reproduce.main(["greff2017/table1a", "--seeds=none"])
    assert not commands
