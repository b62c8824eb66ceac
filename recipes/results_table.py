"""Writes the table of recipes/README.md from the lines of recipes/results/*.jsonl.

    python recipes/results_table.py

One table an artifact, one row a line of results, the paper's value beside ours, and under it the
departures from the paper. What is not in the lines is not in the table.
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
START, END = "<!-- made by results_table.py -->", "<!-- end -->"
HEAD = (
    "| model | data | epochs | seeds | {metric} | paper | verdict | departures | hardware, time |"
)


def main():
    from zoo.files import replace

    path = FOLDER / "README.md"
    text = with_table(path.read_text(encoding="utf-8"), lines(FOLDER / "results"))
    replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def lines(folder):
    """All lines of results, file by file, in the order in which they were written."""
    files = sorted(pathlib.Path(folder).glob("*.jsonl"))
    texts = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return [json.loads(text) for text in texts if text]


def with_table(text, rows):
    """`text` with the part between the two marks made anew."""
    if text.count(START) != 1 or text.count(END) != 1:
        raise ValueError(f"Expected {START} and {END} once each in the text. Received: {text!r}")
    before, rest = text.split(START)
    return f"{before}{START}\n\n{tables(rows)}\n{END}{rest.split(END)[1]}"


def tables(rows):
    """Markdown of `rows`, grouped by artifact and metric."""
    groups, parts = {}, []
    for row in rows:
        groups.setdefault((row["artifact"], row["metric"]), []).append(row)
    for (artifact, metric), members in groups.items():
        head = HEAD.format(metric=metric.replace("_", " "))
        rule = "|" + " --- |" * (head.count("|") - 1)
        body = "\n".join(map(cells, members))
        commands = "\n".join(f"    {row['command']}  # {row['commit']}" for row in members)
        parts.append(f"### {artifact}\n\n{head}\n{rule}\n{body}\n\n{commands}\n")
    return "\n".join(parts) if parts else "Nothing was run yet.\n"


def cells(row):
    config = ", ".join(map(str, row["config"].values()))
    spread = "" if row["std"] is None else f" ± {row['std']:.3g}"
    values = (
        f"{row['model']} {config} ({row['backend']})",
        row["data"],
        row["budget"] if row["epochs"] is None else row["epochs"],
        len(row["seeds"]),
        f"{row['value']:.5g}{spread}",
        "" if row["paper"] is None else row["paper"],
        row["verdict"],
        "; ".join(row["departures"]),
        f"{row['hardware']}, {row['seconds'] / 60:.0f} min",
    )
    return "| " + " | ".join(map(str, values)) + " |"


if __name__ == "__main__":
    sys.exit(main())
