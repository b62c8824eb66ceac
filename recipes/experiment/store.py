"""Measurements as files: arrays in one .npz file, all else in one .json file beside it."""

import csv
import io
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zoo.io import UNREADABLE, open_npz, replace

MEASURED = "measured.json"  # written last: a run directory that has it is complete
# Facts in files, and their types: of a training, of a part of a run, of a finished run.
ORIGIN = dict.fromkeys(("commit", "backend", "hardware"), str)
PART = {**ORIGIN, "measured": dict, "deviations": list, "data": list, "seconds": float}
RUN = {**PART, "settings": dict, "scale": str, "seed": int, "data": str, "command": str}


def save(folder: pathlib.Path, measured: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write measured.npz and measured.json: what one run measured, and its provenance.

    Keys of dictionaries in `measured` are strings without "/".
    """
    numbers, arrays = _split(measured, "")
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / "measured.npz", lambda path: np.savez_compressed(path, **arrays))
    text = json.dumps({**facts, "measured": numbers}, indent=1, ensure_ascii=False)
    replace(folder / MEASURED, lambda temporary: temporary.write_text(text + "\n", "utf-8"))


def load(folder: pathlib.Path, kinds: Mapping[str, type] = RUN) -> tuple[dict, dict]:
    """Return what `save` wrote: measured, facts; `kinds` are types of those that must be there."""
    path = folder / MEASURED
    try:
        facts = _read(path, {"measured": dict, **kinds})
        measured = facts.pop("measured")
        with open_npz(folder / "measured.npz") as file:
            for name in file.files:
                *parents, key = name.split("/")
                place = measured
                for parent in parents:
                    place = place.setdefault(parent, {})
                array = file[name]
                place[key] = array if array.ndim else array.item()
    except (*UNREADABLE, AttributeError, TypeError) as error:
        raise ValueError(
            f"Expected the files of a finished run. Received: {path}, which cannot be read "
            f"({error}). Delete {folder} to repeat the run."
        ) from error
    return measured, facts


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same keys as the text of a CSV file."""
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue()


def read_json(path: pathlib.Path, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the object in a JSON file that a run wrote; an empty one without a file."""
    try:
        return _read(path, kinds) if path.exists() else {}
    except (*UNREADABLE, TypeError) as error:
        raise ValueError(
            f"Expected what a run wrote. Received: {path}, which is damaged ({error}). Delete it."
        ) from error


def _read(path, kinds):
    found = {**json.loads(path.read_text("utf-8"))}
    wrong = [key for key, kind in kinds.items() if not isinstance(found.get(key), kind)]
    if wrong:
        raise ValueError(f"missing or of another type than expected: {', '.join(wrong)}")
    return found


def _split(measured, prefix):
    """Return JSON's part of nested dictionaries, and the arrays by path."""
    numbers: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for key, value in measured.items():
        if not isinstance(key, str) or "/" in key:
            raise ValueError(f"Expected keys that are strings without '/'. Received: {key!r}")
        if isinstance(value, Mapping):
            numbers[key], inside = _split(value, f"{prefix}{key}/")
            arrays |= inside
        elif isinstance(value, np.ndarray) and value.ndim:
            arrays[prefix + key] = value
        elif isinstance(value, (float, np.floating)) and not math.isfinite(value):
            arrays[prefix + key] = np.array(float(value))  # JSON has neither NaN nor infinity
        else:
            numbers[key] = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    return numbers, arrays
