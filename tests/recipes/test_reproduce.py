"""The list of every table and figure, and the commands that make them."""

import doctest
import pathlib
import signal

import pytest

import reproduce
from helpers.harness import ROOT, fresh_python, without_backend
from helpers.recipes import refused
from report import artifacts, recipe_flags, records

pytestmark = [without_backend, pytest.mark.usefixtures("forked_help")]


@pytest.fixture
def commands(monkeypatch):
    """Return the commands that would have run, without running them."""
    run_commands = []

    def run(command, environment=None):
        assert (environment is None) == (not command[-1].startswith("--seed="))
        run_commands.append(command[1:])
        return 0

    monkeypatch.setattr(reproduce.process, "run", run)
    return run_commands


def test_every_recipe_that_the_list_names_is_there_and_knows_its_flags():
    for name, artifact in reproduce.ARTIFACTS.items():
        assert not (artifact.same_as and artifact.commands), name
        for command in artifact.commands:
            script, *flags = command.split()
            if script.startswith("tests/"):
                text = (ROOT / script).read_text(encoding="utf-8")
                assert flags[0] == "-k" and flags[1] in text, name
                continue
            defined = recipe_flags.flags_of(ROOT / "recipes" / script)
            assert {"budget", "seed", "run_dir", "results"} <= defined, script
            assert {word[2:] for word in flags if word.startswith("--")} <= defined, name


def test_braces_in_the_list_stand_for_several_commands():
    assert doctest.testmod(artifacts).failed == 0
    assert len(reproduce.commands_of("jastrzebski2018/table1")) == 7


def test_every_line_of_results_of_a_paper_belongs_to_an_artifact():
    papers = {name.split("/")[0] for name in reproduce.ARTIFACTS}
    for artifact in {row["artifact"] for row in records.lines()}:
        assert artifact in reproduce.ARTIFACTS or artifact.split("/")[0] not in papers, artifact


def test_the_list_shows_what_was_run(capsys):
    assert reproduce.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(reproduce.ARTIFACTS)
    assert " on record" in next(line for line in lines if line.startswith("greff2017/table1a"))
    assert "not run" in next(line for line in lines if line.startswith("srivastava2015/table3"))
    assert "There is no 'kim*'" in refused(["list", "kim*"], capsys)
    assert reproduce.main(["list", "greff"]) == 0
    count = sum("greff" in name for name in reproduce.ARTIFACTS)
    assert len(capsys.readouterr().out.splitlines()) == count
    assert reproduce.state_of("srivastava2015/fig5") == reproduce.state_of("srivastava2015/fig1")


def test_flags_go_to_the_recipe_once_for_every_seed(commands):
    words = ["jastrzebski2018/fig6", "--seeds", "2", "--budget=smoke", "--run_dir", "a"]
    assert reproduce.main(words) == 0
    scripts = [pathlib.Path(command[0]).name for command in commands]
    assert scripts == ["iterative_inference.py"] * 2
    assert [command[1:] for command in commands] == [
        ["--budget=smoke", f"--run_dir=a/seed{seed}", f"--seed={seed}"] for seed in (0, 1)
    ]


def test_several_commands_run_once_each_in_folders_of_their_own(commands, capsys):
    words = ["srivastava2015/table1", "--budget=smoke", "-run_dir=runs/a"]
    assert reproduce.main(words) == 0
    folders = ["highway_conv-model-highway_mnist", "highway_conv-model-highway_mnist-width-32"]
    assert [command[1:] for command in commands] == [
        ["--model", "highway_mnist", "--budget=smoke", f"--run_dir=runs/a/{folders[0]}"],
        ["--model", "highway_mnist", "--width", "32", "--budget=smoke"]
        + [f"--run_dir=runs/a/{folders[1]}"],
    ]
    assert capsys.readouterr().out.count("done after") == 2
    assert "illustration" in refused(["greff2017/fig1"], capsys)


def test_a_pattern_runs_shared_commands_once(commands, capsys):
    assert reproduce.main(["yutomasi2019/*", "--data_dir=d", "--noexport", "--dry_run"]) == 0
    assert not commands
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("+ ")]
    assert len({line.split(" ", 4)[4].split("  #")[0] for line in lines}) == len(lines)
    trivial = next(line for line in lines if "trivial_dominance" in line)
    assert trivial.endswith("# yutomasi2019/fig11, yutomasi2019/fig13")
    assert "--data_dir" not in trivial and "--noexport" not in trivial  # it has no such flags
    assert all("--data_dir=d" in line for line in lines if "noise_stability" in line)


def test_every_artifact_is_made_by_all():
    plan = reproduce.plan(reproduce.matches(["all"]), reproduce.parser().parse_args([]), [])
    made = {name for _, names in plan for name in names}
    measured = {name for name in reproduce.ARTIFACTS if reproduce.commands_of(name)}
    assert made == measured and len({words for words, _ in plan}) == len(plan)


def test_a_recipe_that_fails_does_not_keep_the_others_from_running(monkeypatch, capsys):
    codes = iter([3, 0])
    monkeypatch.setattr(reproduce.process, "run", lambda *_: next(codes))
    assert reproduce.main(["srivastava2015/table1"]) == 3
    printed = capsys.readouterr().out
    assert printed.count("FAILED with status 3") == 1 and printed.count("done after") == 1


