"""A saved network for where Keras is not, checked against the Keras model.

    python -m zoo.export model.keras model.onnx --labels classes.txt
    python -m zoo.export model.keras folder --preprocessing highway_mnist

Writes a SavedModel, ONNX or LiteRT and prints by how much it deviates from the Keras model.
KERAS_BACKEND chooses tensorflow, jax or torch.
"""

import pathlib
import sys
import time

from absl import app, flags

FLAGS = flags.FLAGS


def define_flags():
    """The flags, at the first call; other programs may import this module."""
    formats = ["saved_model", "onnx", "litert"]
    told = "Default: onnx and litert for OUT.onnx and OUT.tflite, else saved_model."
    flags.DEFINE_enum("format", None, formats, told)
    flags.DEFINE_string("labels", None, "A text file with the classes' names, a line each.")
    told = "Raw uint8 images in: a recipe of zoo.datasets.preprocessing, e.g. highway_mnist."
    flags.DEFINE_string("preprocessing", None, told)
    flags.DEFINE_string("data", None, "What a recipe with a mean image is fitted to: cifar10.")
    flags.DEFINE_string("data_dir", None, "An .npz file or a folder: see zoo.datasets.images.")


def main(argv):
    """Exports; `argv` is the program's name, the model's path and the artifact's."""
    if len(argv) != 3:
        raise app.UsageError(f"Expected MODEL.keras and OUT. Received: {argv[1:]}. See --help.")
    from zoo.export import export
    from zoo.export.formats import SUFFIXES
    from zoo.io import load_model

    start, path = time.perf_counter(), pathlib.Path(argv[2])
    format = FLAGS.format or SUFFIXES.get(path.suffix, "saved_model")
    try:
        labels = None if FLAGS.labels is None else read_labels(FLAGS.labels)
        model = load_model(argv[1], compile=False)
        deviation = export(model, path, format, labels, preprocessing())
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        sys.exit(f"zoo.export: {error}")
    files = [file for file in [path, *path.rglob("*")] if file.is_file()]
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    seconds = time.perf_counter() - start
    print(
        f"{format}: {path}, {megabytes:.2f} MB, in {seconds:.0f} s; "
        f"deviates by {deviation:.1e} at most"
    )


def read_labels(path):
    """The names in a text file, a line each."""
    try:
        return pathlib.Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"Expected a text in UTF-8. Received: {path}: {error}") from error


def preprocessing():
    """What --preprocessing, --data and --data_dir ask for."""
    from zoo.datasets import images, preprocessing

    fitted = FLAGS.data is not None or FLAGS.data_dir is not None
    if FLAGS.preprocessing is None or not fitted:
        return FLAGS.preprocessing
    loaded = images.load(FLAGS.data or "data", FLAGS.data_dir)
    return preprocessing.fit(FLAGS.preprocessing, loaded.x_train)


if __name__ == "__main__":
    define_flags()
    app.run(main)
