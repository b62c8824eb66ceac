"""Formats of artifacts. Keras writes them on TensorFlow; each is run before it is renamed."""

import contextlib
import os
import pathlib
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from zoo.io import remove_leftovers, temporary_path

TOLERANCE = 1e-4  # ours, of the largest output; float32 differs by 1e-6, a wrong graph by 1e-2
Arrays = dict[str, np.ndarray]  # by name of an input or output
Reader = Callable[[Arrays], Arrays]  # runs an artifact


class Format(NamedTuple):
    """A format of artifacts.

    Attributes:
        suffix: Suffix of a file; empty for a folder.
        packages: Modules that are needed besides TensorFlow.
        write: Writes a model to a path; raises ValueError if the format cannot hold it.
        reader: Returns a function that runs the artifact of a path.
    """

    suffix: str
    packages: tuple[str, ...]
    write: Callable[[keras.Model, pathlib.Path], None]
    reader: Callable[[pathlib.Path], Reader]


def write(
    model: keras.Model, path: pathlib.Path, format: str, inputs: Arrays, expected: Arrays
) -> float:
    """Write an artifact on the TensorFlow backend, verify it, and move it into place.

    Args:
        model: A Functional `keras.Model` with a dictionary of outputs.
        path: File or folder to write or replace.
        format: A name of `FORMATS`.
        inputs: Inputs to verify the artifact with, by name.
        expected: The outputs that the Keras model gives for them, by name.

    Returns:
        The largest absolute deviation from the expected outputs.

    Raises:
        ValueError: If the format cannot hold the model.
        RuntimeError: If the deviation exceeds `TOLERANCE` of the largest output.
    """
    kind = FORMATS[format]
    folder = temporary_path(path)
    folder.mkdir(parents=True)
    remove_leftovers(path.parent)
    artifact = folder / f"artifact{path.suffix}"
    try:
        kind.write(model, artifact)
        deviation = _deviation(kind.reader(artifact), inputs, expected)
        allowed = TOLERANCE * max(np.max(np.abs(y)) for y in expected.values())
        if not deviation <= allowed:  # NaN too
            raise RuntimeError(
                f"The artifact must compute what the Keras model computes, within {allowed:.1e}. "
                f"Received: a deviation of {deviation}. Nothing was written to {path}; if the "
                f"deviation is nan, look for NaN in the model's weights."
            )
        if path.is_dir():  # a folder is not replaced by renaming another
            os.replace(path, folder / "replaced")
        os.replace(artifact, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return deviation


def _deviation(read, inputs, expected):
    """Return the largest absolute deviation; infinite if a shape differs."""
    deviations = []
    for rows in (slice(None), slice(1)):  # all, then the first alone: any batch size
        outputs = read({name: x[rows] for name, x in inputs.items()})
        for name, y in expected.items():
            same = np.shape(outputs[name]) == y[rows].shape
            deviations.append(np.max(np.abs(outputs[name] - y[rows])) if same else np.inf)
    return float(np.max(deviations))


@contextlib.contextmanager
def float32() -> Iterator[None]:
    """Compute in true float32: no mixed precision, no TF32 (a GPU then deviates by 1e-3)."""
    with contextlib.ExitStack() as stack:
        stack.callback(keras.config.set_dtype_policy, keras.config.dtype_policy())
        keras.config.set_dtype_policy("float32")
        if keras.config.backend() == "tensorflow":  # a device's scope would end up in the graph
            import tensorflow as tf

            config = tf.config.experimental
            before = config.tensor_float_32_execution_enabled()
            stack.callback(config.enable_tensor_float_32_execution, before)
            config.enable_tensor_float_32_execution(False)
        else:
            stack.enter_context(keras.device("cpu"))
        yield


def input_names(model: keras.Model) -> list[str]:
    """Return the names of a model's inputs, flat: keys of a dictionary, or the tensors' names."""
    named = keras.tree.flatten_with_path(model.input)
    names = [path[-1] if path and isinstance(path[-1], str) else x.name for path, x in named]
    return [re.sub(r"\W", "_", name) for name in names]  # as TensorFlow's signatures do


def _input_specs(model) -> Any:
    """Return TensorFlow's specs of a model's inputs, in their structure: any batch size, named."""
    import tensorflow as tf

    tensors = zip(keras.tree.flatten(model.input), input_names(model), strict=True)
    flat = [tf.TensorSpec((None, *x.shape[1:]), x.dtype, name) for x, name in tensors]
    return keras.tree.pack_sequence_as(model.input, flat)


def _write_saved_model(model, path):
    archive = keras.export.ExportArchive()  # `model.export` would store the weights twice
    archive.add_endpoint("serve", lambda x: model(x, training=False), [_input_specs(model)])
    archive.write_out(str(path), verbose=False)


def _saved_model_reader(path):
    import tensorflow as tf

    artifact = tf.saved_model.load(str(path))  # its signatures do not keep it alive

    def read(inputs):
        constants = {name: tf.constant(x) for name, x in inputs.items()}
        outputs = artifact.signatures["serve"](**constants)
        return {name: y.numpy() for name, y in outputs.items()}

    return read


def _write_onnx(model, path):
    import onnx

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


def _onnx_reader(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def read(inputs):
        outputs = dict(zip(names, session.run(names, inputs), strict=True))
        renamed = {f"new_{name}": name for name in inputs}
        return {renamed.get(name, name): y for name, y in outputs.items()}

    return read


def _write_litert(model, path):
    import tensorflow as tf
    from tensorflow.lite.python.convert_phase import ConverterError

    try:
        model.export(
            str(path),
            format="litert",
            input_signature=[_input_specs(model)],
            verbose=False,
            target_spec={"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]},
        )
    except ConverterError as error:
        missing = sorted({*re.findall(r"'tf\.(\w+)'", str(error))})
        raise ValueError(
            f"LiteRT must have all operations of the model. Received: {model.name}, "
            f"where it lacks {', '.join(missing) or error}. Export to ONNX or a SavedModel."
        ) from error


def _litert_reader(path):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    return lambda inputs: interpreter.get_signature_runner()(**inputs)


FORMATS = {
    "saved_model": Format("", (), _write_saved_model, _saved_model_reader),
    "onnx": Format(".onnx", ("tf2onnx", "onnx", "onnxruntime"), _write_onnx, _onnx_reader),
    "litert": Format(".tflite", ("ai_edge_litert",), _write_litert, _litert_reader),
}
