"""TensorFlow's SavedModel: a folder of several endpoints with shared variables."""

import pathlib
from collections.abc import Callable

import keras
import numpy as np

from zoo.export.signatures import input_specs

PACKAGES = ()  # besides TensorFlow
SUFFIX = ""


def write(models: dict[str, keras.Model], path: str | pathlib.Path) -> None:
    """Write the endpoints to the folder `path`."""
    archive = keras.export.ExportArchive()  # it tracks the variables that the endpoints use
    for name, model in models.items():
        archive.add_endpoint(name, _inference(model), [input_specs(model)])
    archive.write_out(str(path), verbose=False)


def _inference(model):
    return lambda x: model(x, training=False)  # TensorFlow would trace a default argument


def add_labels(path: pathlib.Path, text: str) -> None:
    """Write `assets.extra/labels.txt`."""
    folder = path / "assets.extra"
    folder.mkdir(exist_ok=True)
    (folder / "labels.txt").write_text(text, encoding="utf-8")


def reader(path: pathlib.Path) -> Callable[[str, dict], dict]:
    """Return a function from an endpoint's name and its inputs to its outputs, by name."""
    import tensorflow as tf

    artifact = tf.saved_model.load(str(path))

    def read(endpoint, inputs):
        constants = {name: tf.constant(x) for name, x in inputs.items()}
        outputs = artifact.signatures[endpoint](**constants)
        return {name: np.asarray(y.numpy()) for name, y in outputs.items()}

    return read
