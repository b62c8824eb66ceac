"""What a step of highway_resnet50 costs on n devices, from the program that XLA makes of it.

    KERAS_BACKEND=jax python recipes/benchmark.py scaling --devices 1,2,4,8

The training step (momentum SGD, ImageNet's 224 x 224 pixels, one global batch, split evenly) is
compiled for n virtual CPU devices, each n in a process of its own, and not run. Read off: floating
point operations and bytes of temporaries of one device, and number and bytes of the all-reduces,
beside what recipes/SCALING.md predicts: operations and temporaries fall as 1/n, the gradient's
all-reduce holds every trainable weight once, whatever n, and the others only what normalisations
sum up: two numbers a channel forward and two backward.
"""

import json
import math
import os
import subprocess
import sys
import time

import numpy as np
from absl import app, flags

flags.DEFINE_list("devices", ["1", "2", "4", "8"], "Numbers of devices; each divides the batch.")
flags.DEFINE_integer("batch", 256, "Images, over all devices.", lower_bound=1)
flags.DEFINE_integer("image_size", 224, "Side in pixels.", lower_bound=32)
flags.DEFINE_bool("batch_norm", True, "With normalisations, or the network without.")
flags.DEFINE_string("results", None, "Also append the lines of results to this file.")
flags.DEFINE_bool("measure", False, "What a child process does; used by itself.")
FLAGS = flags.FLAGS


def main(argv):
    numbers = [int(word) if word.isdigit() else 0 for word in FLAGS.devices]
    if len(argv) > 1 or not numbers or any(not n or FLAGS.batch % n for n in numbers):
        raise app.UsageError(
            f"Expected flags only, and --devices that divide --batch. Received: {argv[1:]}, "
            f"{FLAGS.devices}, {FLAGS.batch}"
        )
    if os.environ.get("KERAS_BACKEND") != "jax":
        sys.exit("benchmark_scaling.py reads XLA's program: run it with KERAS_BACKEND=jax.")
    if FLAGS.measure:
        print(json.dumps(measure()))
        return
    found = {}
    for number in numbers:
        start = time.perf_counter()
        found[number] = in_a_process(number)
        report(number, found, time.perf_counter() - start)


def in_a_process(number):
    """What a child finds that sees `number` devices."""
    command = [sys.executable, *sys.argv, "--measure"]
    device_count = f"--xla_force_host_platform_device_count={number}"
    environment = {**os.environ, "XLA_FLAGS": device_count, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"The process with {number} devices failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure():
    """Operations, memory and all-reduces of one device in one step."""
    import keras

    import zoo
    from benchmarks import xla
    from zoo import distribute

    devices, side = distribute.strategy("data_parallel"), FLAGS.image_size
    with devices.scope():
        model = zoo.highway_resnet50(input_shape=(side, side, 3), batch_norm=FLAGS.batch_norm)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer, "sparse_categorical_crossentropy")
        x = np.zeros((FLAGS.batch, side, side, 3), "float32")
        found = xla(model, x, np.zeros(FLAGS.batch, "int32"))
    weights = sum(math.prod(v.shape) for v in model.trainable_variables)
    normalisations = sum("moving_mean" in v.path for v in model.non_trainable_variables)
    return {**found, "weights": weights, "normalisations": normalisations}


def report(number, found, seconds):
    """Prints what was found beside the prediction, and writes lines."""
    from experiment import results

    one, all_found = found[number], [*found.values()]
    first, base = all_found[0], [*found][0]
    gradient = 4 * one["weights"] * (number > 1)
    print(
        f"{number} devices, {FLAGS.batch // number} images each: "
        f"{one['operations'] / 1e9:.1f} G operations, {one['temporaries'] / 1e6:.0f} MB of "
        f"temporaries, {one['all_reduces']} all-reduces of {one['tensors']} tensors, "
        f"{one['bytes'] / 1e6:.2f} MB; the gradient alone is {gradient / 1e6:.2f} MB",
        flush=True,
    )
    ratios = {
        "operations_times_n": one["operations"] * number / (first["operations"] * base),
        "temporaries_times_n": one["temporaries"] * number / (first["temporaries"] * base),
        "all_reduced_over_gradient": one["bytes"] / gradient if gradient else None,
    }
    for metric, value in ratios.items():
        if value is None:
            continue
        line = results.row(
            artifact="benchmark/scaling",
            model="highway_resnet50",
            config={"devices": f"{number} devices", "batch": FLAGS.batch, "side": FLAGS.image_size},
            metric=metric,
            value=round(value, 4),
            std=None,
            seeds=[],
            paper=None,
            data="none: compiled, not run",
            budget="one program",
            epochs=None,
            departures=[],
            verdict="",
            seconds=round(seconds, 1),
            found=one,
        )
        if FLAGS.results:
            results.append(FLAGS.results, line)


if __name__ == "__main__":
    app.run(main)
