"""Latency of networks by runtime, an example at a time: recipes/results/latency.csv.

    KERAS_BACKEND=torch python recipes/latency.py
    KERAS_BACKEND=jax python recipes/latency.py cifar_resnet MODEL.keras --runtimes backend

Runtimes are the backend, compiled on TensorFlow and JAX, and ONNX Runtime and LiteRT with what
`zoo.export` writes, one after the other; a latency is the median. A row of the file replaces an
earlier one of the same network, runtime and hardware. Let nothing else run on the machine.
"""

import argparse
import csv
import functools
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

import zoo
from zoo.backend import compiled
from zoo.export import FORMATS, input_names
from zoo.io import load_model, replace
from zoo.recipes.experiment import command_line, pages, provenance, store
from zoo.types import PathLike

RUNTIMES = {"backend": "", "onnx": "ONNX Runtime", "litert": "LiteRT"}  # "": the backend's name
NAMES = ("cifar_resnet", "he_resnet", "highway_mnist", "highway_cifar", "highway_mlp", "resnet50")
NAMES += ("highway_resnet50", "simplified_residual_net", "transformer_lm", "wide_resnet")
TURNS = 5  # ours
KEY = ("network", "runtime", "hardware")  # of a row


def opener(
    model: keras.Model, runtime: str, x: np.ndarray, folder: PathLike
) -> Callable[[], Callable[[], Any]]:
    """Return a function that opens a model with one input in one of `RUNTIMES`.

    What it returns computes the model for the example `x`. The artifact is written to `folder`.
    Errors are those of `zoo.export`.
    """
    if runtime == "backend":
        compute = compiled(lambda x: model(x, training=False), model)
        return lambda: lambda: keras.ops.convert_to_numpy(compute(x))
    path = pathlib.Path(folder, f"{model.name}{FORMATS[runtime].suffix}")
    zoo.export(model, path)
    inputs = {input_names(model)[0]: x}
    return lambda: functools.partial(FORMATS[runtime].reader(path), inputs)


def milliseconds(openers: Mapping[Any, Callable], rounds: int) -> dict[Any, float]:
    """Return the median time of what each of `openers` returns, of about `rounds` calls.

    They take `TURNS` turns, in reverse in every other one. One is open at a time: beside the open
    sessions of eight other networks ONNX Runtime took 1.7 to 1.8 times as long (two cores).
    """
    seconds: dict[Any, list[float]] = {key: [] for key in openers}
    for number in range(TURNS):
        for key in [*openers][:: -1 if number % 2 else 1]:
            run = openers[key]()
            run()
            for _ in range(-(-rounds // TURNS)):
                start = time.perf_counter()
                run()
                seconds[key].append(time.perf_counter() - start)
            del run
    return {key: 1000 * statistics.median(values) for key, values in seconds.items()}


def measure(name: str, runtimes: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Return a row for each runtime; one to which the network cannot be exported has none."""
    model = load_model(name) if name.endswith(".keras") else zoo.create_model(name)
    shape = [size or 64 for size in model.inputs[0].shape[1:]]  # ours, where any size will do
    x = np.zeros((1, *shape), keras.backend.standardize_dtype(model.inputs[0].dtype))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for runtime in runtimes:
            try:
                found |= milliseconds({runtime: opener(model, runtime, x, folder)}, rounds)
            except (ValueError, RuntimeError, ImportError) as error:
                print(f"{name}, {runtime}: {error}", flush=True)
    cost = zoo.graph.cost(model)
    rows = []
    for runtime, value in found.items():
        row = {
            "network": pathlib.Path(name).stem if name.endswith(".keras") else model.name,
            "parameters": cost.parameters,
            "multiply-adds": cost.operations,
            "runtime": RUNTIMES[runtime] or keras.config.backend(),
            "milliseconds": f"{value:.3g}",
            "hardware": provenance.hardware(),
            "commit": provenance.commit(),
        }
        print(f"{row['network']}, {row['runtime']}: {row['milliseconds']} ms", flush=True)
        rows.append(row)
    return rows


def save(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Add rows to a CSV file, each in place of an earlier one of its `KEY`."""
    if not rows:
        return
    known = csv.DictReader(path.read_text("utf-8").splitlines() if path.exists() else ())
    by_key = {tuple(row[name] for name in KEY): row for row in [*known, *rows]}
    replace(path, lambda new: new.write_text(store.csv_text([*by_key.values()]), "utf-8"))


def main(words: Sequence[str] | None = None) -> None:
    """Run a command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("names", nargs="*", default=NAMES, help="Builders of the zoo, or .keras files.")
    add("--runtimes", nargs="+", choices=RUNTIMES, default=[*RUNTIMES], help="Default: all.")
    add("--rounds", type=int, default=100, help="Runs of each; default: 100.")
    add("--out", type=pathlib.Path, default=pages.RESULTS / "latency.csv", help="The file.")
    given = parser.parse_args(words)
    zoo.keep_memory()
    for name in given.names:
        save(measure(name, given.runtimes, given.rounds), given.out)


if __name__ == "__main__":
    sys.exit(command_line.guarded(main))
