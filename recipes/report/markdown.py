"""Tables of all saved results in Markdown: docs/results.md."""

import html
import pathlib
import re
import urllib.parse

from report import records
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

Runs that differ only in their seed are one row: mean ± standard deviation. Commands are those of
the named commits, in which scripts may have had other names; DATA is a folder of data sets. Runs
that are shorter or smaller than the paper's are not here: miniatures test the papers' claims
([claims.md](claims.md)). [findings.md](findings.md) discusses the numbers.
"""


def write():
    """Write docs/results.md from the saved results."""
    text = page(records.merged(records.lines()))
    replace(PATH, lambda path: path.write_text(text, encoding="utf-8"))


def page(rows):
    """Return the whole page for merged `rows`."""
    sections = [section(paper, records.by_artifact(rows, paper)) for paper in records.TITLES]
    return "\n".join([INTRODUCTION, *filter(None, sections)])


def section(paper, rows_by_artifact):
    """Return a paper's table, figures, assumptions and commands; nothing if it has none."""
    rows = [row for rows in rows_by_artifact.values() for row in rows]
    drawn = [figure_links(name) for name in rows_by_artifact if records.figures(name)]
    if not rows and not drawn:
        return ""
    lines = [f"## {records.TITLES[paper]}", "", *table(rows)]
    lines += paragraph("Figures and tables:", drawn)
    lines += paragraph("Assumptions, and deviations:", deviations(rows))
    if rows:
        lines += ["", "<details><summary>Commands and their commits</summary>", ""]
        lines += [*commands(rows), "", "</details>"]
    return "\n".join(lines) + "\n"


def paragraph(title, lines):
    """Return a titled list, or nothing without lines."""
    return ["", title, "", *lines] if lines else []


def table(rows):
    """Return the rows as a table, or nothing without rows."""
    if not rows:
        return []
    head = ["| | " + " | ".join(COLUMNS) + " |"]
    head.append("| --- | " + " | ".join("---:" if c in NUMBERS else "---" for c in COLUMNS) + " |")
    return head + [table_row(row) for row in rows]


def table_row(row):
    """Return a line of a table."""
    cells = records.cells(row)
    texts = [row["artifact"].split("/")[1], *(cells[column] for column in COLUMNS)]
    return f"| {' | '.join(map(escaped, texts))} |"


def escaped(text):
    """Return a text that Markdown shows as it is, in a cell of a table."""
    return html.escape(text, quote=False).replace("|", "\\|").replace("\n", " ")


def figure_links(artifact):
    """Return a list item with links to an artifact's figures, and to its tables without figure."""
    links = []
    for path in records.figures(artifact):
        links.append(f"[{escaped(path.split('/')[1])}]({RESULTS}/{urllib.parse.quote(path)})")
    return f"- {artifact.split('/')[1]}: {', '.join(links)}"


def deviations(rows):
    """Return a list item for each set of deviations, with the models that share it."""
    models = {}
    for row in rows:
        if text := "; ".join(records.deviations(row)):
            models.setdefault((row["artifact"].split("/")[1], text), {})[row["model"]] = None
    return [
        f"- {escaped(name)}, {escaped(', '.join(names))}: {escaped(text)}."
        for (name, text), names in models.items()
    ]


def commands(rows):
    """Return the runs' commands as a block of code."""
    runs = [run for row in rows for run in records.commands(row)]
    return list(dict.fromkeys(f"    {without_outputs(text)}  # {commit}" for text, commit in runs))


def without_outputs(command):
    """Return a command without the flags that say where its output goes."""
    return re.sub(r" --(run_dir|runs|results)[ =]\S+", "", command)
