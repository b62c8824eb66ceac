"""Draw the figures on record again, each from the rows of the CSV file beside it.

A figure that is a function of its rows has a function of its name, `fig7(path, rows)` or
`section2_2(path, rows)`, in the module `figures` of its paper's folder. Rows with a column "seed"
are those of several runs.
"""

import importlib
import importlib.util
import pathlib
from collections.abc import Callable, Sequence

from experiment import plots
from report import artifacts, records

Draw = Callable[[pathlib.Path, Sequence[plots.Row]], None]


def function_of(artifact: str) -> Draw | None:
    """Return the function that draws an artifact's figures, or None if there is none."""
    paper, name = artifact.split("/")
    if not importlib.util.find_spec(paper) or not importlib.util.find_spec(f"{paper}.figures"):
        return None
    module = importlib.import_module(f"{paper}.figures")
    return getattr(module, name.replace(".", "_"), None)


def redraw(folder: pathlib.Path = records.FOLDER) -> list[pathlib.Path]:
    """Draw all figures in a folder of results that are functions of their rows; return their paths.

    The figures of a paper are in a folder of its name, and those of claims in such a folder in its
    folder `claims`.
    """
    drawn = []
    for artifact in artifacts.ARTIFACTS:
        draw = function_of(artifact)
        for root in (folder, folder / records.MINIATURES.name) if draw else ():
            for name in records.figures(artifact, root):
                path = root / name
                if path.suffix == ".png":
                    draw(path, plots.read_rows(path.with_suffix(".csv")))
                    drawn.append(path)
    return drawn


def average(folders: Sequence[pathlib.Path], target: pathlib.Path, paper: str) -> None:
    """Draw a paper's figures of several seeds as means in bands; others are the first seed's.

    Each of `folders` has the figures of a seed, with their CSV files.
    """
    target.mkdir(parents=True, exist_ok=True)
    for first in sorted(folders[0].iterdir()):
        average_one(first.name, folders, target, paper)


def average_one(
    name: str, folders: Sequence[pathlib.Path], target: pathlib.Path, paper: str
) -> None:
    """Draw one figure of several seeds as means in bands, with its CSV file; see `average`.

    `name` is the file name of a figure, or of a table, which is copied.
    """
    artifacts_of_paper = [
        artifact for artifact in artifacts.ARTIFACTS if artifact.startswith(f"{paper}/")
    ]
    made_by = [artifact for artifact in artifacts_of_paper if records.belongs(name, artifact)]
    draw = function_of(made_by[0]) if made_by else None
    paths = [folder / name for folder in folders if (folder / name).exists()]
    first = paths[0]
    if draw is None or len(paths) == 1 or not first.with_suffix(".png").exists():
        copied = {first, first.with_suffix(".csv")} if first.suffix == ".png" else {first}
        for path in copied:
            if path.exists():
                (target / path.name).write_bytes(path.read_bytes())
    elif first.suffix == ".png":
        rows = [
            {"seed": seed, **row}
            for seed, path in enumerate(paths)
            for row in plots.read_rows(path.with_suffix(".csv"))
        ]
        draw(target / name, rows)
