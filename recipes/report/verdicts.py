"""Runs of the papers' claims, intervals over seeds, and verdicts.

A claim is measured by a recipe's `--budget minutes`, its miniature: a small network trained to the
end of a short schedule. The run directories are RUN_DIR/COMMAND/seedN; a run that ended has a file
`ended` there, with its processor time in seconds, and is not repeated. The interval is Student's,
of 95 %, over seeds; that of a ratio is taken of its logarithm. A claim is "shown" if the whole
interval fulfills the criterion, "contradicted" if none of it does, else "undecided", as with fewer
than three seeds.
"""

import functools
import json
import math
import os
import pathlib
import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from experiment import process
from experiment.claim import Claim, Lines
from report import recipe_flags, records, redraw
from report.claims import CLAIMS, select
from zoo.io import replace

PATH = records.FOLDER / records.CLAIMS
RECIPES = pathlib.Path(__file__).resolve().parents[1]
# Student's t distribution, 97.5 %, by number of seeds
QUANTILES = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}

VERDICTS = ("shown", "contradicted", "undecided")


def interval(values: Sequence[float], ratio: bool) -> tuple[float, float] | None:
    """Return the ends of Student's 95 % interval of the mean over seeds; None below three.

    None, too, where a value is not finite, or a ratio not positive.
    """
    if len(values) not in QUANTILES or not all(map(math.isfinite, values)):
        return None
    if ratio and min(values) <= 0:
        return None
    shown = [math.log(value) for value in values] if ratio else values
    half = QUANTILES[len(values)] * statistics.stdev(shown) / math.sqrt(len(values))
    mean = statistics.fmean(shown)
    ends = mean - half, mean + half
    return tuple(map(math.exp, ends)) if ratio else ends


def verdict(claim: Claim, values: Sequence[float]) -> str:
    """Return "shown", "contradicted" or "undecided"; see the module."""
    ends = interval(values, claim.ratio)
    if ends is None:
        return "undecided"
    held = {claim.holds(end) for end in ends}
    if len(held) > 1:
        return "undecided"
    return "shown" if held == {True} else "contradicted"


def evaluate(claim: Claim, runs: Mapping[int, Lines], seconds: float) -> dict[str, Any]:
    """Return a claim's line of claims.jsonl; `runs` has each seed's lines of results."""
    values = [claim.measure(lines) for lines in runs.values()]
    is_ratio = claim.ratio and min(values) > 0  # one that is 0 has no logarithm
    mean = statistics.geometric_mean(values) if is_ratio else statistics.fmean(values)
    ends = interval(values, claim.ratio)
    rows = [row for lines in runs.values() for row in lines]
    origin = {
        key: ", ".join(dict.fromkeys(row[key] for row in rows))
        for key in ("commit", "backend", "hardware", "data")
    }
    return {
        "claim": claim.name,
        "paper": f"{records.TITLES[claim.paper].split(':')[0]}, {claim.section}",
        "statement": claim.statement,
        "criterion": claim.criterion,
        "value": float(f"{mean:.4g}"),
        "interval": ends and [float(f"{end:.4g}") for end in ends],
        "values": [float(f"{value:.4g}") for value in values],
        "seeds": [*runs],
        "verdict": verdict(claim, values),
        "command": f"python recipes/reproduce.py claims {claim.name} --data_dir DATA",
        **origin,
        "seconds": round(seconds, 1),
        "departures": [*dict.fromkeys(text for row in rows for text in row["departures"])],
        "changed": claim.changed,
        "reason": claim.reason,
        "figure": claim.figure and f"claims/{claim.paper}/{claim.figure}",
    }


def folder_of(command: str, seed: int, runs: pathlib.Path) -> pathlib.Path:
    """Return the run directory of a command and a seed; claims of one command share it."""
    slug = re.sub("[^A-Za-z0-9_]+", "-", command.replace(".py", "")).strip("-")
    return runs / slug / f"seed{seed}"


