"""Verdicts on the papers' claims in Markdown: docs/claims.md, and the table of README.md."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from report import markdown, verdicts
from report.markdown import escaped
from zoo.io import replace

Row = Mapping[str, Any]  # of claims.jsonl

PATH = markdown.PATH.with_name("claims.md")
README = markdown.PATH.parents[1] / "README.md"
BEGIN = "<!-- claims: written by `make results` -->"
END = "<!-- end of claims -->"
HEAD = ["| claim | verdict | measured | criterion |", "| --- | --- | --- | --- |"]
INTRODUCTION = """# Claims of the papers

The page is generated from recipes/results/claims.jsonl by `make results`; do not edit it. Each
claim is measured by a miniature: a small network on small data, trained to the end of a short
schedule. The interval is Student's, of 95 %, over seeds; a ratio's is taken of its logarithm. A
claim is shown if the whole interval fulfills the criterion, contradicted if none of it does, else
undecided, as with fewer than three seeds. Letters: S Srivastava et al. (2015), G Greff et al.
(2017), J Jastrzebski et al. (2018), Y Yu and Tomasi (2019).
"""


def write() -> None:
    """Write docs/claims.md and the table in README.md from claims.jsonl."""
    rows = verdicts.load()
    replace(PATH, lambda path: path.write_text(page(rows), encoding="utf-8"))
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    table = f"{BEGIN}\n{summary(rows)}\n\n{short_table(rows)}\n{END}"
    replace(README, lambda path: path.write_text(f"{head}{table}{tail}", encoding="utf-8"))


def summary(rows: Sequence[Row]) -> str:
    """Return how many claims are shown, contradicted and undecided, in one sentence."""
    counts = collections.Counter(row["verdict"] for row in rows)
    others = [f"{counts[verdict]} {verdict}" for verdict in verdicts.VERDICTS[1:]]
    return f"{counts[verdicts.VERDICTS[0]]} of {len(rows)} claims are shown, {', '.join(others)}."


def short_table(rows: Sequence[Row]) -> str:
    """Return the table of README.md, a line a claim."""
    lines = list(HEAD)
    for row in rows:
        claim = f"{row['claim']} {escaped(row['statement'])}"
        criterion = row["criterion"].rpartition(": ")[2]
        lines.append(f"| {claim} | **{row['verdict']}** | {number(row)} | {criterion} |")
    return "\n".join(lines)


def number(row: Row) -> str:
    """Return the measured value of a line with its interval."""
    bound = float(row["criterion"].split()[-1])
    value, *ends = [rounded(value, bound) for value in (row["value"], *(row["interval"] or ()))]
    return f"{value} ({' to '.join(ends)})" if ends else value


def rounded(value: float, bound: float) -> str:
    """Return three digits, or four if three are the criterion's; all integral ones to a million."""
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    digits = 3 + (float(f"{value:.3g}") == bound != value)
    return f"{value:.{digits}g}"


def page(rows: Sequence[Row]) -> str:
    """Return docs/claims.md: the table, then each claim, which unfolds."""
    parts = [INTRODUCTION, summary(rows), "", short_table(rows), ""]
    for row in rows:
        title = f"{row['claim']}: {row['verdict']}. {escaped(row['statement'])}"
        parts += [f"<details><summary>{title}</summary>", ""]
        parts += [f"- {escaped(text)}" for text in facts(row)]
        parts += [f"- `{command(row)}`"]
        if row["figure"]:
            alt = f"{row['claim']}: mean and standard deviation over seeds"
            parts += ["", f"![{alt}]({markdown.RESULTS}/{row['figure']}.png)"]
        parts += ["", "</details>", ""]
    return "\n".join(parts)


def facts(row: Row) -> list[str]:
    """Return sentences: source, criterion, numbers, origin, deviations, reason."""
    values = ", ".join(f"{value:g}" for value in row["values"])
    count = len(row["seeds"])
    texts = [
        f"{row['paper']}.",
        f"Criterion, written before the runs: {row['criterion']}.",
        f"Measured: {number(row)}; by seed: {values}.",
        f"{row['data']}; {row['backend']}, {row['hardware']}; {row['seconds'] / 60:.1f} min for "
        f"{count} seed{'s' if count > 1 else ''}; commit {row['commit']}.",
        f"Deviations from the paper: {'; '.join(row['departures'])}.",
    ]
    if row["changed"]:
        texts.append(f"Changed after a run: {row['changed'].rstrip('.')}.")
    if row["verdict"] == "contradicted" and row["reason"]:
        texts.append(f"Most likely reason: {row['reason'].rstrip('.')}.")
    return texts


def command(row: Row) -> str:
    """Return the command that repeats a claim."""
    return f"{row['command']} --seeds {len(row['seeds'])}"
