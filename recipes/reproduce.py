"""Make any table or figure of the papers by its name.

    python recipes/reproduce.py list
    python recipes/reproduce.py greff2017/table1a --budget minutes --data_dir DATA
    python recipes/reproduce.py 'jastrzebski2018/*' --seeds 5 --data_dir DATA --keep
    python recipes/reproduce.py all --budget smoke --data_dir DATA
    python recipes/reproduce.py claims S1 S2 --data_dir DATA
    python recipes/reproduce.py redraw
    python recipes/reproduce.py report

A name may be a pattern, or a part of names; "all" is every artifact. `list` prints the commands of
each artifact and what is on record of it. `claims` runs the miniatures of the papers' claims, all
or those named, each with three seeds or more, and prints a verdict on each; runs that have ended
are not repeated. `redraw` draws the figures on record again from the CSV files beside them.
`report` writes docs/results.md, docs/claims.md, docs/weights.md and recipes/results/index.html
from the results on record. With `--seeds N` figures show means over the seeds, in bands of one
standard deviation; they are in RUN_DIR/figures (default: runs/figures), or with `--keep` in
recipes/results.

A recipe that several artifacts share runs once. Other flags than those below go to every recipe
that has them. --data_dir may be a folder of all data sets, with cifar10.npz or cifar10/, mnist/,
ptb/ and so on. A recipe that fails does not stop the others; the same command given again resumes
each of them. The exit status is 2 if the command line is invalid, else the first that is not 0.
"""

import argparse
import collections
import difflib
import fnmatch
import os
import pathlib
import re
import shlex
import signal
import sys
import tempfile
import time

from experiment import process
from report import recipe_flags, records
from report.artifacts import ARTIFACTS

FOLDER = pathlib.Path(__file__).resolve().parent


def main(words):
    """Run the command line `words`; return an exit status or a message."""
    count = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    flags = [re.sub("^-(?=[a-z]{2})", "--", word) for word in words[count:]]
    options, flags = parser().parse_known_args(flags)
    command, *names = words[:count] or ["help"]
    if (command in ("report", "redraw") or options.keep) and not records.FOLDER.exists():
        return f"Expected a checkout, with {records.FOLDER}, to keep results in. Received: none."
    if command == "help":
        parser().print_help()
        return 2
    if command == "report":
        from report import claims_page, gallery, markdown, weights_page  # these import a backend

        markdown.write()
        claims_page.write()
        weights_page.write()
        gallery.write()
        return 0
    if command == "redraw":
        from report import redraw  # as above

        print("\n".join(map(str, redraw.redraw())))
        return 0
    try:
        if command == "claims":
            return run_claims(names, options, flags)
        if command == "list":
            return show(names or ["all"])
        return run_all(plan(matches([command, *names]), options, flags), options)
    except ValueError as error:
        parser().error(str(error))


def run_claims(names, options, flags):
    """Run the miniatures of claims; --run_dir is the folder of their run directories."""
    from report import verdicts  # imports a backend

    flags = flags + ([f"--budget={options.budget}"] if options.budget else [])
    runs = pathlib.Path(options.run_dir or "runs/claims").resolve()
    return verdicts.main(names, options.seeds, flags, runs, options.keep, options.dry_run)


