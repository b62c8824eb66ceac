"""Models for where Keras is not, from any backend, checked against the Keras model."""

import importlib.util
import os
import pathlib
import shutil
import sys

import keras

from zoo.export import check, process
from zoo.export.formats import FORMATS, make
from zoo.export.signatures import behind, functional, in_float32, serve, texts

TOLERANCE = 1e-4  # ours, of the largest output; float32 differs by 1e-6, a wrong graph by 1e-2


def export(
    model,
    path,
    format="saved_model",
    labels=None,
    preprocessing=None,
    endpoints=serve,
    examples=None,
):
    """Writes `model` as a SavedModel, an ONNX or a LiteRT file, which need neither zoo nor Keras.

    Inputs have the names of the model's inputs, and outputs those of its output layers, or the
    keys of its dictionary. Any batch size will do. The artifact computes in float32, also if the
    model was trained in mixed precision. It is complete before it gets its name: an export that
    fails leaves an earlier artifact as it was.

    - "saved_model": a folder. Each endpoint is a signature, and a method of what
      `tf.saved_model.load` returns; both give a dictionary of outputs. The first is also
      TensorFlow Serving's default. Endpoints share their variables.
    - "onnx": a file `.onnx` of one endpoint. An output that is called like an input gets `new_`
      before its name. Needs the packages of `highway-zoo[onnx]`.
    - "litert": a file `.tflite` of one endpoint, if TFLite's own operations can compute it.
      Needs the package of `highway-zoo[litert]`.

    All go through TensorFlow; from jax and torch, through a process of its own.

    Args:
        model: A Functional or built Sequential `keras.Model`.
        path: Of the artifact; one of the format that is there is replaced.
        format: "saved_model", "onnx" or "litert".
        labels: Names of the classes: in `assets.extra/labels.txt` of a SavedModel, a line each;
            as the metadata `labels` of ONNX; in a zip at the end of a LiteRT file, as
            `labels.txt`.
        preprocessing: What makes the model's images of raw ones, to be part of the artifact: a
            Keras layer or model, or a `Preprocessing` of `zoo.datasets.preprocessing`, or the
            name of a recipe there that takes nothing from its training set. Raw images are
            uint8, `(batch, height, width, channels)`, unless a model says otherwise.
        endpoints: A function from `model` to a dictionary of Functional `keras.Model`s by
            name. It must be importable by its name, because jax and torch call it in a process
            of TensorFlow.
        examples: The inputs to check an endpoint with, by its name; arrays in the structure of
            its model's input. Others are checked with normal draws, zeros and ones where the
            input is of integers, and grey levels where it is uint8.

    Returns:
        The largest absolute deviation of the artifact's outputs from the Keras model's, for the
        examples together and for the first alone.

    Raises:
        ValueError: if an argument is not as described, or the format cannot hold the model.
        RuntimeError: if a package is not installed, TensorFlow fails, or the deviation exceeds
            1e-4 of the largest output.

    Example:

    ```python
    deviation = zoo.export(model, "model.onnx", "onnx", labels=["cat", "dog"])
    session = onnxruntime.InferenceSession("model.onnx")  # anywhere
    (probabilities,) = session.run(["predictions"], {"images": images})
    ```
    """
    path = pathlib.Path(path).resolve()
    if format not in FORMATS:
        raise ValueError(f"`format` must be one of {', '.join(FORMATS)}. Received: {format!r}")
    FORMATS[format].check_target(path)
    model, files = functional(model), texts(labels)
    _check_packages(format)
    name = _import_name(endpoints)
    work = path.with_name(f".writing-{path.name}")
    shutil.rmtree(work, ignore_errors=True)  # what a killed export left
    work.mkdir(parents=True)
    made = work / f"artifact{path.suffix}"
    try:
        with check.float32():
            model = in_float32(model if preprocessing is None else behind(preprocessing, model))
            models = endpoints(model)
            _check_models(models, labels, format)
            cases = check.cases(models, examples or {})
            if keras.config.backend() == "tensorflow":
                deviation = make(format, models, cases, files, made)
            else:
                deviation = process.make(format, model, name, cases, files, made)
        allowed = TOLERANCE * check.largest(cases)
        if not deviation <= allowed:  # NaN too
            raise RuntimeError(
                f"The artifact must compute what the Keras model computes, within {allowed:.1e}. "
                f"Received: a deviation of {deviation}. Nothing was written to {path}; if the "
                f"deviation is nan, look for NaN in the model's weights."
            )
        _swap(made, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return deviation


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
    wanted = "tensorflow", *FORMATS[format].PACKAGES
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        extra = f"'highway-zoo[{format}]'" if missing != ["tensorflow"] else "tensorflow"
        raise RuntimeError(
            f"The export to {format} from the {keras.config.backend()} backend goes through "
            f"{', '.join(wanted)}. Not installed: {', '.join(missing)}. Run `pip install {extra}`, "
            f"or save the model with `model.save` and export it where they are."
        )


def _import_name(function):
    """Module and name by which another process finds `function`."""
    module, name = function.__module__, getattr(function, "__qualname__", "")
    if module == "__main__" or getattr(sys.modules[module], name, None) is not function:
        raise ValueError(
            f"`endpoints` must be a function of a module, because another process imports it. "
            f"Received: {function!r}. Move it to the top level of a module."
        )
    return module, name


def _swap(new, path):
    """Renames `new` to `path`; a folder that was there goes last."""
    if not path.is_dir():
        os.replace(new, path)
        return
    old = path.with_name(f".replaced-{path.name}")
    shutil.rmtree(old, ignore_errors=True)
    os.replace(path, old)
    try:
        os.replace(new, path)
    except OSError:
        os.replace(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)
