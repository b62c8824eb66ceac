"""Start the processes of a training on this machine, and restart them.

    KERAS_BACKEND=tensorflow python -m zoo.launch --workers 2 recipes/highway_conv.py
    KERAS_BACKEND=jax python -m zoo.launch --workers 2 recipes/highway_conv.py

Each worker is a process with a TF_CONFIG that names all of them, which `zoo.distribute` reads on
both backends; on several machines a scheduler starts them. When one dies, the others would
wait for it for ever: they are stopped, and all start again, from the last checkpoint if the script
resumes, as every recipe does. Workers that all end by themselves with an error are not restarted:
they would fail again.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

POLL = 0.2  # seconds between two looks at the processes; ours
GRACE = 10.0  # seconds that the other workers get to end by themselves; ours


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Show defaults, and the description as it is."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m zoo.launch",
        description=__doc__,
        epilog="Arguments after SCRIPT are the script's.",
        formatter_class=_Formatter,
    )
    parser.add_argument("--workers", type=int, default=2, help="Number of processes.")
    parser.add_argument("--restarts", type=int, default=3, help="Maximum number of restarts.")
    parser.add_argument("script", help="Python script that every worker runs.")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.workers < 1 or options.restarts < 0:
        parser.error(
            f"Expected --workers of at least 1 and --restarts of at least 0. Received: "
            f"{options.workers}, {options.restarts}"
        )
    if not os.path.isfile(options.script):
        parser.error(f"Expected a script. Received: {options.script}, which is not a file.")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    return run([options.script, *options.arguments], options.workers, options.restarts)


def run(
    command: Sequence[str],
    workers: int,
    restarts: int = 3,
    log: Callable[[str], None] | None = None,
) -> int:
    """Run `command` in `workers` processes until all have succeeded.

    Args:
        command: A script and its arguments.
        workers: Number of processes.
        restarts: Maximum number of restarts.
        log: Receives each line of output; `None` prints it.

    Returns:
        0, or the exit status of a worker that failed.
    """
    log = log or functools.partial(print, flush=True)
    for attempt in range(restarts + 1):
        statuses = _run_once(command if attempt == 0 else resuming(command), workers, log)
        failures = [status for status in statuses if status]
        if not failures:
            return 0
        names = ", ".join(f"worker {i}: {status}" for i, status in enumerate(statuses) if status)
        if len(failures) == workers and min(failures) > 0:
            log(f"All workers failed by themselves ({names}); not restarted.")
            break
        gave_up = attempt == restarts
        action = f"giving up after {restarts} restarts" if gave_up else "restarting all workers"
        log(f"Exit status of {names}: {action}.")
    return next((status for status in failures if status > 0), 1)


def resuming(command: Sequence[str]) -> list[str]:
    """Return the command without flags that would discard the checkpoint.

    >>> resuming(["train.py", "--resume=false", "--noresume", "--epochs=3"])
    ['train.py', '--epochs=3']
    """
    return [word for word in command if word not in ("--resume=false", "--noresume")]


def _run_once(command, workers, log):
    """Run the workers until all have ended or one has failed; return their exit statuses."""
    cluster = {"worker": [f"localhost:{port}" for port in _free_ports(workers)]}
    processes = []
    readers = []
    try:
        for index in range(workers):
            task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            process = subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, "PYTHONUNBUFFERED": "1", "TF_CONFIG": json.dumps(task)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            processes.append(process)
            readers.append(threading.Thread(target=_forward, args=(process.stdout, index, log)))
            readers[-1].start()
        end = math.inf
        while any(process.poll() is None for process in processes) and time.monotonic() < end:
            if end == math.inf and any(process.poll() for process in processes):
                end = time.monotonic() + GRACE
            time.sleep(POLL)
    finally:
        for process in processes:
            process.kill()
        statuses = [process.wait() for process in processes]
        for reader in readers:
            reader.join()
    return statuses


def _forward(lines, index, log):
    """Log each line of a worker with its number."""
    with lines:
        for line in lines:
            log(f"[{index}] " + line.rstrip("\n"))


def _free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("localhost", 0))) for _ in range(count)
        ]
        return [listener.getsockname()[1] for listener in sockets]


if __name__ == "__main__":
    sys.exit(main())
