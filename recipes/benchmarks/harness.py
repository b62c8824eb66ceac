"""Shared by the benchmarks: processes, rounds, ratios and the lines of results.

A benchmark is a module with four functions:

    add_flags(add)                    adds its flags
    contenders(options)               environment variables by contender; None removes one
    contender(options, name)          in a contender's process: functions to measure, by task
    report(options, seconds, values)  prints and writes what `measure` returned
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time

import numpy as np

PRECISIONS = ("float32", "mixed_bfloat16")
SHARE_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
MOST_LOAD = 0.5  # ours: a load average beyond it disturbs the measurement


def positive(text):
    """Parse a positive integer flag."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, received {text!r}")
    return number


def some_of(known):
    """Return a parser of a comma-separated selection of `known` names."""

    def parse(text):
        names = text.split(",")
        if not set(names) <= set(known):
            raise argparse.ArgumentTypeError(
                f"expected some of {', '.join(known)}, separated by commas; received {text!r}"
            )
        return names

    return parse


def run(module, options):
    """Measure a benchmark's contenders and report the results."""
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > MOST_LOAD:  # Windows has none
        print(f"The machine is busy: load {os.getloadavg()[0]:.1f}.", file=sys.stderr)
    options.begin = time.perf_counter()
    with contextlib.ExitStack() as stack:
        children = {
            name: stack.enter_context(Child(name, environment))
            for name, environment in module.contenders(options).items()
        }
        seconds, values = measure(children, options.rounds)
    module.report(options, seconds, values)


def measure(children, rounds):
    """Run every task of every child in turn, in reverse in every second round.

    Args:
        children: Objects with `tasks`, and `ask(task)` that returns seconds and a value; by name.
        rounds: Number of measurements of each.

    Returns:
        Arrays of seconds, one entry per round, by task and name; the last values alike.
    """
    turns = [(task, name) for name, child in children.items() for task in child.tasks]
    seconds = {task: {} for task, _ in turns}
    values = {task: {} for task, _ in turns}
    print("warm-up (compiles)")
    for task, name in turns:
        seconds[task][name] = np.zeros(rounds)
        print(f"{name:18}{task:18}{children[name].ask(task)[0]:8.1f} s", flush=True)
    for index in range(rounds):
        for task, name in turns[:: -1 if index % 2 else 1]:
            seconds[task][name][index], values[task][name] = children[name].ask(task)
    return seconds, values


class Child:
    """A process that runs one contender's tasks when it is asked.

    It runs this process's command line with `--child NAME`.

    Args:
        name: The contender.
        environment: Variables to change; None removes a variable.
    """

    def __init__(self, name, environment):
        changed = {**os.environ, **SHARE_GPU, **environment}
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, *sys.argv, f"--child={name}"],
            env={key: value for key, value in changed.items() if value is not None},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        self.tasks = self._answer()
        return self

    def __exit__(self, *error):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def ask(self, task):
        """Run a task in the process; return its seconds and its value."""
        print(task, file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self):
        answer = self.process.stdout.readline()
        if not answer:
            status = self.process.wait()
            sys.exit(
                f"The process that measures {self.name} ended with status {status}; see above."
            )
        return json.loads(answer)


def serve(make_tasks):
    """Answer a `Child` until it closes the pipe.

    Args:
        make_tasks: Function that returns functions by task.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not be read as an answer
    tasks = make_tasks()
    print(json.dumps([*tasks]), file=answers, flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        value = tasks[line.strip()]()
        seconds = time.perf_counter() - begin
        print(json.dumps([seconds, value], default=float), file=answers, flush=True)


def spread(values):
    """Return the median and the range of `values` as text."""
    return f"{np.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def write(options, values, **line):
    """Append a line of results to the file of `--results`.

    Args:
        options: The parsed flags.
        values: The measured quantity, one value per round: the line has its statistics.
        **line: Further entries, beside those of where and how it was measured.
    """
    if not options.results:
        return
    from experiment import provenance  # imports Keras

    numbers = {
        "value": np.median(values),
        "std": np.std(values, ddof=1) if len(values) > 1 else None,
        "min": min(values),
        "max": max(values),
    }
    line = {
        "artifact": f"benchmark/{options.name}",
        **line,
        **{key: number and round(float(number), 3) for key, number in numbers.items()},
        "seeds": [0],
        "paper": None,
        "epochs": None,
        "deviations": [],
        "verdict": "",
        "command": provenance.command(),
        **provenance.origin(),
        "seconds": round(time.perf_counter() - options.begin, 1),
    }
    with open(options.results, "a", encoding="utf-8") as file:
        file.write(json.dumps(line, default=lambda array: array.tolist()) + "\n")
