"""Tables and figures of runs, results on record, and the pages of docs that show them."""

import csv
import functools
import html
import json
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from zoo.io import replace
from zoo.recipes.experiment import catalog, plots, store
from zoo.recipes.experiment.definitions import Experiment, Measured

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "recipes" / "results"
CLAIMS = RESULTS / "claims.jsonl"


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
            write_table(folder / f"{artifact.name}.csv", made)


def write_table(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same keys as a CSV file."""

    def write(temporary):
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)

    replace(path, write)


def keep(experiment: Experiment, scale: str, folders: Sequence[pathlib.Path]) -> None:
    """Copy what runs measured to recipes/results, and draw it there."""
    kept = record_folder(experiment, scale)
    for folder in folders:
        target = kept / folder.name
        target.mkdir(parents=True, exist_ok=True)
        for name in ("measured.npz", store.MEASURED):  # the last one completes it
            replace(target / name, functools.partial(shutil.copyfile, folder / name))
    draw(experiment, on_record(experiment, scale), kept)


def record_folder(experiment: Experiment, scale: str) -> pathlib.Path:
    """Return the folder on record of an experiment at a scale."""
    return RESULTS / experiment.name / scale


def seeds_on_record(experiment: Experiment, scale: str) -> list[pathlib.Path]:
    """Return the folders of an experiment's seeds on record."""
    found = record_folder(experiment, scale).glob(f"seed*/{store.MEASURED}")
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
    replace(CLAIMS, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def listing(patterns: Sequence[str] = ()) -> list[str]:
    """Return a line for each experiment, followed by lines for its tables, figures and claims."""
    names = catalog.find(patterns) if patterns else [*catalog.EXPERIMENTS]
    lines = []
    for experiment in map(catalog.load, names):
        counts = {scale: len(seeds_on_record(experiment, scale)) for scale in experiment.scales}
        kept = ", ".join(f"{scale}: {count} seeds" for scale, count in counts.items() if count)
        lines.append(f"{experiment.name}  (on record: {kept or 'nothing'})")
        for artifact in experiment.artifacts:
            lines.append(f"    {experiment.paper}/{artifact.name:12} {artifact.title}")
        if experiment.claims:
            lines.append(f"    claims {', '.join(claim.name for claim in experiment.claims)}")
    if not patterns:
        lines += [f"{name}  {text}" for name, text in catalog.OTHERS.items()]
    return lines


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, in a cell of a table."""
    return html.escape(text, quote=False).replace("|", "\\|").replace("\n", " ")


def report() -> None:
    """Write the pages of docs from the results on record."""
    raise NotImplementedError
