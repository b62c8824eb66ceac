"""Run a benchmark by name.

    KERAS_BACKEND=torch python recipes/benchmark.py vision --rounds 3
    python recipes/benchmark.py vision --help

KERAS_BACKEND chooses tensorflow, jax or torch. Let nothing else run beside a benchmark.
"""

import argparse
import ast
import importlib
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent / "benchmarks"
NAMES = (
    "char_lm",
    "cifar",
    "deep_stack",
    "fold",
    "memory",
    "pipelines",
    "probes",
    "scaling",
    "vision",
)


def summary(name):
    """Return the first line of a benchmark's docstring."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)).splitlines()[0]


def main(words):
    """Parse the command line `words` and run the benchmark."""
    from benchmarks import harness

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=harness.HelpFormatter)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name in NAMES:
        command = commands.add_parser(
            name, help=summary(name), formatter_class=harness.HelpFormatter
        )
        if name in words[:1]:
            module = importlib.import_module(f"benchmarks.{name}")
            command.description = module.__doc__
            harness.add_shared_flags(command)
            module.add_flags(command)
    options = parser.parse_args(words)
    if options.child is None:
        module.main(options)
    else:
        harness.serve(lambda: module.contender(options, options.child))


if __name__ == "__main__":
    main(sys.argv[1:])
