"""Every table and figure of the papers by name: what there is, and the command that makes it.

    python recipes/reproduce.py list
    python recipes/reproduce.py greff2017/table1a --budget minutes --data_dir ptb
    python recipes/reproduce.py jastrzebski2018/fig4 --seeds 5 --data_dir cifar10.npz

What follows the name goes to the recipe as it is, but for `--seeds N`, which runs it with the seeds
0 to N - 1. `list` says for each which recipe makes it, and how many lines recipes/results has.
"""

import collections
import difflib
import fnmatch
import pathlib
import shlex
import subprocess
import sys

import record  # beside this script
from artifacts import ARTIFACTS  # beside this script

FOLDER = pathlib.Path(__file__).resolve().parent


def main(words):
    if not words or words[0] in ("-h", "--help", "--helpfull"):
        print(__doc__)
        return 0 if words else 2
    name, *rest = words
    if name == "list":
        return show(*rest[:1])
    if name not in ARTIFACTS:
        similar = difflib.get_close_matches(name, ARTIFACTS) or sorted(ARTIFACTS)
        return f"There is no {name!r}. Did you mean {', '.join(similar)}? `list` names all."
    try:
        seeds, rest = seeds_of(rest)
    except ValueError as error:
        return str(error)
    script, *flags = shlex.split(ARTIFACTS[name].recipe)
    program = [sys.executable, str(FOLDER / script)]
    if script.startswith("tests/"):
        program = [sys.executable, "-m", "pytest", str(FOLDER.parent / script)]
    for seed in seeds:
        more = [] if seed is None else [f"--seed={seed}"]
        command = [*program, *flags, *rest, *more]
        print("+", shlex.join(command[1:]), flush=True)
        code = subprocess.run(command).returncode
        if code:
            return code
    return 0


def seeds_of(words):
    """The seeds that `--seeds N` or `--seeds=N` asks for, or [None], and the other words."""
    words = [part for word in words for part in split_seeds(word)]
    if "--seeds" not in words:
        return [None], words
    place = words.index("--seeds")
    given = words[place + 1 : place + 2]
    if not given or not given[0].isdigit() or int(given[0]) < 1:
        raise ValueError(f"`--seeds` must be followed by a positive number. Received: {given}")
    return [*range(int(given[0]))], words[:place] + words[place + 2 :]


def split_seeds(word):
    return word.split("=", 1) if word.startswith("--seeds=") else [word]


def show(pattern="*"):
    """Prints a line an artifact."""
    found = fnmatch.filter(ARTIFACTS, pattern)
    if not found:
        return f"No artifact matches {pattern!r}."
    counts = collections.Counter(row["artifact"] for row in record.lines())
    width = max(map(len, found))
    for name in found:
        artifact = ARTIFACTS[name]
        state = f"{counts[name]} on record" if counts[name] else "not run"
        state = "a test" if artifact.recipe.startswith("tests/") else state
        print(f"{name:{width}}  {state:14}{artifact.what}  [{artifact.recipe}]")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
