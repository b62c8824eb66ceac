"""Export from JAX and torch: `python -m zoo.export` in a child process of TensorFlow."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import keras

from zoo.export import check


def export(
    model: keras.Model,
    path: pathlib.Path,
    format: str,
    labels: str | None,
    cases: check.Cases,
    endpoints: str,
) -> float:
    """Write an artifact of `model` in a child process.

    The arguments and the result are those of `zoo.export.write`, but for the model, which the
    child receives with the name MODULE:FUNCTION of the function `endpoints`: the files of several
    endpoints would repeat their shared weights.

    Raises:
        ValueError: If the format cannot hold the model.
        RuntimeError: If the process fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model.save(folder / "model.keras")
        check.save_cases(folder / "cases.npz", cases)
        command = [sys.executable, "-P", "-m", "zoo.export"]
        command += [str(folder / "model.keras"), str(path), f"--format={format}"]
        command += [f"--endpoints={endpoints}", f"--cases={folder / 'cases.npz'}"]
        if labels is not None:
            (folder / "labels.txt").write_text(labels, encoding="utf-8")
            command.append(f"--labels={folder / 'labels.txt'}")
        environment = os.environ | {
            "KERAS_BACKEND": "tensorflow",
            "CUDA_VISIBLE_DEVICES": "-1",  # this process may have taken the accelerator's memory
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),  # for `endpoints`
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return float(done.stdout.rpartition("max deviation ")[2])
    message = re.search(r"^zoo\.export( failed)?: (.*)", done.stderr, re.MULTILINE | re.DOTALL)
    if message is None:
        raise RuntimeError(
            f"Expected a TensorFlow process to write the artifact. Received: exit status "
            f"{done.returncode} and\n{done.stderr[-4000:]}\nExport with KERAS_BACKEND=tensorflow "
            f"from the saved weights to see where it fails."
        )
    error = RuntimeError if message[1] else ValueError
    raise error(message[2].strip())
