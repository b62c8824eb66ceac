"""Small data that recipes are run on in tests, and what they leave."""

import csv
import json

import numpy as np


def write_images(path, shape=(32, 32, 3), train=260, test=20, classes=2, step=100):
    """An .npz file of noise, each class brighter by `step` than the one before; its flag."""
    random, arrays = np.random.default_rng(0), {}
    for split, count in (("train", train), ("test", test)):
        y = np.arange(count) % classes
        x = random.integers(0, 100, (count, *shape)) + step * y[:, None, None, None]
        arrays |= {f"x_{split}": x.astype("uint8"), f"y_{split}": y}
    np.savez(path, **arrays)
    return f"--data_dir={path}"


def rows_of(path):
    """Of a CSV file."""
    with open(path, encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def lines_of(folder):
    """Of its results."""
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
