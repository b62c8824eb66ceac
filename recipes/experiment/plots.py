"""What the recipes' figures share: a picture beside the table it was drawn from, legible in grey.

A recipe imports it from beside itself. With $ZOO_FIGURES set, a folder, what is named after a
figure, table or section of a paper is put there, too: `reproduce.py --keep` does.
"""

import csv
import itertools
import os
import pathlib
import re

COLORS, LINES = ("black", "0.5", "0.75"), ("-", "--", ":", "-.")


def new(width=5.0, height=3.0, **grid):
    """A figure without global state or window, and its axes, in inches.

    Args:
        width, height: Of the figure.
        **grid: Of `Figure.subplots`, e.g. ncols=2.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**grid)


def save(path, figure, rows):
    """Writes `figure` to `path`, a PNG, and beside it the CSV of `rows` that it was drawn from.

    Args:
        path: Ends in .png.
        figure: Of matplotlib.
        rows: Dictionaries of the same keys.
    """
    from zoo.io import replace

    path = pathlib.Path(path)
    write_rows(path.with_suffix(".csv"), rows)
    for one in places(path):
        replace(one, lambda temporary: figure.savefig(temporary, format="png", dpi=120))


def places(path):
    """`path`, and where else the file belongs."""
    path, more = pathlib.Path(path), os.environ.get("ZOO_FIGURES")
    if not more or not re.match(r"(fig|table|section)\d", path.name):
        return [path]
    pathlib.Path(more).mkdir(parents=True, exist_ok=True)
    return [path, pathlib.Path(more) / path.name]


def write_rows(path, rows):
    """A CSV file of dictionaries with the same keys."""
    from zoo.io import replace

    def write(temporary):
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)

    for one in places(path):
        replace(one, write)


def styles():
    """Lines that can be told apart in grey, without end: keywords of `plot`."""
    for color, line in itertools.cycle(itertools.product(COLORS, LINES)):
        yield {"color": color, "linestyle": line}
