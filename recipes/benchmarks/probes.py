"""What probes and interventions cost, as ratios to what a user has anyway, in one run.

    KERAS_BACKEND=torch python recipes/benchmark.py probes

Of resnet110 on images of 32 pixels, rounds of each contender in turn:

    step      a training step: forward, backward, SGD with momentum. The peer.
    probes    cosine loss, l2 ratio, estimation error, intermediate accuracy and borderline
              examples of all 54 blocks, on the same examples. Aim: at most 1.3 steps.
    forward   the model's own forward pass.
    sweep     lesions of all blocks, one at a time. Aim: at most 0.6 x 54 forward passes.
    steps     two epochs of `fit`, of four batches each, without probes.
    between   the same with RunProbes that waits for its epoch: what it adds to the steps between.
              Aim: nothing, that is at most 1.05.

Compilation is timed apart. Ratios are taken round by round; their median is printed, and range.
"""

import json
import statistics
import sys
import time

import numpy as np
from absl import app, flags

flags.DEFINE_integer("depth", 110, "Of cifar_resnet, 6 n + 2.")
flags.DEFINE_integer("batch", 64, "Images.", lower_bound=1)
flags.DEFINE_integer("rounds", 3, "How often each is measured.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Of weights and images.", lower_bound=0)
flags.DEFINE_string("results", None, "Also append the lines of results to this file.")
FLAGS = flags.FLAGS
AIMS = {"probes": 1.3, "sweep": 0.6, "between": 1.05}


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")
    import keras

    import zoo

    zoo.seed_everything(FLAGS.seed)
    zoo.keep_memory()
    start = time.perf_counter()
    generator = np.random.default_rng(FLAGS.seed)
    x = generator.normal(size=(FLAGS.batch, 32, 32, 3)).astype("float32")
    data = x, generator.integers(0, 10, FLAGS.batch)
    model = zoo.cifar_resnet(FLAGS.depth)
    model.compile(keras.optimizers.SGD(0.0, 0.9), "sparse_categorical_crossentropy")
    contenders = functions(model, data)
    print("first call, seconds (compilation included)", flush=True)
    for name, function in contenders.items():
        print(f"{name:8}{timed(function):9.1f}", flush=True)
    rounds = {name: [] for name in contenders}
    for _ in range(FLAGS.rounds):
        for name, function in contenders.items():
            rounds[name].append(timed(function))
    report(rounds, len(data[0]), zoo.blocks.find_blocks(model)[0], start)


def functions(model, data):
    """The contenders, each a function of nothing that ends when its numbers are there."""
    from zoo import callbacks
    from zoo.backend import compiled
    from zoo.callbacks.probes.engine import Observer
    from zoo.callbacks.probes.sweep import Trials
    from zoo.graph.surgery import lesion_plan

    probes = [callbacks.CosineLoss(), callbacks.L2Ratio(), callbacks.EstimationError()]
    probes += [callbacks.IntermediateAccuracy(), callbacks.BorderlineExamples()]
    observer, trials = Observer(probes, model), Trials(model)
    plans = [lesion_plan(trials.chain, [name]) for name, _ in trials.places()]
    forward = compiled(lambda x: model(x, training=False), model)
    watch = callbacks.RunProbes(probes, data, every=1000)
    watch.observer = observer  # one that is compiled, so that only the steps are timed
    watch.on_train_begin = lambda logs=None: setattr(watch, "begins", False)
    many = [np.concatenate([one] * 4) for one in data]

    def fit(*own):
        options = {"batch_size": FLAGS.batch, "epochs": 2, "verbose": 0, "shuffle": False}
        model.fit(*many, callbacks=[*own], **options)

    return {
        "step": lambda: model.train_on_batch(*data),
        "probes": lambda: observer.run(data, FLAGS.batch),
        "forward": lambda: np.asarray(forward(data[0])),
        "sweep": lambda: trials.run(plans, data, FLAGS.batch),
        "steps": fit,
        "between": lambda: fit(watch),
    }


def timed(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def report(rounds, examples, blocks, start):
    """Prints seconds and ratios, and writes a line of results for each aim."""
    import keras

    from experiment import results

    num = len(blocks)
    ratios = {
        "probes": [a / b for a, b in zip(rounds["probes"], rounds["step"], strict=True)],
        "sweep": [a / b / num for a, b in zip(rounds["sweep"], rounds["forward"], strict=True)],
        "between": [a / b for a, b in zip(rounds["between"], rounds["steps"], strict=True)],
    }
    print(f"\n{keras.backend.backend()}, {num} blocks, {examples} images; median seconds")
    for name, times in rounds.items():
        print(f"{name:8}{statistics.median(times):9.2f}")
    units = {"probes": "training steps", "sweep": f"of {num} forward passes"}
    units["between"] = "of the steps without"
    peers = {"probes": "training_step", "sweep": "forward_passes", "between": "steps"}
    for name, values in ratios.items():
        middle, aim = statistics.median(values), AIMS[name]
        verdict = f"{aim}: " + ("met" if middle <= aim else "not met")
        print(
            f"{name}: {middle:.2f} {units[name]} ({min(values):.2f}..{max(values):.2f}), {verdict}"
        )
        line = results.row(
            artifact="benchmark/probes",
            model="cifar_resnet",
            config={"depth": FLAGS.depth, "batch": FLAGS.batch},
            metric=f"{name}_over_{peers[name]}",
            value=round(middle, 3),
            std=round(float(np.std(values)), 3),
            seeds=[FLAGS.seed],
            paper=None,
            data="noise",
            budget=f"{FLAGS.rounds} rounds",
            epochs=None,
            departures=[],
            verdict=verdict,
            seconds=round(time.perf_counter() - start, 1),
            rounds=rounds,
        )
        if FLAGS.results:
            results.append(FLAGS.results, json.loads(json.dumps(line)))


if __name__ == "__main__":
    from experiment.process import use_huge_pages

    use_huge_pages()
    sys.exit(app.run(main))
