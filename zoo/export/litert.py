"""LiteRT (formerly TensorFlow Lite): a file of one endpoint in TFLite's own operations."""

import pathlib
import re
import tempfile
import zipfile
from collections.abc import Callable

import keras

from zoo.export import saved_model

PACKAGES = ("ai_edge_litert",)  # TensorFlow's own interpreter is deprecated
SUFFIX = ".tflite"


def write(models: dict[str, keras.Model], path: pathlib.Path) -> None:
    """Write the only endpoint to the file `path`.

    Raises:
        ValueError: If the model needs operations that TFLite itself lacks.
    """
    import tensorflow as tf
    from tensorflow.lite.python.convert_phase import ConverterError

    (name,) = models
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        saved_model.write(models, folder)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=[name])
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        try:
            content = converter.convert()
        except ConverterError as error:
            missing = sorted({*re.findall(r"'tf\.(\w+)'", str(error))})
            raise ValueError(
                f"LiteRT must have all operations of the model. Received: {models[name].name}, "
                f"where it lacks {', '.join(missing) or error}. Export to ONNX or a SavedModel."
            ) from error
    path.write_bytes(content)


def add_labels(path: pathlib.Path, text: str) -> None:
    """Append `labels.txt` in a zip archive, as TFLite's metadata tools do."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.txt", text)


def reader(path: pathlib.Path) -> Callable[[str, dict], dict]:
    """Return a function from an endpoint's name and its inputs to its outputs, by name."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))

    def read(endpoint, inputs):
        return interpreter.get_signature_runner(endpoint)(**inputs)

    return read
