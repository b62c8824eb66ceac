"""Scripts in processes that are forked from one in which Keras is already imported.

Importing Keras and its backend takes longer than most recipes at `--budget smoke`. Python's fork
server does it once; what it forks is new in all that matters: flags, seeds, names, files, signals.
Where an import itself is the claim, `harness.fresh_python` starts an interpreter.
"""

import functools
import multiprocessing.connection
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import threading

PRELOAD = ("keras", "zoo", "matplotlib.figure", "matplotlib.backends.backend_agg", "absl.app")
LOCK = threading.Lock()  # starting one process polls all others, which must not poll themselves


@functools.cache
def server():
    """The context whose processes have imported `PRELOAD`; starts with the first process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD])
    return context


class Forked:
    """A script's process, with the part of `subprocess.Popen` that tests use.

    Args:
        script: Path of a script, or the name of a module after "-m".
        *words: Its arguments, and before them a module's name if `script` is "-m".
    """

    def __init__(self, script, *words):
        handle, self.output = tempfile.mkstemp(prefix="forked-")
        os.close(handle)
        # the server's own are those of its start; with the setting no script starts itself again
        given = {"GLIBC_TUNABLES": "", **os.environ}
        what = [script, *words], given, os.getcwd(), self.output
        self.process = server().Process(target=_main, args=what, daemon=True)
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
        """All that it printed, when it has ended."""
        multiprocessing.connection.wait([self.process.sentinel], timeout)
        if self.returncode is None:
            self.kill()
            raise subprocess.TimeoutExpired("a forked process", timeout)
        if os.path.exists(self.output):
            self.said = pathlib.Path(self.output).read_text()
            os.unlink(self.output)
        return self.said, None


def _main(words, environment, folder, output):
    sys.stdout = sys.stderr = open(output, "a", buffering=1)
    for number in (1, 2):  # of what is no Python, and of its own processes
        os.dup2(sys.stdout.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    sys.path.insert(0, os.path.dirname(words[0]))
    runpy.run_path(words[0], run_name="__main__")
