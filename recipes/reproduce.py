"""Every table and figure of the papers by name: what there is, and the command that makes it.

    python recipes/reproduce.py list
    python recipes/reproduce.py greff2017/table1a --budget minutes --data_dir ptb
    python recipes/reproduce.py jastrzebski2018/fig4 --seeds 5 --data_dir cifar10.npz

What follows the name goes to the recipe as it is, but for `--seeds N`, which runs it with the seeds
0 to N - 1, in run directories of their own. `list` says for each which recipe makes it, and how
many lines of results or figures are on record in recipes/results.
"""

import collections
import difflib
import fnmatch
import pathlib
import shlex
import sys

import children  # beside this script
import gallery  # beside this script
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
    commands = [shlex.split(one) for one in ARTIFACTS[name].recipe.split(" && ") if one]
    if not commands:
        return f"{name} is an illustration: nothing is measured. `list` names the others."
    for seed in seeds:
        for script, *flags in commands:
            if script.startswith("tests/"):  # which takes no flags of a recipe, and no seed
                command = [sys.executable, "-m", "pytest", str(FOLDER.parent / script), *flags]
            else:
                command = [sys.executable, str(FOLDER / script), *flags, *of_seed(rest, seed)]
            print("+", shlex.join(command[1:]), flush=True)
            if code := children.run(command):
                return code
    return 0


def of_seed(flags, seed):
    """The flags of one seed, whose run directory is its own."""
    if seed is None:
        return flags
    flags = [
        f"{flag}/seed{seed}" if before == "--run_dir" or flag.startswith("--run_dir=") else flag
        for before, flag in zip(["", *flags], flags, strict=False)
    ]
    return [*flags, f"--seed={seed}"]


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
        found = counts[name] or len(gallery.pictures(name, record.FOLDER))
        state = f"{found} on record" if found else "not run"
        state = "a test" if artifact.recipe.startswith("tests/") else state
        state = "" if not artifact.recipe else state
        print(f"{name:{width}}  {state:14}{artifact.what}  [{artifact.recipe}]")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
