"""Compare the speed of the zoo with a peer's: python recipes/benchmarks NAME.

    KERAS_BACKEND=torch python recipes/benchmarks images --precision mixed_bfloat16
    python recipes/benchmarks images --help

Each contender has a process of its own, idle until its turn. After a warm-up, which compiles, they
take turns, in reverse in every second round. Ratios are taken round by round and printed as their
median (minimum to maximum). Let nothing else run on the machine.
"""

# A benchmark is a module with a `UNIT` of work and four functions:
#
#    add_flags(add)        adds its flags
#    contenders(options)   environment variables by contender
#    tasks(options, name)  in a contender's process: functions to measure, and their work, by task
#    comparisons(options)  by metric: (contender, task) and what it is divided by, alike

import argparse
import concurrent.futures
import importlib
import json
import multiprocessing
import os
import pathlib
import sys
import time
from unittest import mock

import numpy as np

NAMES = ("char_lm", "images", "probes")
PRECISIONS = ("float32", "mixed_bfloat16")
SHARE_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
MOST_LOAD = 0.5  # ours: a load average beyond it disturbs the measurement
NO_CONFIG = ("name", "rounds", "results", "data_dir")  # flags that no line of results has
TASKS = {}  # of the contender whose process this is


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Show the docstring as it is written, and the default of every flag."""


def main(words=None):
    """Run a command line."""
    shown = {"formatter_class": HelpFormatter}
    parser = argparse.ArgumentParser("python recipes/benchmarks", description=__doc__, **shown)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name in NAMES:
        module = importlib.import_module(f"zoo.recipes.benchmarks.{name}")
        summary = module.__doc__.splitlines()[0]
        command = commands.add_parser(name, description=module.__doc__, help=summary, **shown)
        command.set_defaults(module=module)
        command.add_argument("--rounds", type=int, default=5, help="Measurements of each.")
        command.add_argument("--results", help="Append the results to this JSON-lines file.")
        module.add_flags(command.add_argument)
    options = parser.parse_args(words)
    module = options.module
    del options.module  # cannot be sent to a process
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > MOST_LOAD:  # Windows has none
        print(f"The machine is busy: load {os.getloadavg()[0]:.1f}.", file=sys.stderr)
    if options.results:
        pathlib.Path(options.results).parent.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    contenders = {
        name: Contender(module.__name__, options, name, environment)
        for name, environment in module.contenders(options).items()
    }
    rates, values = measure(contenders, options.rounds)
    for contender in contenders.values():
        contender.process.shutdown()
    report(module, options, rates, values, time.perf_counter() - begin)


class Contender:
    """A process that runs a contender's tasks when it is asked."""

    def __init__(self, module, options, name, environment):
        context = multiprocessing.get_context("spawn")
        self.process = concurrent.futures.ProcessPoolExecutor(1, context)
        with mock.patch.dict(os.environ, {**SHARE_GPU, **environment}):
            self.tasks = self.process.submit(_start, module, options, name).result()

    def ask(self, task):
        """Run a task; return its work per second, and its value if that is a number."""
        return self.process.submit(_run, task).result()


def _start(module, options, name):
    TASKS.update(importlib.import_module(module).tasks(options, name))
    return [*TASKS]


def _run(task):
    function, work = TASKS[task]
    begin = time.perf_counter()
    value = function()
    rate = work / (time.perf_counter() - begin)
    return rate, value if isinstance(value, float) else None


def measure(contenders, rounds):
    """Return work per second, an entry a round, by (contender, task), and last values alike."""
    turns = [(name, task) for name, contender in contenders.items() for task in contender.tasks]
    rates, values = {}, {}
    print("warm-up (compiles)", flush=True)
    for name, task in turns:
        contenders[name].ask(task)
        rates[name, task] = np.zeros(rounds)
    for index in range(rounds):
        for name, task in turns[:: -1 if index % 2 else 1]:
            rates[name, task][index], values[name, task] = contenders[name].ask(task)
    return rates, values


def report(module, options, rates, values, seconds):
    """Print what `measure` returned, and append a line of results for each comparison."""
    for (name, task), rounds in rates.items():
        value = "" if values[name, task] is None else f"   {values[name, task]:.4g}"
        print(f"{name:22}{task:10}{np.median(rounds):12.5g} {module.UNIT} a second{value}")
    lines = []
    for metric, (one, other) in module.comparisons(options).items():
        ratio = rates[one] / rates[other]
        numbers = {"value": np.median(ratio), "min": min(ratio), "max": max(ratio)}
        spread = "{value:.2f} ({min:.2f} to {max:.2f})".format(**numbers)
        print(f"{metric.replace('_', ' ')}: {spread}")
        compared = {" ".join(key): [*rates[key]] for key in (one, other)}
        lines.append({"metric": metric, **numbers, f"{module.UNIT}_per_second": compared})
    if not options.results:
        return
    from zoo.recipes.experiment import provenance

    shared = {
        "artifact": f"benchmark/{options.name}",
        "model": options.name,
        "config": {key: value for key, value in vars(options).items() if key not in NO_CONFIG},
        "budget": f"{options.rounds} rounds",
        "command": provenance.command(),
        **provenance.origin(),
        "seconds": round(seconds, 1),
    }
    with open(options.results, "a", encoding="utf-8") as file:
        file.writelines(json.dumps({**shared, **line}) + "\n" for line in lines)
