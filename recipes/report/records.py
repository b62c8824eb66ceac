"""What is on record in recipes/results: lines of results, by paper and artifact.

The recipes' tools import it from beside themselves.
"""

import collections
import json
import math
import pathlib
import re
import statistics

from report import artifacts

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "results"
TITLES = {
    "srivastava2015": "Srivastava, Greff, Schmidhuber (2015): Training very deep networks",
    "greff2017": "Greff, Srivastava, Schmidhuber (2017): Highway and residual networks learn "
    "unrolled iterative estimation",
    "jastrzebski2018": "Jastrzebski et al. (2018): Residual connections encourage iterative "
    "inference",
    "yutomasi2019": "Yu, Tomasi (2019): Identity connections in residual nets improve noise "
    "stability",
    "benchmark": "Benchmarks",
}
# what must be equal in runs of different seeds
KEYS = "artifact model config metric paper data budget epochs departures backend".split()


def lines(folder=FOLDER):
    """All lines of results, file by file, in the order in which they were written.

    Raises:
        ValueError: if one is not JSON.
    """
    found = []
    for file in sorted(pathlib.Path(folder).glob("*.jsonl")):
        for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                found += [json.loads(text)] if text else []
            except json.JSONDecodeError as error:
                raise ValueError(f"{file}, line {number}, is not JSON: {error}") from None
    return found


def figures(name, folder=FOLDER):
    """What was drawn of an artifact: pictures, and tables that have none, as paths from `folder`.

    A file belongs to the artifact that its name begins with, e.g. fig7-depth20.png.
    """
    paper, short = name.split("/")
    mine = re.compile(re.escape(short) + r"(?![0-9a-z])")
    there = sorted((pathlib.Path(folder) / paper).glob(f"{short}*"))
    there = [path for path in there if mine.match(path.name)]
    pictures = {path for path in there if path.suffix == ".png"}
    shown = (p for p in there if p in pictures or p.with_suffix(".png") not in pictures)
    return [f"{paper}/{path.name}" for path in shown if path.suffix in (".png", ".csv")]


def merged(rows):
    """`rows` with those that differ in their seed alone, or in cores, made one."""
    groups = {}
    for row in rows:
        single = len(row["seeds"]) == 1 and row["std"] is None and row["epochs"] is not None
        key = {k: row[k] for k in KEYS} | {"on": device(row)} if single else row
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(row)
    return [several(group) if len(group) > 1 else group[0] for group in groups.values()]


def device(row):
    """The hardware without its number: "2 cores of X" is X."""
    return re.sub(r"^\d+ (cores of|x) ", "", row["hardware"])


def several(group):
    """One row of runs with different seeds; of a seed that ran twice the later counts."""
    by_seed = {row["seeds"][0]: row for row in group}
    rows = [*by_seed.values()]
    if len(rows) == 1:
        return rows[0]
    values = [row["value"] for row in rows]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    mean = statistics.mean(finite) if finite else None
    std = statistics.stdev(finite) if len(finite) > 1 else None
    return {
        **rows[-1],
        **{"value": mean, "std": std, "verdict": judged(rows, mean)},
        **{"seeds": [*by_seed], "seconds": sum(row["seconds"] for row in rows)},
        "runs": [(row["command"], row["commit"]) for row in rows],
        "finite": len(finite),
    }


def judged(rows, mean):
    """The verdict on the mean of several seeds."""
    from experiment import results

    last, told = rows[-1], collections.Counter(row["verdict"] for row in rows)

    def difference(value):
        return results.compare(value, last["paper"], last.get("spread"), last["departures"])

    if len(told) == 1 or mean is None:
        return last["verdict"]
    if all(row["verdict"] == difference(row["value"]) for row in rows):
        return f"{difference(mean)}, mean of {len(rows)} seeds"
    return ", ".join(f"{verdict}: {count} of {len(rows)}" for verdict, count in told.items())


def by_artifact(rows, paper):
    """The paper's artifacts with their rows, none where nothing was run."""
    mine = [row for row in rows if row["artifact"].split("/")[0] == paper]
    names = [name for name in artifacts.ARTIFACTS if name.split("/")[0] == paper]
    names += [row["artifact"] for row in mine]
    return {name: [row for row in mine if row["artifact"] == name] for name in dict.fromkeys(names)}


def named(row):
    """The model and what distinguishes it; numbers with what they are."""
    items = row["config"].items()
    config = ", ".join(v if isinstance(v, str) else f"{k.replace('_', ' ')} {v}" for k, v in items)
    return f"{row['model']}{' ' if config else ''}{config} ({row['backend']})"


def number(row):
    """Value and deviation."""
    if row["value"] is None:
        return "none is finite"
    spread = "" if row["std"] is None else f" ± {row['std']:.3g}"
    lost = len(row["seeds"]) - row.get("finite", len(row["seeds"]))
    return f"{row['value']:.5g}{spread}" + (f", {lost} of {len(row['seeds'])} not" if lost else "")


def paper(row):
    """The paper's value, and whose it is where it is another's."""
    source = f" ({row['paper_of']})" if row.get("paper_of") else ""
    return "" if row["paper"] is None else f"{row['paper']}{source}"


def commands(row):
    """The commands of a row, of one run or of several, each with its commit."""
    return row.get("runs") or [(row["command"], row["commit"])]
