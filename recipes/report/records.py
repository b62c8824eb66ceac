"""Saved results: the lines and figures of recipes/results, by paper and artifact."""

import collections
import json
import math
import pathlib
import re
import statistics

from report import artifacts

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "results"
MINIATURES = FOLDER / "claims"  # their figures, by paper
CLAIMS = "claims.jsonl"  # verdicts, see report.verdicts; every other file has lines of results
TITLES = {
    "srivastava2015": "Srivastava, Greff, Schmidhuber (2015): Training very deep networks",
    "greff2017": "Greff, Srivastava, Schmidhuber (2017): Highway and residual networks learn "
    "unrolled iterative estimation",
    "jastrzebski2018": "Jastrzebski et al. (2018): Residual connections encourage iterative "
    "inference",
    "yutomasi2019": "Yu, Tomasi (2019): Identity connections in residual nets improve noise "
    "stability",
    "looped": "Looped language models",
    "pruning": "Scores of blocks to remove",
    "benchmark": "Benchmarks",
}
NOT_COMPARABLE = "not comparable"  # as `experiment.results` says, whose import takes seconds
TEXT = (str,)
NUMBER = (int, float, type(None))
TYPES = {  # of a line's keys
    **dict.fromkeys("artifact model metric data budget verdict command commit".split(), TEXT),
    **dict.fromkeys(("backend", "hardware"), TEXT),
    **dict.fromkeys(("value", "std", "paper"), NUMBER),
    "epochs": (*NUMBER, str),
    "seconds": (int, float),
    "config": (dict,),
    "seeds": (list,),
    "departures": (list,),
}
# keys whose values are equal in runs that differ only in their seed
SHARED = "artifact model config metric paper data budget epochs departures backend".split()


def lines(folder=FOLDER):
    """Return the lines of results that compare with a paper, or with nothing, file by file.

    Lines of runs that are shorter or smaller than the paper's are left out.

    Raises:
        ValueError: if a line is not JSON, or no result; the message names its file and number.
    """
    rows = []
    files = pathlib.Path(folder).glob("*.jsonl")
    for file in sorted(file for file in files if file.name != CLAIMS):
        for number, text in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
            if text:
                rows.append(parsed(text, f"{file}, line {number}"))
    return [row for row in rows if row["verdict"] != NOT_COMPARABLE]


def parsed(text, place):
    """Return the result in a line; errors name its place."""
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}, is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"{place}: expected a JSON object. Received: {text[:80]}")
    for key, types in TYPES.items():
        if key not in row or not isinstance(row[key], types):
            names = " or ".join("null" if t is type(None) else t.__name__ for t in types)
            received = repr(row[key])[:80] if key in row else "no such key"
            raise ValueError(f"{place}: expected {key!r} as {names}. Received: {received}")
    if row["artifact"].count("/") != 1:
        raise ValueError(f"{place}: expected PAPER/NAME as artifact. Received: {row['artifact']!r}")
    for key in ("departures", "readings"):
        if not all(isinstance(item, str) for item in row.get(key, [])):
            raise ValueError(f"{place}: expected texts in {key!r}. Received: {row[key]!r:.80}")
    return row


def figures(artifact, folder=FOLDER):
    """Return the pictures of an artifact, and its tables without picture, relative to `folder`.

    A file belongs to the artifact that its name begins with, e.g. fig7-depth20.png.
    """
    paper, name = artifact.split("/")
    files = sorted((pathlib.Path(folder) / paper).glob(f"{name}*"))
    files = [path for path in files if belongs(path.name, artifact)]
    shown = [p for p in files if p.suffix == ".png" or p.with_suffix(".png") not in files]
    return [f"{paper}/{path.name}" for path in shown]


def belongs(name, artifact):
    """Return True if a figure or table with this file name is one of the artifact's."""
    beginning = re.escape(artifact.split("/")[1])
    return re.fullmatch(beginning + r"(?![0-9a-z]).*\.(png|csv)", name) is not None


