"""Compare the speed of the zoo with a peer's: python recipes/benchmark.py NAME.

    python recipes/benchmark.py cifar --backend torch --precision mixed_bfloat16
    python recipes/benchmark.py cifar --help

Each contender has a process of its own, idle until its turn. After a warm-up, which compiles, they
take turns, in reverse in every second round. Ratios are taken round by round and printed as their
median (minimum to maximum). Let nothing else run on the machine.
"""

import argparse
import ast
import importlib
import os
import pathlib
import sys

from benchmarks import harness

FOLDER = pathlib.Path(__file__).resolve().parent / "benchmarks"
NAMES = ("char_lm", "cifar", "probes", "vision")


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Show the docstring as it is written, and the default of every flag."""


def describe(name):
    """Return a benchmark's docstring, without importing the benchmark and its libraries."""
    return ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")))


def main(words):
    """Parse the command line `words` and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name in NAMES:
        text = describe(name)
        command = commands.add_parser(
            name, description=text, help=text.splitlines()[0], formatter_class=HelpFormatter
        )
        backends = ("tensorflow", "jax", "torch")
        add = command.add_argument
        add("--backend", choices=backends, help="Keras's backend instead of KERAS_BACKEND.")
        add("--rounds", type=harness.positive, default=5, help="Measurements of each.")
        add("--results", help="Append the results to this JSON-lines file.")
        add("--child", help=argparse.SUPPRESS)  # the contender that this process measures
        importlib.import_module(f"benchmarks.{name}").add_flags(add)
    options = parser.parse_args(words)
    if options.backend and not options.child:
        os.environ["KERAS_BACKEND"] = options.backend
    module = importlib.import_module(f"benchmarks.{options.name}")
    if options.child:
        harness.serve(lambda: module.contender(options, options.child))
    else:
        harness.run(module, options)


if __name__ == "__main__":
    main(sys.argv[1:])
