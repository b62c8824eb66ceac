"""Measure which blocks of a saved network refine features, replace them, or do nothing.

Example: python -m zoo.probe model.keras --data digits

Prints the verdicts of `zoo.callbacks.diagnose`, and writes probes.csv and probes.html (verdicts,
charts, numbers and what they mean) into --out. KERAS_BACKEND chooses tensorflow, jax or torch. The
exit status is 2 if the command line is invalid, and 1 if a probe fails.
"""

import argparse
import importlib
import os
import pathlib
import sys
from collections.abc import Sequence

from zoo.callbacks.diagnose import Diagnosis, diagnose
from zoo.checks import fits, require
from zoo.datasets import images, preprocessing
from zoo.io import load_model


def main(argv: Sequence[str] | None = None) -> None:
    """Run the probes that a command line asks for; `None` is that of the process."""
    command = argparse.ArgumentParser(
        "python -m zoo.probe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = command.add_argument
    add("model", help="Path of the model, a .keras file.")
    add("--data", help="Name of the images: mnist, cifar10, cifar100 or digits.")
    add("--data_dir", help="An .npz file or a folder of them; see zoo.datasets.images.")
    add("--preprocessing", help="One of zoo.datasets.preprocessing; default: division by 255.")
    add("--examples", type=int, default=5000, help="Number of test images; default: 5000.")
    text = "Module to import first, as it registers layers; may be repeated."
    add("--module", action="append", default=[], help=text)
    add("--out", default="probes", help="Folder of the results; default: probes.")
    options = command.parse_args(argv)
    if options.data is None and options.data_dir is None:
        command.error("name the data: --data mnist, or --data_dir with a file or a folder")
    if options.examples < 1:
        command.error(f"--examples: expected 1 or more. Received: {options.examples}")
    out = pathlib.Path(options.out)
    existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        command.error(f"--out: expected a folder that can be written to. Received: {out}")
    try:
        report = measure(options)
        report.table.to_csv(out / "probes.csv")
        report.to_html(out / "probes.html")
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        sys.exit(f"zoo.probe: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(report)
    print(f"{len(report.table)} values: {out / 'probes.csv'}, {out / 'probes.html'}")


def measure(options: argparse.Namespace) -> Diagnosis:
    """Return the diagnosis that the options ask for.

    Raises:
        ValueError: if there is no such model, or the data do not fit it.
    """
    for name in options.module:
        importlib.import_module(name)
    model = load_model(options.model)
    inputs = getattr(model, "inputs", None) or []
    expected = "a single one, images, of a Functional model; or call zoo.callbacks.diagnose"
    require(len(inputs) == 1, expected, inputs=[v.name for v in inputs])
    data = images.load(options.data or "data", options.data_dir)
    x = data.x_test[: options.examples]
    y = data.y_test[: options.examples]
    expected = f"that of the model's inputs, {inputs[0].shape}: name the data it was trained on"
    require(fits(inputs[0].shape[1:], x.shape[1:]), expected, shape=x.shape)
    prepare = preprocessing.Preprocessing(scale=255.0)
    if options.preprocessing is not None:
        prepare = preprocessing.fit(options.preprocessing, data.x_train)
    report = diagnose(model, prepare(x), y)
    name = options.data or pathlib.Path(options.data_dir).name
    count = f"{len(x)} image{'s' * (len(x) != 1)}"
    report.title = f"{model.name} on {count} of {name} (test), preprocessing: "
    report.title += options.preprocessing or "division by 255"
    return report


if __name__ == "__main__":
    main()
