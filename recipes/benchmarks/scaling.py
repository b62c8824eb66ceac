"""Operations, memory and communication of a training step on n devices, read from XLA's program.

    KERAS_BACKEND=jax python recipes/benchmark.py scaling --devices 1,2,4,8

The training step of `zoo.highway_resnet50` (momentum SGD, 224 x 224 pixels, one global batch, split
evenly) is compiled for n virtual CPU devices, each n in a process of its own, and not run. Read
from the program: floating point operations and bytes of temporaries of one device, and number and
bytes of the all-reduces. Expected: operations and temporaries fall as 1/n, the all-reduce of the
gradient holds every trainable weight once, and the others hold only the sums of the normalisations:
two numbers per channel forward and two backward. See docs/devices.md.
"""

import math
import os
import sys
import time

import numpy as np

from benchmarks import harness


def add_flags(parser):
    """Add the benchmark's own flags."""
    add = parser.add_argument
    devices = "Numbers of devices, separated by commas; each divides the batch."
    add("--devices", type=harness.numbers, default="1,2,4,8", help=devices)
    add("--batch", type=harness.positive, default=256, help="Images per batch, over all devices.")
    add("--image_size", type=harness.positive, default=224, help="Side of an image in pixels.")
    normalised = "Whether the network has batch normalisations."
    add("--batch_norm", choices=("true", "false"), default="true", help=normalised)


def main(options):
    """Compile the step for every number of devices."""
    undivided = [number for number in options.devices if options.batch % number]
    if undivided:
        sys.exit(
            f"Expected --devices that divide --batch. Received: --devices "
            f"{','.join(map(str, options.devices))} and --batch {options.batch}. Leave out "
            f"{','.join(map(str, undivided))}."
        )
    if os.environ.get("KERAS_BACKEND") != "jax":
        sys.exit("The benchmark reads XLA's program. Run it with KERAS_BACKEND=jax.")
    programs = {}
    for number in options.devices:
        begin = time.perf_counter()
        device_count = f"--xla_force_host_platform_device_count={number}"
        programs[number] = harness.measure_in_child(
            number, XLA_FLAGS=device_count, JAX_PLATFORMS="cpu"
        )
        report(options, number, programs, begin)


def contender(options, number):
    """Return the task of a child process, which sees `number` devices."""
    with_norm = options.batch_norm == "true"
    return {"measure": lambda: measure(options.batch, options.image_size, with_norm)}


def measure(batch, side, batch_norm):
    """Return operations, memory and all-reduces of one device in one step."""
    import keras

    import zoo
    from benchmarks import xla
    from zoo import distribute

    with distribute.strategy("data_parallel").scope():
        model = zoo.highway_resnet50(input_shape=(side, side, 3), batch_norm=batch_norm)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer, "sparse_categorical_crossentropy")
        x = np.zeros((batch, side, side, 3), "float32")
        program = xla.planned(model, x, np.zeros(batch, "int32"))
    weights = sum(math.prod(v.shape) for v in model.trainable_variables)
    normalisations = sum("moving_mean" in v.path for v in model.non_trainable_variables)
    return {**program, "weights": weights, "normalisations": normalisations}


def report(options, number, programs, begin):
    """Print a program beside the prediction, and write its lines of results."""
    program = programs[number]
    base, first = next(iter(programs.items()))
    gradient = 4 * program["weights"] * (number > 1)
    print(
        f"{number} devices, {options.batch // number} images each: "
        f"{program['operations'] / 1e9:.1f} G operations, {program['temporaries'] / 1e6:.0f} MB of "
        f"temporaries, {program['all_reduces']} all-reduces of {program['tensors']} tensors, "
        f"{program['bytes'] / 1e6:.2f} MB; the gradient alone is {gradient / 1e6:.2f} MB",
        flush=True,
    )
    ratios = {
        "operations_times_n": program["operations"] * number / (first["operations"] * base),
        "temporaries_times_n": program["temporaries"] * number / (first["temporaries"] * base),
    }
    if gradient:
        ratios["all_reduced_over_gradient"] = program["bytes"] / gradient
    for metric, value in ratios.items():
        harness.write(
            options,
            begin,
            model="highway_resnet50",
            config={
                "devices": f"{number} devices",
                "batch": options.batch,
                "side": options.image_size,
            },
            metric=metric,
            value=round(value, 4),
            seeds=[],
            data="none: compiled, not run",
            budget="one program",
            more={"found": program},
        )
