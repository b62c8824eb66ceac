"""Export a saved network to a format that needs no Keras, checked against the Keras model.

    python -m zoo.export model.keras model.onnx

Writes a SavedModel, ONNX or LiteRT artifact and prints its largest deviation from the Keras model.
KERAS_BACKEND selects tensorflow, jax or torch. The exit status is 2 if the command line is invalid,
and 1 if the export fails.
"""

import argparse
import importlib
import sys

from zoo.export import FORMATS, INVALID, checked, export
from zoo.io import load_model


def main() -> None:
    """Run the export that the command line asks for."""
    sys.exit(min(run(), 1))


def run() -> int:
    """Run the command line; return 0, `INVALID` after a ValueError, or 1 after another failure."""
    command = argparse.ArgumentParser(
        "python -m zoo.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("model", help="Path of the model, a .keras file.")
    command.add_argument("out", help="File or folder to write.")
    command.add_argument(
        "--format",
        choices=FORMATS,
        help="Format of the artifact; default: onnx for OUT.onnx, litert for OUT.tflite, "
        "saved_model for OUT without a suffix.",
    )
    text = "Module to import first, as it registers layers; may be repeated."
    command.add_argument("--module", action="append", default=[], help=text)
    options = command.parse_args()
    try:
        checked(options.out, options.format)
    except ValueError as error:
        command.error(str(error))
    try:
        for name in options.module:
            importlib.import_module(name)
        model = load_model(options.model, compile=False)
        deviation = export(model, options.out, options.format)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        print(f"zoo.export: {error}", file=sys.stderr)
        return INVALID if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"{options.out}; max deviation {deviation:.2e}")
    return 0


if __name__ == "__main__":
    main()
