"""TensorFlow's SavedModel: a folder of several endpoints with shared variables."""

import os

import keras
import numpy as np

from zoo.export.signatures import input_names

PACKAGES = ()  # beside TensorFlow
FILES = {".onnx": "onnx", ".tflite": "litert"}  # endings that say another format


def check_target(path):
    """Raises ValueError unless `path` is new, an empty folder, or a SavedModel to replace."""
    if path.suffix in FILES:
        raise ValueError(
            f"`path` of a SavedModel is a folder. Received: {path}. "
            f"Choose another, or format={FILES[path.suffix]!r}."
        )
    names = os.listdir(path) if path.is_dir() else []
    if path.is_file() or (names and "saved_model.pb" not in names):
        raise ValueError(
            f"`path` must be new, an empty folder, or a SavedModel to replace. Received: {path}, "
            f"which is {'a folder of other files' if names else 'a file'}. Choose another path."
        )


def write(models, path):
    """Writes the endpoints `models` to the folder `path`."""
    archive = keras.export.ExportArchive()  # it tracks the variables that the endpoints use
    for name, model in models.items():
        archive.add_endpoint(name, _inference(model), [specs(model)])
    archive.write_out(str(path), verbose=False)


def specs(model):
    """TensorFlow's description of a model's inputs, in their structure: any batch size, named."""
    import tensorflow as tf

    tensors = zip(keras.tree.flatten(model.input), input_names(model), strict=True)
    flat = [tf.TensorSpec((None, *x.shape[1:]), x.dtype, name) for x, name in tensors]
    return keras.tree.pack_sequence_as(model.input, flat)


def _inference(model):
    return lambda x: model(x, training=False)  # TensorFlow would trace a default argument


def add(path, files):
    """Puts `files`, texts by name, into the folder `assets.extra` of the artifact."""
    for name, text in files.items():
        (path / "assets.extra").mkdir(exist_ok=True)
        (path / "assets.extra" / name).write_text(text, encoding="utf-8")


def reader(path):
    """A function from an endpoint's name and its inputs to its outputs, by name."""
    import tensorflow as tf

    artifact = tf.saved_model.load(str(path))

    def read(endpoint, inputs):
        constants = {name: tf.constant(x) for name, x in inputs.items()}
        found = artifact.signatures[endpoint](**constants)
        return {name: np.asarray(y.numpy()) for name, y in found.items()}

    return read
