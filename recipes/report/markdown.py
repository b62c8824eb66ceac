"""Tables of all saved results in Markdown: docs/results.md."""

import pathlib
import re

from report import artifacts, records
from zoo.io import replace

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "results.md"
RESULTS = "../recipes/results"  # as seen from docs/
COLUMNS = (
    "model",
    "measured",
    "ours",
    "paper",
    "verdict",
    "data",
    "epochs",
    "seeds",
    "hardware, time",
)
NUMBERS = ("ours", "paper", "seeds")
INTRODUCTION = f"""# Results

Every number here was measured by a recipe. The page is generated from the lines of
[recipes/results]({RESULTS}) by `make results`; do not edit it.
[recipes/results/index.html]({RESULTS}/index.html) shows the figures.

An empty row was not run yet. "not comparable" means that the run deviates from the paper; the
deviations stand below each table, with assumptions where the paper is silent. Runs that differ only
in their seed are one row: mean ± standard deviation. Commands are those of the named commits, in
which scripts may have had other names; DATA is a folder of data sets. [findings.md](findings.md)
discusses the numbers.
"""


def write():
    """Write docs/results.md from the saved results."""
    text = page(records.merged(records.lines()))
    replace(PATH, lambda path: path.write_text(text, encoding="utf-8"))


def page(rows):
    """Return the whole page for merged `rows`."""
    sections = [section(paper, records.by_artifact(rows, paper)) for paper in records.TITLES]
    return "\n".join([INTRODUCTION, *sections])


def section(paper, rows_by_artifact):
    """Return a paper's table, the deviations of its runs, and their commands."""
    lines = [f"## {records.TITLES[paper]}", ""]
    lines.append("| | " + " | ".join(COLUMNS) + " |")
    lines.append("| --- | " + " | ".join("---:" if c in NUMBERS else "---" for c in COLUMNS) + " |")
    for artifact, rows in rows_by_artifact.items():
        lines += table_rows(artifact, rows)
    rows = [row for rows in rows_by_artifact.values() for row in rows]
    lines += paragraph("Deviations from the paper, and assumptions:", deviations(rows))
    lines += paragraph("Commands and their commits:", commands(rows))
    return "\n".join(lines) + "\n"


def paragraph(title, lines):
    """Return a titled list, or nothing without lines."""
    return ["", title, "", *lines] if lines else []


def table_rows(artifact, rows):
    """Return an artifact's rows, its figures if there are no rows, or an empty row."""
    name = artifact.split("/")[1]
    if rows:
        shown = [[records.cells(row)[column] for column in COLUMNS] for row in rows]
        return [f"| {name} | " + " | ".join(cells) + " |" for cells in shown]
    figures = records.figures(artifact)
    if figures:
        links = ", ".join(f"[{path.split('/')[1]}]({RESULTS}/{path})" for path in figures)
        return [f"| {name} | | {links} |" + " |" * (len(COLUMNS) - 2)]
    described = artifacts.ARTIFACTS.get(artifact)
    if described and (described.is_test or not described.commands):
        return []  # a test or another artifact shows it, or nothing is measured
    return [f"| {name} |" + " |" * len(COLUMNS)]


def deviations(rows):
    """Return a list item for each set of deviations, with the models that share it."""
    models = {}
    for row in rows:
        if text := "; ".join(records.deviations(row)):
            models.setdefault((row["artifact"].split("/")[1], text), {})[row["model"]] = None
    return [f"- {name}, {', '.join(names)}: {text}." for (name, text), names in models.items()]


def commands(rows):
    """Return the runs' commands as a block of code."""
    runs = [run for row in rows for run in records.commands(row)]
    return list(dict.fromkeys(f"    {without_outputs(text)}  # {commit}" for text, commit in runs))


def without_outputs(command):
    """Return a command without the flags that say where its output goes."""
    return re.sub(r" --(run_dir|runs|results)[ =]\S+", "", command)