def test_a_signal_ends_all_recipes_and_a_crash_only_one(monkeypatch, capsys):
    for first, count in ((-signal.SIGKILL, 2), (-signal.SIGTERM, 1), (-signal.SIGINT, 1)):
        codes = iter([first, 0])
        monkeypatch.setattr(reproduce.process, "run", lambda *_, codes=codes: next(codes))
        assert reproduce.main(["srivastava2015/table1"]) == first
        assert len([*codes]) == 2 - count


def test_flags_go_to_the_recipes_that_have_them():
    words = ["--gate_bias", "-3", "--probe_examples", "9", "--noexport"]
    assert recipe_flags.known("mnist_gates.py", words) == words
    assert recipe_flags.known("divergence.py", words) == ["--noexport"]
    assert recipe_flags.known("imagenet_resnet50.py", words) == words[2:]


def test_kept_figures_and_lines_are_saved_with_the_results(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    words = ["yutomasi2019/fig11", "--budget=smoke", f"--run_dir={tmp_path / 'run'}"]
    assert "those of --budget smoke are meaningless" in refused([*words, "--keep"], capsys)
    calls = []
    monkeypatch.setattr(reproduce.process, "run", lambda *call: calls.append(call) or 0)
    assert reproduce.main([words[0], "--seeds=2", "--keep"]) == 0
    lines = f"--results={tmp_path / 'trivial_dominance.jsonl'}"
    assert [command[-1] for command, _ in calls] == [lines, lines]
    folders = [pathlib.Path(environment["ZOO_FIGURES"]) for _, environment in calls]
    assert [folder.name for folder in folders] == ["seed=0", "seed=1"]
    calls.clear()
    assert reproduce.main([words[0], "--keep"]) == 0
    assert calls[0][1]["ZOO_FIGURES"] == str(tmp_path / "yutomasi2019")


def test_figures_are_also_saved_in_the_folder_of_the_environment(monkeypatch, tmp_path):
    from experiment import plots

    monkeypatch.setenv("ZOO_FIGURES", str(tmp_path / "kept"))
    (tmp_path / "run").mkdir()
    for name in ("fig3.csv", "table1-a.csv", "section2.2.csv", "losses.csv", "figures.csv"):
        plots.write_rows(tmp_path / "run" / name, [{"a": 1}])
    assert len([*(tmp_path / "run").iterdir()]) == 5
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert kept == {"fig3.csv", "table1-a.csv", "section2.2.csv"}


def test_a_recipe_ends_with_the_process_that_started_it():
    code = "import os, signal, sys, threading; sys.path.insert(0, 'recipes')"
    code += "; from experiment import process"
    code += "; threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()"
    code += "; print(process.run([sys.executable, '-c', 'import time; time.sleep(60)']))"
    assert fresh_python(code, timeout=30).stdout.strip() == str(-signal.SIGTERM)


def test_claims_that_a_test_shows_are_run_by_pytest(commands):
    assert reproduce.main(["greff2017/appendix_a"]) == 0
    assert commands == [["-m", "pytest", str(ROOT / "tests/test_theory.py"), "-k", "optimal"]]


def test_unknown_names_are_answered_with_similar_ones(commands, capsys):
    answer = refused(["greff2017/table1"], capsys)
    assert "Did you mean greff2017/table1a, greff2017/table1b" in answer
    assert "jastrzebski2018/fig4" in refused(["jastrzebsky2018/fig4"], capsys)
    answer = refused(["greff2017/table1a", "--seeds=none"], capsys)
    assert "expected a positive number, received 'none'" in answer
    assert reproduce.matches(["section2.2"]) == ["srivastava2015/section2.2"]
    assert not commands


def test_figures_of_several_seeds_are_drawn_as_their_mean_and_others_are_the_first_seed_s(
    monkeypatch, tmp_path
):
    from experiment import plots

    def run(command, environment):
        seed = int(command[-1].removeprefix("--seed="))
        folder = pathlib.Path(environment["ZOO_FIGURES"])
        folder.mkdir(parents=True)
        rows = [{"epoch": e, "block": "a", "l2_ratio": e + seed} for e in (1, 2)]
        for name in ("fig14-a", "fig99-a"):
            plots.write_rows(folder / f"{name}.csv", rows)
            (folder / f"{name}.png").write_text(f"picture {seed}")
        return 0

    monkeypatch.setattr(reproduce.process, "run", run)
    words = ["jastrzebski2018/fig7", "--seeds=3", f"--run_dir={tmp_path}"]
    assert reproduce.main(words) == 0
    folder = tmp_path / "figures" / "jastrzebski2018"
    rows = plots.read_rows(folder / "fig14-a.csv")
    assert [row["seed"] for row in rows] == [0, 0, 1, 1, 2, 2]
    assert (folder / "fig14-a.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "fig99-a.png").read_text() == "picture 0"
    assert "seed" not in plots.read_rows(folder / "fig99-a.csv")[0]
