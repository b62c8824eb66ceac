"""Export a saved network to a format that needs no Keras, checked against the Keras model.

    python -m zoo.export model.keras model.onnx --labels classes.txt
    python -m zoo.export model.keras folder --preprocessing highway_mnist

Writes a SavedModel, ONNX or LiteRT artifact and prints its largest deviation from the Keras model.
KERAS_BACKEND selects tensorflow, jax or torch. The exit status is 2 if the command line is
invalid, and 1 if the export fails.
"""

import argparse
import pathlib
import sys
import time
from collections.abc import Sequence

from zoo.datasets import images
from zoo.datasets import preprocessing as recipes
from zoo.export import FORMATS, export
from zoo.io import load_model


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command = argparse.ArgumentParser(
        "python -m zoo.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("model", help="Path of the model, a .keras file.")
    command.add_argument("out", type=pathlib.Path, help="File or folder to write.")
    command.add_argument(
        "--format",
        choices=FORMATS,
        help="Format of the artifact; default: onnx for OUT.onnx, litert for OUT.tflite, "
        "saved_model for OUT without a suffix.",
    )
    command.add_argument("--labels", help="A text file with the names of the classes, one a line.")
    command.add_argument(
        "--preprocessing",
        help="A recipe of zoo.datasets.preprocessing, such as highway_mnist, to include in the "
        "artifact, which then takes raw uint8 images.",
    )
    command.add_argument(
        "--data", help="The training set that a recipe with a mean image is fitted to: cifar10."
    )
    command.add_argument(
        "--data_dir", help="The .npz file or folder of these images: see zoo.datasets.images."
    )
    return command


def main(argv: Sequence[str] | None = None) -> None:
    """Run the export that a command line asks for; `None` is that of the process."""
    options = parser().parse_args(argv)
    start = time.perf_counter()
    path = options.out.resolve()
    try:
        labels = None
        if options.labels is not None:
            labels = pathlib.Path(options.labels).read_text("utf-8").removesuffix("\n").split("\n")
        model = load_model(options.model, compile=False)
        prepare = options.preprocessing
        if prepare is not None and (options.data or options.data_dir):
            dataset = images.load(options.data or "data", options.data_dir)
            prepare = recipes.fit(prepare, dataset.x_train)
        deviation = export(model, path, options.format, labels, prepare)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        sys.exit(f"zoo.export: {error}")
    files = [file for file in [path, *path.rglob("*")] if file.is_file()]
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    seconds = time.perf_counter() - start
    print(f"{path}, {megabytes:.2f} MB, in {seconds:.0f} s; max deviation {deviation:.2e}")


if __name__ == "__main__":
    main()
