"""Greff et al. (2017), Figs 3 and 4, equation 9: estimates and residuals of a trained network.

`inspect` measures a network; `fig3`, `fig4` and `section3_2` draw what it returned.
"""

import pathlib

import keras
import numpy as np

from zoo import callbacks, io
from zoo.callbacks.probes.patches import Patch
from zoo.datasets.imagenet import MEAN, STD
from zoo.recipes.experiment import plots

NUM_PATCHES = 9  # Fig. 4, of each block
CAFFE = ".h5"  # weights for keras.applications.ResNet50, which were Caffe's


def inspect(model, label, batches, indices, unit, pictured, run):
    """Return estimation errors and means of the residual functions by block, and patches.

    Args:
        model: The network.
        label: Its name.
        batches: Batches of the validation images to probe.
        indices: Their indices in the validation set.
        unit: Channel of Fig. 4; None: that of the largest rectified mean after stage 1.
        pictured: True to find the patches of Fig. 4.
        run: The `Run`.
    """
    probes = [
        callbacks.EstimationError(rectified=True),  # after the ReLU that ends a block
        callbacks.BlockOutputs(rectified=True, name="strength"),
        callbacks.ResidualMean(),
    ]
    progress = run.progress(f"probes of {label}", len(indices))
    table = callbacks.run(probes, model, batches, progress=progress)
    means = table.values("estimation_error")
    stage_of = {row.block: row.stage for row in table if row.probe == "estimation_error"}
    names = [*dict.fromkeys(stage_of.values())]
    stages = np.array([1 + names.index(stage_of[block]) for block in means])
    if unit is None:
        last = [*means][np.flatnonzero(stages == 1)[-1]]
        strengths = [
            row.value for row in table if row.probe == "strength_units" and row.block == last
        ]
        unit = int(np.argmax(strengths))
    measured = {
        "blocks": [*means],
        "stage": stages,
        "estimation_error": np.array([*means.values()]),
        "estimation_error_std": np.array([*table.values("estimation_error_std").values()]),
        "residual_mean": np.array([*table.values("residual_mean").values()]),
        "relative_residual_mean": np.array([*table.values("residual_mean_relative").values()]),
        "unit": unit,
        "patches": {},
    }
    if pictured:
        print(f"top patches of unit {unit} of {label}", flush=True)
        patches = callbacks.top_patches(model, batches, unit, count=NUM_PATCHES)
        for index, patch in enumerate(patches):
            example = int(indices[patch.example])
            measured["patches"][f"{index:03d}"] = patch._replace(example=example)._asdict()
    return measured


def open_trained(path, image_size, batches):
    """Return the model in a .keras file, or `keras.applications.ResNet50` of weights in .h5.

    Returns:
        The model, and batches of normalized images as it reads them.

    Raises:
        ValueError: if there is none, or its input is no image of this size and three channels.
    """
    path = pathlib.Path(path)
    if not path.is_file() or path.suffix not in (".keras", CAFFE):
        raise ValueError(
            "Expected in --trained a .keras file, or keras.applications.ResNet50's weights, .h5. "
            f"Received: {path}" + ("" if path.is_file() else ", which is no file.")
        )
    shape = (image_size, image_size, 3)
    if path.suffix == CAFFE:
        try:
            model = keras.applications.ResNet50(weights=str(path), input_shape=shape)
        except (OSError, KeyError) as error:  # no HDF5 file, or one of something else
            raise ValueError(f"Cannot read the weights in {path}: {error}") from error
        return model, CaffeBatches(batches)
    model = io.load_model(path)
    if model.input_shape != (None, *shape):
        raise ValueError(
            f"Expected a model of images of --image_size {image_size} with three channels. "
            f"Received: input shape {model.input_shape} in {path}"
        )
    return model, batches


class CaffeBatches:
    """Batches of normalized images as Caffe's ResNet-50 reads them; can be read repeatedly."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        for x, y in self.batches:
            yield as_caffe(np.asarray(x)), y


def as_caffe(x):
    """Return normalized images as BGR from 0 to 255 less their mean."""
    pixels = 255 * (x * np.float32(STD) + np.float32(MEAN))
    return keras.applications.resnet50.preprocess_input(pixels, data_format="channels_last")


def by_stage(facts):
    """Return mean and deviation of the estimation errors, an array (blocks, 2) a stage."""
    values = np.stack([facts["estimation_error"], facts["estimation_error_std"]], axis=1)
    return [values[facts["stage"] == stage] for stage in np.unique(facts["stage"])]


def fig3(seeds):
    """Draw the estimation error: networks down, stages across, mean and deviation of blocks.

    Of several seeds each block's two values are averaged.
    """
    networks = {
        name: [
            np.mean(same, axis=0)
            for same in zip(*(by_stage(one["inspected"][name]) for one in seeds), strict=True)
        ]
        for name in seeds[0]["inspected"]
    }
    columns = max(len(stages) for stages in networks.values())
    figure, axes = plots.new(
        2.5 * columns, 2.5 * len(networks), nrows=len(networks), ncols=columns, squeeze=False
    )
    for line, (name, stages) in zip(axes, networks.items(), strict=True):
        line[0].set_ylabel(f"{name}\nestimation error (activation)", fontsize=8)
        for number, (axis, values) in enumerate(zip(line, stages, strict=True), 1):
            blocks = np.arange(1, 1 + len(values))
            axis.axhline(0, color="0.75", linewidth=0.8)
            style = {"color": plots.COLORS[0], "marker": "o", "markersize": 4, "capsize": 3}
            axis.errorbar(blocks, *values.T, **style)
            axis.set(title=f"stage {number}", xlabel="block", xticks=blocks)
    return figure


def fig4(seeds):
    """Draw patches of a unit and their gradients by guided backpropagation, of the first seed."""
    for name, facts in seeds[0]["inspected"].items():
        patches = [Patch(**patch) for patch in facts["patches"].values()]
        if patches:
            figure = callbacks.draw_patches(patches)
            title = f"{name}, unit {facts['unit']}: values, patches, guided backpropagation"
            figure.suptitle(title, fontsize=9)
            return figure
    return None


def section3_2(seeds):
    """Draw the relative mean of each block's residual function; of equation 9 it is 0."""
    rows = plots.with_seeds(
        seeds,
        lambda one: [
            {"network": name, "index": index, "relative_mean": mean}
            for name, facts in one["inspected"].items()
            for index, mean in enumerate(facts["relative_residual_mean"], 1)
        ],
    )
    return plots.lines(
        rows,
        x="index",
        y="relative_mean",
        by="network",
        labels={"index": "block", "relative_mean": "norm of E[F] / root mean square of F"},
    )
