"""Every table and figure of the papers by name: what there is, and the commands that make it.

    python recipes/reproduce.py list
    python recipes/reproduce.py greff2017/table1a --budget minutes --data_dir ../shared/data
    python recipes/reproduce.py 'jastrzebski2018/*' --seeds 5 --data_dir DATA --keep
    python recipes/reproduce.py all --budget smoke --data_dir DATA

A name may be a pattern, or a part of names. A recipe that several of them ask for runs once. What
follows the names goes to every recipe that has such a flag, but for

    --seeds N    runs each recipe with the seeds 0 to N - 1
    --keep       puts its lines of results and its figures (those of the first seed) on record, in
                 recipes/results; then `make results`
    --dry_run    prints the commands only

--data_dir may be a folder of all sets, with cifar10.npz or cifar10/, mnist/, ptb/ and so on. With
--run_dir each of several commands gets a folder of its own in it, and so does each seed. A recipe
that fails does not keep the others from running; asked again, each goes on where it was. `list`
says for each artifact which commands make it, and what is on record.
"""

import collections
import difflib
import fnmatch
import functools
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree

from experiment import process
from report import records
from report.artifacts import ARTIFACTS

FOLDER = pathlib.Path(__file__).resolve().parent
OWN = {"seeds": None, "keep": False, "dry_run": False}


def main(words):
    if not words or words[0] in ("-h", "--help", "--helpfull"):
        print(__doc__)
        return 0 if words else 2
    first, rest = words[0], words[1:]
    if first == "list":
        return show(*rest[:1])
    count = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    try:
        names = [name for pattern in words[:count] or [first] for name in matching(pattern)]
        own, flags = own_flags(words[count:])
        runs = plan(names, own["seeds"], flags)
    except ValueError as error:
        return str(error)
    if not runs:
        return f"{', '.join(names)}: an illustration; nothing is measured. `list` names the others."
    return run_all(runs, own)


def matching(pattern):
    """The artifacts of a name, a pattern, a part of names, or "all".

    Raises:
        ValueError: if there is none.
    """
    if pattern in ARTIFACTS:
        return [pattern]
    found = fnmatch.filter(ARTIFACTS, "*" if pattern == "all" else pattern)
    found = found or [name for name in ARTIFACTS if pattern in name]
    if not found or (len({*found}) > 1 and pattern.count("/") and "*" not in pattern):
        similar = found or difflib.get_close_matches(pattern, ARTIFACTS, cutoff=0.5)
        told = f"Did you mean {', '.join(similar)}? " if similar else ""
        raise ValueError(f"There is no {pattern!r}. {told}`list` names all.")
    return found


def own_flags(words):
    """The flags of this script, and the recipes'.

    Raises:
        ValueError: if one of them lacks its number.
    """
    own, rest, words = dict(OWN), [], [*words]
    while words:
        name, _, value = words[0].partition("=")
        key = name.lstrip("-")
        if not name.startswith("-") or key not in OWN:
            rest.append(words.pop(0))
            continue
        words.pop(0)
        if key == "seeds":
            value = value or (words.pop(0) if words else "")
            if not value.isdigit() or int(value) < 1:
                raise ValueError(f"`--seeds` must be followed by a positive number. Got: {value!r}")
            own[key] = int(value)
        else:
            own[key] = True
    if own["keep"] and re.search("--?budget[= ]smoke", " ".join(rest)):
        raise ValueError("`--keep` puts results on record; those of --budget smoke are none.")
    return own, rest


def plan(names, seeds, flags):
    """What to run: the words of each command, and the artifacts that it makes.

    Args:
        names: Artifacts.
        seeds: How many, or None.
        flags: For the recipes.

    Returns:
        A list of pairs of a command, a tuple of words, and names.
    """
    makes = collections.defaultdict(list)
    for name in dict.fromkeys(names):
        for command in commands_of(name):
            makes[command].append(name)
    alone = len(makes) == 1
    found = []
    for command, mine in makes.items():
        script, *own = command.split()
        if script.startswith("tests/"):  # takes no flags of a recipe, and no seed
            words = [sys.executable, "-m", "pytest", str(FOLDER.parent / script), *own]
            found.append((tuple(words), mine))
            continue
        given = flags if alone else known(script, flags)
        for seed in range(seeds or 1):
            part = "" if alone else slug(command)
            part = pathlib.Path(part) / f"seed{seed}" if seeds else part
            words = [sys.executable, str(FOLDER / script), *own, *in_part(given, part)]
            words += [f"--seed={seed}"] if seeds else []
            found.append((tuple(words), mine))
    return found


