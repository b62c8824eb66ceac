"""Run scripts in processes forked from a server that has already imported Keras.

Importing Keras and its backend takes longer than most recipes at `--budget smoke`. The fork server
imports them once; flags, seeds, names, files and signals are new in each forked process. Where the
import itself is under test, `harness.fresh_python` starts an interpreter.
"""

import functools
import gc
import multiprocessing.connection
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import threading

from matplotlib.figure import Figure

PRELOAD = ("keras", "zoo", "matplotlib.figure", "matplotlib.backends.backend_agg", "absl.app")
PRELOAD += ("tensorflow",)  # Keras imports it on every backend to save; half the time of a recipe
LOCK = threading.Lock()  # starting a process polls all others, which must not happen twice at once
SAVE = Figure.savefig


@functools.cache
def server():
    """Return the multiprocessing context whose server has imported `PRELOAD`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD])
    return context


class Forked:
    """A forked script, with the part of `subprocess.Popen`'s interface that tests use.

    The script may be "-m" and the first word a module. Variables that are read at import have no
    effect.
    """

    def __init__(self, script, *words, **environment):
        handle, self.output = tempfile.mkstemp(prefix="forked-")
        os.close(handle)
        # The server keeps the environment that it started with: pass today's.
        environment = {"GLIBC_TUNABLES": "", **os.environ, **environment}
        arguments = [script, *words], environment, os.getcwd(), self.output
        self.process = server().Process(target=_main, args=arguments, daemon=True)
        with LOCK:
            self.process.start()

    @property
    def returncode(self):
        with LOCK:
            return self.process.exitcode

    def poll(self):
        return self.returncode

    def send_signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        self.process.kill()

    def communicate(self, timeout=None):
        """Wait for the process and return its output, with None for its errors."""
        multiprocessing.connection.wait([self.process.sentinel], timeout)
        if self.returncode is None:
            self.kill()
            raise subprocess.TimeoutExpired("a forked process", timeout)
        if os.path.exists(self.output):
            self.text = pathlib.Path(self.output).read_text()
            os.unlink(self.output)
        return self.text, None


def save_quickly(figure, path, *, dpi=None, **options):
    """Save a small picture without layout and ticks, which take most of a recipe's time."""
    figure.set_layout_engine(None)
    for axis in figure.axes:
        axis.set_axis_off()
    SAVE(figure, path, dpi=20, **options)


def _main(words, environment, folder, output):
    sys.stdout = sys.stderr = open(output, "a", buffering=1)
    for number in (1, 2):  # output of extension modules and of child processes
        os.dup2(sys.stdout.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    Figure.savefig = save_quickly
    gc.freeze()  # a collection of what the server has imported takes a third of a second
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    sys.path.insert(0, os.path.dirname(words[0]))
    runpy.run_path(words[0], run_name="__main__")
