"""Flags for a batch that does not fit: accumulated gradients and recomputed activations.

A recipe imports it from beside itself. `--accumulate N` gives the device N pieces of each batch
and updates once by their mean: the paper's batch, order, augmentation and schedule stay. `--remat`
keeps but the input of each block. Batch normalisation sees a piece at a time: a departure.

ptb_char_lm.py has neither. Its LSTMs carry their state from batch to batch: pieces of a batch would
each need states of their own, and pieces of its 35 steps would cut the gradient through time. And
most of what its step keeps are logits, which belong to no block.
"""

from absl import flags

FLAGS = flags.FLAGS


def define_flags():
    """How a training fits into memory."""
    flags.DEFINE_integer("accumulate", 1, "Pieces of a batch, one at a time.", lower_bound=1)
    flags.DEFINE_bool("remat", False, "Compute blocks' activations again in the backward pass.")


def fitted(model, optimizer, batch):
    """The model and the optimizer as the flags want them, for batches of `batch` examples.

    Raises:
        ValueError: if `--accumulate` does not divide the batch, or the model has no block.
    """
    import zoo
    from zoo.optimizers import accumulating

    if batch % FLAGS.accumulate:
        divisors = [n for n in range(1, batch + 1) if batch % n == 0]
        raise ValueError(
            f"`--accumulate` must divide the batch of {batch} examples: one of {divisors}. "
            f"Received: --accumulate={FLAGS.accumulate}"
        )
    model = zoo.remat(model) if FLAGS.remat else model
    return model, accumulating(optimizer, FLAGS.accumulate)


def pieces(batches):
    """What `fit` reads: the batches, or the pieces that `--accumulate` makes of them."""
    from zoo.datasets.batches import MicroBatches

    return batches if FLAGS.accumulate == 1 else MicroBatches(batches, FLAGS.accumulate)


def identity():
    """What the flags change of a run's numbers, for its run directory; `--remat` changes none."""
    return {} if FLAGS.accumulate == 1 else {"accumulate": FLAGS.accumulate}


def departures(model, batch):
    """What distinguishes an accumulated batch from the paper's."""
    import keras

    kinds = keras.layers.BatchNormalization
    if FLAGS.accumulate == 1 or not any(isinstance(x, kinds) for x in model._flatten_layers()):
        return []
    each = batch // FLAGS.accumulate
    return [f"batch normalisation over {each} examples: a batch of {batch} in pieces"]
