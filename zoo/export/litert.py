"""LiteRT, which was TensorFlow Lite: a file of one endpoint in TFLite's own operations."""

import re
import tempfile
import zipfile

from zoo.export import onnx, saved_model

PACKAGES = ("ai_edge_litert",)  # TensorFlow's own interpreter is deprecated


def check_target(path):
    """Raises ValueError unless `path` ends in .tflite and is new or a file."""
    onnx.check_target(path, ".tflite")


def write(models, path):
    """Writes the only one of `models` to the file `path`.

    Raises:
        ValueError: if the model needs operations that TFLite itself has not.
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
            lacking = sorted({*re.findall(r"'tf\.(\w+)'", str(error))})
            raise ValueError(
                f"LiteRT must have all operations of the model. Received: {models[name].name}, "
                f"where it lacks {', '.join(lacking) or error}. Export to ONNX or a SavedModel."
            ) from error
    path.write_bytes(content)


def add(path, files):
    """Puts `files`, texts by name, into a zip at the end, as TFLite's metadata has them."""
    if files:
        with zipfile.ZipFile(path, "a") as archive:
            for name, text in files.items():
                archive.writestr(name, text)


def reader(path):
    """A function from an endpoint's name and its inputs to its outputs, by name."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))

    def read(endpoint, inputs):
        return interpreter.get_signature_runner(endpoint)(**inputs)

    return read
