"""Two processes of one training on this machine, as a launcher starts them."""

import os
import socket
import subprocess
import sys
import time

from helpers.harness import ROOT

TIMEOUT = 600


def free_ports():
    listeners = [socket.create_server(("localhost", 0)) for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def run_two(*command):
    """Run a script in two processes; return their exit statuses and outputs.

    When one fails, the other is stopped, as it would wait for it for ever.
    """
    addresses = [f"localhost:{port}" for port in free_ports()]
    processes = []
    for index in range(2):
        variables = {
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": ",".join(addresses),
            "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
            "KERAS_DISTRIBUTION_PROCESS_ID": str(index),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, *map(str, command)],
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    end = time.monotonic() + TIMEOUT
    while None in (statuses := [process.poll() for process in processes]):
        if any(statuses) or time.monotonic() > end:
            break
        time.sleep(0.2)
    if None in statuses:
        time.sleep(2)  # the other may end by itself
        for process in processes:
            process.kill()
    outputs = [process.communicate()[0] for process in processes]
    return [process.returncode for process in processes], outputs
