"""What folding identities into kernels saves at inference: time and peak memory, folded / original.

    KERAS_BACKEND=torch python recipes/benchmark.py fold

Of simplified_residual_net(44) on images of 32 pixels, and zoo.fold_identity of it, each in a
process of its own, in turn. Ratios are taken round by round; their median is printed, and range.
Peak memory is what a process held at most beyond what it held before its first batch.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
from absl import app, flags

KINDS = ("original", "folded")

flags.DEFINE_integer("depth", 44, "3 n + 2.")
flags.DEFINE_integer("batch", 256, "Images.", lower_bound=1)
flags.DEFINE_integer("steps", 5, "Batches of a round.", lower_bound=1)
flags.DEFINE_integer("rounds", 5, "How often each is measured.", lower_bound=1)
flags.DEFINE_string("results", None, "Also append the lines of results to this file.")
flags.DEFINE_enum("measure", None, KINDS, "What a child process measures; used by itself.")
FLAGS = flags.FLAGS


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")
    if FLAGS.measure:
        print(json.dumps(measure(FLAGS.measure)))
        return
    start, rounds = time.perf_counter(), {kind: [] for kind in KINDS}
    for _ in range(FLAGS.rounds):
        for kind in KINDS:
            rounds[kind].append(in_a_process(kind))
    report(rounds, start)


def in_a_process(kind):
    """What a child measures."""
    command = [sys.executable, *sys.argv, f"--measure={kind}"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    if done.returncode:
        sys.exit(f"The process that measures {kind} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(kind):
    """Seconds a batch, and megabytes at the peak."""
    import zoo
    from zoo.backend import compiled

    zoo.seed_everything(0)
    model = zoo.simplified_residual_net(FLAGS.depth)
    if kind == "folded":
        model, kept = zoo.fold_identity(model)
        assert not kept
    shape = (FLAGS.batch, 32, 32, 3)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    forward = compiled(lambda x: model(x, training=False), model)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    np.asarray(forward(x))  # compiles
    times = []
    for _ in range(FLAGS.steps):
        start = time.perf_counter()
        np.asarray(forward(x))
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": statistics.median(times), "megabytes": (peak - before) / 1024}


def report(rounds, start):
    """Prints and writes both ratios."""
    import keras

    from experiment import results

    print(f"{keras.backend.backend()}, depth {FLAGS.depth}, batches of {FLAGS.batch}, medians")
    for key, unit in (("seconds", "s a batch"), ("megabytes", "MB at the peak")):
        pairs = zip(rounds["folded"], rounds["original"], strict=True)
        ratios = [folded[key] / original[key] for folded, original in pairs]
        for kind in KINDS:
            print(f"{kind:9}{statistics.median(r[key] for r in rounds[kind]):9.3f} {unit}")
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        print(f"folded/original {middle:.2f} ({low:.2f}..{high:.2f})")
        line = results.row(
            artifact="benchmark/fold",
            model="simplified_residual_net",
            config={"depth": FLAGS.depth, "batch": FLAGS.batch},
            metric=f"folded_over_original_{key}",
            value=round(middle, 3),
            std=round(float(np.std(ratios)), 3),
            seeds=[0],
            paper=None,
            data="noise",
            budget=f"{FLAGS.rounds} rounds of {FLAGS.steps} batches",
            epochs=None,
            departures=[],
            verdict="",
            seconds=round(time.perf_counter() - start, 1),
            rounds=rounds,
        )
        if FLAGS.results:
            results.append(FLAGS.results, line)


if __name__ == "__main__":
    app.run(main)
