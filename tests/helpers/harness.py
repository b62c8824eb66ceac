"""Shared test helpers: Keras's layer checks, new processes, local data."""

import json
import os
import pathlib
import subprocess
import sys
import warnings

import keras
import pytest
from keras.src import testing  # Keras exports its layer checks nowhere else

from helpers.forked import Forked

ROOT = pathlib.Path(__file__).parents[2]
CORPORA = ROOT.parent / "shared" / "data"

# For long tests that hardly depend on the backend: run by default on torch only.
slow_elsewhere = pytest.mark.skipif(False, reason="")
if keras.backend.backend() != "torch":
    slow_elsewhere = pytest.mark.slow


def few_elsewhere(names, few):
    """Return parameters of which backends other than torch run only a few by default."""
    return [pytest.param(n, marks=() if n in few else slow_elsewhere) for n in names]


# For tests of what only TensorFlow does (other backends start a process of it).
slow_unless_tensorflow = pytest.mark.skipif(False, reason="")
if keras.backend.backend() != "tensorflow":
    slow_unless_tensorflow = pytest.mark.slow

# For tests that no backend takes part in: conftest.py leaves them to one suite.
without_backend = pytest.mark.without_backend

# Hide modules as if they were not installed: the import fails and `find_spec` returns None.
HIDE = """
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if not any(name == b or name.startswith(b + ".") for b in {block}):
            return PathFinder.find_spec(name, path, target)

sys.meta_path = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
"""


class _KerasCase(testing.TestCase):
    def runTest(self):  # noqa: N802 - unittest's name
        """Do nothing: `unittest` requires a method to construct an instance."""


def run_layer_test(layer_class, init_kwargs, **expectations):
    """Run Keras's own checks of a layer; `expectations` are those of its `run_layer_test`.

    They cover the config round trip, exact counts after `build`, a symbolic and an eager call, one
    `fit` step and, except on the torch CPU, `mixed_float16`.
    """
    case = _KerasCase()
    case.setUp()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`shuffle=True` was passed")  # Keras's own fit step
            case.run_layer_test(layer_class, init_kwargs, **expectations)
    finally:
        case.doCleanups()


def fresh_python(code, *, backend=None, env=None, block=(), timeout=300):
    """Run `code` in a new process of this interpreter, from the repository root.

    `backend` is this process's when `None`, `env` are variables to add, and the modules in `block`
    are hidden from it. Return the `CompletedProcess`, unless it fails.
    """
    done = subprocess.run(
        [sys.executable, "-c", HIDE.format(block=list(block)) + code],
        env={**os.environ, "KERAS_BACKEND": backend or keras.backend.backend(), **(env or {})},
        cwd=ROOT,
        timeout=timeout,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"rc {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def start_recipe(script, *arguments, **environment):
    """Start a recipe in its own process, on this process's backend, with environment variables."""
    return Forked(str(ROOT / "recipes" / script), *arguments, **environment)


def start_module(name, *arguments):
    """Start `python -m name` in its own process, on this process's backend."""
    return Forked("-m", name, *arguments)


def run_benchmark(path, *words):
    """Return the lines of results of a benchmark of two rounds, in a process of its own."""
    command = [sys.executable, ROOT / "recipes" / "benchmarks", *words, "--rounds=2"]
    subprocess.run([*command, f"--results={path}"], check=True, timeout=600)
    return [json.loads(line) for line in path.read_text().splitlines()]


def output_of(process, returncode=0):
    """Wait for a process, assert its return code, and return its output."""
    output, _ = process.communicate(timeout=900)
    assert process.returncode == returncode, output
    return output


def shared_data(name):
    """Return the path of `name` in the local data folder, or skip the test."""
    path = CORPORA / name
    if not path.exists():
        pytest.skip(f"needs {path}, which is not part of the repository")
    return path


def measured_by(module, name, *measured):
    """Return a claim's number, and its control's, of what a seed measured."""
    claim = next(claim for claim in module.CLAIMS if claim.name == name)
    return claim.value(*measured), claim.control.value(*measured)
