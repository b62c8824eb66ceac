"""The structure of the repository: which files may import which, and what the wheel holds.

That only `zoo/backend` and a few others import a backend is a rule of ruff in pyproject.toml.
"""

import ast
import doctest
import graphlib
import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

from helpers.harness import ROOT, few_elsewhere, fresh_python, slow_elsewhere, without_backend

PACKAGES = {"zoo": "zoo", "applications": "zoo.applications", "callbacks": "zoo.callbacks"}
FOLDERS = [*PACKAGES, "recipes"]
FACADE = {"zoo", "zoo.probe"}  # the public names, and a command's short name
BACKENDS = {"tensorflow", "jax", "torch"}
HEAVY = {*BACKENDS, "tensorflow_datasets", "keras_nlp", "keras_hub", "matplotlib"}


def sources(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_on_disk(path):
    return path.relative_to(ROOT).as_posix()


WITH_BACKENDS = sources("zoo/backend", "zoo/layers")  # whose functions have a body for each


def module_name(path):
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([PACKAGES[folder], *(part for part in rest if part != "__init__")])


def imported(node):
    """The full names that one import statement asks for; none for other nodes."""
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def module_files():
    """Return every module's import name and file; recipes' names start at their own folder."""
    modules = {module_name(path): path for path in sources(*PACKAGES)}
    for path in sources("recipes"):
        parts = path.relative_to(ROOT / "recipes").with_suffix("").parts
        modules[".".join(part for part in parts if part != "__init__")] = path
    return modules


def import_graph():
    """Return what each module imports of the project, anywhere in its file, functions too."""
    modules = module_files()
    graph = {}
    for module, path in modules.items():
        graph[module] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            for name in imported(node):
                while name and name not in modules:  # the module that defines the name
                    name = name.rpartition(".")[0]
                graph[module] |= {name} - {"", module}
    return graph


def floor(module):
    """Return 0 for zoo, 1 for applications, 2 for callbacks, 3 for the facade, 4 for recipes."""
    if module in FACADE:
        return 3
    if not module.startswith("zoo."):
        return 4
    package = module.split(".")[1]
    return {"applications": 1, "callbacks": 2}.get(package, 0)


@without_backend
def test_no_import_points_up():
    graph = import_graph()
    assert {floor(module) for module in graph} == {0, 1, 2, 3, 4}
    up = [(m, name) for m, names in graph.items() for name in names if floor(name) > floor(m)]
    assert not up


def circle(graph):
    """Return the modules of one import circle; an empty list without one."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


@without_backend
def test_no_import_circle_among_modules_and_among_folders():
    modules = import_graph()
    folders = {}
    for module, names in modules.items():
        if floor(module) < 3:
            own = folders.setdefault(folder_of(module), set())
            own |= {folder_of(name) for name in names} - {folder_of(module)}
    assert not circle(modules)
    assert not circle(folders)
    assert circle({"a": {"b"}, "b": {"a"}})


def folder_of(module):
    """Return the first two parts of a module's name: zoo.graph, zoo.io, zoo.callbacks."""
    return ".".join(module.split(".")[:2])


@without_backend
def test_every_dependency_has_a_tested_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    names = {requirement.partition(">")[0] for requirement in asked if "[" not in requirement}
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    assert names <= {line.partition("==")[0] for line in pinned}
    oldest = dict(re.findall(r"^([\w-]+)==(.*)$", (ROOT / ".ci/oldest.txt").read_text(), re.M))
    bounds = dict(re.match(r"([\w-]+)>=([\d.]+)", name).groups() for name in asked if ">=" in name)
    for name in ("keras", "numpy", "scipy", "matplotlib", "jax"):
        assert f"{oldest[name]}.".startswith(f"{bounds[name]}."), f"{name}: see .ci/oldest.txt"


BESIDE = """
import importlib.util
import zoo, zoo.callbacks.probes, zoo.recipes.experiment
from zoo.layers.highway import HighwayDense
assert HighwayDense is zoo.HighwayDense
for name in ("zoo.zoo", "zoo.tests", "zoo.docs", "zoo.build"):
    assert importlib.util.find_spec(name) is None, name
print(zoo.applications.__file__)
"""


@without_backend
def test_a_checkout_has_only_its_packages_below_zoo():
    hidden = "__editable___highway_zoo_0_1_0_finder"  # as if it were not installed
    output = fresh_python(BESIDE, env={"PYTHONPATH": str(ROOT)}, block=[hidden]).stdout
    assert output.strip() == str(ROOT / "applications" / "__init__.py")


NO_BACKEND = """
try:
    import zoo
except ImportError as error:
    print(error)
"""


@without_backend
def test_without_its_backend_the_import_names_an_installed_one():
    done = fresh_python(NO_BACKEND, backend="tensorflow", block=["tensorflow", "jax"])
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Keras's backend is tensorflow, which is not installed.")
    assert last.endswith("KERAS_BACKEND to one of the installed: torch.")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Wheel and source distribution, built from a copy: an old build/ would lend them files."""
    copy = tmp_path_factory.mktemp("copy")
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    build = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return copy / "dist"


@without_backend
def test_the_wheel_holds_the_folders_and_nothing_else(distributions):
    (wheel,) = distributions.glob("*.whl")
    built = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {name_on_disk(path) for path in sources(*FOLDERS)}
    remapped = {name if name.startswith("zoo/") else f"zoo/{name}" for name in files}
    data = {name_on_disk(path) for path in (ROOT / "zoo" / "pretrained").iterdir()}
    assert built == {*remapped, *data, "zoo/py.typed"}
    (archive,) = distributions.glob("*.tar.gz")
    packed = {name.partition("/")[2] for name in tarfile.open(archive).getnames()}
    assert {*files, "pyproject.toml", "setup.py", "LICENSE", "constraints.txt"} <= packed


INSTALLED = """
import runpy, sys
import numpy as np, keras, zoo
assert "site" in zoo.__file__, zoo.__file__
model = zoo.highway_mlp(depth=4)
model.compile("sgd", "sparse_categorical_crossentropy")
x, y = np.random.default_rng(0).random((8, 784), "float32"), np.arange(8) % 10
model.fit(x, y, verbose=0)
report = zoo.callbacks.diagnose(model, x, y)
small = zoo.graph.prune_blocks(model, report.verdicts[0].block)
zoo.export(small, "artifact")
sys.argv[1:] = ["list"]
runpy.run_module("zoo.recipes.reproduce", run_name="__main__", alter_sys=True)
"""


@without_backend
def test_the_installed_wheel_trains_probes_prunes_exports_and_runs_recipes(distributions, tmp_path):
    (wheel,) = distributions.glob("*.whl")
    site = tmp_path / "site"
    install = ["-m", "pip", "install", "--no-deps", "--target", site, wheel]
    user = tmp_path / "user"
    user.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    for command in (install, ["-c", INSTALLED]):
        done = subprocess.run(
            [sys.executable, *command], cwd=user, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    scripts = sorted(path.name for path in (site / "bin").glob("zoo-*"))
    assert scripts == ["zoo-export", "zoo-probe", "zoo-recipe"]
    assert "srivastava2015/gates" in done.stdout and "not measured" not in done.stdout
    assert (user / "artifact" / "saved_model.pb").exists()


PUBLIC_MODULES = (
    "applications callbacks datasets distribute graph optimizers regularizers weights".split()
)
IMPORT_ZOO = """
import inspect, json, sys
import keras
before = set(sys.modules)
import zoo
added = sorted(set(sys.modules) - before)
names = [name for name in dir(zoo) if not inspect.ismodule(getattr(zoo, name))]
assert [name for name in names if name[0] == "_"] == ["__doc__", "__version__"], names
assert "HighwayDense" in names and not hasattr(zoo, "os")
modules = sorted({*dir(zoo)} - {*names})
zoo.seed_everything(0)
zoo.HighwayDense(4).build((None, 4))
assert ("tensorflow" in sys.modules) == (keras.backend.backend() == "tensorflow")
print(json.dumps({"added": added, "modules": modules}))
"""


@slow_elsewhere
def test_import_zoo_adds_its_own_modules_to_those_of_keras_and_shows_public_names(backend):
    done = fresh_python(IMPORT_ZOO, block=HEAVY - {backend, "tensorflow"})
    found = json.loads(done.stdout.splitlines()[-1])
    assert [name for name in found["added"] if name.split(".")[0] != "zoo"] == []
    assert found["modules"] == PUBLIC_MODULES


PRIVATE = re.compile(r"/(root/|work/|home/[a-z]+/|tmp/[a-z])")
TEXTS = {".py", ".md", ".jsonl", ".csv", ".html", ".toml", ".txt"}


@without_backend
def test_no_committed_line_has_a_path_of_one_machine():
    paths = [path for folder in [*FOLDERS, "docs"] for path in (ROOT / folder).rglob("*")]
    for path in [*paths, *ROOT.iterdir()]:
        if path.suffix in TEXTS:
            found = PRIVATE.search(path.read_text(encoding="utf-8"))
            assert not found, f"{name_on_disk(path)}: {found[0]}"


def public_functions(tree):
    """Return the public functions and public methods that a module defines."""
    bodies = [tree.body]
    bodies += [n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name[0] != "_"]
    functions = [n for body in bodies for n in body if isinstance(n, ast.FunctionDef)]
    return [n for n in functions if n.name == "__init__" or not n.name.startswith("_")]


@without_backend
@pytest.mark.parametrize("folder", PACKAGES)
def test_every_public_argument_is_annotated(folder):
    missing = []
    for path in sources(folder):
        for function in public_functions(ast.parse(path.read_text())):
            arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
            missing += [
                f"{name_on_disk(path)}:{argument.lineno} {function.name}({argument.arg})"
                for argument in arguments
                if argument.annotation is None and argument.arg not in ("self", "cls")
            ]
    assert not missing


@pytest.mark.parametrize("path", few_elsewhere(sources(*PACKAGES), WITH_BACKENDS), ids=name_on_disk)
def test_docstring_examples_run(path):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    module = importlib.import_module(module_name(path))
    assert pathlib.Path(module.__file__) == path, "the tests see an installed copy"
    assert doctest.testmod(module, optionflags=flags).failed == 0
