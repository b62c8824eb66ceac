"""Other systems than Linux, whose calls are hidden here, and installing the backend asked for."""

import os
import shutil
import subprocess

import pytest

from helpers.harness import ROOT, fresh_python, without_backend
from helpers.test_data import write_images

ELSEWHERE = """
import ctypes, os, pathlib, sys
import keras, matplotlib.figure  # as they are

for name in ("sched_getaffinity", "getloadavg", "process_cpu_count", "fork", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("fcntl", "resource"):
    sys.modules[name] = None  # importing it fails
sys.platform = "win32"
ctypes.CDLL = None
opened = pathlib.Path.read_text

def read_text(path, *arguments, **options):
    if path.is_relative_to("/proc"):
        raise FileNotFoundError(path)
    return opened(path, *arguments, **options)

pathlib.Path.read_text = read_text
import zoo
from zoo.recipes.experiment import command_line, provenance

assert not zoo.keep_memory()
print(provenance.hardware())
words = [{data!r}, "--scale=smoke", "--train_examples=40", "--batch=20", "--runs={runs}"]
command_line.run_flags(["srivastava2015/gates"], words)
"""


@pytest.mark.slow
@without_backend
def test_an_experiment_runs_where_linux_s_own_calls_are_missing(tmp_path):
    data = write_images(tmp_path / "mnist.npz", (28, 28, 1), train=40, classes=10, step=20)
    output = fresh_python(ELSEWHERE.format(runs=tmp_path / "runs", data=data)).stdout
    assert f"{os.cpu_count()} cores of" in output
    assert [*tmp_path.glob("runs/srivastava2015-gates/*/seed0/measured.json")]


@without_backend
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("backend", ["jax", None, "theano"])
def test_make_demo_installs_the_backend_that_it_runs_on(backend, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "KERAS_BACKEND"}
    environment |= {"KERAS_BACKEND": backend} if backend else {}
    command = ["make", "-n", "demo", f"VENV={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if backend == "theano":
        assert "Expected KERAS_BACKEND of tensorflow jax torch. Received: theano" in done.stderr
        return
    extra = "tensorflow,jax" if backend else "tensorflow"
    assert f"-e '.[{extra}]'\n" in done.stdout
    assert f"KERAS_BACKEND={backend or 'tensorflow'} " in done.stdout
