"""Time and memory of inference with identities folded into kernels, over the original network.

    KERAS_BACKEND=torch python recipes/benchmark.py fold

Compares `zoo.simplified_residual_net(44)` on images of 32 pixels with `zoo.fold_identity` of it.
Each is measured in a process of its own, in turn; ratios are taken round by round. Peak memory is
the largest resident memory of a process above what it had before its first batch.
"""

import time

import numpy as np

from benchmarks import harness

KINDS = ("original", "folded")
UNITS = {"seconds": "s per batch", "megabytes": "MB at the peak"}


def add_flags(parser):
    """Add the benchmark's own flags."""
    add = parser.add_argument
    add("--depth", type=harness.positive, default=44, help="Depth of the network, 3 n + 2.")
    add("--batch", type=harness.positive, default=256, help="Images per batch.")
    add("--steps", type=harness.positive, default=5, help="Batches per round.")
    add("--rounds", type=harness.positive, default=5, help="Measurements of each network.")


def main(options):
    """Measure both networks in turn, and report time and memory."""
    begin = time.perf_counter()
    rounds = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind in KINDS:
            rounds[kind].append(harness.measure_in_child(kind))
    for key, unit in UNITS.items():
        values = {kind: np.array([measured[key] for measured in rounds[kind]]) for kind in KINDS}
        for kind in KINDS:
            print(f"{kind:9}{np.median(values[kind]):9.3f} {unit}")
        ratios = values["folded"] / values["original"]
        print(f"folded/original {harness.spread(ratios)}")
        harness.write(
            options,
            begin,
            model="simplified_residual_net",
            config={"depth": options.depth, "batch": options.batch},
            metric=f"folded_over_original_{key}",
            **harness.statistics_of(ratios),
            budget=f"{options.rounds} rounds of {options.steps} batches",
            more={"rounds": rounds},
        )


def contender(options, kind):
    """Return the task of a child process."""
    return {"measure": lambda: measure(kind, options.depth, options.batch, options.steps)}


def measure(kind, depth, batch, steps):
    """Return the median seconds per batch and the peak memory in megabytes."""
    import zoo
    from zoo.backend import compiled

    zoo.seed_everything(0)
    model = zoo.simplified_residual_net(depth)
    if kind == "folded":
        model, _ = zoo.fold_identity(model)
    x = np.random.default_rng(0).normal(size=(batch, 32, 32, 3)).astype("float32")
    forward = compiled(lambda x: model(x, training=False), model)
    before = harness.memory("VmHWM")
    np.asarray(forward(x))  # compiles
    seconds = [harness.seconds_of(lambda: np.asarray(forward(x))) for _ in range(steps)]
    return {"seconds": np.median(seconds), "megabytes": harness.memory("VmHWM") - before}
