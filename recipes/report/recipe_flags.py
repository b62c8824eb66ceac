"""Flags that a recipe has, as its own help lists them."""

import functools
import pathlib
import re
import subprocess
import sys
from xml.etree import ElementTree

FOLDER = pathlib.Path(__file__).resolve().parents[1]


def known(script, flags):
    """Return those of `flags` that a recipe has; print those that it has not."""
    defined = flags_of(FOLDER / script)
    kept = []
    rest = list(flags)
    while rest:
        words = [rest.pop(0)]
        if "=" not in words[0] and rest and not re.match("-[^0-9.]", rest[0]):
            words.append(rest.pop(0))
        name = words[0].lstrip("-").partition("=")[0]
        if {name, name.removeprefix("no")} & defined:
            kept += words
        else:
            print(f"{script} has no --{name}: it runs without.")
    return kept


@functools.cache
def flags_of(path):
    """Return the names of a recipe's flags."""
    return {name.text for name in ElementTree.fromstring(help_of(path)).iterfind("flag/name")}


def help_of(path):
    """Return a recipe's help as XML."""
    command = [sys.executable, str(path), "--helpxml"]
    return subprocess.run(command, capture_output=True, text=True).stdout
