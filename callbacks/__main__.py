"""Measure which blocks of a saved network refine features, replace them, or do nothing.

Example: python -m zoo.probe model.keras --data digits --probes cosine_loss,l2_ratio --lesions

Writes probes.csv and probes.html (figures, numbers and what they mean) into --out, and prints the
table. KERAS_BACKEND chooses tensorflow, jax or torch.
"""

import argparse
import pathlib
import sys
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from zoo import callbacks
from zoo.callbacks.probes.table import Table
from zoo.datasets import images, preprocessing
from zoo.io import load_model

COMMON = (  # probes of any residual network
    callbacks.CosineLoss,
    callbacks.L2Ratio,
    callbacks.EstimationError,
    callbacks.IntermediateAccuracy,
    callbacks.BorderlineExamples,
    callbacks.TaylorTerm,
    callbacks.ActivationNorm,
    callbacks.GradientNorm,
    callbacks.WeightStatistics,
)
UNITS = (  # of gates, or with a value for each unit
    callbacks.ResidualMean,
    callbacks.GateActivity,
    callbacks.GateBias,
    callbacks.BlockOutputs,
)
PROBES = {probe().name: probe for probe in (*COMMON, *UNITS)}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command = argparse.ArgumentParser(
        "python -m zoo.probe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    default = "default: %(default)s"
    command.add_argument("model", help="Path of the model, a .keras file.")
    command.add_argument("--data", help="Name of the images: mnist, cifar10, cifar100 or digits.")
    command.add_argument(
        "--data_dir", help="An .npz file or a folder of images; see zoo.datasets.images."
    )
    command.add_argument(
        "--split",
        default="test",
        choices=["test", "train"],
        help=f"Part of the images to measure; {default}.",
    )
    command.add_argument(
        "--preprocessing",
        help="Name of a recipe of zoo.datasets.preprocessing; default: division by 255.",
    )
    command.add_argument(
        "--probes",
        type=_names,
        default=[probe().name for probe in COMMON],
        help=f"Probes to run, separated by commas, of {', '.join(PROBES)}; default: the first "
        f"{len(COMMON)}.",
    )
    command.add_argument(
        "--blocks",
        type=_names,
        help="Names of the blocks to measure, separated by commas; default: all.",
    )
    command.add_argument(
        "--lesions", action="store_true", help="Also measure the network without each block."
    )
    command.add_argument(
        "--examples", type=_positive, default=5000, help=f"Largest number of images; {default}."
    )
    command.add_argument(
        "--batch_size", type=_positive, default=128, help=f"Images in a batch; {default}."
    )
    command.add_argument("--loss", help="Name of a Keras loss; default: the model's loss.")
    command.add_argument("--out", default="probes", help=f"Folder of the results; {default}.")
    return command


def _names(text):
    return text.split(",")


def _positive(text):
    value = int(text)
    if value < 1:
        raise ValueError(f"Expected a positive number. Received: {text}")
    return value


def main(argv: Sequence[str] | None = None) -> None:
    """Run the probes that a command line asks for; `None` is that of the process."""
    options = parser().parse_args(argv)
    out = pathlib.Path(options.out)
    try:
        model, x, y = read(options)
        data = options.data or pathlib.Path(options.data_dir).name
        title = f"{model.name} on {len(x)} images of {data} ({options.split})"
        out.mkdir(parents=True, exist_ok=True)
        for table in measure(options, model, x, y):  # the probes' values stay if a lesion fails
            table.to_csv(out / "probes.csv")
            table.to_html(out / "probes.html", title)
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"zoo.probe: {error}")
    print(table)
    print(f"{len(table)} values: {out / 'probes.csv'}, {out / 'probes.html'}")


def read(options: argparse.Namespace) -> tuple[keras.Model, np.ndarray, np.ndarray]:
    """Return the model, the preprocessed images and the labels.

    Raises:
        ValueError: if there is no such model, no data were named, or they do not fit the model.
    """
    if not pathlib.Path(options.model).exists():
        raise ValueError(f"Expected a .keras file. Received: {options.model}, which is not there.")
    if options.data is None and options.data_dir is None:
        raise ValueError("Name the data: --data mnist, or --data_dir with a file or a folder.")
    unknown = [name for name in options.probes if name not in PROBES]
    if unknown:
        raise ValueError(f"`--probes` must be of {', '.join(PROBES)}. Received: {unknown}")
    data = images.load(options.data or "data", options.data_dir)
    model = load_model(options.model)
    x = getattr(data, f"x_{options.split}")[: options.examples]
    _check_sizes(model, x, options)
    y = getattr(data, f"y_{options.split}")[: options.examples]
    if options.preprocessing is None:
        return model, x.astype("float32") / 255, y
    return model, preprocessing.fit(options.preprocessing, data.x_train)(x), y


def _check_sizes(model, images, options):
    """Raise ValueError unless the images have the shape of the model's input."""
    expected = model.input_shape
    sizes = zip(expected[1:], images.shape[1:], strict=False)
    if len(expected) != images.ndim or any(a not in (None, b) for a, b in sizes):
        raise ValueError(
            f"Expected images of the model's shape, {expected[1:]}. Received: {images.shape[1:]}, "
            f"of {options.data_dir or options.data}. Name the data that it was trained on."
        )


def measure(
    options: argparse.Namespace, model: keras.Model, x: np.ndarray, y: np.ndarray
) -> Iterator[Table]:
    """Yield the table of the probes, then with --lesions one that contains the lesions, too."""
    probes = [PROBES[name]() for name in options.probes]
    shared = {"loss": options.loss, "batch_size": options.batch_size, "blocks": options.blocks}
    progress = callbacks.PassProgress("probes", len(x))
    table = callbacks.run(probes, model, (x, y), progress=progress, **shared)
    yield table
    if options.lesions:
        progress = callbacks.PassProgress("lesions", len(x))
        yield table + callbacks.lesions(model, (x, y), progress=progress, **shared)


if __name__ == "__main__":
    main()
