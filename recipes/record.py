"""What is on record in recipes/results: lines of results, by paper and artifact.

The recipes' tools import it from beside themselves.
"""

import json
import pathlib
import statistics

import artifacts  # beside this script

FOLDER = pathlib.Path(__file__).resolve().parent / "results"
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
KEYS = "artifact model config metric paper data budget epochs departures backend hardware".split()


def lines(folder=FOLDER):
    """All lines of results, file by file, in the order in which they were written."""
    files = sorted(pathlib.Path(folder).glob("*.jsonl"))
    texts = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return [json.loads(text) for text in texts if text]


def merged(rows):
    """`rows` with those that differ in their seed alone made one."""
    groups = {}
    for row in rows:
        single = len(row["seeds"]) == 1 and row["std"] is None and row["epochs"] is not None
        key = {k: row[k] for k in KEYS} if single else row
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(row)
    return [several(group) if len(group) > 1 else group[0] for group in groups.values()]


def several(group):
    """One row of runs with different seeds; of a seed that ran twice the later counts."""
    by_seed = {row["seeds"][0]: row for row in group}
    values, last = [row["value"] for row in by_seed.values()], group[-1]
    if len(values) == 1:
        return last
    mean, seconds = statistics.mean(values), sum(row["seconds"] for row in by_seed.values())
    told = last["verdict"]
    if told != "not comparable" and last["paper"] is not None:
        told = f"{mean - last['paper']:+.3g}, mean of {len(values)} seeds"
    spread = {"value": mean, "std": statistics.stdev(values), "verdict": told}
    return {**last, **spread, "seeds": [*by_seed], "seconds": seconds}


def by_artifact(rows, paper):
    """The paper's artifacts with their rows, none where nothing was run."""
    mine = [row for row in rows if row["artifact"].split("/")[0] == paper]
    names = [name for name in artifacts.ARTIFACTS if name.split("/")[0] == paper]
    names += [row["artifact"] for row in mine]
    return {name: [row for row in mine if row["artifact"] == name] for name in dict.fromkeys(names)}


def named(row):
    config = ", ".join(map(str, row["config"].values()))
    return f"{row['model']}{' ' if config else ''}{config} ({row['backend']})"


def number(row):
    """Value and deviation."""
    spread = "" if row["std"] is None else f" ± {row['std']:.3g}"
    return f"{row['value']:.5g}{spread}" if row["value"] is not None else "none is finite"
