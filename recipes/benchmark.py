"""Run a benchmark of recipes/benchmarks by name.

KERAS_BACKEND=torch python recipes/benchmark.py vision --help
"""

import pathlib
import runpy
import sys

NAMES = sorted(
    path.stem for path in (pathlib.Path(__file__).resolve().parent / "benchmarks").glob("*.py")
)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        sys.exit(f"Expected the name of a benchmark: {', '.join(NAMES)}. Received: {sys.argv[1:2]}")
    del sys.argv[0]
    runpy.run_module(f"benchmarks.{sys.argv[0]}", run_name="__main__", alter_sys=True)
