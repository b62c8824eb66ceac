"""A page of the claims, and of all tables and figures on record: results/index.html.

A picture belongs to the artifact that its name begins with, e.g. yutomasi2019/fig7-depth20.png.
"""

import csv
import html
import urllib.parse

from report import artifacts, claims_page, records, verdicts
from zoo.io import replace

STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 70em; margin: 1em auto; padding: 0 1em; color: #222 }
h2 { margin: 1em 0 .3em; font-size: 1.2em } h1 { margin: 0; font-size: 1.5em }
table { border-collapse: collapse; margin: .5em 0 }
td, th { padding: .2em .8em .2em 0; text-align: left; border-bottom: 1px solid #ccc }
td.number { text-align: right } figure { margin: 1em 0 } img { max-width: 100% }
.open { color: #777 } code { font-size: .85em; overflow-wrap: anywhere }
summary { cursor: pointer; padding: .2em 0 } details { margin: .3em 0 }
.claim { margin: 0; border-bottom: 1px solid #ccc; font-size: .9em; line-height: 1.3 }
.claim > summary { display: grid; grid-template-columns: 2.5em 1fr 7.5em 15em; gap: .5em }
.claim b { color: #fff; text-align: center; border-radius: .3em; align-self: start }
.claim ul { margin: .3em 0 }
.shown { background: #00704f } .contradicted { background: #b34a00 } .undecided { background: #666 }
@media (max-width: 50em) {
  .claim > summary { grid-template-columns: 2.2em 1fr 7em; font-size: .9em }
  .claim .measured { display: none }
}
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
    text = page(verdicts.load(), records.merged(records.lines()), records.FOLDER)
    replace(records.FOLDER / "index.html", lambda path: path.write_text(text, encoding="utf-8"))


def page(claims, rows, folder):
    """Return the page's HTML: claims and papers, which unfold, with the pictures of a folder."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    parts = [
        f'<!doctype html>\n<html lang="en">\n<head>{head}<title>Claims and results</title>',
        f"<style>\n{STYLE}\n</style></head>\n<body>\n<h1>Claims of the papers</h1>",
        f"<p>{claims_page.summary(claims)}</p>",
        *map(claim, claims),
        "<h2>Tables and figures of the papers</h2>",
    ]
    for paper, title in records.TITLES.items():
        parts.append(f"<details><summary>{html.escape(title)}</summary>")
        for name, rows_of_artifact in records.by_artifact(rows, paper).items():
            parts.append(section(name, rows_of_artifact, folder))
        parts.append("</details>")
    return "\n".join(parts) + "\n</body>\n</html>\n"


def claim(row):
    """Return a claim with its verdict, which unfolds to criterion, numbers, command and figure."""
    verdict = row["verdict"]
    parts = [
        f"<details class=claim><summary><span>{row['claim']}</span>",
        f"<span>{html.escape(row['statement'])}</span><b class={verdict}>{verdict}</b>",
        f"<span class=measured>{claims_page.number(row)}</span></summary><ul>",
    ]
    parts += [f"<li>{html.escape(text)}</li>" for text in claims_page.facts(row)]
    parts.append(f"<li><code>{html.escape(claims_page.command(row))}</code></li></ul>")
    if row["figure"]:
        source = f"{row['figure']}.png"
        parts.append(f'<img src="{source}" alt="{row["claim"]}, means over seeds" loading="lazy">')
    return "\n".join([*parts, "</details>"])


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
            parts.append(f"<p class=open>{text}{reason(name, artifact)}</p>")
    if rows:
        parts.append(table(COLUMNS, [table_row(row) for row in rows]))
    return "\n".join(parts + [figure(name, path, folder) for path in figures])


def reason(name, artifact):
    """Return why nothing is shown of an artifact."""
    if records.figures(name, records.MINIATURES):
        return " See the claims: a miniature was run."
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
