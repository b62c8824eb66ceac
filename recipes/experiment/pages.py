"""Tables and figures of runs, results on record, and the pages of docs that show them."""

import collections
import csv
import functools
import html
import io
import json
import pathlib
import re
import shutil
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from zoo.io import replace
from zoo.recipes import publish_weights
from zoo.recipes.experiment import catalog, plots, store
from zoo.recipes.experiment.definitions import Claim, Experiment, Measured, interval

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "recipes" / "results"
CLAIMS = RESULTS / "claims.jsonl"
DOCS = ROOT / "docs"
README = ROOT / "README.md"
BEGIN = "<!-- claims: written by `make results` -->"
END = "<!-- end of claims -->"
CLAIMS_INTRODUCTION = """# Claims of the papers

This page is generated from recipes/results/claims.jsonl by `make results`; do not edit it. Each
claim is measured by a miniature: a small network on small data, trained to the end of a short
schedule. Intervals are Student's 95 % intervals over seeds; ratios are averaged by their logarithm.
A claim is shown if the whole interval meets the criterion and contradicted if none of it does.
Otherwise it is undecided, as it is with fewer than three seeds. **No claim has a control yet**, a
network that must fail its criterion, so "shown" is weaker than it sounds: a criterion may also hold
for an untrained network. Commands are those of the named commits; today the same claim is measured
by `python recipes/reproduce.py claims NAME --seeds 0,1,2`, whose experiments have so far been
compared with the earlier code at the scale "smoke" only. Letters: S Srivastava et al.
(2015), G Greff et al. (2017), J Jastrzebski et al. (2018), Y Yu and Tomasi (2019).
"""
RESULTS_INTRODUCTION = """# Results

This page is generated from recipes/results by `make results`; do not edit it. Each number was
measured by the command below it, at the commit that it names, where commands may have had other
names and flags than today; DATA is a folder of data sets.
[claims.md](claims.md) has the miniatures that test the papers' claims, and
[findings.md](findings.md) discusses the numbers.
"""


def draw(experiment: Experiment, measured: Sequence[Measured], folder: pathlib.Path) -> None:
    """Write all tables and figures of an experiment, as NAME.csv and NAME.png.

    An artifact whose function returns None, because these runs do not have its numbers, is left
    out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for artifact in experiment.artifacts:
        made = artifact.make(measured)
        if isinstance(made, Figure):
            plots.save(made, folder / f"{artifact.name}.png")
        elif made:
            table = io.StringIO(newline="")
            writer = csv.DictWriter(table, made[0])
            writer.writeheader()
            writer.writerows(made)
            _write_text(folder / f"{artifact.name}.csv", table.getvalue())


def keep(experiment: Experiment, scale: str, folders: Sequence[pathlib.Path]) -> None:
    """Copy what runs measured to recipes/results, and draw it there."""
    kept = RESULTS / experiment.name / scale
    for folder in folders:
        target = kept / folder.name
        target.mkdir(parents=True, exist_ok=True)
        for name in ("measured.npz", store.MEASURED):  # the last one completes it
            replace(target / name, functools.partial(shutil.copyfile, folder / name))
    draw(experiment, on_record(experiment, scale), kept)


def seeds_on_record(experiment: Experiment, scale: str) -> list[pathlib.Path]:
    """Return the folders of an experiment's seeds on record."""
    found = (RESULTS / experiment.name / scale).glob(f"seed*/{store.MEASURED}")
    return sorted((path.parent for path in found), key=lambda path: int(path.name[4:]))


def on_record(experiment: Experiment, scale: str) -> list[Measured]:
    """Return what the seeds on record measured."""
    return [store.load(folder)[0] for folder in seeds_on_record(experiment, scale)]


