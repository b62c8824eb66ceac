"""Small data that recipes run on in tests, and readers of what they leave."""

import csv

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
