"""Run directories: where trained networks are kept, and what identifies each.

A network's folder is named by a digest of everything that determines its training, so recipes that
need the same network share it: the second finds it trained.
"""

import dataclasses
import hashlib
import json
import pathlib
import re
from collections.abc import Mapping, Sequence

import keras

from experiment import hardware, results
from experiment.flags import FLAGS
from zoo.callbacks.checkpoint import Resume, open_run
from zoo.io import check_writable, replace

METADATA = {"backend", "hardware", "commit"}  # of a training, in trained.json


def optimizer_settings(optimizer: keras.optimizers.Optimizer) -> dict:
    """Return an optimizer's configuration; its name without the process's counter."""
    return {**keras.optimizers.serialize(optimizer)["config"], "name": type(optimizer).__name__}


def folder_of(name: str, data: str, identity: Mapping) -> pathlib.Path:
    """Return the folder in --runs of the run with this identity, and of no other."""
    data = re.sub("[^a-z0-9]+", "-", data.lower()).strip("-")
    return pathlib.Path(FLAGS.runs) / f"{name}-{data}-{FLAGS.seed}-{_digest(identity)}"


def figures_folder(name: str, networks: Sequence[pathlib.Path]) -> pathlib.Path:
    """Return the folder for figures of several networks: --run_dir, or one in --runs.

    The latter has the recipe's name and a digest of the networks' own folders.
    """
    default = f"{name}-{_digest([folder.name for folder in networks])}"
    folder = hardware.folder_for(FLAGS.run_dir or pathlib.Path(FLAGS.runs) / default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _digest(identity):
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]


def open_folder(folder: pathlib.Path, identity: Mapping, megabytes: int = 200) -> Resume:
    """Make or reopen a run directory, which needs free space, and return its checkpoint's `Resume`.

    Raises:
        ValueError: if the folder cannot be used; see `zoo.callbacks.checkpoint.open_run`; or a file
            that the run will read or extend at its end is damaged.
    """
    writes = hardware.devices().is_chief
    for path in (folder / "results.jsonl", FLAGS.results):
        if path is not None:
            results.read(path)
    if FLAGS.results:
        check_writable(pathlib.Path(FLAGS.results).parent, 1)
    if (folder / "trained.json").exists():
        load_metadata(folder)
    return open_run(folder, identity, megabytes, from_scratch=not FLAGS.resume, writes=writes)


def save_metadata(folder: pathlib.Path, trained: bool) -> None:
    """Save backend, hardware and commit of a training: later commands may only reuse it.

    Args:
        folder: The run directory.
        trained: True if this process trained at least one epoch.
    """
    path = folder / "trained.json"
    if trained or not path.exists():
        backend = keras.config.backend()
        metadata = {"backend": backend, "hardware": results.hardware(), "commit": results.commit()}
        replace(path, lambda temporary: temporary.write_text(json.dumps(metadata), "utf-8"))


def load_metadata(folder: pathlib.Path) -> dict[str, str]:
    """Return backend, hardware and commit of a training, as `save_metadata` saved them.

    Raises:
        ValueError: if the file holds something else.
    """
    path = folder / "trained.json"
    text = path.read_bytes()
    try:
        metadata = json.loads(text)
    except ValueError:  # no JSON
        metadata = None
    if not isinstance(metadata, dict) or {*metadata} != METADATA:
        raise ValueError(
            f"Expected backend, hardware and commit of a training. Received: {path} with "
            f"{text[:80]!r}. Delete it, and it is written again."
        )
    return metadata


def history_of(resume: Resume) -> dict[str, list[float]]:
    """Return the finished epochs' metrics, lists by key; empty if no epoch was finished."""
    checkpoint = resume.read()
    return checkpoint["history"]["history"] if checkpoint else {}


def write(folder: pathlib.Path, result: results.Result) -> None:
    """Append a result to the folder's results.jsonl and to --results, from the chief only."""
    devices = hardware.devices()
    if devices.name != "one":
        strategy = f"{devices.name}, {devices.num_replicas}"
        result = dataclasses.replace(result, more={**result.more, "strategy": strategy})
    if devices.is_chief:
        results.write(result, folder / "results.jsonl", FLAGS.results)
