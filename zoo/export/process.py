"""Export from JAX and torch: a child process of TensorFlow writes the artifact."""

import json
import os
import pathlib
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Callable

import keras
import numpy as np

from zoo.export import check
from zoo.export.formats import write
from zoo.io import load_model

CHILD = "import sys; from zoo.export import process; process.answer(sys.argv[1])"


def export(
    model: keras.Model,
    path: pathlib.Path,
    format: str,
    labels: str | None,
    cases: check.Cases,
    endpoints: Callable[[keras.Model], dict[str, keras.Model]],
) -> float:
    """Write an artifact of `model` as `zoo.export.formats.write` does, in a child process.

    The child receives the model and the name of the function `endpoints`: files of several
    endpoints would repeat the weights that they share.

    Raises:
        ValueError: If the format cannot hold the model.
        RuntimeError: If the process fails.
    """
    request = {"path": str(path), "format": format, "labels": labels}
    request["endpoints"] = f"{endpoints.__module__}:{endpoints.__qualname__}"
    environment = os.environ | {
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "-1",  # this process may have taken the accelerator's memory
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),  # for `endpoints`
    }
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model.save(folder / "model.keras")
        _save_cases(folder / "cases.npz", cases)
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-P", "-c", CHILD, name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(
                f"Expected a TensorFlow process to write the artifact. Received: exit status "
                f"{done.returncode} and\n{done.stderr[-4000:]}\nExport with "
                f"KERAS_BACKEND=tensorflow from the saved weights to see where it fails."
            )
        reply = json.loads((folder / "reply.json").read_text(encoding="utf-8"))
    if "invalid" in reply:
        raise ValueError(reply["invalid"])
    if "failed" in reply:
        raise RuntimeError(reply["failed"])
    return reply["deviation"]


def answer(name: str) -> None:
    """Write the artifact that `request.json` in the folder `name` asks for, and `reply.json`."""
    folder = pathlib.Path(name)
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    model = load_model(folder / "model.keras", compile=False)
    cases = _load_cases(folder / "cases.npz")
    path = pathlib.Path(request["path"])
    reply: dict[str, float | str]
    try:
        with check.float32():
            models = pkgutil.resolve_name(request["endpoints"])(model)
            deviation = write(models, path, request["format"], request["labels"], cases)
        reply = {"deviation": deviation}
    except ValueError as error:
        reply = {"invalid": str(error)}
    except RuntimeError as error:
        reply = {"failed": str(error)}
    (folder / "reply.json").write_text(json.dumps(reply), encoding="utf-8")


def _save_cases(path, cases):
    arrays = {
        f"{endpoint}/{part}/{name}": array
        for endpoint, parts in cases.items()
        for part, by_name in zip(("inputs", "outputs"), parts, strict=True)
        for name, array in by_name.items()
    }
    np.savez(path, **arrays)


def _load_cases(path):
    cases: check.Cases = {}
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            endpoint, part, name = key.split("/", 2)
            inputs, outputs = cases.setdefault(endpoint, ({}, {}))
            (inputs if part == "inputs" else outputs)[name] = file[key]
    return cases
