"""Starts the workers of a multi-worker training on this machine, and starts them again.

    python -m zoo.launch --workers 2 recipes/highway_conv.py --strategy multiworker

Each worker is a process with a TF_CONFIG that names all of them. When one dies, the others would
wait for it for ever: they are stopped, and all start again, from the last checkpoint if the script
resumes, as every recipe does. Workers that all end by themselves with an error are not started
again: the same would come of it.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

LOOK, GRACE = 0.2, 10.0  # seconds: between two looks, and for the others to end by themselves; ours


def main(argv=None):
    told = "Arguments after SCRIPT are the script's."
    parser = argparse.ArgumentParser(prog="python -m zoo.launch", description=__doc__, epilog=told)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--restarts", type=int, default=3, help="how often at most (default: 3)")
    parser.add_argument("script", help="a Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.workers < 1 or given.restarts < 0:
        parser.error(
            f"Expected --workers of at least 1 and --restarts of at least 0. Received: "
            f"{given.workers}, {given.restarts}"
        )
    if not os.path.isfile(given.script):
        parser.error(f"Expected a script. Received: {given.script}, which is not a file.")
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), lambda number, frame: sys.exit(128 + number))
    return run([given.script, *given.arguments], given.workers, given.restarts)


def run(command, workers, restarts=3, say=None):
    """Runs `command` in `workers` processes until all have ended well.

    Args:
        command: A script and its arguments.
        workers: Processes.
        restarts: How often all of them are started again at most.
        say: A function of a line of text; `None` prints it.

    Returns:
        0, or the exit status of a worker that failed.
    """
    say = say or (lambda line: print(line, flush=True))
    for attempt in range(restarts + 1):
        codes = once(command if attempt == 0 else resuming(command), workers, say)
        failed = [code for code in codes if code]
        if not failed:
            return 0
        told = ", ".join(f"worker {i}: {code}" for i, code in enumerate(codes) if code)
        if len(failed) == workers and min(failed) > 0:
            say(f"All workers failed by themselves ({told}); not started again.")
            break
        more = "starting all again" if attempt < restarts else f"given up after {restarts} restarts"
        say(f"Exit status of {told}: {more}.")
    return next((code for code in failed if code > 0), 1)


def resuming(command):
    """Without the flags that would forget the checkpoint again.

    >>> resuming(["train.py", "--resume=false", "--noresume", "--epochs=3"])
    ['train.py', '--epochs=3']
    """
    return [word for word in command if word not in ("--resume=false", "--noresume")]


def once(command, workers, say):
    """Starts the workers, waits for the end of all or of one in failure; their exit statuses."""
    ports = free_ports(workers)
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    processes = []
    try:
        for index in range(workers):
            task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            processes.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    env={**os.environ, "PYTHONUNBUFFERED": "1", "TF_CONFIG": json.dumps(task)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                )
            )
        readers = [
            threading.Thread(target=forward, args=(process.stdout, f"[{index}] ", say))
            for index, process in enumerate(processes)
        ]
        for reader in readers:
            reader.start()
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                wait(processes, GRACE)
                break
            time.sleep(LOOK)
        codes = [process.poll() for process in processes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
    for reader in readers:
        reader.join()
    return [-signal.SIGKILL if code is None else code for code in codes]


def wait(processes, seconds):
    """Waits until all have ended, but no longer."""
    end = time.monotonic() + seconds
    while any(process.poll() is None for process in processes) and time.monotonic() < end:
        time.sleep(LOOK)


def forward(lines, prefix, say):
    """Says each line of a worker with its number before it."""
    with lines:
        for line in lines:
            say(prefix + line.rstrip("\n"))


def free_ports(count):
    """Ports of this machine that nobody listens at."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


if __name__ == "__main__":
    sys.exit(main())
