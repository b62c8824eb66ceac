"""Greff et al. (2017), Figs 3 and 4: estimation errors and top patches of a trained network.

imagenet_resnet50.py imports it from beside itself.
"""

import json
import pathlib
import time

import numpy as np
from absl import flags

from experiment import plots, run_dirs
from experiment.results import Result
from greff2017 import imagenet
from zoo.callbacks.training import PassProgress

FLAGS = flags.FLAGS
COUNT = 9  # Fig. 4
CAFFE = (".h5",)  # weights for keras.applications.ResNet50, which were Caffe's


def define_flags():
    """The flag of Fig. 4."""
    told = "Channel of Fig. 4. Default: the one with the largest rectified mean after stage 1."
    flags.DEFINE_integer("unit", None, told, lower_bound=0)


def of_file(path):
    """Figs 3 and 4 of a `.keras` file, or of weights for `keras.applications.ResNet50`.

    Raises:
        ValueError: if it cannot be read, or reads other images.
    """
    path = pathlib.Path(path)
    model, departures = load(path)
    size = model.input_shape[1]
    fed = imagenet.feed(size, least=1)
    if path.suffix in CAFFE:
        fed.probed = imagenet.Mapped(fed.probed, as_caffe)
    departures += [] if fed.images.name == "ImageNet" else [f"{fed.images.name}, not ImageNet"]
    departures += [] if size == 224 else [f"image_size {size}, not 224"]
    departures += [] if len(fed.places) == 5000 else [f"{len(fed.places)} images, not 5,000"]
    name = name_of(path)
    folder = pathlib.Path(FLAGS.run_dir or path.parent / f"{path.stem}-figures")
    inspect(model, name, folder, fed, departures, None, flip=path.suffix in CAFFE)


def name_of(path):
    """The network's, which the folder of a run tells; else the file's."""
    beside = path.with_name("config.json")
    kept = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
    return kept.get("model", path.stem) if path.stem == "model" else path.stem


def load(path):
    """The model in a file, and how it departs from the paper's.

    Raises:
        ValueError: if there is none, or it reads no squares of three channels.
    """
    import keras

    import zoo
    from zoo import io

    zoo.keep_memory()
    if not path.is_file() or path.suffix not in (".keras", *CAFFE):
        raise ValueError(
            "Expected in --trained a .keras file, or keras.applications.ResNet50's weights, .h5. "
            f"Received: {path}" + ("" if path.is_file() else ", which is no file.")
        )
    try:
        if path.suffix in CAFFE:
            size = FLAGS.image_size or 224
            options = {"weights": str(path), "input_shape": (size, size, 3)}
            return check(keras.applications.ResNet50(**options)), []
        model = io.load_model(path)
    except (OSError, TypeError, KeyError) as error:
        raise ValueError(f"Cannot read the model in {path}: {error}") from error
    shape = model.input_shape
    if len(shape) != 4 or shape[1] is None or shape[1] != shape[2] or shape[3] != 3:
        raise ValueError(f"Expected a model of (size, size, 3). Received: {shape} in {path}")
    return check(model), ["not He et al.'s trained network"]


def check(model):
    """`model`, if its first stage has the unit that is asked for.

    Raises:
        ValueError: if it has not, or the model has no blocks.
    """
    from zoo.graph.blocks import find_blocks

    units = find_blocks(model)[0][0].shape[-1]
    if FLAGS.unit is not None and FLAGS.unit >= units:
        raise ValueError(f"Expected --unit below {units}. Received: {FLAGS.unit}")
    return model


def as_caffe(x):
    """Normalised images as Caffe's ResNet-50 reads them: BGR from 0 to 255 without their mean."""
    import keras

    from zoo.datasets.crops import MEAN, STD

    pixels = 255 * (x * np.float32(STD) + np.float32(MEAN))
    return keras.applications.resnet50.preprocess_input(pixels, data_format="channels_last")


