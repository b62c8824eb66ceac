"""Peak memory of a training step with rematerialization, gradient accumulation, both or neither.

    KERAS_BACKEND=torch python recipes/benchmark.py memory

Ways to train:

    plain        `fit` as the recipes call it
    remat        `zoo.remat(model)`: rematerialization (gradient checkpointing) of every block
    accumulate   `zoo.optimizers.accumulating`: micro-batches of a `--parts`-th of the batch
    both         remat and accumulate

Each case runs in a process of its own. The number is the peak of the resident memory (VmHWM) during
a step after the first, above what the process held before that step: activations, gradients and
temporary memory of the backend, without weights and optimizer slots. glibc and TensorFlow return
freed memory at once here (TensorFlow only without oneDNN), so that the first step's peak does not
hide the next one's. XLA keeps its memory, so on JAX the number is the temporary memory that XLA
plans for a step. Ratios are to "plain" of the same run; "seconds" is the fastest later step.

An optimizer that accumulates keeps a sum of gradients, as large as the weights, between steps.
"""

import os
import sys
import time

import numpy as np

from benchmarks import harness

NETWORKS = {  # name: batch and shape of an example
    "resnet110": (128, (32, 32, 3)),  # He et al. (2015), section 4.2
    "stack1000": (1024, (784,)),  # 1,000 highway layers of 50 units, scanned; the batch is ours
}
WAYS = ("plain", "remat", "accumulate", "both")
RESET_PEAK = "/proc/self/clear_refs"
ENVIRONMENT = {
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "MALLOC_MMAP_THRESHOLD_": "16384",
    "MALLOC_TRIM_THRESHOLD_": "0",
}


def add_flags(parser):
    """Add the benchmark's own flags."""
    add = parser.add_argument
    networks = ",".join(NETWORKS)
    add("--networks", type=harness.some_of(NETWORKS), default=networks, help="Networks to train.")
    ways = "Ways to train; plain is always measured."
    add("--ways", type=harness.some_of(WAYS), default=",".join(WAYS), help=ways)
    add("--batch", type=harness.positive, help="Examples per batch instead of the network's own.")
    add("--parts", type=harness.positive, default=4, help="Micro-batches per batch.")
    add("--steps", type=harness.positive, default=2, help="Updates after the first.")
    add(
        "--jit", choices=harness.JIT, default="auto", help="Compile with XLA; auto: Keras's choice."
    )


def main(options):
    """Measure every network in every way."""
    if not os.path.exists(RESET_PEAK):
        sys.exit(f"Expected Linux, which counts the peak of memory. Received: no {RESET_PEAK}.")
    for name in options.networks:
        begin = time.perf_counter()
        batch = options.batch or NETWORKS[name][0]
        measured = {}
        print(f"\n{name}, batch of {batch}\n{'':14}{'peak, MB':>10}{'of plain':>10}{'step, s':>10}")
        for way in dict.fromkeys(["plain", *options.ways]):
            measured[way] = harness.measure_in_child(f"{name} {way}", **ENVIRONMENT)
            peak = measured[way]["megabytes"]
            ratio = peak / measured["plain"]["megabytes"]
            print(f"{way:14}{peak:10.0f}{ratio:10.2f}{measured[way]['seconds']:10.2f}", flush=True)
        plain = measured["plain"]["megabytes"]
        ratios = {way: round(case["megabytes"] / plain, 3) for way, case in measured.items()}
        harness.write(
            options,
            begin,
            model=name,
            config={"batch": batch, "parts": options.parts, "jit": options.jit},
            metric="peak_megabytes_of_a_plain_step",
            value=round(plain),
            budget=f"{1 + options.steps} updates",
            more={"measured": measured, "ratios": ratios},
        )


def contender(options, case):
    """Return the task of a child process."""
    name, way = case.split()
    batch = options.batch or NETWORKS[name][0]
    parts = options.parts if way in ("accumulate", "both") else 1
    return {
        "measure": lambda: measure(
            name, batch, parts, way in ("remat", "both"), options.steps, harness.JIT[options.jit]
        )
    }


def measure(name, batch, parts, remat, steps, jit):
    """Return the peak memory of a later update in megabytes, and its seconds."""
    import keras

    import zoo
    from benchmarks import xla

    zoo.seed_everything(0)
    shape = NETWORKS[name][1]
    if name == "resnet110":
        model = zoo.resnet110(input_shape=shape)
    else:
        model = zoo.highway_mlp(1001, gate_bias=-7.0, input_shape=shape, stacked=True)
    if remat:
        zoo.remat(model)
    optimizer = zoo.optimizers.accumulating(keras.optimizers.SGD(0.01, 0.9), parts)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=jit)
    rng = np.random.default_rng(0)
    x = np.split(rng.random((batch, *shape), "float32"), parts)
    y = np.split(rng.integers(0, 10, batch), parts)

    def update():
        for micro_batch in zip(x, y, strict=True):
            model.train_on_batch(*micro_batch)

    planned = xla.planned(model, x[0], y[0])
    update()
    times, peaks = [], []
    for _ in range(steps):
        with open(RESET_PEAK, "w", encoding="ascii") as file:
            file.write("5")
        before = harness.memory("VmRSS")
        times.append(harness.seconds_of(update))
        peaks.append(harness.memory("VmHWM") - before)
    megabytes = planned["temporaries"] / 2**20 if planned else max(peaks)
    return {"megabytes": megabytes, "seconds": min(times)}