def parser():
    """Return the parser of this script's own flags."""
    parser = argparse.ArgumentParser(
        usage="reproduce.py list | redraw | report | claims [NAME...] | NAME... [flags]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    seeds = "Run each recipe with the seeds 0 to N - 1. Default: with the recipe's own seed."
    add("--seeds", type=positive, metavar="N", help=seeds)
    keep = "Save lines of results and figures in recipes/results. Default: no."
    add("--keep", action="store_true", help=keep)
    dry_run = "Print the commands without running them. Default: no."
    add("--dry_run", action="store_true", help=dry_run)
    budget = "Scale of every recipe. Default: the recipe's own."
    add("--budget", choices=("smoke", "minutes", "paper"), help=budget)
    run_dir = (
        "Run directory; each of several commands, and each seed, gets a folder in it. "
        "Default: the recipe's own."
    )
    add("--run_dir", help=run_dir)
    return parser


def positive(text):
    """Parse a positive number."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, received {text!r}")
    return int(text)


def matches(patterns):
    """Return the artifacts that names, patterns or parts of names stand for.

    Raises:
        ValueError: if a pattern stands for none.
    """
    names = {}
    for pattern in patterns:
        names |= dict.fromkeys(match(pattern))
    return list(names)


def match(pattern):
    """Return the artifacts of one pattern."""
    if pattern in ARTIFACTS:
        return [pattern]
    names = fnmatch.filter(ARTIFACTS, "*" if pattern == "all" else pattern)
    names = names or [name for name in ARTIFACTS if pattern in name]
    mistyped = len(names) > 1 and "/" in pattern and "*" not in pattern
    if names and not mistyped:
        return names
    similar = names or difflib.get_close_matches(pattern, ARTIFACTS, cutoff=0.5)
    hint = f"Did you mean {', '.join(similar)}? " if similar else ""
    raise ValueError(f"There is no {pattern!r}. {hint}`list` names all.")


def commands_of(name):
    """Return the commands that make an artifact, or the one that shows the same."""
    artifact = ARTIFACTS[name]
    return ARTIFACTS[artifact.same_as or name].commands


def plan(names, options, flags):
    """Return what to run: pairs of a command's words, a tuple, and the artifacts that it makes.

    `options` are this script's flags, `flags` the recipes'.

    Raises:
        ValueError: if nothing is measured in these artifacts, or nothing could be kept.
    """
    if options.keep and options.budget == "smoke":
        raise ValueError("`--keep` saves results, and those of --budget smoke are meaningless.")
    artifacts = collections.defaultdict(list)
    for name in names:
        for command in commands_of(name):
            artifacts[command].append(name)
    if not artifacts:
        raise ValueError(f"{', '.join(names)}: an illustration; nothing is measured. See `list`.")
    runs = []
    for command, made in artifacts.items():
        script, *own = command.split()
        if script.startswith("tests/"):  # takes neither flags of a recipe nor seeds
            words = [sys.executable, "-m", "pytest", str(FOLDER.parent / script), *own]
            runs.append((tuple(words), made))
            continue
        several = len(artifacts) > 1
        words = [sys.executable, str(FOLDER / script), *own]
        words += recipe_flags.known(script, flags) if several and flags else flags
        words += [f"--budget={options.budget}"] if options.budget else []
        folder = slug(command) if several else ""
        if not options.seeds:
            runs.append((tuple(words + run_dir(options, folder)), made))
        for seed in range(options.seeds or 0):
            seeded = [*words, *run_dir(options, folder, f"seed{seed}"), f"--seed={seed}"]
            runs.append((tuple(seeded), made))
    return runs


def run_dir(options, *parts):
    """Return the flag of a command's run directory, if one was given."""
    return [f"--run_dir={pathlib.Path(options.run_dir, *parts)}"] if options.run_dir else []


def slug(command):
    """Return a folder's name for a command."""
    return re.sub("[^A-Za-z0-9_]+", "-", command.replace(".py", "")).strip("-")


def run_all(runs, options):
    """Run everything, whatever fails; return the first exit status that is not 0."""
    ended = []
    with tempfile.TemporaryDirectory() as seeds:
        for number, (words, names) in enumerate(runs, start=1):
            command = shlex.join(words[1:])
            print(f"+ [{number} of {len(runs)}] {command}  # {', '.join(names)}", flush=True)
            if options.dry_run:
                continue
            begin = time.monotonic()
            lines = lines_flag(words) if options.keep else []
            status = process.run([*words, *lines], environment(words, names[0], options, seeds))
            state = "done" if status == 0 else f"FAILED with status {status}"
            minutes = (time.monotonic() - begin) / 60
            ended.append((status, f"{state} after {minutes:.1f} min: {command}"))
            if status in (process.INTERRUPTED, -signal.SIGINT, -signal.SIGTERM):  # the user
                break
        average(pathlib.Path(seeds), options)
    if len(ended) > 1:
        print("\n".join(line for _, line in ended))
    return next((status for status, _ in ended if status), 0)


def lines_flag(words):
    """Return the flag that makes a recipe save its lines in recipes/results; a test has none."""
    name = pathlib.Path(words[1]).stem
    return [] if "pytest" in words else [f"--results={records.FOLDER / name}.jsonl"]


def environment(words, artifact, options, seeds):
    """Return the environment that says where else a recipe's figures go; None: nowhere else.

    `artifact` is one that the command makes, `seeds` the folder for figures of each seed, by paper.
    """
    paper = artifact.split("/")[0]
    if words[-1].startswith("--seed="):
        return {**os.environ, "ZOO_FIGURES": str(pathlib.Path(seeds, paper, words[-1][2:]))}
    if options.keep and "pytest" not in words:
        return {**os.environ, "ZOO_FIGURES": str(records.FOLDER / paper)}
    return None


def average(seeds, options):
    """Draw what the seeds have left as means over them, for each paper."""
    papers = sorted(seeds.iterdir())
    if papers:
        from report import redraw  # imports a backend, which little else here needs

    target = records.FOLDER if options.keep else pathlib.Path(options.run_dir or "runs", "figures")
    for paper in papers:
        folders = sorted(paper.iterdir(), key=lambda path: int(path.name.removeprefix("seed=")))
        redraw.average(folders, target / paper.name, paper.name)
        print(f"figures of {len(folders)} seeds in {target / paper.name}")


def show(patterns):
    """Print a line per artifact."""
    names = matches(patterns)
    width = max(map(len, names))
    for name in names:
        artifact = ARTIFACTS[name]
        commands = f"see {artifact.same_as}" if artifact.same_as else " && ".join(artifact.commands)
        print(f"{name:{width}}  {state_of(name):14}{artifact.title}  [{commands}]")
    return 0


def state_of(name):
    """Return what is on record of an artifact."""
    artifact = ARTIFACTS[name]
    if artifact.same_as:
        return state_of(artifact.same_as)
    if artifact.is_test:
        return "a test"
    count = sum(row["artifact"] == name for row in records.lines()) or len(records.figures(name))
    if count:
        return f"{count} on record"
    if records.figures(name, records.MINIATURES):
        return "a miniature"
    return "not run" if artifact.commands else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