def run(
    claim: Claim, seed: int, flags: Sequence[str], runs: pathlib.Path, dry_run: bool = False
) -> int:
    """Run those of a claim's commands that have not ended yet; return the first bad exit status.

    `flags` replace those of the miniature. `runs` is the folder of the run directories, and trained
    networks are kept in its folder `networks`. With `dry_run` commands are only printed.
    """
    for command in claim.commands:
        folder = folder_of(command, seed, runs)
        ended = folder / "ended"
        if ended.exists():
            continue
        script, *own = command.split()
        words = [str(RECIPES / script), "--budget=minutes", *own]
        words += recipe_flags.known(script, [*flags, f"--runs={runs / 'networks'}"])
        words += [f"--seed={seed}", f"--run_dir={folder}"]
        print(f"+ {claim.name}, seed {seed}: {shlex.join(words)}", flush=True)
        if dry_run:
            continue
        (folder / "results.jsonl").unlink(missing_ok=True)  # of a run that was cut
        environment = {**os.environ, "KERAS_BACKEND": claim.backend}
        begin = processor_time()
        status = process.run([sys.executable, *words], environment)
        if status:
            return status
        seconds = f"{processor_time() - begin:.1f}\n"
        replace(ended, functools.partial(pathlib.Path.write_text, data=seconds, encoding="utf-8"))
    return 0


def processor_time() -> float:
    """Return the processor time of all child processes that have ended, in seconds."""
    times = os.times()
    return times.children_user + times.children_system


def seconds_of(claim: Claim, seeds: Iterable[int], runs: pathlib.Path) -> float:
    """Return the processor time of a claim's runs; what a network shared cost counts once."""
    folders = [folder_of(command, seed, runs) for command in claim.commands for seed in seeds]
    return sum(float((folder / "ended").read_text(encoding="utf-8")) for folder in folders)


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results."""
    return [json.loads(part) for part in path.read_text(encoding="utf-8").split("\n") if part]


def measured(claim: Claim, runs: pathlib.Path) -> Iterator[tuple[int, Lines]]:
    """Yield the seeds of which all of a claim's commands have ended, each with its lines."""
    for seed in range(max(QUANTILES)):
        folders = [folder_of(command, seed, runs) for command in claim.commands]
        if all((folder / "ended").exists() for folder in folders):
            yield seed, [row for folder in folders for row in read(folder / "results.jsonl")]


def save(lines: Sequence[Mapping[str, Any]]) -> None:
    """Write lines of claims.jsonl, each instead of an earlier one of its claim."""
    known = {row["claim"]: row for row in [*load(), *lines]}
    ordered = [known[claim.name] for claim in CLAIMS if claim.name in known]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ordered)
    replace(PATH, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def save_figure(claim: Claim, runs: pathlib.Path) -> None:
    """Draw a claim's figure in recipes/results/claims: means over its seeds in bands."""
    folders = []
    for seed, _ in measured(claim, runs):
        own = (folder_of(command, seed, runs) for command in claim.commands)
        folders += [folder for folder in own if (folder / f"{claim.figure}.png").exists()]
    target = records.MINIATURES / claim.paper
    target.mkdir(parents=True, exist_ok=True)
    redraw.average_one(f"{claim.figure}.png", folders, target, claim.paper)


def load() -> list[dict[str, Any]]:
    """Return the lines of claims.jsonl; none if there is no such file."""
    return read(PATH) if PATH.exists() else []


def main(
    names: Sequence[str],
    seeds: int | None,
    flags: Sequence[str],
    runs: pathlib.Path,
    keep: bool = False,
    dry_run: bool = False,
) -> int:
    """Run what is missing of claims, print their verdicts, and return the first bad exit status.

    Without names these are all claims; without `seeds` each has its own number. `keep` writes
    claims.jsonl and figures of all seeds into recipes/results. Other arguments as in `run`.

    Raises:
        ValueError: if there is no such claim, or there are too many seeds.
    """
    claims = select(names)
    if seeds and seeds > max(QUANTILES):
        raise ValueError(f"Expected --seeds of {max(QUANTILES)} at most. Received: {seeds}")
    failed = [
        status
        for claim in claims
        for seed in range(seeds or claim.seeds)
        if (status := run(claim, seed, flags, runs, dry_run))
    ]
    if dry_run:
        return 0
    rows = [
        evaluate(claim, by_seed, seconds_of(claim, by_seed, runs))
        for claim in claims
        if (by_seed := dict(measured(claim, runs)))
    ]
    for row in rows:
        ends = "no interval"
        if row["interval"]:
            ends = "interval {:g} to {:g}".format(*row["interval"])
        count = len(row["seeds"])
        print(
            f"{row['claim']}: {row['verdict']}. {row['criterion']}; measured {row['value']:g}, "
            f"{ends}, {count} seed{'s' if count > 1 else ''}"
        )
    if keep:
        save(rows)
        for claim in claims:
            if claim.figure and any(measured(claim, runs)):
                save_figure(claim, runs)
    return next(iter(failed), 0)
