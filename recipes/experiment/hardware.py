"""Devices and memory: the strategy that the flags select, and batches larger than memory.

`--accumulate N` gives the device N micro-batches of each batch and updates once, by the mean of
their gradients: batch, data order, augmentation and schedule stay those of the paper. `--remat`
keeps only the input of each block for the backward pass. Batch normalization sees a micro-batch at
a time, which deviates from the paper.

ptb_char_lm.py has neither flag. Its LSTMs carry their state from batch to batch: micro-batches
would each need a state of their own, and shorter sequences would truncate the gradient through
time. Most of what its step keeps are logits, which belong to no block.
"""

import functools
import pathlib
import tempfile
import zlib

import keras

import zoo
from experiment.flags import FLAGS
from zoo import distribute
from zoo.datasets.batches import MicroBatches
from zoo.optimizers import accumulating


def devices(batch: int | None = None) -> distribute.Strategy:
    """Return the distribution strategy of this process; call it before computing anything.

    Args:
        batch: Examples of a batch. If --strategy=auto cannot split it evenly, one device is used.

    Raises:
        ValueError: if the backend or the machine has no such strategy.
    """
    strategy = _strategy(FLAGS.strategy)
    splits = not batch or batch % strategy.num_replicas == 0
    # a process of several cannot change to one device: all of them would train
    if FLAGS.strategy == "auto" and not strategy.reads_parts and not splits:
        print(f"{strategy.num_replicas} devices cannot split {batch} examples: one device.")
        FLAGS.strategy = "one"
        strategy = _strategy("one")
    return strategy


@functools.cache
def _strategy(name):
    strategy = distribute.strategy(name)
    if strategy.num_replicas > 1:
        print(f"{strategy.num_replicas} replicas: {strategy.name}", flush=True)
    return strategy


def folder_for(path: str | pathlib.Path) -> pathlib.Path:
    """Return `path`, or in a worker that is not the chief a temporary folder instead."""
    path = pathlib.Path(path)
    if devices().is_chief:
        return path
    folder = pathlib.Path(_temporary_root().name, str(zlib.crc32(str(path.resolve()).encode())))
    folder.mkdir(exist_ok=True)
    return folder


@functools.cache
def _temporary_root():
    return tempfile.TemporaryDirectory(prefix="zoo-worker-")


def fit_into_memory(model: keras.Model, optimizer: keras.optimizers.Optimizer, batch: int) -> tuple:
    """Return a new model and its optimizer as --remat and --accumulate change them.

    Raises:
        ValueError: if `--accumulate` does not divide the batch, or the model has no block.
    """
    if batch % FLAGS.accumulate:
        divisors = [n for n in range(1, batch + 1) if batch % n == 0]
        raise ValueError(
            f"`--accumulate` must divide the batch of {batch} examples: one of {divisors}. "
            f"Received: --accumulate={FLAGS.accumulate}"
        )
    model = zoo.remat(model) if FLAGS.remat else model
    return model, accumulating(optimizer, FLAGS.accumulate)


def micro_batches(batches: keras.utils.PyDataset) -> keras.utils.PyDataset:
    """Return the batches, or with --accumulate their micro-batches."""
    return batches if FLAGS.accumulate == 1 else MicroBatches(batches, FLAGS.accumulate)


def batch_norm_deviations(model: keras.Model, batch: int) -> list[str]:
    """Return how normalizing micro-batches deviates from the paper's batches, if it does."""
    layers = model._flatten_layers()
    if FLAGS.accumulate == 1 or not any(
        isinstance(layer, keras.layers.BatchNormalization) for layer in layers
    ):
        return []
    size = batch // FLAGS.accumulate
    return [f"batch normalisation over {size} examples: a batch of {batch} in pieces"]
