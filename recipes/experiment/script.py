"""Start of a recipe: Keras without TensorFlow's start-up lines, and ends without a traceback.

Recipes import this module first.
"""

import contextlib
import errno
import functools
import importlib.util
import logging
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator

from absl import app, flags
from absl import logging as absl_logging

from experiment import process

QUIET = "3"  # of TF_CPP_MIN_LOG_LEVEL: errors reach Python as exceptions; 0 shows everything
START_UP = re.compile("WARNING: All log messages before absl|[IWE][0-9]{4} |To enable the follow")
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def without_start_up_lines() -> Iterator[None]:
    """Hold back what TensorFlow logs before it looks at TF_CPP_MIN_LOG_LEVEL."""
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            for line in file.read().decode(errors="replace").splitlines():
                if not START_UP.match(line):
                    print(line, file=sys.stderr)


IS_QUIET = not os.environ.get("TF_CPP_MIN_LOG_LEVEL")
if IS_QUIET:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = QUIET
    with without_start_up_lines():
        import keras  # noqa: F401 - and its backend


def run_script(main: Callable[[], object]) -> None:
    """Parse the command line and run a recipe's `main`.

    Ctrl-C, a full disk and a limit of file sizes end the process in one line that says how to
    resume. The exit status is 0 after --help, 2 if the command line is invalid, 1 if a run fails.
    """
    app.run(functools.partial(_run, main), flags_parser=_parse)


def _parse(words):
    """Parse the flags; absl's own exit status is 1 after help and after an error."""
    try:
        return flags.FLAGS(words)
    except SystemExit:  # help was printed
        sys.exit(0)
    except flags.Error as error:
        print(f"{process.script()}: {error}. See --help.", file=sys.stderr)
        sys.exit(2)


def _run(main, argv):
    try:
        if len(argv) > 1:
            raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")
        if IS_QUIET and importlib.util.find_spec("tensorflow"):
            logging.getLogger("tensorflow").setLevel(logging.ERROR)
            absl_logging.get_absl_handler().addFilter(_is_ours_or_an_error)
            with without_start_up_lines():
                importlib.import_module("tensorflow")  # as Keras does on every backend to save
        return main()
    except app.UsageError as error:
        error.exitcode = 2
        raise
    except KeyboardInterrupt:
        message = f"\n{process.script()}: interrupted. {_how_to_resume()}"
        print(message, file=sys.stderr, flush=True)
        sys.exit(process.INTERRUPTED)
    except Exception as error:  # TensorFlow's are of no common class; all others are raised again
        reason = _disk_error(error)
        if reason is None:
            raise
        sys.exit(f"{process.script()}: {reason}. Make room or raise the limit. {_how_to_resume()}")


def _is_ours_or_an_error(record):
    """Return False for TensorFlow's warnings, e.g. that a second model's `predict` is traced."""
    folders = pathlib.Path(record.pathname).parts
    return record.levelno >= logging.ERROR or "tensorflow" not in folders


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
