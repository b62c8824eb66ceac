"""Processes: a child's whole life, and ends without a traceback."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

INTERRUPTED = 128 + signal.SIGINT  # exit status, as of a shell


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run a command to its end and return its exit status; signals that end us end it, too."""
    with subprocess.Popen(command, env=environment) as child:
        before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        try:
            return child.wait()
        except KeyboardInterrupt:  # the terminal sent it to the child, too
            return child.wait()
        finally:
            signal.signal(signal.SIGTERM, before)


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def script() -> str:
    """Return the name of the running script, for messages."""
    return pathlib.Path(sys.argv[0]).name


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """End the process with a message instead of a traceback if flags or data are unusable."""
    from zoo.datasets.download import DownloadError  # reproduce.py does not wait for Keras

    try:
        yield
    except (ValueError, DownloadError) as error:
        sys.exit(f"{script()}: {error}")
