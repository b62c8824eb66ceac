"""What a probe is: per-example values of a block, and what becomes of their averages."""

import re

import numpy as np
from keras import ops


class Probe:
    """Measures one thing about every block.

    A subclass writes `measure`, which returns per-example values; the engine (`zoo.callbacks.run`)
    only ever sums them over examples and replicas; `summarize` makes numbers of the averages. So
    no value depends on the batch size. As a `keras.metrics.Metric` it has a `name`,
    `update_state`, `result` and `reset_state`.

    Class attributes:
        needs: Keys of a block without which it is left out. Always there: `y`, the output. `x`,
            what the block carries (the shortcut's end where the shape changes), and `f = y - x`,
            unless a plain block changes the shape. `h`, `t`, `c` in the zoo's layers that have
            them. `input`, what the block reads. With labels also `dx` and `dinput`, the gradients
            of an example's loss at `x` and `input`; in the last stage
            `probabilities` of the classes if the classifier read `y` (`probabilities_before`:
            `x`), `loss` and `loss_before` of these, and `dx_classifier`, the gradient of
            `loss_before` at `x`. `labels`.
        gradient: Whether it needs a backward pass.

    Args:
        name: Of its values; `None`: the class's name in snake case.

    Example:

    >>> class Sparsity(Probe):
    ...     def measure(self, block, stage):
    ...         return {"sparsity": ops.mean(flat(block["y"]) == 0, axis=1)}
    """

    needs = ()
    gradient = False

    def __init__(self, name=None):
        self.name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()
        self.reset_state()

    blocks = ()  # of the network, set when a pass begins

    @property
    def labels(self):
        """Whether data without labels will not do."""
        given = {"dx", "dinput", "dx_classifier", "labels", "loss", "loss_before"}
        return self.gradient or bool(given & {*self.needs})

    def measure(self, block, stage):
        """Per-example values of one block.

        Args:
            block: Tensors by key, see `needs`; `block.info` is its `zoo.blocks.Block`, `block.use`
                which use of a shared layer it is.
            stage: The blocks of its stage, in order, itself among them.

        Returns:
            A dictionary of tensors of shape `(batch, ...)`.
        """
        raise NotImplementedError(f"{type(self).__name__} must say what it measures.")

    def inspect(self, info, weights):
        """Numbers by key of a block's weights, once a pass; for probes that read no data.

        Args:
            info: The `zoo.blocks.Block`.
            weights: Arrays by path.
        """
        return {}

    def summarize(self, mean):
        """Numbers, or arrays of one number a unit, of a block's averages; both by key."""
        return mean

    def overall(self, values):
        """Numbers by key about the whole network; `values`: pairs of a block and its numbers."""
        return {}

    def update_state(self, sums, count):
        """Adds sums over `count` examples: arrays by key, by block."""
        self.count += count
        for block, members in sums.items():
            mine = self.sums.setdefault(block, {})
            for key, value in members.items():
                mine[key] = mine.get(key, 0.0) + np.asarray(value, "float64")

    def result(self):
        """Numbers by key, by block; the key None holds what is about the whole network."""
        count = self.count
        values = {
            block: self.summarize({key: total / count for key, total in members.items()})
            for block, members in self.sums.items()
        }
        whole = self.overall([*values.items()]) if values else {}
        return {**values, **({None: whole} if whole else {})}

    def reset_state(self):
        """Forgets what was seen."""
        self.count, self.sums = 0, {}


def flat(v):
    """`(batch, ...)` as `(batch, features)`, float32: squares of float16 overflow."""
    return ops.cast(ops.reshape(v, (ops.shape(v)[0], -1)), "float32")


def norm(v):
    """Euclidean norm of each example, `(batch,)`."""
    return ops.sqrt(ops.sum(ops.square(flat(v)), axis=1))


def dot(u, v):
    """Inner product of each example, `(batch,)`."""
    return ops.sum(flat(u) * flat(v), axis=1)


def cosine(u, v):
    """Cosine of each example, `(batch,)`; 0 where one of the two is zero."""
    lengths = norm(u) * norm(v)
    return ops.where(lengths == 0, 0.0, dot(u, v) / ops.where(lengths == 0, 1.0, lengths))
