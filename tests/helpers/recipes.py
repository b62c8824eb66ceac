"""Import recipes in the process of the tests, each with its own flags."""

import contextlib
import importlib
import sys

import pytest
from absl import flags
from matplotlib.figure import Figure

import reproduce
from helpers.forked import save_quickly
from helpers.harness import ROOT

FLAGS = flags.FLAGS
NAMES = {path.stem for path in (ROOT / "recipes").iterdir()}


@contextlib.contextmanager
def recipe(name, *options):
    """Import a recipe and parse its flags; flags of other recipes are removed before and after."""
    _remove_flags()
    sys.modules.pop(name, None)
    try:
        module = importlib.import_module(name)
        FLAGS([f"{name}.py", *options])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Figure, "savefig", save_quickly)
            yield module
    finally:
        _remove_flags()
        sys.modules.pop(name, None)


def refused(words, capsys):
    """Return the message with which reproduce.py refuses a command line, with exit status 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        reproduce.main(words)
    return capsys.readouterr().err


def _remove_flags():
    """Remove the flags that recipes have defined."""
    for flag in [*FLAGS]:
        if FLAGS.find_module_defining_flag(flag).partition(".")[0] in NAMES:
            delattr(FLAGS, flag)
