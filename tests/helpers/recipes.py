"""Recipes in the process of the tests: their modules, their flags and their help."""

import contextlib
import importlib
import sys

from absl import flags

FLAGS = flags.FLAGS


@contextlib.contextmanager
def recipe(name, *options):
    """Import a recipe and parse its flags; afterwards neither module nor flags are left."""
    before = {*FLAGS}
    sys.modules.pop(name, None)
    try:
        module = importlib.import_module(name)
        FLAGS([f"{name}.py", *options])
        yield module
    finally:
        sys.modules.pop(name, None)
        for flag in {*FLAGS} - before:
            delattr(FLAGS, flag)
