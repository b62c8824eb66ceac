"""Export a saved network to a format that needs no Keras, checked against the Keras model.

    python -m zoo.export model.keras model.onnx --labels classes.txt
    python -m zoo.export model.keras folder --preprocessing highway_mnist

Writes a SavedModel, ONNX or LiteRT artifact and prints its largest deviation from the Keras model.
KERAS_BACKEND selects tensorflow, jax or torch. The exit status is 1 for invalid arguments or a
model that the format cannot hold, and 2 if the export fails.
"""

import importlib
import pathlib
import runpy
import sys
import time
from collections.abc import Callable

import keras
from absl import app, flags

from zoo.datasets import images
from zoo.datasets import preprocessing as recipes
from zoo.export import FORMATS, check, export, format_of, write
from zoo.export.signatures import label_text
from zoo.io import load_model

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Define the flags; not at import, because other programs define the same names."""
    flags.DEFINE_enum(
        "format",
        None,
        list(FORMATS),
        "Format of the artifact. Default: onnx for OUT.onnx, litert for OUT.tflite, otherwise "
        "saved_model.",
    )
    flags.DEFINE_string("labels", None, "A text file with the names of the classes, one a line.")
    flags.DEFINE_string(
        "preprocessing",
        None,
        "A recipe of zoo.datasets.preprocessing, such as highway_mnist, to include in the "
        "artifact, which then takes raw uint8 images.",
    )
    flags.DEFINE_string(
        "data", None, "The training set that a recipe with a mean image is fitted to: cifar10."
    )
    flags.DEFINE_string(
        "data_dir", None, "The .npz file or folder of these images: see zoo.datasets.images."
    )
    flags.DEFINE_string(
        "endpoints",
        "zoo.export.signatures:serve",
        "MODULE:FUNCTION, which makes a dictionary of Functional models from the model.",
    )
    flags.DEFINE_string(
        "cases",
        None,
        "An .npz file of inputs and expected outputs to check the artifact with, named "
        "ENDPOINT/inputs/NAME and ENDPOINT/outputs/NAME. Default: random inputs and the outputs "
        "of the model.",
    )


def main(argv: list[str]) -> None:
    """Export; `argv` has the names of the program, the model and the artifact."""
    if len(argv) != 3:
        raise app.UsageError(f"Expected MODEL.keras and OUT. Received: {argv[1:]}. See --help.")
    start = time.perf_counter()
    path = pathlib.Path(argv[2]).resolve()
    format = FLAGS.format or format_of(path)
    try:
        labels = None
        if FLAGS.labels is not None:
            labels = pathlib.Path(FLAGS.labels).read_text("utf-8").removesuffix("\n").split("\n")
        endpoints = import_function(FLAGS.endpoints)  # before the model: it may register layers
        model = load_model(argv[1], compile=False)
        if FLAGS.cases is None:
            deviation = export(model, path, format, labels, preprocessing(), endpoints)
        else:
            with check.float32():
                cases = check.load_cases(FLAGS.cases)
                deviation = write(endpoints(model), path, format, label_text(labels), cases)
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"zoo.export: {error}")
    except RuntimeError as error:
        print(f"zoo.export: {error}", file=sys.stderr)
        sys.exit(2)
    files = [file for file in [path, *path.rglob("*")] if file.is_file()]
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    seconds = time.perf_counter() - start
    print(
        f"{format}: {path}, {megabytes:.2f} MB, in {seconds:.0f} s; max deviation {deviation:.2e}"
    )


def import_function(name: str) -> Callable[[keras.Model], dict[str, keras.Model]]:
    """Return the function called MODULE:FUNCTION."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ValueError, AttributeError) as error:
        raise ValueError(f"Expected MODULE:FUNCTION in --endpoints. Received: {name}") from error


def preprocessing() -> recipes.Preprocessing | str | None:
    """Return the preprocessing that --preprocessing, --data and --data_dir select."""
    if FLAGS.preprocessing is None or (FLAGS.data is None and FLAGS.data_dir is None):
        return FLAGS.preprocessing
    dataset = images.load(FLAGS.data or "data", FLAGS.data_dir)
    return recipes.fit(FLAGS.preprocessing, dataset.x_train)


def run() -> None:
    """Run the command `zoo-export`: as `python -m zoo.export`, whose flags --help then lists."""
    runpy.run_module("zoo.export", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    define_flags()
    app.run(main)
