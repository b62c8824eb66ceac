"""Processes: a child's whole life, and ends without a traceback.

Recipes import this module before Keras: it sets what TensorFlow reads when it is imported.
"""

import contextlib
import errno
import functools
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from absl import app, flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only; 0 shows TensorFlow's start-up
INTERRUPTED = 128 + signal.SIGINT  # exit status, as of a shell
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run_script(main: Callable[[Sequence[str]], object]) -> None:
    """Parse the command line and run a recipe's `main`.

    Ctrl-C, a full disk and a limit of file sizes end the process in one line that says how to
    resume.
    """
    app.run(functools.partial(_run, main))


def _run(main, argv):
    try:
        return main(argv)
    except KeyboardInterrupt:
        print(f"\n{script()}: interrupted. {_how_to_resume()}", file=sys.stderr, flush=True)
        sys.exit(INTERRUPTED)
    except Exception as error:  # TensorFlow's are of no common class; all others are raised again
        reason = _disk_error(error)
        if reason is None:
            raise
        sys.exit(f"{script()}: {reason}. Make room or raise the limit. {_how_to_resume()}")


def _disk_error(error):
    """Return the text of the full disk or the file-size limit that an error is due to, or None."""
    while error is not None:
        for number in DISK_ERRORS:
            if getattr(error, "errno", None) == number or os.strerror(number) in str(error):
                return str(error)
        error = error.__cause__ or error.__context__
    return None


def _how_to_resume():
    resumes = "resume" not in flags.FLAGS or flags.FLAGS.resume
    return f"Run the same command {'again' if resumes else 'without --noresume'} to resume."


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run a command to its end and return its exit status; signals that end us end it, too.

    Args:
        command: Program and arguments.
        environment: Environment of the child. Default: this process's.
    """
    with subprocess.Popen(command, env=environment) as child:
        before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        try:
            return child.wait()
        except KeyboardInterrupt:  # the terminal sent it to the child, too
            return child.wait()
        finally:
            signal.signal(signal.SIGTERM, before)


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
