"""Formats of artifacts. TensorFlow writes all of them; each artifact is checked, then renamed."""

import contextlib
import itertools
import os
import pathlib
import re
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from zoo.export import check
from zoo.export.check import Arrays, Cases
from zoo.export.signatures import input_names
from zoo.io import remove_leftovers, temporary_path

TOLERANCE = 1e-4  # ours, of the largest output; float32 differs by 1e-6, a wrong graph by 1e-2
Models = dict[str, keras.Model]  # by name of endpoint, with dictionaries of outputs
Reader = Callable[[str, Arrays], Arrays]  # from an endpoint and its inputs to outputs, by name


class Format(NamedTuple):
    """A format of artifacts.

    Attributes:
        suffix: Suffix of a file; empty for a folder.
        packages: Modules that are needed besides TensorFlow.
        write: Writes models to a path; raises ValueError if the format cannot hold them.
        add_labels: Stores a text, one class a line, in the artifact of a path.
        reader: Returns a function that runs the artifact of a path.
    """

    suffix: str
    packages: tuple[str, ...]
    write: Callable[[Models, pathlib.Path], None]
    add_labels: Callable[[pathlib.Path, str], None]
    reader: Callable[[pathlib.Path], Reader]


def write(
    models: Models, path: pathlib.Path, format: str, labels: str | None, cases: Cases
) -> float:
    """Write an artifact on the TensorFlow backend, verify it, and move it into place.

    Args:
        models: Functional `keras.Model`s by name of endpoint.
        path: File or folder to write or replace.
        format: A name of `FORMATS`.
        labels: Names of the classes, one a line, or None.
        cases: Inputs and expected outputs, as `check.cases` returns them.

    Returns:
        The largest absolute deviation from the expected outputs.

    Raises:
        ValueError: If the format cannot hold the models.
        RuntimeError: If the deviation exceeds `TOLERANCE` of the largest output.
    """
    kind = FORMATS[format]
    folder = temporary_path(path)
    folder.mkdir(parents=True)
    remove_leftovers(path.parent)
    artifact = folder / f"artifact{path.suffix}"
    try:
        kind.write(models, artifact)
        if labels is not None:
            kind.add_labels(artifact, labels)
        deviation = check.deviation(kind.reader(artifact), cases)
        allowed = TOLERANCE * check.largest(cases)
        if not deviation <= allowed:  # NaN too
            raise RuntimeError(
                f"The artifact must compute what the Keras model computes, within {allowed:.1e}. "
                f"Received: a deviation of {deviation}. Nothing was written to {path}; if the "
                f"deviation is nan, look for NaN in the model's weights."
            )
        replace(artifact, path, folder / "replaced")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return deviation


def replace(new: pathlib.Path, path: pathlib.Path, old: pathlib.Path) -> None:
    """Rename `new` to `path`, from where folders move to `old`; other processes may do so, too."""
    old.mkdir()
    for attempt in itertools.count():
        try:
            os.replace(new, path)
            return
        except OSError:
            if not path.is_dir():  # nothing is in the way
                for moved in sorted(old.iterdir())[-1:]:
                    os.replace(moved, path)
                raise
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.replace(path, old / f"{attempt:03d}")


def _write_saved_model(models, path):
    archive = keras.export.ExportArchive()  # endpoints share the variables that it tracks
    for name, model in models.items():
        archive.add_endpoint(name, _inference(model), [_input_specs(model)])
    archive.write_out(str(path), verbose=False)


def _inference(model):
    return lambda x: model(x, training=False)  # TensorFlow would trace a default argument


def _input_specs(model) -> Any:
    """Return TensorFlow's specs of a model's inputs, in their structure: any batch size, named."""
    import tensorflow as tf

    tensors = zip(keras.tree.flatten(model.input), input_names(model), strict=True)
    flat = [tf.TensorSpec((None, *x.shape[1:]), x.dtype, name) for x, name in tensors]
    return keras.tree.pack_sequence_as(model.input, flat)


def _add_labels_to_folder(path, text):
    folder = path / "assets.extra"
    folder.mkdir(exist_ok=True)
    (folder / "labels.txt").write_text(text, encoding="utf-8")


def _saved_model_reader(path):
    import tensorflow as tf

    artifact = tf.saved_model.load(str(path))

    def read(endpoint, inputs):
        constants = {name: tf.constant(x) for name, x in inputs.items()}
        outputs = artifact.signatures[endpoint](**constants)
        return {name: np.asarray(y.numpy()) for name, y in outputs.items()}

    return read


def _write_onnx(models, path):
    import onnx

    (model,) = models.values()
    specs = keras.tree.flatten(_input_specs(model))
    names = input_names(model)  # ONNX needs a list of inputs, and outputs of other names
    outputs = {f"new_{name}" if name in names else name: y for name, y in model.output.items()}
    flat = keras.Model(keras.tree.flatten(model.input), outputs, name=model.name)
    with warnings.catch_warnings():  # keras 3.15 tests for np.object to patch tf2onnx
        warnings.filterwarnings("ignore", "In the future `np.object`", FutureWarning)
        flat.export(str(path), format="onnx", input_signature=[specs], verbose=False)
    try:
        onnx.checker.check_model(onnx.load(path))
    except onnx.checker.ValidationError as error:
        reason = str(error).partition("\n")[0]  # "No Op registered for Erfinv with ..."
        raise ValueError(
            f"ONNX must have all operations of the model. Received: {model.name}: {reason}. "
            f"Export a SavedModel."
        ) from error


def _add_labels_to_onnx(path, text):
    import onnx

    artifact = onnx.load(path)
    onnx.helper.set_model_props(artifact, {"labels": text})
    onnx.save(artifact, path)


def _onnx_reader(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def read(endpoint, inputs):
        outputs = dict(zip(names, session.run(names, inputs), strict=True))
        renamed = {f"new_{name}": name for name in inputs}
        return {renamed.get(name, name): y for name, y in outputs.items()}

    return read


def _write_litert(models, path):
    import tensorflow as tf
    from tensorflow.lite.python.convert_phase import ConverterError

    (name,) = models
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        _write_saved_model(models, folder)
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


def _append_labels(path, text):
    with zipfile.ZipFile(path, "a") as archive:  # at the end of the file, as TFLite's tools do
        archive.writestr("labels.txt", text)


def _litert_reader(path):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    return lambda endpoint, inputs: interpreter.get_signature_runner(endpoint)(**inputs)


FORMATS = {
    "saved_model": Format("", (), _write_saved_model, _add_labels_to_folder, _saved_model_reader),
    "onnx": Format(
        ".onnx",
        ("tf2onnx", "onnx", "onnxruntime"),
        _write_onnx,
        _add_labels_to_onnx,
        _onnx_reader,
    ),
    "litert": Format(".tflite", ("ai_edge_litert",), _write_litert, _append_labels, _litert_reader),
}
