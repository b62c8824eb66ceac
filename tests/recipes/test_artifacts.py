"""Every table and figure of the papers has a command that runs, to its end, in seconds.

The models that these commands save load in a process that has imported no recipe.
"""

import concurrent.futures
import pathlib
import re
import threading

import numpy as np
import pytest

from helpers.forked import Forked
from helpers.harness import output_of, slow_elsewhere, start_recipe
from report import artifacts

MADE = {}  # command: the artifacts that it makes; tests that are commands run in this suite
for name, artifact in artifacts.ARTIFACTS.items():
    for command in artifact.commands:
        if not command.startswith("tests/"):
            MADE.setdefault(command, []).append(name)
SETS = {  # shape and classes of images
    "mnist": ((28, 28, 1), 10),
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
    "imagenette": ((40, 40, 3), 10),
}
WORDS = "one two three four five six seven\n"
SAVE_NO_MODEL = {  # they measure in passing, or what another recipe trains
    "mnist_depth_search.py",
    "noise_stability.py",
    "divergence.py",
    "trivial_dominance.py",
}
# Deeper networks of commands that differ in depth alone take seconds each; the other models are
# trained on the smaller set's images, too.
SLOW = re.compile(r"--depth (38|56|110|146|182)$|--data cifar100 --model|--networks (ubn|naive)$")
SAVING = {  # the first command of every other recipe
    command.split()[0]: command
    for command in reversed(MADE)
    if not SLOW.search(command) and command.split()[0] not in SAVE_NO_MODEL
}
LOAD = """
import sys
import keras, numpy as np
import zoo, zoo.io

assert not {"experiment", "report"} & {*sys.modules}
for path in sys.argv[1:]:
    for load in (zoo.io.load_model, keras.saving.load_model):
        model = load(path)
        x = np.zeros([size or 2 for size in model.input_shape], model.input.dtype)
        y = model.predict(x, verbose=0, batch_size=len(x))
        assert np.isfinite(y).all() and y.shape[1:] == model.output_shape[1:], path
    print("loaded", path)
"""
pytestmark = slow_elsewhere


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a folder of all sets: brighter noise for higher labels, and a text that counts."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for name, (shape, classes) in SETS.items():
        arrays = {}
        for split, count in (("train", 260), ("test", 20)):
            y = np.arange(count) % classes
            x = random.integers(0, 100, (count, *shape)) + (150 * y // classes)[:, None, None, None]
            arrays |= {f"x_{split}": x.astype("uint8"), f"y_{split}": y}
        np.savez(folder / f"{name}.npz", **arrays)
    (folder / "ptb").mkdir()
    for part, count in (("train", 400), ("valid", 110), ("test", 110)):
        (folder / "ptb" / f"ptb.{part}.txt").write_text(WORDS * count)
    return folder


@pytest.fixture(scope="module")
def started(request, data, tmp_path_factory):
    """Start the selected commands, those of two papers at a time; return the futures of `run`.

    The commands of a paper run one after the other, because they share trained networks.
    """
    folder = tmp_path_factory.mktemp("runs")
    items = [item for item in request.session.items if item.path == pathlib.Path(__file__)]
    commands = [i.callspec.params["command"] for i in items if hasattr(i, "callspec")]
    if len(commands) < len(items):  # the test that loads the models
        commands += SAVING.values()
    folders = {command: concurrent.futures.Future() for command in commands}
    papers = {}
    for command in folders:
        papers.setdefault(MADE[command][0].split("/")[0], []).append(command)
    stopped = threading.Event()

    def run_paper(paper):
        for number, command in enumerate(papers[paper]):
            if stopped.is_set():
                return
            try:
                done = run(command, data, folder / f"{paper}{number}", folder / paper)
                folders[command].set_result(done)
            except BaseException as error:
                folders[command].set_exception(error)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for paper in papers:
            pool.submit(run_paper, paper)
        yield folders
        stopped.set()


def run(command, data, folder, networks):
    """Run a command at `--budget smoke`; return its folder and its new models.

    Args:
        command: Of an artifact.
        data: Folder of data sets.
        folder: Folder for the run directory and lines of results.
        networks: Folder of trained networks.
    """
    script, *flags = command.split()
    before = {*networks.rglob("model.keras")}
    flags += [
        "--budget=smoke",
        f"--run_dir={folder / 'run'}",
        f"--results={folder / 'lines.jsonl'}",
    ]
    if script != "trivial_dominance.py":
        flags.append(f"--data_dir={data}")
        flags += ["--export=false"] if script != "mnist_depth_search.py" else []
        small = ["--filters=4,4", "--units=8"]  # of the language model
        flags += [f"--runs={networks}"] if script != "ptb_char_lm.py" else small
    output_of(start_recipe(script, *flags))
    return folder, [*folder.rglob("model.keras"), *{*networks.rglob("model.keras")} - before]


COMMANDS = [pytest.param(c, marks=pytest.mark.slow if SLOW.search(c) else ()) for c in MADE]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_table_and_figure_is_made_by_its_command_at_smoke(command, started):
    folder, _ = started[command].result()
    lines = (folder / "lines.jsonl").read_text() if (folder / "lines.jsonl").exists() else ""
    files = {path.name for path in (folder / "run").iterdir()} if lines else set()
    for name in MADE[command]:
        pattern = re.escape(name.split("/")[1]) + "(?![0-9a-z])"
        drawn = any(re.match(pattern, file) for file in files)
        assert f'"{name}"' in lines or drawn, (name, sorted(files))


def test_the_models_that_recipes_save_load_and_predict_where_no_recipe_is_imported(
    started, tmp_path
):
    models = {script: [] for script in SAVING}
    for command, done in started.items():
        if command.split()[0] in models:
            models[command.split()[0]] += done.result()[1]
    assert [script for script, paths in models.items() if not paths] == []
    smallest = [str(min(paths, key=lambda path: path.stat().st_size)) for paths in models.values()]
    (tmp_path / "load.py").write_text(LOAD)
    loaded = output_of(Forked(str(tmp_path / "load.py"), *smallest))
    assert loaded.count("loaded") == len(SAVING) >= 7
