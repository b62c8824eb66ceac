"""What a step of highway_resnet50 costs on n devices, from the program that XLA makes of it.

    KERAS_BACKEND=jax python recipes/benchmark_scaling.py --devices 1,2,4,8

The training step (momentum SGD, ImageNet's 224 x 224 pixels, one global batch, split evenly) is
compiled for n virtual CPU devices, each n in a process of its own, and not run. Read off: floating
point operations and bytes of temporaries of one device, and number and bytes of the all-reduces,
beside what recipes/SCALING.md predicts: operations and temporaries fall as 1/n, the gradient's
all-reduce holds every trainable weight once, whatever n, and each normalisation two small ones
forward and two backward.
"""

import json
import math
import os
import re
import subprocess
import sys
import time

from absl import app, flags

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "f64": 8}

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
    import jax
    import keras

    import zoo
    from zoo import distribute

    devices = distribute.strategy("data_parallel")
    with devices.scope():
        side = FLAGS.image_size
        model = zoo.highway_resnet50(input_shape=(side, side, 3), batch_norm=FLAGS.batch_norm)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy()
        split = keras.distribution.distribution().get_data_layout((FLAGS.batch, side, side, 3))

        def loss(weights, rest, x, y):
            answer, rest = model.stateless_call(weights, rest, x, training=True)
            return loss_of(y, answer), rest

        def step(weights, rest, slots, x, y):
            (value, rest), gradient = jax.value_and_grad(loss, has_aux=True)(weights, rest, x, y)
            weights, slots = optimizer.stateless_apply(slots, gradient, weights)
            return value, weights, rest, slots

        variables = model.trainable_variables, model.non_trainable_variables, optimizer.variables
        mesh = split.device_mesh.backend_mesh
        rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
        x = jax.ShapeDtypeStruct((FLAGS.batch, side, side, 3), "float32", sharding=rows)
        y = jax.ShapeDtypeStruct((FLAGS.batch,), "int32", sharding=rows)
        told = [[_spec(jax, v.value) for v in group] for group in variables]
        program = jax.jit(step, donate_argnums=(0, 1, 2)).lower(*told, x, y).compile()
    memory, cost = program.memory_analysis(), program.cost_analysis()
    return {
        "operations": cost["flops"],
        "temporaries": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        **all_reduces(program.as_text()),
        "weights": sum(math.prod(v.shape) for v in model.trainable_variables),
        "normalisations": sum("moving_mean" in v.path for v in model.non_trainable_variables),
    }


def _spec(jax, value):
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=value.sharding)


def all_reduces(text):
    """Number and bytes of the all-reduces of an XLA program, from its text.

    >>> line = "  %r = (f32[3]{0}, f32[2,5]{1,0}) all-reduce(%a, %b), channel_id=1"
    >>> all_reduces(line)
    {'all_reduces': 1, 'tensors': 2, 'bytes': 52}
    """
    count, tensors, size = 0, 0, 0
    for shapes in re.findall(r"= (.*?) all-reduce(?:-start)?\(", text):
        found = re.findall(r"(\w+)\[([\d,]*)\]", shapes)
        count, tensors = count + 1, tensors + len(found)
        size += sum(
            BYTES[kind] * math.prod(int(n) for n in shape.split(",") if n) for kind, shape in found
        )
    return {"all_reduces": count, "tensors": tensors, "bytes": size}


def report(number, found, seconds):
    """Prints what was found beside the prediction, and writes lines."""
    from zoo import report as lines

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
        line = lines.row(
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
            lines.append(FLAGS.results, line)


if __name__ == "__main__":
    app.run(main)