def by_artifact(rows, paper):
    """Return a paper's artifacts with their rows; an artifact that was not run has none."""
    rows = [row for row in rows if row["artifact"].split("/")[0] == paper]
    names = [name for name in artifacts.ARTIFACTS if name.split("/")[0] == paper]
    names = dict.fromkeys(names + [row["artifact"] for row in rows])
    return {name: [row for row in rows if row["artifact"] == name] for name in names}


def merged(rows):
    """Return `rows` with runs that differ only in seed, or in number of cores, as one row each."""
    groups = {}
    for row in rows:
        single = len(row["seeds"]) == 1 and row["std"] is None and row["epochs"] is not None
        key = {k: row[k] for k in SHARED} | {"device": device(row)} if single else row
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(row)
    return [mean_of(group) for group in groups.values()]


def device(row):
    """Return the hardware without its number: "X" for "2 cores of X"."""
    return re.sub(r"^\d+ (cores of|x) ", "", row["hardware"])


def mean_of(group):
    """Return one row for runs of several seeds; the last run of a seed counts."""
    by_seed = {str(row["seeds"]): row for row in group}
    rows = [*by_seed.values()]
    if len(rows) == 1:
        return rows[0]
    values = [row["value"] for row in rows]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    mean = statistics.mean(finite) if finite else None
    return rows[-1] | {
        "value": mean,
        "std": statistics.stdev(finite) if len(finite) > 1 else None,
        "verdict": verdict_of_mean(rows, mean),
        "seeds": [row["seeds"][0] for row in rows],
        "seconds": sum(row["seconds"] for row in rows),
        "runs": [(row["command"], row["commit"]) for row in rows],
        "finite": len(finite),
    }


def verdict_of_mean(rows, mean):
    """Return the verdict on the mean of several seeds, or the counts of the runs' verdicts."""
    from experiment import results  # imports a backend, which `reproduce.py list` does not need

    counts = collections.Counter(row["verdict"] for row in rows)
    if len(counts) == 1 or mean is None:
        return rows[-1]["verdict"]

    def compare(row, value):
        return results.compare(value, row["paper"], row.get("spread"), row["departures"])

    if all(row["verdict"] == compare(row, row["value"]) for row in rows):
        return f"{compare(rows[-1], mean)}, mean of {len(rows)} seeds"
    return ", ".join(f"{verdict}: {count} of {len(rows)}" for verdict, count in counts.items())


def cells(row):
    """Return the texts that tables show of a row, by column."""
    config = ", ".join(
        value if isinstance(value, str) else f"{key.replace('_', ' ')} {value}"
        for key, value in row["config"].items()
    )
    source = f" ({row['paper_of']})" if row.get("paper_of") else ""
    return {
        "model": f"{row['model']}{' ' if config else ''}{config} ({row['backend']})",
        "measured": row["metric"].replace("_", " "),
        "ours": number(row),
        "paper": "" if row["paper"] is None else f"{row['paper']}{source}",
        "verdict": row["verdict"],
        "data": row["data"],
        "epochs": str(row["budget"] if row["epochs"] is None else row["epochs"]),
        "seeds": str(len(row["seeds"])),
        "hardware, time": f"{row['hardware']}, {row['seconds'] / 60:.0f} min",
        "deviations and assumptions": "; ".join(deviations(row)),
    }


def number(row):
    """Return value and standard deviation, and how many runs ended without a finite value."""
    if row["value"] is None:
        return "not finite"
    std = "" if row["std"] is None else f" ± {row['std']:.3g}"
    lost = len(row["seeds"]) - row.get("finite", len(row["seeds"]))
    return f"{row['value']:.5g}{std}" + (
        f", {lost} of {len(row['seeds'])} not finite" if lost else ""
    )


def deviations(row):
    """Return the deviations from the paper, and last the assumptions where it is silent."""
    assumptions = row.get("readings", [])
    return row["departures"] + (["assumed: " + ", ".join(assumptions)] if assumptions else [])


def commands(row):
    """Return the commands of a row, of one run or several, each with its commit."""
    return row.get("runs") or [(row["command"], row["commit"])]
