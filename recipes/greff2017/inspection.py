"""Greff et al. (2017), Figs 3 and 4, equation 9: a trained network's estimates and residuals."""

import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from absl import flags

import zoo
from experiment import plots, run_dirs
from experiment.flags import FLAGS
from experiment.results import NOT_COMPARABLE, Result
from greff2017 import figures, imagenet
from zoo import callbacks, io
from zoo.callbacks.training import PassProgress
from zoo.datasets.crops import MEAN, STD
from zoo.graph.blocks import find_blocks

flags.disclaim_key_flags()  # they are the recipe's

NUM_PATCHES = 9  # Fig. 4, of each block
CAFFE = ".h5"  # weights for keras.applications.ResNet50, which were Caffe's


def define_flags() -> None:
    """Define the flag of Fig. 4."""
    help_text = "Channel of Fig. 4. Default: that of the largest rectified mean after stage 1."
    flags.DEFINE_integer("unit", None, help_text, lower_bound=0)


def inspect_file(path: str) -> None:
    """Draw Figs 3 and 4 of a `.keras` file, or of weights for `keras.applications.ResNet50`.

    Raises:
        ValueError: if it cannot be read, or its input is no image.
    """
    path = pathlib.Path(path)
    model, deviations = load(path)
    size = model.input_shape[1]
    inputs = imagenet.load(size, least=1)
    is_caffe = path.suffix == CAFFE
    if is_caffe:
        inputs.probed = imagenet.Mapped(inputs.probed, as_caffe)
    if inputs.name != "ImageNet":
        deviations.append(f"{inputs.name}, not ImageNet")
    if size != 224:
        deviations.append(f"image_size {size}, not 224")
    if len(inputs.indices) != 5000:
        deviations.append(f"{len(inputs.indices)} images, not 5,000")
    folder = pathlib.Path(FLAGS.run_dir or path.parent / f"{path.stem}-figures")
    inspect(model, name_of(path), folder, inputs, deviations, None, bgr=is_caffe)


def name_of(path: pathlib.Path) -> str:
    """Return the network's name: of the run that the file is in, or the file's."""
    config = path.with_name("config.json")
    if path.stem != "model" or not config.exists():
        return path.stem
    return json.loads(config.read_text(encoding="utf-8")).get("model", path.stem)


def load(path: pathlib.Path) -> tuple[keras.Model, list[str]]:
    """Return the model in a file, and how it deviates from the paper's.

    Raises:
        ValueError: if there is none, or its input is not a square image of three channels.
    """
    zoo.keep_memory()
    if not path.is_file() or path.suffix not in (".keras", CAFFE):
        raise ValueError(
            "Expected in --trained a .keras file, or keras.applications.ResNet50's weights, .h5. "
            f"Received: {path}" + ("" if path.is_file() else ", which is no file.")
        )
    if path.suffix == CAFFE:
        size = FLAGS.image_size or 224
        try:
            options = {"weights": str(path), "input_shape": (size, size, 3)}
            return check(keras.applications.ResNet50(**options)), []
        except (OSError, KeyError) as error:  # no HDF5 file, or one of something else
            raise ValueError(f"Cannot read the weights in {path}: {error}") from error
    model = io.load_model(path)
    shape = model.input_shape
    if len(shape) != 4 or shape[1] is None or shape[1] != shape[2] or shape[3] != 3:
        raise ValueError(f"Expected a model of (size, size, 3). Received: {shape} in {path}")
    return check(model), ["not He et al.'s trained network"]


def check(model: keras.Model) -> keras.Model:
    """Return `model` if its first stage has the unit of --unit.

    Raises:
        ValueError: if it has not, or the model has no blocks.
    """
    units = find_blocks(model)[0][0].shape[-1]
    if FLAGS.unit is not None and FLAGS.unit >= units:
        raise ValueError(f"Expected --unit below {units}. Received: {FLAGS.unit}")
    return model


def as_caffe(x: np.ndarray) -> np.ndarray:
    """Return normalized images as Caffe's ResNet-50 reads them: BGR, 0 to 255, less their mean."""
    pixels = 255 * (x * np.float32(STD) + np.float32(MEAN))
    return keras.applications.resnet50.preprocess_input(pixels, data_format="channels_last")


