"""Measure which blocks of a saved network refine features, replace them, or do nothing.

Example: python -m zoo.probe model.keras --data digits --probes estimation_error

Prints the verdicts of `zoo.diagnose`, and writes probes.csv and probes.html (verdicts, charts,
numbers and what they mean) into --out. KERAS_BACKEND chooses tensorflow, jax or torch. The exit
status is 2 if the command line is invalid, and 1 if a probe fails.
"""

import argparse
import datetime
import pathlib
import sys
from collections.abc import Sequence

from zoo import callbacks
from zoo.callbacks.diagnose import LESION_EXAMPLES, Diagnosis, diagnose
from zoo.datasets import images, preprocessing
from zoo.io import load_model

PROBES = {
    probe().name: probe
    for probe in (
        callbacks.EstimationError,
        callbacks.IntermediateAccuracy,
        callbacks.BorderlineExamples,
        callbacks.TaylorTerm,
        callbacks.ActivationNorm,
        callbacks.GradientNorm,
        callbacks.WeightStatistics,
        callbacks.ResidualMean,
        callbacks.GateActivity,
        callbacks.GateBias,
        callbacks.BlockOutputs,
    )
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command = argparse.ArgumentParser(
        "python -m zoo.probe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = command.add_argument
    default = "default: %(default)s"
    add("model", help="Path of the model, a .keras file.")
    add("--data", help="Name of the images: mnist, cifar10, cifar100 or digits.")
    add("--data_dir", help="An .npz file or a folder of images; see zoo.datasets.images.")
    add("--split", default="test", choices=["test", "train"], help=f"Part to measure; {default}.")
    add(
        "--preprocessing",
        help="Name of a recipe of zoo.datasets.preprocessing; default: division by 255.",
    )
    names = ", ".join(PROBES)
    add("--probes", type=_probes, default=[], help=f"Further probes, with commas, of {names}.")
    add("--blocks", type=_names, help="Names of the blocks, with commas; default: all.")
    add("--examples", type=_positive, default=5000, help=f"Largest number of images; {default}.")
    add("--batch_size", type=_positive, default=128, help=f"Images in a batch; {default}.")
    add("--loss", help="Name of a Keras loss; default: the model's loss.")
    add("--out", default="probes", help=f"Folder of the results; {default}.")
    return command


def _names(text):
    return text.split(",")


def _probes(text):
    unknown = [name for name in _names(text) if name not in PROBES]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(PROBES)}, not {unknown}")
    return [PROBES[name]() for name in _names(text)]


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, received {text!r}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the probes that a command line asks for; `None` is that of the process."""
    command = parser()
    options = command.parse_args(argv)
    if options.data is None and options.data_dir is None:
        command.error("name the data: --data mnist, or --data_dir with a file or a folder")
    out = pathlib.Path(options.out)
    try:
        report = measure(options)
        out.mkdir(parents=True, exist_ok=True)
        report.table.to_csv(out / "probes.csv")
        report.to_html(out / "probes.html")
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"zoo.probe: {error}")
    print(report)
    print(f"{len(report.table)} values: {out / 'probes.csv'}, {out / 'probes.html'}")


def measure(options: argparse.Namespace) -> Diagnosis:
    """Return the diagnosis that the options ask for, with the date of the file.

    Raises:
        ValueError: if there is no such model, or the data do not fit it.
    """
    path = pathlib.Path(options.model)
    if not path.exists():
        raise ValueError(f"Expected a .keras file. Received: {path}, which is not there.")
    data = images.load(options.data or "data", options.data_dir)
    model = load_model(path)
    x = getattr(data, f"x_{options.split}")[: options.examples]
    y = getattr(data, f"y_{options.split}")[: options.examples]
    expected = model.input_shape
    sizes = zip(expected[1:], x.shape[1:], strict=False)
    if len(expected) != x.ndim or any(a not in (None, b) for a, b in sizes):
        raise ValueError(
            f"Expected images of the model's shape, {expected[1:]}. Received: {x.shape[1:]}, "
            f"of {options.data_dir or options.data}. Name the data that it was trained on."
        )
    if options.preprocessing is None:
        x = x.astype("float32") / 255
    else:
        x = preprocessing.fit(options.preprocessing, data.x_train)(x)
    report = diagnose(
        model,
        x,
        y,
        loss=options.loss,
        batch_size=options.batch_size,
        blocks=options.blocks,
        progress=callbacks.PassProgress("probes", len(x) + min(len(x), LESION_EXAMPLES)),
        probes=options.probes,
    )
    name = options.data or pathlib.Path(options.data_dir).name
    report.title = f"{model.name} on {len(x)} images of {name} ({options.split})"
    report.weights = f"{datetime.datetime.fromtimestamp(path.stat().st_mtime):%Y-%m-%d %H:%M}"
    return report


if __name__ == "__main__":
    main()
