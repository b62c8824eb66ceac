"""A page of all tables and figures on record beside the papers' results: results/index.html.

A picture belongs to the artifact that its name begins with, e.g. yutomasi2019/fig7-depth20.png.
"""

import csv
import html

from report import artifacts, records
from zoo.io import replace

STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
h2 { border-top: 2px solid #222; padding-top: .5em; margin-top: 2em }
table { border-collapse: collapse; margin: .5em 0 }
td, th { padding: .2em .8em .2em 0; text-align: left; border-bottom: 1px solid #ccc }
td.number { text-align: right } figure { margin: 1em 0 } img { max-width: 100% }
.open { color: #777 } code { font-size: .85em }
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
    """Return the page's HTML.

    Args:
        rows: Lines of results, merged.
        folder: Folder of the pictures.
    """
    parts = []
    for paper, title in records.TITLES.items():
        parts.append(f'<h2 id="{paper}">{html.escape(title)}</h2>')
        for name, rows_of_artifact in records.by_artifact(rows, paper).items():
            parts.append(section(name, rows_of_artifact, folder))
    links = " · ".join(f'<a href="#{paper}">{paper}</a>' for paper in records.TITLES)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{head}<title>Results</title>\n'
        f"<style>\n{STYLE}\n</style></head>\n<body>\n<h1>Results beside the papers'</h1>\n"
        f"<p>{links}</p>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def section(name, rows, folder):
    """Return an artifact's description, the paper's result, our rows and figures."""
    parts = [f'<h3 id="{name}">{name.split("/")[1]}</h3>']
    figures = records.figures(name, folder)
    artifact = artifacts.ARTIFACTS.get(name)
    if artifact:
        reported = f" The paper: {artifact.reported}." if artifact.reported else ""
        text = html.escape(f"{artifact.title[0].upper()}{artifact.title[1:]}.{reported}")
        if rows or figures:
            parts.append(f"<p>{text}</p>")
        else:
            parts.append(f"<p class=open>{text}{reason(artifact)}</p>")
    if rows:
        parts.append(table(COLUMNS, [table_row(row) for row in rows]))
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
    caption = f'<a href="{numbers}">{numbers}</a>' if (folder / numbers).exists() else path
    content = f'<img src="{path}" alt="{name}">'
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
