"""A page of all tables and figures on record beside the papers' results: results/index.html.

A picture belongs to the artifact that its name begins with, e.g. yutomasi2019/fig7-depth20.png.
"""

import csv
import html
import urllib.parse

from report import artifacts, records
from zoo.io import replace

STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
h2 { border-top: 2px solid #222; padding-top: .5em; margin-top: 2em }
table { border-collapse: collapse; margin: .5em 0 }
td, th { padding: .2em .8em .2em 0; text-align: left; border-bottom: 1px solid #ccc }
td.number { text-align: right } figure { margin: 1em 0 } img { max-width: 100% }
.open { color: #777 } code { font-size: .85em }
summary { cursor: pointer; padding: .2em 0 } details { margin: .3em 0 }
""".strip()
COLUMNS = (
    "model",
    "measured",
    "ours",
    "paper",
    "verdict",
    "data",
    "epochs",
    "deviations and assumptions",
)
NUMBERS = ("ours", "paper", "epochs")
MOST_LINES = 40  # of a table that is shown; longer ones are linked


def write():
    """Write the page from the saved results."""
    text = page(records.merged(records.lines()), records.FOLDER)
    replace(records.FOLDER / "index.html", lambda path: path.write_text(text, encoding="utf-8"))


def page(rows, folder):
    """Return the page's HTML: a summary, and the papers, which unfold.

    Args:
        rows: Lines of results, merged.
        folder: Folder of the pictures.
    """
    papers = {paper: records.by_artifact(rows, paper) for paper in records.TITLES}
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    parts = [
        f'<!doctype html>\n<html lang="en">\n<head>{head}<title>Results</title>',
        f"<style>\n{STYLE}\n</style></head>\n<body>\n<h1>Results beside the papers'</h1>",
        summary(papers, folder),
    ]
    for paper, rows_by_artifact in papers.items():
        parts.append(f"<details><summary>{html.escape(records.TITLES[paper])}</summary>")
        for name, rows_of_artifact in rows_by_artifact.items():
            parts.append(section(name, rows_of_artifact, folder))
        parts.append("</details>")
    return "\n".join(parts) + "\n</body>\n</html>\n"


def summary(papers, folder):
    """Return a table of what is on record of each paper, and the rows that compare with it."""
    counts = []
    compared = []
    for paper, rows_by_artifact in papers.items():
        shown = [name for name in rows_by_artifact if records.figures(name, folder)]
        measured = [row for rows in rows_by_artifact.values() for row in rows]
        comparable, truncated = records.split(measured)
        known = [row for row in comparable if row["paper"] is not None]
        compared += known
        numbers = (len(rows_by_artifact), len(shown), len(known), len(truncated))
        counts.append(cell(records.TITLES[paper]) + "".join(cell(str(n), True) for n in numbers))
    heads = ("paper", "tables and figures", "drawn", "rows that compare", "rows that do not")
    return "\n".join(
        [
            table(heads, counts),
            "<p>Rows do not compare where a run is shorter or smaller than the paper's.</p>",
            table(("", *COLUMNS), [cell(row["artifact"]) + table_row(row) for row in compared]),
        ]
    )


def section(name, rows, folder):
    """Return an artifact's description, the paper's result, our rows and figures."""
    title = html.escape(name)
    parts = [f'<h3 id="{title}">{title.split("/")[1]}</h3>']
    figures = records.figures(name, folder)
    artifact = artifacts.ARTIFACTS.get(name)
    if artifact:
        reported = f" The paper: {artifact.reported}." if artifact.reported else ""
        text = html.escape(f"{artifact.title[0].upper()}{artifact.title[1:]}.{reported}")
        if rows or figures:
            parts.append(f"<p>{text}</p>")
        else:
            parts.append(f"<p class=open>{text}{reason(artifact)}</p>")
    comparable, truncated = records.split(rows)
    if comparable:
        parts.append(table(COLUMNS, [table_row(row) for row in comparable]))
    if truncated:
        parts.append(f"<details><summary>{len(truncated)} rows that do not compare</summary>")
        parts.append(table(COLUMNS, [table_row(row) for row in truncated]) + "</details>")
    return "\n".join(parts + [figure(name, path, folder) for path in figures])


def reason(artifact):
    """Return why nothing is shown of an artifact."""
    if artifact.same_as:
        return f' See <a href="#{artifact.same_as}">{artifact.same_as}</a>.'
    if artifact.is_test:
        return f" Shown by {html.escape(artifact.commands[0])}."
    return " Not run yet." if artifact.commands else ""


def figure(name, path, folder):
    """Return a picture, or a table without picture, above a link to its numbers."""
    numbers = path.removesuffix(".png").removesuffix(".csv") + ".csv"
    caption = html.escape(path)
    if (folder / numbers).exists():
        caption = f'<a href="{urllib.parse.quote(numbers)}">{html.escape(numbers)}</a>'
    source = urllib.parse.quote(path)
    content = f'<img src="{source}" alt="{html.escape(name)}" loading="lazy">'
    if path.endswith(".csv"):
        with open(folder / path, newline="", encoding="utf-8") as file:
            head, *lines = csv.reader(file)
        content = f"<p>{len(lines)} lines:</p>"
        if len(lines) <= MOST_LINES:
            content = table(head, ["".join(map(csv_cell, line)) for line in lines])
    return f"<figure>{content}<figcaption>{caption}</figcaption></figure>"


def table(heads, rows):
    """Return a table; `rows` are texts of cells."""
    rows = ["".join(f"<th>{html.escape(head)}</th>" for head in heads), *rows]
    return "<table>\n" + "\n".join(f"<tr>{row}</tr>" for row in rows) + "\n</table>"


def csv_cell(text):
    """Return the cell of a value in a CSV file."""
    try:
        return cell(f"{float(text):.5g}", is_number=True)
    except ValueError:
        return cell(text)


def table_row(row):
    """Return the cells of a line of results."""
    texts = records.cells(row)
    return "".join(cell(texts[column], column in NUMBERS) for column in COLUMNS)


def cell(text, is_number=False):
    """Return a cell of a table."""
    return f"<td{' class=number' if is_number else ''}>{html.escape(text)}</td>"
