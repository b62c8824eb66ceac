"""Make any table, figure or claim of the papers by its name.

    python recipes/reproduce.py list
    python recipes/reproduce.py srivastava2015/gates --scale miniature --data_dir DATA
    python recipes/reproduce.py srivastava2015/fig2 --seeds 0,1,2 --data_dir DATA --keep
    python recipes/reproduce.py all --scale smoke --data_dir DATA
    python recipes/reproduce.py claims S5 S6 --data_dir DATA
    python recipes/reproduce.py NAME --help
    python recipes/reproduce.py report

From wherever the package is installed: `zoo-recipe list`, `zoo-recipe srivastava2015/gates`.

A name is that of an experiment, paper, table or figure, or a pattern; "all" is every experiment.
`list` prints all of them, and what is on record. `claims` runs the miniatures of the papers'
claims, all or those named, and prints a verdict on each; without --seeds with three seeds, and with
four, five and eight if the verdict is not settled earlier; with --scale replication once, with all
its seeds. `report` writes the generated parts of README.md and docs from the results on record, and
draws their figures again.

A killed run resumes when the same command is given again, and one that has ended is not repeated.
--keep saves what was measured and drawn in recipes/results, and values of claims beside those of
other seeds of the same settings and backend. A flag goes to each experiment that has it. An
experiment that fails does not stop the others.
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Sequence

import absl.flags

from zoo.checks import require
from zoo.recipes.experiment import catalog, command_line, pages, store
from zoo.recipes.experiment.definitions import Claim, Experiment


def main(words: Sequence[str]) -> int:
    """Run the command line `words` and return the exit status."""
    count = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    command, *names = words[:count] or ["help"]
    flags = words[count:]
    is_help = not command_line.HELP.isdisjoint(flags)
    if is_help and command == "claims" and names:
        names = [experiment.name for experiment, _ in catalog.claims(names)]
        return command_line.run_flags([*dict.fromkeys(names)], flags)
    if command == "help" or (command in ("list", "report", "claims") and is_help):
        print(__doc__)
        return 0 if is_help else command_line.UNUSABLE
    if flags and command in ("list", "report"):
        command_line.refuse(flags)
    if command == "list":
        print("\n".join(pages.listing(names)))
        return 0
    if command == "report":
        require(not names, "none: `report` writes all pages", names=names)
        pages.report()
        return 0
    if command == "claims":
        return run_claims(names, flags)
    return command_line.run_flags(catalog.find([command, *names]), flags)


def run_claims(names: Sequence[str], flags: Sequence[str]) -> int:
    """Measure claims, print their verdicts, and with --keep save them; return 1 if one failed."""
    chosen = catalog.claims(names)
    needed = [
        [catalog.load(name) for name in claim.needs or [experiment.name]]
        for experiment, claim in chosen
    ]
    plans = command_line.plans_of([*itertools.chain(*needed)], flags)
    if not plans[0].options.resume:
        raise absl.flags.Error("`claims` only adds what is missing. Received: --noresume")
    pairs = zip(chosen, needed, strict=True)
    commands = {one[1].name: functools.partial(run_claim, *one, need, flags) for one, need in pairs}
    return command_line.run_each(commands)


def run_claim(
    experiment: Experiment, claim: Claim, needed: Sequence[Experiment], flags: Sequence[str]
) -> None:
    """Measure a claim with as many seeds as given, or as its verdict needs."""
    plan = command_line.parse(dataclasses.replace(needed[0], seeds=()), flags)[0]
    looks = plan.experiment.looks(plan.scale)
    most = len(looks[-1])
    require(len(plan.seeds) <= most, f"at most {most}", seeds=plan.seeds)
    if len(looks) == 1:  # a replication
        require(plan.seeds in ((), looks[0]), f"none, or {looks[0]}", seeds=plan.seeds)
    for seeds in [plan.seeds] if plan.seeds else looks:
        seeded = [dataclasses.replace(one, seeds=seeds) for one in needed]
        plans = [command_line.parse(one, flags)[0] for one in seeded]
        measured = [plan.run() for plan in plans]
        facts = [store.load(folder)[1] for plan in plans for folder in plan.folders]
        try:
            row = pages.evaluate(experiment, claim, [*zip(*measured, strict=True)], facts)
        except KeyError as error:
            raise ValueError(f"These settings do not measure {claim.name}: no {error}") from error
        text = f"{row['criterion']}; measured {pages.measured_text(row)}, seeds {row['seeds']}"
        print(f"{claim.name}: {row['verdict']}. {text}", flush=True)
        if claim.is_settled(row["values"], row["control"]["values"]):
            break
    if plans[0].options.keep:
        pages.keep_claims([pages.with_other_seeds(claim, row)])


def run() -> None:
    """Run the command line of this process."""
    sys.exit(command_line.guarded(lambda: main(sys.argv[1:])))


if __name__ == "__main__":
    run()
