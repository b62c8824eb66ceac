"""Probes and a lesion sweep of cifar_resnet(110) against a training step and forward passes.

On images of noise:

    step     a training step: forward, backward, SGD with momentum
    probes   cosine loss, l2 ratio, estimation error, intermediate accuracy and borderline examples
             of all blocks, on the same images; over `step`
    forward  the network's own forward pass
    sweep    lesions of all blocks, one at a time; over `forward` times the number of blocks

All run in one process.
"""

import numpy as np

from benchmarks import harness

RATIOS = {  # task: metric, the task it is compared with
    "probes": ("probes_over_training_step", "step"),
    "sweep": ("sweep_over_forward_passes", "forward"),
}


def add_flags(add):
    """Add the benchmark's own flags."""
    add("--depth", type=harness.positive, default=110, help="Depth of cifar_resnet, 6 n + 2.")
    add("--batch", type=harness.positive, default=64, help="Images per batch.")


def contenders(options):
    """Return the only contender: all is measured on one network."""
    return {"cifar_resnet": {}}


def contender(options, name):
    """Return the tasks; each ends when its numbers are there."""
    import keras

    import zoo
    from zoo import callbacks
    from zoo.backend import compiled
    from zoo.callbacks.probes.engine import Observer
    from zoo.callbacks.probes.sweep import Trials
    from zoo.graph.surgery import lesion_plan

    zoo.keep_memory()
    zoo.seed_everything(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.batch, 32, 32, 3)).astype("float32")
    data = x, rng.integers(0, 10, options.batch)
    model = zoo.cifar_resnet(options.depth)
    model.compile(keras.optimizers.SGD(0.0, 0.9), "sparse_categorical_crossentropy")
    probes = [
        callbacks.CosineLoss(),
        callbacks.L2Ratio(),
        callbacks.EstimationError(),
        callbacks.IntermediateAccuracy(),
        callbacks.BorderlineExamples(),
    ]
    observer = Observer(probes, model)
    forward = compiled(lambda x: model(x, training=False), model)
    trials = Trials(model, batch_size=options.batch)
    plans = [lesion_plan(trials.chain, [block.name]) for block in trials.chain.blocks]

    def step():
        model.train_on_batch(*data)

    def probe():
        observer.run(data, options.batch)

    def pass_forward():
        keras.ops.convert_to_numpy(forward(x))

    def sweep():
        trials.run(plans, data)
        return len(plans)

    return {"step": step, "probes": probe, "forward": pass_forward, "sweep": sweep}


def report(options, seconds, values):
    """Print the ratios and write a line of results of each."""
    times = {task: by_name["cifar_resnet"] for task, by_name in seconds.items()}
    blocks = values["sweep"]["cifar_resnet"]
    print(f"\n{blocks} blocks, {options.batch} images; median seconds")
    for task, rounds in times.items():
        print(f"{task:8}{np.median(rounds):9.2f}")
    for task, (metric, base) in RATIOS.items():
        ratio = times[task] / times[base] / (blocks if task == "sweep" else 1)
        print(f"{metric.replace('_', ' ')}: {harness.spread(ratio)}")
        harness.write(
            options,
            ratio,
            model="cifar_resnet",
            config={"depth": options.depth, "batch": options.batch},
            metric=metric,
            data="noise",
            budget=f"{options.rounds} rounds",
            rounds=times,
        )
