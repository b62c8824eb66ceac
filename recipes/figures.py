"""What the recipes' figures share: a picture beside the table it was drawn from, legible in grey.

A recipe imports it from beside itself.
"""

import csv
import itertools
import pathlib

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
    from zoo.files import replace

    path = pathlib.Path(path)
    write_rows(path.with_suffix(".csv"), rows)
    replace(path, lambda temporary: figure.savefig(temporary, format="png", dpi=120))


def write_rows(path, rows):
    """A CSV file of dictionaries with the same keys."""
    from zoo.files import replace

    def write(temporary):
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)

    replace(path, write)


def styles():
    """Lines that can be told apart in grey, without end: keywords of `plot`."""
    for color, line in itertools.cycle(itertools.product(COLORS, LINES)):
        yield {"color": color, "linestyle": line}
