"""Other systems than Linux, whose calls are hidden here, and installing the backend asked for."""

import os
import shutil
import subprocess

import keras
import pytest

from helpers.harness import ROOT, fresh_python, without_backend
from helpers.test_data import lines_of, write_images

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

def read_text(path, **options):
    if path.is_relative_to("/proc"):
        raise FileNotFoundError(path)
    return opened(path, **options)

pathlib.Path.read_text = read_text
folder = pathlib.Path({folder!r})
sys.path.insert(0, "recipes")
sys.argv = ["highway_conv.py", {data!r}, "--budget=smoke", f"--run_dir={{folder}}", "--noexport"]
import highway_conv, zoo.launch
from experiment import results, script

assert not zoo.keep_memory()
print(results.hardware())
script.run_script(highway_conv.main)
"""


@without_backend
def test_a_recipe_runs_where_linux_s_own_calls_are_missing(tmp_path):
    data = write_images(tmp_path / "images.npz", (28, 28, 1), train=40)
    output = fresh_python(ELSEWHERE.format(folder=str(tmp_path / "run"), data=data)).stdout
    assert f"{os.cpu_count()} cores of" in output
    assert lines_of(tmp_path / "run")[0]["epochs"] == 1


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


QUIET = """
import sys
sys.path.insert(0, "recipes")
from experiment.script import run_script
import keras

def main():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.export({folder!r}, verbose=False)

run_script(main)
"""


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow's log")
@pytest.mark.parametrize(("level", "shown"), [("", False), ("0", True)])
def test_a_recipe_runs_without_tensorflow_s_log_unless_it_is_asked_for(tmp_path, level, shown):
    environment = {"TF_CPP_MIN_LOG_LEVEL": level}
    done = fresh_python(QUIET.format(folder=str(tmp_path)), env=environment)
    assert bool(done.stderr) == shown, done.stderr
