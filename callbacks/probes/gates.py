"""Probes of the gates: Srivastava, Greff, Schmidhuber (2015), section 4, Figs 2 and 3."""

import numpy as np
from keras import ops

from zoo.callbacks.probes.classifier import true_class
from zoo.callbacks.probes.probe import Probe
from zoo.callbacks.probes.refinement import deviation


class GateBias(Probe):
    """The bias of T's logits: negative carries. `mean` over units, and each unit's own.

    In a gate that ends in a normalisation it is that one's beta. If it fell in training, the
    network learnt to carry more. Fig. 2, first column.
    """

    def measure(self, block, stage):
        return {}

    def inspect(self, info, weights):
        biases = [
            value
            for path, value in weights.items()
            if "transform_gate" in path and path.split("/")[-1] in ("bias", "beta")
        ]
        return {"mean": biases[-1].mean(), "units": biases[-1]} if biases else {}


class GateActivity(Probe):
    """Mean opening of the gates, in [0, 1]: T near 0 carries, near 1 rewrites; C the reverse.

    `t`, `c`: over units, positions and examples; `t_std`: over units and examples. `t_units`: each
    unit's mean over examples (and positions), Fig. 2, second column; of data that are one example,
    its third column.
    """

    def measure(self, block, stage):
        found = {}
        for letter in ("t", "c"):
            if letter in block:
                units = by_unit(block[letter])
                found[f"{letter}_units"] = units
                found[f"{letter}_square"] = ops.mean(ops.square(units), axis=1)
        return found

    def summarize(self, mean):
        found = {}
        for letter in ("t", "c"):
            if f"{letter}_units" in mean:
                units = mean[f"{letter}_units"]
                found[letter] = units.mean()
                found[f"{letter}_std"] = deviation(units.mean(), mean[f"{letter}_square"])
                found[f"{letter}_units"] = units
        return found


class BlockOutputs(Probe):
    """Each unit's mean output over examples (and positions): Fig. 2, fourth column, for one
    example. Columns that stay the same from block to block are carried.

    Args:
        rectified: Whether behind a ReLU, as in networks that have one there.
        name: See `Probe`.
    """

    def __init__(self, rectified=False, name=None):
        super().__init__(name)
        self.rectified = rectified

    def measure(self, block, stage):
        return {"units": by_unit(ops.relu(block["y"]) if self.rectified else block["y"])}


class ClassGates(Probe):
    """How a class's gates differ: mean T over its examples minus mean T over all, by unit.

    `distance` is the mean absolute difference over units: large in blocks that route by class,
    0 where the gates know nothing of it. Fig. 3.

    Args:
        of: The class, an integer.
        classes: How many there are.
        name: See `Probe`; `None`: with the class, `class_gates_0`.
    """

    needs = ("t", "labels")

    def __init__(self, of, classes, name=None):
        super().__init__(name or f"class_gates_{of}")
        if not 0 <= of < classes:
            raise ValueError(f"`of` must be one of {classes} classes, from 0. Received: of={of!r}")
        self.of, self.classes = of, classes

    def measure(self, block, stage):
        shape = {"labels": block["labels"], "probabilities": np.empty((1, self.classes))}
        inside = ops.cast(true_class(shape) == self.of, "float32")
        units = by_unit(block["t"])
        return {"all": units, "inside": units * inside[:, None], "share": inside}

    def summarize(self, mean):
        with np.errstate(divide="ignore", invalid="ignore"):
            units = mean["inside"] / mean["share"] - mean["all"]
        return {"distance": np.abs(units).mean(), "units": units}


class WeightStatistics(Probe):
    """Of a block's kernels: mean, standard deviation, L1 mass and largest absolute value.

    A block whose weights kept the size that they were drawn with may have learnt nothing. Yu &
    Tomasi (2019), Table 3.
    """

    def measure(self, block, stage):
        return {}

    def inspect(self, info, weights):
        kernels = [v.ravel() for path, v in weights.items() if "kernel" in path.split("/")[-1]]
        if not kernels:
            return {}
        w = np.concatenate(kernels)
        return {"mean": w.mean(), "std": w.std(), "l1": np.abs(w).sum(), "max": np.abs(w).max()}


def by_unit(v):
    """The mean over positions: `(batch, ..., units)` to `(batch, units)`."""
    return ops.mean(ops.reshape(v, (ops.shape(v)[0], -1, v.shape[-1])), axis=1)
