"""Benchmarks in processes of their own."""

import json
import os
import pathlib
import subprocess
import sys

import keras

from helpers.harness import ROOT


def run_benchmark(path, *words):
    """Run a benchmark on this process's backend.

    Args:
        path: File of the lines of results.
        *words: Name and flags.

    Returns:
        The lines of results as dictionaries, and what the benchmark printed.
    """
    command = [sys.executable, ROOT / "recipes" / "benchmark.py", *words, f"--results={path}"]
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()], done.stdout
