"""TensorFlow's SavedModel: a folder of several endpoints with shared variables."""

import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from zoo.export.signatures import input_names

PACKAGES = ()  # besides TensorFlow
SUFFIX = ""


def write(models: dict[str, keras.Model], path: str | pathlib.Path) -> None:
    """Write the endpoints to the folder `path`."""
    archive = keras.export.ExportArchive()  # it tracks the variables that the endpoints use
    for name, model in models.items():
        archive.add_endpoint(name, _inference(model), [input_specs(model)])
    archive.write_out(str(path), verbose=False)


def input_specs(model: keras.Model) -> Any:
    """Return TensorFlow's specs of a model's inputs, in their structure: any batch size, named."""
    import tensorflow as tf

    tensors = zip(keras.tree.flatten(model.input), input_names(model), strict=True)
    flat = [tf.TensorSpec((None, *x.shape[1:]), x.dtype, name) for x, name in tensors]
    return keras.tree.pack_sequence_as(model.input, flat)


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
