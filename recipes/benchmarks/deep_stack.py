"""Time until a thousand highway layers are built, compiled and trained for a step.

    KERAS_BACKEND=jax python recipes/benchmark.py deep_stack

Measures, each in a new process,

    stack       `zoo.HighwayDenseStack`: one layer of stacked weights, at `--depths`;
    unrolled    the same network as a graph of `zoo.HighwayDense`, at `--unrolled_depths`.

"first" is the time of building, compiling and the first training step of a batch of 16, without
imports. "step" is the median of the later steps. The aim (ours): a thousand layers in 10 s on two
cores on TensorFlow and JAX, and in at most 2.5 times the time of a hundred.
"""

import math
import time

import numpy as np

from benchmarks import harness

UNITS, INPUTS, CLASSES = 50, 784, 10  # Srivastava et al. (2015), section 3.1: MNIST
BATCH, LEARNING_RATE = 16, 0.1  # ours


def add_flags(parser):
    """Add the benchmark's own flags."""
    add = parser.add_argument
    add("--depths", default="100,1000", help="Numbers of layers of the stacks.")
    add("--unrolled_depths", default="50,100", help="Numbers of layers of the unrolled networks.")
    add("--steps", type=harness.positive, default=9, help="Steps after the first.")
    add("--seed", type=int, default=0, help="Random seed of the weights and the data.")
    add(
        "--jit", choices=harness.JIT, default="auto", help="Compile with XLA; auto: Keras's choice."
    )


def main(options):
    """Measure every depth, and report the ratio of the deepest to the shallowest stack."""
    begin = time.perf_counter()
    depths = options.depths.split(",")
    cases = [f"stack {depth}" for depth in depths]
    cases += [f"unrolled {depth}" for depth in filter(None, options.unrolled_depths.split(","))]
    measured = {}
    print(f"{'layers':14}{'first, s':>10}{'build, s':>10}{'step, ms':>10}")
    for case in cases:
        times = measured[case] = harness.measure_in_child(case)
        print(f"{case:14}{times['first']:10.2f}{times['build']:10.2f}{1000 * times['step']:10.2f}")
    least, most = measured[f"stack {depths[0]}"]["first"], measured[f"stack {depths[-1]}"]["first"]
    print(f"first: {depths[-1]} layers take {most / least:.2f} times as long as {depths[0]}")
    harness.write(
        options,
        begin,
        model="highway_dense_stack",
        config={"units": UNITS, "inputs": INPUTS, "batch": BATCH, "jit": options.jit},
        metric=f"first_step_seconds_of_{depths[-1]}_layers",
        value=most,
        budget=f"{1 + options.steps} steps",
        more={"measured": measured},
    )


def contender(options, case):
    """Return the task of a child process."""
    kind, depth = case.split()
    jit = harness.JIT[options.jit]
    return {"measure": lambda: measure(kind, int(depth), options.steps, options.seed, jit)}


def measure(kind, depth, steps, seed, jit):
    """Return seconds of building, until the end of the first step, and of a later step."""
    import keras

    import zoo

    zoo.seed_everything(seed)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(BATCH, INPUTS)).astype("float32")
    y = rng.integers(0, CLASSES, BATCH)
    config = {"units": UNITS, "gate_bias": -math.log(depth)}  # ours: 1/e of the input arrives
    begin = time.perf_counter()
    inputs = keras.Input((INPUTS,))
    z = keras.layers.Dense(UNITS, activation="relu")(inputs)
    if kind == "stack":
        z = zoo.HighwayDenseStack(depth, **config)(z)
    else:
        for _ in range(depth):
            z = zoo.HighwayDense(**config)(z)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(z))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(LEARNING_RATE), loss, jit_compile=jit)
    build = time.perf_counter() - begin
    model.train_on_batch(x, y)
    first = time.perf_counter() - begin
    losses = []
    times = [
        harness.seconds_of(lambda: losses.append(float(model.train_on_batch(x, y))))
        for _ in range(steps)
    ]
    return {"first": first, "build": build, "step": np.median(times), "loss": losses[-1]}
