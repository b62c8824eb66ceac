"""Small data that recipes run on in tests, readers of what they leave, and concurrent writers."""

import csv
import json

import numpy as np


def write_images(path, shape=(32, 32, 3), train=260, test=20, classes=2, step=100):
    """Write an .npz file of noise, each class brighter by `step`; return its flag."""
    random = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", train), ("test", test)):
        y = np.arange(count) % classes
        x = random.integers(0, 100, (count, *shape)) + step * y[:, None, None, None]
        arrays |= {f"x_{split}": x.astype("uint8"), f"y_{split}": y}
    np.savez(path, **arrays)
    return f"--data_dir={path}"


def rows_of(path):
    """Return the rows of a CSV file, as dictionaries."""
    with open(path, encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def lines_of(folder):
    """Return the results in a run directory, as dictionaries."""
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def append_lines(path, writer, count, started=None):
    """Append `count` lines to a JSON-lines file, as a recipe appends results."""
    from experiment import results

    if started is not None:
        started.set()
    for line in range(count):
        results.append(path, {"writer": writer, "line": line})
