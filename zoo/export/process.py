"""The same in a process of TensorFlow, for the other backends."""

import importlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np

from zoo.export import check
from zoo.io import load_model


def make(format, model, name, cases, files, path):
    """`formats.make` in a process of TensorFlow, from jax or torch.

    What travels is the model as a `.keras` file, and the function `endpoints` by its name; not
    the endpoints themselves, whose files would each hold the weights they share.

    Args:
        format: A name in `formats.FORMATS`.
        model: A Functional `keras.Model`.
        name: Module and name of the function `endpoints`.
        cases: What `check.cases` made of its models.
        files: Texts by name, that the artifact carries.
        path: Where nothing is yet, in a folder that is this export's alone.

    Raises:
        ValueError: if the format cannot hold the model.
        RuntimeError: if the process fails.
    """
    work = path.parent
    arrays = {
        f"{endpoint}/{part}/{key}": array
        for endpoint, case in cases.items()
        for part, arrays in zip(("inputs", "outputs"), case, strict=True)
        for key, array in arrays.items()
    }
    np.savez(work / "cases.npz", **arrays)
    model.save(work / "model.keras")
    told = {"format": format, "endpoints": name, "files": files, "path": str(path)}
    (work / "request.json").write_text(json.dumps(told))
    code = "import sys; from zoo.export import process; process.main(sys.argv[1])"
    paths = [os.path.abspath(path) for path in sys.path]
    environment = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "-1",  # this process may have taken the accelerator's memory
        "PYTHONPATH": os.pathsep.join(paths),  # what can be imported here can be there
    }
    command = [sys.executable, "-P", "-c", code, str(work)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"Expected a TensorFlow process to write the artifact. Received: exit status "
            f"{done.returncode} and\n{done.stderr[-4000:]}\nExport with KERAS_BACKEND=tensorflow "
            f"from the saved weights to see where it fails."
        )
    answer = json.loads((work / "answer.json").read_text())
    if "refused" in answer:
        raise ValueError(answer["refused"])
    return answer["deviation"]


def main(work):
    """What the process of TensorFlow does."""
    from zoo.export import formats

    work = pathlib.Path(work)
    told = json.loads((work / "request.json").read_text())
    module, function = told["endpoints"]
    endpoints = getattr(importlib.import_module(module), function)  # registers its layers too
    with np.load(work / "cases.npz", allow_pickle=False) as file:
        cases = {}
        for key in file.files:
            endpoint, part, name = key.split("/", 2)
            cases.setdefault(endpoint, ({}, {}))[part == "outputs"][name] = file[key]
    with check.float32():
        models = endpoints(load_model(work / "model.keras", compile=False))
        try:
            path = pathlib.Path(told["path"])
            answer = {"deviation": formats.make(told["format"], models, cases, told["files"], path)}
        except ValueError as error:
            answer = {"refused": str(error)}
    (work / "answer.json").write_text(json.dumps(answer))
