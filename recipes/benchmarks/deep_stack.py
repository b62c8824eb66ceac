"""How long a thousand highway layers take to build, to compile and to train.

    KERAS_BACKEND=jax python recipes/benchmark.py deep_stack

Prints, each from a fresh process,

    stack       `zoo.HighwayDenseStack`: one layer of stacked weights, at `--depths`;
    unrolled    the same network as a graph of `zoo.HighwayDense`, at `--unrolled_depths`: its
                compilation gets slow long before Keras refuses a graph of a thousand.

`first` is from nothing to the end of the first step: building, compiling, training a batch of 16;
importing is not in it. `step` is the median of the steps after it. The aim (ours): a thousand
layers in 10 s on two cores on TensorFlow and JAX, and in at most 3 times what a hundred take.
"""

import math
import multiprocessing
import time

import numpy as np
from absl import app, flags

UNITS, INPUTS, CLASSES = 50, 784, 10  # Srivastava et al. (2015), section 3.1: MNIST
BATCH, LEARNING_RATE = 16, 0.1  # ours
JIT = {"auto": "auto", "on": True, "off": False}

flags.DEFINE_list("depths", ["100", "1000"], "Layers of the stacks.")
flags.DEFINE_list("unrolled_depths", ["50", "100"], "Layers of the graphs of single layers.")
flags.DEFINE_integer("steps", 9, "Steps after the first.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Of the weights and the data.", lower_bound=0)
flags.DEFINE_enum("jit", "auto", list(JIT), "XLA; auto: Keras's choice, off on TensorFlow's CPU.")
flags.DEFINE_string("results", None, "Also append the line of results to this file.")
FLAGS = flags.FLAGS


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")
    begin = time.perf_counter()
    cases = [("stack", int(d)) for d in FLAGS.depths]
    cases += [("unrolled", int(d)) for d in FLAGS.unrolled_depths]
    spawn, measured = multiprocessing.get_context("spawn"), {}
    print(f"{'layers':14}{'first, s':>10}{'build, s':>10}{'step, ms':>10}")
    for kind, depth in cases:
        with spawn.Pool(1) as fresh:
            found = fresh.apply(measure, (kind, depth, FLAGS.steps, FLAGS.seed, JIT[FLAGS.jit]))
        measured[f"{kind} {depth}"] = found
        times = found["first"], found["build"], 1000 * found["step"]
        print(f"{f'{kind} {depth}':14}" + "".join(f"{t:10.2f}" for t in times), flush=True)
    least, most = (measured[f"stack {FLAGS.depths[i]}"]["first"] for i in (0, -1))
    print(f"first: {FLAGS.depths[-1]} layers take {most / least:.2f} times {FLAGS.depths[0]}")

    from experiment import results

    line = results.row(
        **{"artifact": "benchmark/deep_stack", "model": "highway_dense_stack", "data": "noise"},
        **{"departures": [], "verdict": "", "paper": None, "std": None, "epochs": None},
        config={"units": UNITS, "inputs": INPUTS, "batch": BATCH, "jit": FLAGS.jit},
        metric=f"first_step_seconds_of_{FLAGS.depths[-1]}_layers",
        value=most,
        seeds=[FLAGS.seed],
        budget=f"{1 + FLAGS.steps} steps",
        measured=measured,
        seconds=round(time.perf_counter() - begin, 1),
    )
    print(f"{line['backend']}, {line['hardware']}; commit {line['commit']}")
    if FLAGS.results:
        results.append(FLAGS.results, line)


def measure(kind, depth, steps, seed, jit):
    """Seconds to the end of the first step, of building alone and of a later step; last loss."""
    import keras

    import zoo
    from zoo.layers.highway_stack import HighwayDenseStack

    zoo.seed_everything(seed)
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(BATCH, INPUTS)).astype("float32"), rng.integers(0, CLASSES, BATCH)
    config = {"units": UNITS, "gate_bias": -math.log(depth)}  # ours: 1/e of the input arrives
    begin = time.perf_counter()
    inputs = keras.Input((INPUTS,))
    z = keras.layers.Dense(UNITS, activation="relu")(inputs)
    if kind == "stack":
        z = HighwayDenseStack(depth, **config)(z)
    else:
        for _ in range(depth):
            z = zoo.HighwayDense(**config)(z)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(z))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(LEARNING_RATE), loss, jit_compile=jit)
    build = time.perf_counter() - begin
    model.train_on_batch(x, y)
    ends = [time.perf_counter()]
    for _ in range(steps):
        last = float(model.train_on_batch(x, y))
        ends.append(time.perf_counter())
    step = float(np.median(np.diff(ends)))
    return {"first": ends[0] - begin, "build": build, "step": step, "loss": last}


if __name__ == "__main__":
    app.run(main)
