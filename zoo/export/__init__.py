"""Export models from any backend to formats that need no Keras, checked against the Keras model."""

import contextlib
import importlib.util
import itertools
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from zoo.datasets.preprocessing import Preprocessing
from zoo.export import check, litert, onnx, process, saved_model
from zoo.export.check import Cases
from zoo.export.signatures import functional, in_float32, label_text, serve, with_preprocessing
from zoo.io import remove_leftovers, temporary_path

# Each module has PACKAGES and SUFFIX, and the functions write(models, path), which raises
# ValueError if the format cannot hold a model; add_labels(path, text); and reader(path), which
# returns a function from an endpoint's name and its inputs to its outputs, by name.
FORMATS = {"saved_model": saved_model, "onnx": onnx, "litert": litert}
OTHER_SUFFIXES = (".h5", ".hdf5", ".keras", ".onnx", ".pb", ".pt", ".pth", ".tflite")  # of files
TOLERANCE = 1e-4  # ours, of the largest output; float32 differs by 1e-6, a wrong graph by 1e-2


def export(
    model: keras.Model,
    path: str | os.PathLike[str],
    format: str | None = None,
    labels: Sequence[str] | None = None,
    preprocessing: keras.layers.Layer | Preprocessing | str | None = None,
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
        preprocessing: Preprocessing to include in the artifact: a Keras layer or model, a
            `zoo.datasets.preprocessing.Preprocessing`, or the name of a recipe there that is not
            fitted to a training set. Raw images are uint8, `(batch, height, width, channels)`,
            unless a model has another input.
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
    if format is None:
        format = format_of(path)
    _check_target(path, format)
    model = functional(model)
    text = label_text(labels)
    _check_packages(format)
    function = _import_name(endpoints)
    with check.float32():
        if preprocessing is not None:
            model = with_preprocessing(preprocessing, model)
        model = in_float32(model)
        models = endpoints(model)
        _check_models(models, labels, format)
        cases = check.cases(models, examples or {})
        if keras.config.backend() == "tensorflow":
            return write(models, path, format, text, cases)
        return process.export(model, path, format, text, cases, function)


def format_of(path: pathlib.Path) -> str:
    """Return the format that a path's suffix selects.

    Raises:
        ValueError: if the suffix is that of no format.
    """
    by_suffix = {module.SUFFIX: name for name, module in FORMATS.items()}
    if path.suffix not in by_suffix:
        raise ValueError(
            f"`path` must be a folder without a suffix, for a SavedModel, or end in .onnx or "
            f".tflite. Received: {path}. Choose another, or name the format."
        )
    return by_suffix[path.suffix]


def write(
    models: dict[str, keras.Model],
    path: pathlib.Path,
    format: str,
    labels: str | None,
    cases: Cases,
) -> float:
    """Write an artifact on the TensorFlow backend, and check it before it gets its name.

    As `export`, but with the endpoints' models, the labels as a text, one a line, and `cases` of
    `check.cases` to check the artifact with.
    """
    module = FORMATS[format]
    folder = temporary_path(path)
    folder.mkdir(parents=True)
    remove_leftovers(path.parent)
    artifact = folder / f"artifact{path.suffix}"
    try:
        module.write(models, artifact)
        if labels is not None:
            module.add_labels(artifact, labels)
        deviation = check.deviation(module.reader(artifact), cases)
        allowed = TOLERANCE * check.largest(cases)
        if not deviation <= allowed:  # NaN too
            raise RuntimeError(
                f"The artifact must compute what the Keras model computes, within {allowed:.1e}. "
                f"Received: a deviation of {deviation}. Nothing was written to {path}; if the "
                f"deviation is nan, look for NaN in the model's weights."
            )
        _replace(artifact, path, folder / "replaced")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return deviation


def _check_target(path, format):
    """Raise ValueError unless `path` suits the format, and is new or an artifact to replace."""
    if format not in FORMATS:
        raise ValueError(f"`format` must be one of {', '.join(FORMATS)}. Received: {format!r}")
    suffix = FORMATS[format].SUFFIX
    if suffix:
        if path.suffix != suffix or path.is_dir():
            raise ValueError(
                f"`path` must be a file that ends in {suffix}. Received: {path}"
                f"{', a folder' if path.is_dir() else ''}. Choose another path or format."
            )
        return
    if path.suffix in OTHER_SUFFIXES:
        raise ValueError(
            f"`path` of a SavedModel is a folder. Received: {path}. Choose another, or the format "
            f"of that suffix; `model.save` writes .keras and .h5 files."
        )
    names = os.listdir(path) if path.is_dir() else []
    if path.is_file() or (names and "saved_model.pb" not in names):
        raise ValueError(
            f"`path` must be new, an empty folder, or a SavedModel to replace. Received: {path}, "
            f"which is {'a folder of other files' if names else 'a file'}. Choose another path."
        )


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
    packages = ("tensorflow", *FORMATS[format].PACKAGES)
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(
            f"The export to {format} from the {keras.config.backend()} backend needs "
            f"{', '.join(packages)}. Not installed: {', '.join(missing)}. Run `pip install "
            f"{' '.join(missing).replace('_', '-')}`, or save the model with `model.save` and "
            f"export it where they are."
        )


def _import_name(function):
    """Return the name MODULE:FUNCTION by which another process can import `function`."""
    module = function.__module__
    name = getattr(function, "__qualname__", "")
    if module == "__main__" or getattr(sys.modules[module], name, None) is not function:
        raise ValueError(
            f"`endpoints` must be a function of a module, because another process imports it. "
            f"Received: {function!r}. Move it to the top level of a module."
        )
    return f"{module}:{name}"


def _replace(new, path, old):
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