def inspect(
    model: keras.Model,
    name: str,
    folder: pathlib.Path,
    inputs: imagenet.Inputs,
    deviations: Sequence[str],
    epochs: int | None,
    bgr: bool = False,
) -> list[dict[str, Any]]:
    """Draw both figures and write the result of Fig. 3; `bgr`: channels are blue, green, red.

    Returns:
        The rows of equation 9's figure: the relative mean of each block's residual function.
    """
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    count = len(inputs.indices)
    errors = callbacks.EstimationError(rectified=True)  # after the ReLU that ends a block
    strengths = callbacks.BlockOutputs(rectified=True, name="strength")
    progress = PassProgress(f"probes of {name}", count)
    probes = [errors, strengths, callbacks.ResidualMean()]
    table = callbacks.run(probes, model, inputs.probed, progress=progress)
    rows = estimation_errors(table)
    figures.fig3(folder / f"fig3-{name}.png", rows)
    relative = table.values("residual_mean_relative")
    residuals = [
        {"network": name, "index": i, "block": block, "relative_mean": mean}
        for i, (block, mean) in enumerate(relative.items(), 1)
    ]
    unit = FLAGS.unit
    if unit is None:
        last = [row["block"] for row in rows if row["stage"] == 1][-1]
        means = [r.value for r in table if r.probe == "strength_units" and r.block == last]
        unit = int(np.argmax(means))
    print(f"top patches of unit {unit} of {name}: {count} images", flush=True)
    patches = callbacks.top_patches(model, inputs.probed, unit, count=NUM_PATCHES)
    draw_patches(folder / f"fig4-{name}.png", patches, unit, inputs.indices, bgr)
    stages = [
        [row for row in rows if row["stage"] == stage]
        for stage in dict.fromkeys(row["stage"] for row in rows)
    ]
    estimates = stages[-1][:-1]  # the last block's own error is 0
    mean = float(np.mean([row["mean"] for row in estimates]))
    std = float(np.mean([row["std"] for row in estimates]))
    sign = "negative" if mean < 0 else "not negative"
    result = Result(
        artifact="greff2017/fig3",
        model=name,
        config={"network": name, "examples": count},
        metric="estimation_error",
        value=round(mean, 5),
        seeds=[FLAGS.seed],
        data=inputs.name,
        budget=FLAGS.budget,
        epochs=epochs,
        deviations=deviations,
        verdict=NOT_COMPARABLE if deviations else f"{sign}, in Fig. 3 negative",
        seconds=round(time.perf_counter() - start, 1),
        more={
            "deviation_over_images": round(std, 5),
            "by_stage": [
                [[round(row["mean"], 5), round(row["std"], 5)] for row in stage] for stage in stages
            ],
            "residual_mean": [round(mean, 5) for mean in table.values("residual_mean").values()],
            "relative_residual_mean": [round(mean, 5) for mean in relative.values()],
            "unit": unit,
        },
    )
    run_dirs.write(folder, result)
    print(
        f"{name}: estimation error of the last stage {mean:.4f} +- {std:.4f}; "
        f"patches of unit {unit}; figures in {folder}"
    )
    return residuals


def estimation_errors(table: callbacks.Table) -> list[dict[str, Any]]:
    """Return the rows of Fig. 3: mean and deviation of each block, stages counted from 1."""
    means = table.values("estimation_error")
    deviations = table.values("estimation_error_std")
    stage_of = {row.block: row.stage for row in table if row.probe == "estimation_error"}
    stages = [*dict.fromkeys(stage_of.values())]
    rows = []
    for block, mean in means.items():
        stage = 1 + stages.index(stage_of[block])
        index = 1 + sum(row["stage"] == stage for row in rows)
        row = {"stage": stage, "block": block, "index": index}
        rows.append({**row, "mean": mean, "std": deviations[block]})
    return rows


def draw_patches(
    path: pathlib.Path,
    patches: Sequence[Any],
    unit: int,
    indices: np.ndarray,
    bgr: bool,
) -> None:
    """Draw Fig. 4: patches of a unit and their gradients, and write where they lie.

    `indices` are those of the probed images in the validation set; `bgr` as in `inspect`.
    """
    if bgr:
        patches = [
            patch._replace(image=patch.image[..., ::-1], gradient=patch.gradient[..., ::-1])
            for patch in patches
        ]
    rows = [
        {
            "unit": unit,
            "block": patch.block,
            "rank": patch.rank + 1,
            "image": int(indices[patch.example]),
            "row": patch.row,
            "column": patch.column,
            "activation": patch.value,
        }
        for patch in patches
    ]
    figure = callbacks.draw_patches(patches)
    figure.suptitle(f"unit {unit}: values, patches, guided backpropagation", fontsize=9)
    plots.save(path, figure, rows)