def inspect(model, name, folder, fed, departures, epochs, flip=False):
    """Draws both figures and writes the line of results of Fig. 3.

    Args:
        model: What is looked into.
        name: Of the network, for titles and results.
        folder: Of the files, whose names have the network's.
        fed: `imagenet_data.Fed`.
        departures: From the paper.
        epochs: Of its training, or None.
        flip: Whether channels are blue, green, red.
    """
    from zoo import callbacks

    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    errors = callbacks.EstimationError(rectified=True)  # behind the ReLU that ends a block
    strengths = callbacks.BlockOutputs(rectified=True, name="strength")
    left = PassProgress(f"probes of {name}", len(fed.places))
    table = callbacks.run([errors, strengths], model, fed.probed, progress=left)
    rows = estimation(table)
    title = f"{name}, {len(fed.places)} images of {fed.images.name}"
    draw_errors(folder / f"fig3-{name}.png", rows, title)
    last = [row["block"] for row in rows if row["stage"] == 1][-1]
    means = [r.value for r in table if r.probe == "strength_units" and r.block == last]
    unit = int(np.argmax(means)) if FLAGS.unit is None else FLAGS.unit
    print(f"top patches of unit {unit} of {name}: {len(fed.places)} images", flush=True)
    patches = callbacks.top_patches(model, fed.probed, unit, count=COUNT)
    draw_patches(folder / f"fig4-{name}.png", patches, unit, fed.places, flip)
    seconds = time.perf_counter() - start
    result = result_of(rows, name, fed, departures, epochs, seconds, unit)
    run_dirs.write(folder, result)
    print(
        f"{name}: estimation error of the last stage {result.value:.4f} +- "
        f"{result.more['deviation_over_images']:.4f}; patches of unit {unit}; figures in {folder}"
    )


def result_of(rows, name, fed, departures, epochs, seconds, unit):
    """Return the result of Fig. 3, of its rows; see `inspect`."""
    stages = [[r for r in rows if r["stage"] == s] for s in dict.fromkeys(r["stage"] for r in rows)]
    estimates = stages[-1][:-1]  # the last block's own error is 0
    mean, std = (float(np.mean([row[key] for row in estimates])) for key in ("mean", "std"))
    sign = "negative" if mean < 0 else "not negative"
    return Result(
        artifact="greff2017/fig3",
        model=name,
        config={"examples": len(fed.places)},
        metric="estimation_error",
        value=round(mean, 5),
        seeds=[FLAGS.seed],
        data=fed.images.name,
        budget=FLAGS.budget,
        epochs=epochs,
        deviations=departures,
        verdict="not comparable" if departures else f"{sign}, in Fig. 3 negative",
        seconds=round(seconds, 1),
        more={
            "deviation_over_images": round(std, 5),
            "by_stage": [[[round(r["mean"], 5), round(r["std"], 5)] for r in s] for s in stages],
            "unit": unit,
        },
    )


def estimation(table):
    """Rows of Fig. 3: stages counted from 1, blocks within."""
    means, stds = table.values("estimation_error"), table.values("estimation_error_std")
    of = {row.block: row.stage for row in table if row.probe == "estimation_error"}
    numbers = {stage: i for i, stage in enumerate(dict.fromkeys(of.values()), 1)}
    rows = []
    for block, mean in means.items():
        index = 1 + sum(row["stage"] == numbers[of[block]] for row in rows)
        place = {"stage": numbers[of[block]], "block": block, "index": index}
        rows.append({**place, "mean": mean, "std": stds[block]})
    return rows


def draw_errors(path, rows, title):
    """Fig. 3: a panel for each stage, mean and deviation of its blocks."""
    stages = [*dict.fromkeys(row["stage"] for row in rows)]
    figure, axes = plots.new(2.5 * len(stages), 2.8, ncols=len(stages), squeeze=False)
    for stage, axis in zip(stages, axes[0], strict=True):
        columns = [(r["index"], r["mean"], r["std"]) for r in rows if r["stage"] == stage]
        index, mean, std = zip(*columns, strict=True)
        axis.axhline(0, color="0.75", linewidth=0.8)
        axis.errorbar(index, mean, std, color="black", marker="o", markersize=4, capsize=3)
        axis.set(title=f"stage {stage}", xlabel="block", xticks=index)
    axes[0, 0].set_ylabel("estimation error (activation)")
    figure.suptitle(title, fontsize=9)
    plots.save(path, figure, rows)


def draw_patches(path, patches, unit, places, flip):
    """Fig. 4: patches and their gradients, and where they lie."""
    from zoo import callbacks

    if flip:
        patches = [
            patch._replace(image=patch.image[..., ::-1], gradient=patch.gradient[..., ::-1])
            for patch in patches
        ]
    rows = [
        {
            "unit": unit,
            "block": patch.block,
            "rank": patch.rank + 1,
            "image": int(places[patch.example]),
            "row": patch.row,
            "column": patch.column,
            "activation": patch.value,
        }
        for patch in patches
    ]
    figure = callbacks.draw_patches(patches)
    figure.suptitle(f"unit {unit}: values, patches, guided backpropagation", fontsize=9)
    plots.save(path, figure, rows)
