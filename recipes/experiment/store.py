"""Measurements as files: arrays in one .npz file, all else in one .json file beside it."""

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from zoo.io import UNREADABLE, open_npz, replace

MEASURED = "measured.json"  # written last: a run directory that has it is complete


def save(folder: pathlib.Path, measured: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write measured.npz and measured.json: what one run measured, and its provenance.

    Keys of dictionaries in `measured` are strings without "/".
    """
    numbers, arrays = _split(measured, "")
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / "measured.npz", lambda path: np.savez_compressed(path, **arrays))
    text = json.dumps({**facts, "measured": numbers}, indent=1, ensure_ascii=False)
    replace(folder / MEASURED, lambda temporary: temporary.write_text(text + "\n", "utf-8"))


def load(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `save` wrote: measured, facts."""
    path = folder / MEASURED
    try:
        facts = json.loads(path.read_text("utf-8"))
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


def read_json(path: pathlib.Path) -> dict[str, str]:
    """Return the object in a JSON file that a run wrote; an empty one without a file."""
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (*UNREADABLE, TypeError) as error:
        raise ValueError(
            f"Expected what a run wrote. Received: {path}, which is damaged ({error}). Delete it."
        ) from error


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
