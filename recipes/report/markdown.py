"""Writes the tables of recipes/README.md from the lines of recipes/results.

    python recipes/report/markdown.py

One table a paper: the paper's value beside ours, an empty row where nothing was run, and under it
the departures and the commands. Lines that differ in their seed alone are one row: mean and
standard deviation. What is not in the lines is not in the tables.
"""

import pathlib
import sys

from report import artifacts, records

FOLDER = pathlib.Path(__file__).resolve().parents[1]
START, END = "<!-- made by results_table.py -->", "<!-- end -->"
HEAD = (
    "| | model | measured | ours | paper | verdict | data | epochs | seeds | hardware, time |\n"
    "| --- | --- | --- | ---: | ---: | --- | --- | --- | ---: | --- |"
)


def main():
    from zoo.io import replace

    path = FOLDER / "README.md"
    text = with_table(path.read_text(encoding="utf-8"), records.merged(records.lines()))
    replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def with_table(text, rows):
    """`text` with the part between the two marks made anew."""
    if text.count(START) != 1 or text.count(END) != 1:
        raise ValueError(f"Expected {START} and {END} once each in the text. Received: {text!r}")
    before, rest = text.split(START)
    return f"{before}{START}\n\n{tables(rows)}\n{END}{rest.split(END)[1]}"


def tables(rows):
    """Markdown of `rows`, a table a paper."""
    return "\n".join(table(paper, records.by_artifact(rows, paper)) for paper in records.TITLES)


def table(paper, rows_by_name):
    body = []
    for name, rows in rows_by_name.items():
        short = name.split("/")[1]
        body += (cells(short, row) for row in rows)
        drawn = ", ".join(
            f"[{path.split('/')[1]}](results/{path})" for path in records.figures(name)
        )
        if not rows and drawn:
            body.append(f"| {short} | | {drawn} |" + " |" * 7)
        elif not rows and not is_no_run(name):
            body.append(f"| {short} |" + " |" * 9)
    rows = [row for mine in rows_by_name.values() for row in mine]
    told = {}  # rows that depart alike are told of together
    for row in rows:
        if text := "; ".join(told_of(row)):
            told.setdefault((row["artifact"].split("/")[1], text), []).append(row["model"])
    told = [f"- {key}, {', '.join(dict.fromkeys(m))}: {text}." for (key, text), m in told.items()]
    commands = dict.fromkeys(
        f"    {command}  # {commit}" for row in rows for command, commit in records.commands(row)
    )
    parts = [f"### {records.TITLES[paper]}", "\n".join([HEAD, *body])]
    parts += ["Departures:\n\n" + "\n".join(told)] if told else []
    parts += (
        ["Commands, and the commits that they ran on:\n\n" + "\n".join(commands)] if rows else []
    )
    return "\n\n".join(parts) + "\n"


def told_of(row):
    """What distinguishes the run from the paper's, and what is ours where the paper is silent."""
    readings = row.get("readings", [])
    return [*row["departures"], *([f"ours: {', '.join(readings)}"] if readings else [])]


def is_no_run(name):
    """Whether a test or another artifact shows it, or nothing does."""
    artifact = artifacts.ARTIFACTS.get(name)
    return artifact is not None and (not artifact.recipe or artifact.recipe.startswith("tests/"))


def cells(short, row):
    values = (
        short,
        records.named(row),
        row["metric"].replace("_", " "),
        records.number(row),
        records.paper(row),
        row["verdict"],
        row["data"],
        row["budget"] if row["epochs"] is None else row["epochs"],
        len(row["seeds"]),
        f"{row['hardware']}, {row['seconds'] / 60:.0f} min",
    )
    return "| " + " | ".join(map(str, values)) + " |"


if __name__ == "__main__":
    sys.exit(main())
