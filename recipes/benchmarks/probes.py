"""Probes and a lesion sweep of cifar_resnet(110) against a training step and forward passes.

On images of noise:

    step     a training step: forward, backward, SGD with momentum
    probes   cosine loss, l2 ratio, estimation error, intermediate accuracy and borderline examples
             of all blocks, on the same images; compared with `step`
    forward  the network's own forward pass
    sweep    lesions of all blocks, one at a time: each compared with `forward`

All run in one process. The ratios are of times.
"""

import keras
import numpy as np

import zoo
from zoo import callbacks
from zoo.backend import compiled
from zoo.callbacks.probes.engine import Observer
from zoo.callbacks.probes.sweep import Trials
from zoo.graph.blocks import Network
from zoo.graph.surgery import lesion_plan

UNIT = "passes"
NAME = "cifar_resnet"


def add_flags(add):
    """Add the benchmark's own flags."""
    add("--depth", type=int, default=110, help="Depth of cifar_resnet, 6 n + 2.")
    add("--batch", type=int, default=64, help="Images per batch.")


def contenders(options):
    """Return the only contender: all is measured on one network."""
    return {NAME: {}}


def tasks(options, name):
    """Return the tasks; each ends when its numbers are there."""
    zoo.keep_memory()
    zoo.seed_everything(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.batch, 32, 32, 3)).astype("float32")
    data = x, rng.integers(0, 10, options.batch)
    model = zoo.cifar_resnet(options.depth)
    model.compile(keras.optimizers.SGD(0.0, 0.9), "sparse_categorical_crossentropy")
    probes = [callbacks.CosineLoss(), callbacks.L2Ratio(), callbacks.EstimationError()]
    probes += [callbacks.IntermediateAccuracy(), callbacks.BorderlineExamples()]
    observer = Observer(probes, Network.of(model))
    forward = compiled(lambda x: model(x, training=False), model)
    trials = Trials(model, batch_size=options.batch)
    plans = [lesion_plan(trials.chain, [block.name]) for block in trials.chain.blocks]

    return {
        "step": (lambda: model.train_on_batch(*data), 1),
        "probes": (lambda: observer.run(data, options.batch), 1),
        "forward": (lambda: keras.ops.convert_to_numpy(forward(x)), 1),
        "sweep": (lambda: trials.run(plans, data), len(plans)),
    }


def comparisons(options):
    """Return the ratios of times: of rates, the other way round."""
    return {
        "probes_over_training_step": ((NAME, "step"), (NAME, "probes")),
        "sweep_over_forward_passes": ((NAME, "forward"), (NAME, "sweep")),
    }
