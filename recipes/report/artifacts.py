"""Every table and figure of the papers: artifacts.csv, a line each.

Columns: the artifact; its title, what is measured; its commands, scripts of recipes/ with their
flags or a test that shows the claim, joined by "&&", where "{a,b}" stands for several commands;
what the paper reports, in short; and another artifact that shows the same. An illustration, in
which nothing is measured, has no commands.
"""

import csv
import itertools
import pathlib
import re
from typing import NamedTuple


class Artifact(NamedTuple):
    """A table or figure of a paper; see the module."""

    title: str
    commands: tuple[str, ...]
    reported: str
    same_as: str

    @property
    def is_test(self) -> bool:
        """True if a test shows the claim."""
        return any(command.startswith("tests/") for command in self.commands)


def expanded(commands):
    """Return the commands that a text stands for.

    Example:
    >>> expanded("a.py && b.py{, --depth 3}")
    ('a.py', 'b.py', 'b.py --depth 3')
    """
    texts = []
    for command in filter(None, commands.split(" && ")):
        parts = re.split("[{}]", command)  # those at odd places stand in braces
        choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
        texts += ["".join(words) for words in itertools.product(*choices)]
    return tuple(texts)


with open(pathlib.Path(__file__).with_suffix(".csv"), newline="", encoding="utf-8") as file:
    ARTIFACTS = {
        row.pop("artifact"): Artifact(**row | {"commands": expanded(row["commands"])})
        for row in csv.DictReader(file)
    }