def load_claims() -> list[dict[str, Any]]:
    """Return the lines of claims.jsonl."""
    text = CLAIMS.read_text(encoding="utf-8") if CLAIMS.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def keep_claims(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write lines of claims.jsonl, each instead of an earlier one of its claim."""
    known = {row["claim"]: row for row in [*load_claims(), *rows]}
    order = [claim.name for _, claim in catalog.claims()]
    text = "".join(json.dumps(known[n], ensure_ascii=False) + "\n" for n in order if n in known)
    _write_text(CLAIMS, text)


def evaluate(
    experiment: Experiment,
    claim: Claim,
    measured: Sequence[Sequence[Measured]],
    facts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return a claim's line of claims.jsonl.

    Args:
        experiment: The experiment that lists the claim.
        claim: The claim.
        measured: By seed, the measurements of the experiments that it needs.
        facts: Provenance of all runs.
    """
    values = [float(claim.measure(*one)) for one in measured]
    is_ratio = claim.ratio and min(values) > 0  # one that is 0 has no logarithm
    mean = statistics.geometric_mean(values) if is_ratio else statistics.fmean(values)
    ends = interval(values, claim.ratio)
    seeds = sorted({one["seed"] for one in facts})
    listed = ",".join(map(str, seeds))
    origin = {
        key: ", ".join(dict.fromkeys(str(one[key]) for one in facts))
        for key in ("commit", "backend", "hardware", "data", "scale")
    }
    return {
        "claim": claim.name,
        "paper": f"{catalog.TITLES[experiment.paper]}, {claim.section}",
        "statement": claim.statement,
        "criterion": claim.criterion,
        "value": float(f"{mean:.4g}"),
        "interval": ends and [float(f"{end:.4g}") for end in ends],
        "values": [float(f"{value:.4g}") for value in values],
        "seeds": seeds,
        "verdict": claim.verdict(values),
        "command": f"KERAS_BACKEND={facts[0]['backend']} python recipes/reproduce.py claims "
        f"{claim.name} --seeds {listed} --data_dir DATA",
        **origin,
        "seconds": round(sum(one["seconds"] for one in facts), 1),
        "deviations": [*dict.fromkeys(text for one in facts for text in one["deviations"])],
        "changed": claim.changed,
        "reason": claim.reason,
        "figure": claim.figure and f"{experiment.name}/{facts[0]['scale']}/{claim.figure}",
    }


def listing(patterns: Sequence[str] = ()) -> list[str]:
    """Return a line for each experiment, followed by lines for its tables, figures and claims."""
    names = catalog.find(patterns) if patterns else [*catalog.EXPERIMENTS]
    verdicts = {row["claim"]: row["verdict"] for row in load_claims()}
    on_disk = RESULTS.exists()  # not in the wheel
    nothing, missing = ("nothing", "not run") if on_disk else ("not in the wheel", "docs/claims.md")
    lines = []
    for experiment in map(catalog.load, names):
        counts = {scale: len(seeds_on_record(experiment, scale)) for scale in experiment.scales}
        kept = ", ".join(f"{scale}: {count} seeds" for scale, count in counts.items() if count)
        lines.append(f"{experiment.name}  (on record: {kept or nothing})")
        for artifact in experiment.artifacts:
            lines.append(f"    {experiment.paper}/{artifact.name:12} {artifact.title}")
        if experiment.claims:
            claims = [f"{c.name} ({verdicts.get(c.name, missing)})" for c in experiment.claims]
            lines.append(f"    claims {', '.join(claims)}")
    if not patterns:
        lines += [f"{name}  {text}" for name, text in catalog.OTHERS.items()]
    return lines


def report() -> None:
    """Write the pages of docs that are generated from records, and the claims of README.md.

    The figures of all experiments on record are drawn again.
    """
    publish_weights.write_page()
    rows = load_claims()
    _write_text(DOCS / "claims.md", claims_page(rows))
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    _write_text(README, f"{head}{BEGIN}\n{summary(rows)}\n\n{claims_table(rows)}\n{END}{tail}")
    parts = [RESULTS_INTRODUCTION]
    for experiment in catalog.load_all():
        for scale in experiment.scales:
            if seeds_on_record(experiment, scale):
                folder = RESULTS / experiment.name / scale
                draw(experiment, on_record(experiment, scale), folder)
                parts += _experiment_section(experiment, scale)
    _write_text(DOCS / "results.md", "\n".join([*parts, *_benchmark_section()]) + "\n")


def _write_text(path, text):
    replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def escaped(text: Any) -> str:
    """Return a value as a text that Markdown shows as it is, in a cell of a table."""
    return html.escape(f"{text}", quote=False).replace("|", "\\|").replace("\n", " ")


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return rows with the same keys as the lines of a table."""
    lines = [f"| {' | '.join(rows[0])} |", "| --- " * len(rows[0]) + "|"]
    return lines + [f"| {' | '.join(map(escaped, row.values()))} |" for row in rows]


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many claims are shown, contradicted and undecided, in one sentence."""
    counts = collections.Counter(row["verdict"] for row in rows)
    return (
        f"{counts['shown']} of {len(rows)} claims are shown, {counts['contradicted']} "
        f"contradicted, {counts['undecided']} undecided."
    )


def claims_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line a claim: verdict, measured value and criterion."""
    return "\n".join(
        markdown_table(
            [
                {
                    "claim": f"{row['claim']} {row['statement']}",
                    "verdict": f"**{row['verdict']}**",
                    "measured": measured_text(row),
                    "criterion": row["criterion"].rpartition(": ")[2],
                }
                for row in rows
            ]
        )
    )


def measured_text(row: Mapping[str, Any]) -> str:
    """Return the measured value of a claim with its interval."""
    bound = float(row["criterion"].split()[-1])
    value, *ends = [_rounded(value, bound) for value in (row["value"], *(row["interval"] or ()))]
    return f"{value} ({' to '.join(ends)})" if ends else value


def _rounded(value, bound):
    """Return three digits, or four if three are the criterion's; all integral ones to a million."""
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    digits = 3 + (float(f"{value:.3g}") == bound != value)
    return f"{value:.{digits}g}"


def claims_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return docs/claims.md: the table, then each claim, which unfolds."""
    parts = [CLAIMS_INTRODUCTION, summary(rows), "", claims_table(rows), ""]
    for row in rows:
        title = f"{row['claim']}: {row['verdict']}. {escaped(row['statement'])}"
        parts += [f"<details><summary>{title}</summary>", ""]
        parts += [f"- {escaped(text)}" for text in _facts(row)]
        parts += [f"- `{row['command']}`"]
        if row["figure"]:
            alt = f"{row['claim']}: mean and standard deviation over seeds"
            parts += ["", f"![{alt}](../recipes/results/{row['figure']}.png)"]
        parts += ["", "</details>", ""]
    return "\n".join(parts)


def _facts(row):
    """Return sentences: source, criterion, numbers, origin, deviations, reason."""
    values = ", ".join(f"{value:g}" for value in row["values"])
    count = len(row["seeds"])
    texts = [
        f"{row['paper']}.",
        f"Criterion: {row['criterion']}.",
        f"Measured: {measured_text(row)}; by seed: {values}.",
        f"{row['data']}; {row['backend']}, {row['hardware']}; {row['seconds'] / 60:.1f} min for "
        f"{count} seed{'s' if count > 1 else ''}; commit {row['commit']}.",
        f"Deviations from the paper: {'; '.join(row['deviations'])}.",
    ]
    if row["changed"]:
        texts.append(f"Changed after a run: {row['changed'].rstrip('.')}.")
    if row["verdict"] == "contradicted" and row["reason"]:
        texts.append(f"Most likely reason: {row['reason'].rstrip('.')}.")
    return texts


def _experiment_section(experiment, scale):
    """Return the tables, figures and provenance of an experiment on record."""
    folder = RESULTS / experiment.name / scale
    facts = [store.load(seed)[1] for seed in seeds_on_record(experiment, scale)]
    lines = [f"## {experiment.name}, {scale}", ""]
    for artifact in experiment.artifacts:
        table = folder / f"{artifact.name}.csv"
        figure = folder / f"{artifact.name}.png"
        if table.exists():
            with open(table, newline="", encoding="utf-8") as file:
                lines += [f"{artifact.name}: {artifact.title}", ""]
                lines += [*markdown_table([*csv.DictReader(file)]), ""]
        elif figure.exists():
            link = figure.relative_to(ROOT)
            lines += [f"![{artifact.name}: {artifact.title}](../{link})", ""]
    lines += [f"- Deviations from the paper: {'; '.join(facts[0]['deviations']) or 'none'}."]
    for one in facts:
        lines.append(
            f"- `{one['command']}`, seed {one['seed']}, {one['data']}, commit {one['commit']}, "
            f"{one['backend']}, {one['hardware']}, {one['seconds'] / 60:.0f} min"
        )
    return [*lines, ""]


def _benchmark_section():
    """Return the table of all benchmarks on record, with their commands."""
    rows = []
    commands = []
    for path in sorted(RESULTS.glob("benchmark_*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            config = ", ".join(f"{key} {value}" for key, value in row["config"].items())
            command = re.sub(r" --(run_dir|results)[ =]\S+", "", row["command"])
            commands.append(f"{command}  # {row['commit']}")
            rows.append(
                {
                    "benchmark": f"{row['model']} {config} ({row['backend']})",
                    "measured": row["metric"].replace("_", " "),
                    "value": f"{row['value']:.5g}",
                    "hardware": row["hardware"],
                    "commit": row["commit"],
                }
            )
    if not rows:
        return []
    unique = [f"    {text}" for text in dict.fromkeys(commands)]
    folded = ["<details><summary>Commands and their commits</summary>", "", *unique, ""]
    return ["## Benchmarks", "", *markdown_table(rows), "", *folded, "</details>"]
