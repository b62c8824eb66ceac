"""Memory of a training step: plain, with recomputed blocks, with accumulated gradients, with both.

    KERAS_BACKEND=torch python recipes/benchmark.py memory

Each case runs in a process of its own. The number is the peak of the resident memory (VmHWM) during
a step after the first, above what the process held before that step: activations, gradients and the
backend's scratch space; the weights, the optimizer's slots and what a compiler took are not in it.
glibc and TensorFlow are told to give freed memory back at once (TensorFlow does without oneDNN),
or the peak of the first step would hide the next one's. XLA keeps what it once had: on JAX the
number is the scratch memory that it plans for a step.
A ratio is to "plain" of the same run. `seconds` is the fastest of the later steps.

    plain        `fit` as the recipes call it
    remat        `zoo.remat(model)`
    accumulate   micro-batches of a `--parts`-th of the batch: zoo.optimizers.accumulating
    both         remat and accumulate

An optimizer that accumulates keeps a sum of gradients, as large as the weights, between steps.
"""

import multiprocessing
import os
import time

import numpy as np
from absl import app, flags

NETWORKS = {  # name: batch and shape of an example
    "resnet110": (128, (32, 32, 3)),  # He et al. (2015), section 4.2
    "stack1000": (1024, (784,)),  # 1,000 highway layers of 50 units, scanned; the batch is ours
}
WAYS = {"plain": (False, False), "remat": (True, False), "accumulate": (False, True)}
WAYS["both"] = (True, True)
JIT = {"auto": "auto", "on": True, "off": False}

flags.DEFINE_list("networks", list(NETWORKS), "What to train.")
flags.DEFINE_list("ways", list(WAYS), "How; plain is always measured.")
flags.DEFINE_integer("batch", None, "Overrides the network's.", lower_bound=1)
flags.DEFINE_integer("parts", 4, "Micro-batches of a batch.", lower_bound=2)
flags.DEFINE_integer("steps", 2, "Updates after the first.", lower_bound=1)
flags.DEFINE_enum("jit", "auto", list(JIT), "XLA; auto: Keras's choice.")
flags.DEFINE_string("results", None, "Also append the lines of results to this file.")
for option, known in (("networks", NETWORKS), ("ways", WAYS)):
    flags.register_validator(option, set(known).issuperset, f"must be some of {[*known]}")
FLAGS = flags.FLAGS


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")
    # Read when a process starts: what is freed goes back to the system, in glibc and, without
    # oneDNN's allocator, on TensorFlow.
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_TRIM_THRESHOLD_": "0"}
    from experiment import results

    spawn = multiprocessing.get_context("spawn")
    for name in FLAGS.networks:
        batch, begin, found = FLAGS.batch or NETWORKS[name][0], time.perf_counter(), {}
        print(f"\n{name}, batch of {batch}\n{'':14}{'peak, MB':>10}{'of plain':>10}{'step, s':>10}")
        for way in dict.fromkeys(["plain", *FLAGS.ways]):
            with spawn.Pool(1) as fresh:
                case = name, way, batch, FLAGS.parts, FLAGS.steps, JIT[FLAGS.jit]
                found[way] = fresh.apply(measure, case)
            peak, seconds = found[way]["megabytes"], found[way]["seconds"]
            ratio = peak / found["plain"]["megabytes"]
            print(f"{way:14}{peak:10.0f}{ratio:10.2f}{seconds:10.2f}", flush=True)
        line = results.row(
            **{"artifact": "benchmark/memory", "model": name, "data": "noise", "epochs": None},
            **{"departures": [], "verdict": "", "paper": None, "std": None, "seeds": [0]},
            config={"batch": batch, "parts": FLAGS.parts, "jit": FLAGS.jit},
            metric="peak_megabytes_of_a_plain_step",
            value=round(found["plain"]["megabytes"]),
            budget=f"{1 + FLAGS.steps} updates",
            measured=found,
            ratios={
                w: round(f["megabytes"] / found["plain"]["megabytes"], 3) for w, f in found.items()
            },
            seconds=round(time.perf_counter() - begin, 1),
        )
        print(f"{line['backend']}, {line['hardware']}; commit {line['commit']}")
        if FLAGS.results:
            results.append(FLAGS.results, line)


def measure(name, way, batch, parts, steps, jit):
    """Megabytes that a later update takes at its peak, and its seconds."""
    import keras

    import zoo
    from zoo import backend
    from zoo.optimizers import accumulating

    zoo.seed_everything(0)
    recompute, accumulate = WAYS[way]
    shape = NETWORKS[name][1]
    if name == "resnet110":
        model = zoo.resnet110(input_shape=shape)
    else:
        model = zoo.highway_mlp(1001, gate_bias=-7.0, input_shape=shape, stacked=True)
    if recompute:
        zoo.remat(model)
    parts = parts if accumulate else 1
    optimizer = accumulating(keras.optimizers.SGD(0.01, 0.9), parts)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=jit)
    rng = np.random.default_rng(0)
    x, y = rng.random((batch, *shape), "float32"), rng.integers(0, 10, batch)
    pieces = [*zip(np.split(x, parts), np.split(y, parts), strict=True)]

    def update():
        for piece in pieces:
            model.train_on_batch(*piece)

    planned = backend.planned(model, *pieces[0])
    update()
    times, peaks = [], []
    for _ in range(steps):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak starts anew
        before, begin = memory("VmRSS"), time.perf_counter()
        update()
        times.append(time.perf_counter() - begin)
        peaks.append(memory("VmHWM") - before)
    megabytes = planned["temporaries"] / 2**20 if planned else max(peaks)
    return {"megabytes": megabytes, "seconds": min(times)}


def memory(key):
    """Of this process, in megabytes."""
    with open("/proc/self/status", encoding="utf-8") as file:
        found = next(line for line in file if line.startswith(f"{key}:"))
    return int(found.split()[1]) / 1024


if __name__ == "__main__":
    app.run(main)
