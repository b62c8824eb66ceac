"""Export models from any backend to formats that need no Keras, checked against the Keras model."""

import importlib.util
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from zoo.datasets.preprocessing import Preprocessing
from zoo.export import check, process
from zoo.export.formats import FORMATS, write
from zoo.export.signatures import functional, in_float32, label_text, serve, with_preprocessing


def export(
    model: keras.Model,
    path: str | os.PathLike[str],
    format: str | None = None,
    labels: Sequence[str] | None = None,
    preprocessing: Preprocessing | str | None = None,
    endpoints: Callable[[keras.Model], dict[str, keras.Model]] = serve,
    examples: Mapping[str, Any] | None = None,
) -> float:
    """Write `model` as a SavedModel, an ONNX or a LiteRT file, which need neither zoo nor Keras.

    Inputs have the names of the model's inputs, outputs those of its output layers or the keys of
    its dictionary. Any batch size is accepted. The artifact computes in float32, also if the model
    was trained in mixed precision. A failing export leaves an earlier artifact unchanged.

    - "saved_model": a folder. Each endpoint is a signature and a method of the object that
      `tf.saved_model.load` returns; both return a dictionary of outputs. The first one is also
      TensorFlow Serving's default. Endpoints share their variables.
    - "onnx": a file `.onnx` of one endpoint. An output with the name of an input is renamed
      `new_NAME`. Needs the packages of `highway-zoo[tensorflow,export]`.
    - "litert": a file `.tflite` of one endpoint, if TFLite's own operations can compute it.
      Needs the package of `highway-zoo[tensorflow,export]`.

    TensorFlow writes all of them; from JAX and torch in a child process.

    Args:
        model: A Functional or built Sequential `keras.Model`.
        path: File or folder to write; an artifact of this format is replaced.
        format: "saved_model", "onnx" or "litert"; None: that of the path's suffix, `.onnx` or
            `.tflite`, or "saved_model" without one.
        labels: Names of the classes, stored one a line: in `assets.extra/labels.txt` of a
            SavedModel; as the metadata `labels` of ONNX; as `labels.txt` in a zip archive at the
            end of a LiteRT file.
        preprocessing: Preprocessing to include in the artifact, which then takes raw uint8 images
            `(batch, height, width, channels)`: a `zoo.datasets.preprocessing.Preprocessing`, or
            the name of a recipe there that is not fitted to a training set.
        endpoints: Importable function from `model` to a dictionary of Functional `keras.Model`s
            by name; JAX and torch call it in the child process.
        examples: Inputs to check an endpoint with, by its name; arrays in the structure of its
            model's input, or a `zoo.export.check.Expected` of inputs and outputs. Default: normal
            samples; for integers zeros and ones, for uint8 grey levels.

    Returns:
        The largest absolute deviation of the artifact's outputs from the Keras model's, on all
        examples together and on the first alone.

    Raises:
        ValueError: If an argument is invalid, or the format cannot hold the model.
        RuntimeError: If a package is missing, TensorFlow fails, or the deviation exceeds 1e-4 of
            the largest output.

    Example:
    ```python
    deviation = zoo.export(model, "model.onnx", "onnx", labels=["cat", "dog"])
    session = onnxruntime.InferenceSession("model.onnx")  # anywhere
    (probabilities,) = session.run(["predictions"], {"images": images})
    ```
    """
    path = pathlib.Path(path).resolve()
    format = _checked_format(path, format)
    model = functional(model)
    text = label_text(labels)
    _check_packages(format)
    if endpoints.__module__ == "__main__" or "<" in endpoints.__qualname__:  # <lambda>, <locals>
        raise ValueError(
            f"`endpoints` must be a function of a module, because another process imports it. "
            f"Received: {endpoints!r}. Move it to the top level of a module."
        )
    with check.float32():
        if preprocessing is not None:
            model = with_preprocessing(preprocessing, model)
        model = in_float32(model)
        models = endpoints(model)
        _check_models(models, labels, format)
        cases = check.cases(models, examples or {})
        if keras.config.backend() == "tensorflow":
            return write(models, path, format, text, cases)
        return process.export(model, path, format, text, cases, endpoints)


def _checked_format(path, format):
    """Return `format`, or that of the suffix, if `path` is new or such an artifact to replace."""
    by_suffix = {kind.suffix: name for name, kind in FORMATS.items()}
    by_name = by_suffix.get(path.suffix, "saved_model" if format else None)
    if by_name is None or format not in (None, by_name):
        raise ValueError(
            f"`path` must be a folder, for a SavedModel, or end in .onnx or .tflite, and `format` "
            f"be one of {', '.join(FORMATS)} that goes with it. Received: {path} and {format!r}."
        )
    names = os.listdir(path) if path.is_dir() else []
    folder = by_name == "saved_model"
    foreign = path.is_file() or (names and "saved_model.pb" not in names)
    if foreign if folder else path.is_dir():
        raise ValueError(
            f"`path` must be new, or {'a SavedModel' if folder else 'a file'} to replace. "
            f"Received: {path}, which is something else. Choose another path."
        )
    return by_name


def _check_models(models, labels, format):
    if format != "saved_model" and len(models) != 1:
        raise ValueError(
            f"`format` {format!r} holds one endpoint. Received: {', '.join(models)}. Export them "
            f"one by one, or as a SavedModel."
        )
    widths = [tensor.shape[-1] for tensor in next(iter(models.values())).outputs]
    if labels is not None and len(labels) not in widths:
        raise ValueError(
            f"`labels` must be as many as the model's outputs, {', '.join(map(str, widths))}. "
            f"Received: {len(labels)}, {labels[0]!r} to {labels[-1]!r}."
        )


def _check_packages(format):
    packages = ("tensorflow", *FORMATS[format].packages)
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(
            f"The export to {format} needs {', '.join(packages)}. Not installed: "
            f"{', '.join(missing)}. Run `pip install {' '.join(missing).replace('_', '-')}`."
        )
