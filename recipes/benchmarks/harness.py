"""Shared by the benchmarks: flags, rounds, child processes, ratios and the line of results."""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

from experiment import process

JIT = {"auto": "auto", "on": True, "off": False}
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
MOST_LOAD = 0.5  # ours: a load average beyond it disturbs the measurement


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Show the docstring as it is written, and the default of every flag."""


def add_shared_flags(parser):
    """Add the flags that every benchmark has."""
    parser.add_argument("--results", help="Append the lines of results to this JSON-lines file.")
    parser.add_argument(
        "--child", help="Measure this case in this process; the benchmark itself uses the flag."
    )


def positive(text):
    """Parse a positive integer flag."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, received {text!r}")
    return number


def numbers(text):
    """Parse a comma-separated list of positive integers."""
    try:
        return [positive(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers, received {text!r}") from None


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


def add_scaling_flags(parser, batch, source):
    """Add batch sizes, numbers of threads and the picture of the speeds over them.

    Args:
        parser: Parser of the benchmark's flags.
        batch: Default batch size.
        source: Source of the default, e.g. a paper.
    """
    add = parser.add_argument
    add("--batches", type=numbers, default=str(batch), help=f"Batch sizes; {source}: {batch}.")
    default = str(process.processors())
    add("--threads", type=numbers, default=default, help="Numbers of processors to run on.")
    add("--picture", help="Draw speed and memory over them to this PNG file.")


def threads_environment(threads):
    """Return the variables of a process that computes with this number of threads."""
    return {"OMP_NUM_THREADS": str(threads), "TF_NUM_INTRAOP_THREADS": str(threads)}


def keep_to(threads):
    """Confine this process to its first processors, where the system can.

    XLA has no setting for the number of threads.
    """
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def draw(path, rows, speed):
    """Draw speed and memory over the batch size: a line a contender and number of threads.

    Args:
        path: The PNG file; None draws nothing.
        rows: With "network", "of", "threads", "batch", "megabytes" and the speed.
        speed: Key of the speed, e.g. "images_per_second".
    """
    if not path:
        return
    from experiment import plots  # imports matplotlib

    labels = {
        "ours": "zoo",
        "torch": "plain PyTorch",
        "batch": "batch size",
        speed: speed.replace("_", " "),
        "megabytes": "peak of memory, MB",
        "1": "1 thread",
        **{str(row["threads"]): f"{row['threads']} threads" for row in rows if row["threads"] > 1},
    }
    columns = {"x": "batch", "y": [speed, "megabytes"], "panel": "network"}
    by = ["of", "threads"]
    plots.lines(path, rows, **columns, by=by, labels=labels, log=["batch", speed, "megabytes"])


def warn_if_busy():
    """Print a warning if other processes use the machine, where the system tells."""
    if not hasattr(os, "getloadavg"):  # Windows
        return
    load = os.getloadavg()[0]
    if load > MOST_LOAD:
        print(f"The machine is busy: its load is {load:.1f}. Wait for less.", file=sys.stderr)


def seconds_of(function):
    """Return the seconds that a call of `function` takes."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def in_turn(contenders, index):
    """Return names and contenders of a round; in every second round they are reversed."""
    return [*contenders.items()][:: -1 if index % 2 else 1]


def alternate(contenders, rounds):
    """Time the contenders in turn, so that what disturbs the machine disturbs all of them.

    In every second round they are reversed: none always follows the same one.

    Args:
        contenders: Functions without arguments, by name.
        rounds: Number of measurements of each.

    Returns:
        Arrays of seconds, one entry per round, by name.
    """
    seconds = {name: np.zeros(rounds) for name in contenders}
    for index in range(rounds):
        for name, function in in_turn(contenders, index):
            seconds[name][index] = seconds_of(function)
    return seconds


def spread(values):
    """Return the median and the range of `values` as text."""
    return f"{np.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def statistics_of(values, digits=3):
    """Return the median and the standard deviation of `values` for a line of results."""
    deviation = round(float(np.std(values, ddof=1)), digits) if len(values) > 1 else None
    return {"value": round(float(np.median(values)), digits), "std": deviation}


def write(options, begin, **values):
    """Print a result, append it to `--results`, and return its line.

    Args:
        options: The parsed flags.
        begin: `time.perf_counter()` at the start of the measurement.
        **values: Attributes of `experiment.results.Result`; artifact, data and seeds have defaults.
    """
    from experiment import results  # imports Keras

    seconds = round(time.perf_counter() - begin, 1)
    fixed = {"artifact": f"benchmark/{options.name}", "data": "noise", "verdict": ""}
    fixed["seeds"] = [getattr(options, "seed", 0)]
    result = results.Result(**(fixed | values), seconds=seconds)
    line = json.loads(json.dumps(result.line(), default=float))  # NumPy's numbers as Python's
    origin = f"{result.backend}, {result.hardware}, commit {result.commit}"
    print(f"{result.metric} {result.value}: {origin}", flush=True)
    if options.results:
        results.append(options.results, line)
    return line


class Child:
    """A process that measures one case of the benchmark each time it is asked.

    It runs this process's command line with `--child CASE`, so every case has its own environment,
    allocator and peak of memory.

    Args:
        case: Name of the case, for the benchmark's `contender` function.
        **environment: Variables to change; None removes a variable.
    """

    def __init__(self, case, **environment):
        changed = {**os.environ, **environment}
        self.case = case
        self.process = subprocess.Popen(
            [sys.executable, *sys.argv, f"--child={case}"],
            env={key: value for key, value in changed.items() if value is not None},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        """End the process."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def ask(self, task, *arguments):
        """Run a task in the process.

        Args:
            task: Name of one of the functions that `contender` returned.
            *arguments: Arguments of the function; numbers, strings and lists of them.

        Returns:
            A dictionary: `value`, what the function returned; `seconds`, the time it took;
            `megabytes`, the largest resident memory of the process so far.
        """
        print(json.dumps([task, *arguments]), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            status = self.process.wait()
            sys.exit(
                f"The process that measures {self.case} ended with status {status}; see above."
            )
        return json.loads(answer)


def measure_in_child(case, **environment):
    """Return the value of the task "measure" of a case, run in a new process."""
    with Child(case, **environment) as child:
        return child.ask("measure")["value"]


def serve(make_functions):
    """Run the tasks that a parent process asks for, until it closes the pipe.

    Args:
        make_functions: Function that returns the tasks' functions by name.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not be read as an answer
    functions = make_functions()
    for request in sys.stdin:
        task, *arguments = json.loads(request)
        begin = time.perf_counter()
        value = functions[task](*arguments)
        seconds = time.perf_counter() - begin
        answer = {"value": value, "seconds": seconds, "megabytes": round(memory("VmHWM"))}
        print(json.dumps(answer, default=float), file=answers, flush=True)


def memory(key):
    """Return an entry of this process's memory in megabytes, or 0 where Linux does not tell.

    Args:
        key: "VmRSS" for the resident memory, "VmHWM" for its peak.
    """
    try:
        with open("/proc/self/status", encoding="utf-8") as lines:
            return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))
    except OSError:
        return 0