def commands_of(name):
    """The commands that make an artifact; those of another, where it shows the same."""
    artifact = ARTIFACTS[name]
    recipe = ARTIFACTS[artifact.same].recipe if artifact.same else artifact.recipe
    return [command for command in recipe.split(" && ") if command]


def known(script, flags):
    """`flags` without those that the recipe has not, which are named."""
    defined, kept, words = flags_of(FOLDER / script), [], [*flags]
    while words:
        given = [words.pop(0)]
        if "=" not in given[0] and words and not re.match("-[^0-9.]", words[0]):
            given.append(words.pop(0))
        name = given[0].lstrip("-").partition("=")[0]
        if {name, name.removeprefix("no")} & defined:
            kept += given
        else:
            print(f"{script} has no --{name}: it runs without.")
    return kept


@functools.cache
def flags_of(path):
    """Names of the flags of a recipe, as it tells them."""
    words = [sys.executable, str(path), "--helpxml"]
    told = subprocess.run(words, capture_output=True, text=True).stdout
    return {name.text for name in ElementTree.fromstring(told).iterfind("flag/name")}


def in_part(flags, part):
    """`flags` with the run directory's part that is this command's own."""
    if not part:
        return [*flags]
    found = []
    for before, flag in zip(["", *flags], flags, strict=False):
        is_folder = before.lstrip("-") == "run_dir" or re.match("--?run_dir=", flag)
        found.append(str(pathlib.Path(flag) / part) if is_folder else flag)
    return found


def slug(command):
    """A folder's name."""
    return re.sub("[^A-Za-z0-9_]+", "-", command.replace(".py", "")).strip("-")


def run_all(runs, own):
    """Runs everything, whatever fails; returns the exit status."""
    told = []
    for number, (words, names) in enumerate(runs, start=1):
        print(f"+ [{number} of {len(runs)}] {shlex.join(words[1:])}  # {', '.join(names)}")
        sys.stdout.flush()
        if own["dry_run"]:
            continue
        began = time.monotonic()
        code = process.run([*words, *kept(words, own)], figures_to(words, names, own))
        state = "done" if code == 0 else f"FAILED with status {code}"
        minutes = (time.monotonic() - began) / 60
        told.append((code, f"{state} after {minutes:.1f} min: {shlex.join(words[1:])}"))
        if code in (-signal.SIGINT, -signal.SIGTERM):  # somebody does not want the next either
            break
    if len(told) > 1:
        print("\n".join(line for _, line in told))
    return next((code for code, _ in told if code), 0)


def kept(words, own):
    """Where the lines of results go."""
    if not own["keep"] or "pytest" in words:
        return []
    return [f"--results={records.FOLDER / (pathlib.Path(words[1]).stem + '.jsonl')}"]


def figures_to(words, names, own):
    """The environment in which a recipe's figures go on record, too; see figures.py."""
    if not own["keep"] or "pytest" in words or (own["seeds"] and words[-1] != "--seed=0"):
        return None
    return {**os.environ, "ZOO_FIGURES": str(records.FOLDER / names[0].split("/")[0])}


def show(pattern="all"):
    """Prints a line an artifact."""
    try:
        found = matching(pattern)
    except ValueError as error:
        return str(error)
    width = max(map(len, found))
    for name in found:
        artifact = ARTIFACTS[name]
        recipe = f"see {artifact.same}" if artifact.same else artifact.recipe
        print(f"{name:{width}}  {state_of(name):14}{artifact.what}  [{recipe}]")
    return 0


def state_of(name):
    """What is on record of an artifact."""
    artifact = ARTIFACTS[name]
    if artifact.same:
        return state_of(artifact.same)
    if artifact.recipe.startswith("tests/"):
        return "a test"
    count = sum(row["artifact"] == name for row in records.lines()) or len(records.figures(name))
    return f"{count} on record" if count else "not run" if artifact.recipe else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
