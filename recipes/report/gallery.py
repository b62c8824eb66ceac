"""Writes recipes/results/index.html: every table and figure that exists, the paper's beside ours.

    python recipes/report/gallery.py

Made by `make results`, from the lines of results and the pictures in recipes/results/PAPER: a
picture belongs to the artifact that its name begins with, e.g. yutomasi2019/fig7-depth20.png.
"""

import csv
import html
import sys

from report import artifacts, records

STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
h2 { border-top: 2px solid #222; padding-top: .5em; margin-top: 2em }
table { border-collapse: collapse; margin: .5em 0 }
td, th { padding: .2em .8em .2em 0; text-align: left; border-bottom: 1px solid #ccc }
td.number { text-align: right } figure { margin: 1em 0 } img { max-width: 100% }
.open { color: #777 } code { font-size: .85em }
""".strip()
MOST_LINES = 40  # of a table that is shown; else it is linked


def main():
    from zoo.io import replace

    text = page(records.merged(records.lines()), records.FOLDER)
    path = records.FOLDER / "index.html"
    replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def page(rows, folder):
    """The page's HTML.

    Args:
        rows: Lines of results, merged.
        folder: Where the pictures are.
    """
    parts = []
    for paper, title in records.TITLES.items():
        parts.append(f'<h2 id="{paper}">{html.escape(title)}</h2>')
        for name, mine in records.by_artifact(rows, paper).items():
            parts.append(section(name, mine, records.figures(name, folder), folder))
    links = " · ".join(f'<a href="#{paper}">{paper}</a>' for paper in records.TITLES)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{head}<title>Results</title>\n'
        f"<style>\n{STYLE}\n</style></head>\n<body>\n<h1>What was run, beside the papers</h1>\n"
        f"<p>{links}</p>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def section(name, rows, paths, folder):
    """One artifact: what it is, what the paper reports, our rows, our pictures."""
    artifact = artifacts.ARTIFACTS.get(name)
    parts = [f'<h3 id="{name}">{name.split("/")[1]}</h3>']
    if artifact:
        reported = f" The paper: {artifact.reported}." if artifact.reported else ""
        text = html.escape(f"{artifact.what[0].upper()}{artifact.what[1:]}.{reported}")
        state = "" if rows or paths else state_of(artifact)
        parts.append(f"<p{'' if rows or paths else ' class=open'}>{text}{state}</p>")
    if rows:
        heads = ("model", "measured", "ours", "paper", "verdict", "data", "departures")
        parts.append(html_table(heads, map(cells, rows)))
    return "\n".join([*parts, *(shown(name, path, folder) for path in paths)])


def state_of(artifact):
    """Why nothing is shown."""
    if artifact.same:
        return f' See <a href="#{artifact.same}">{artifact.same}</a>.'
    if artifact.recipe.startswith("tests/"):
        return f" Shown by {html.escape(artifact.recipe)}."
    return " Nothing was run yet." if artifact.recipe else ""


def shown(name, path, folder):
    """A picture above its table's name, or a table."""
    table = path.removesuffix(".png").removesuffix(".csv") + ".csv"
    there = (folder / table).exists()
    caption = f'<a href="{table}">{table}</a>' if there else path
    content = f'<img src="{path}" alt="{name}">'
    if path.endswith(".csv"):
        with open(folder / path, newline="", encoding="utf-8") as file:
            head, *lines = csv.reader(file)
        content = html_table(head, ("".join(map(cell, line)) for line in lines))
        content = content if len(lines) <= MOST_LINES else f"<p>{len(lines)} lines:</p>"
    return f"<figure>{content}<figcaption>{caption}</figcaption></figure>"


def html_table(heads, lines):
    """A table; `lines` are the cells of its rows."""
    lines = ["".join(f"<th>{html.escape(head)}</th>" for head in heads), *lines]
    return "<table>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table>"


def cell(text):
    """Of a CSV file."""
    try:
        return f"<td class=number>{float(text):.5g}</td>"
    except ValueError:
        return f"<td>{html.escape(text)}</td>"


def cells(row):
    """A table row of a line of results."""
    numbers = (records.number(row), records.paper(row))
    texts = [records.named(row), row["metric"].replace("_", " "), *numbers, row["verdict"]]
    epochs = "" if row["epochs"] is None else f", {row['epochs']} epochs"
    texts += [f"{row['data']}{epochs}", "; ".join([*row["departures"], *row.get("readings", [])])]
    return "".join(
        f"<td{' class=number' if i in (2, 3) else ''}>{html.escape(text)}</td>"
        for i, text in enumerate(texts)
    )


if __name__ == "__main__":
    sys.exit(main())
