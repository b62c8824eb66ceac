"""Probes of gates and weights: Srivastava, Greff, Schmidhuber (2015), section 4, Figs 2 and 3."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from zoo.callbacks.probes.objective import class_indices
from zoo.callbacks.probes.probe import Parts, Probe, by_unit, deviation
from zoo.callbacks.probes.refinement import Rectified
from zoo.graph.blocks import Block
from zoo.types import Tensor


class GateBias(Probe):
    """Bias of T's logits, negative: the input is carried. `mean` over units, and each unit's own.

    In a gate that ends in a normalization it is that layer's beta. If it fell in training, the
    network learned to carry more. Fig. 2, first column.
    """

    def inspect(self, info: Block, weights: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the bias of the gate's last layer."""
        biases = [
            value
            for path, value in weights.items()
            if "transform_gate" in path and path.split("/")[-1] in ("bias", "beta")
        ]
        return {"mean": biases[-1].mean(), "units": biases[-1]} if biases else {}


class GateActivity(Probe):
    """Mean activity of the gates, in [0, 1]: T near 0 carries, near 1 rewrites; C the reverse.

    `t`, `c`: over units, positions and examples; `t_std`: over units and examples. `t_units`: each
    unit's mean over examples (and positions), Fig. 2, second column; with data of one example, its
    third column.
    """

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each unit's activity, and the mean square over units."""
        values = {}
        for gate in ("t", "c"):
            if gate in block:
                units = by_unit(block[gate])
                values[f"{gate}_units"] = units
                values[f"{gate}_square"] = ops.mean(ops.square(units), axis=1)
        return values

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return mean, deviation and units of each gate."""
        numbers = {}
        for gate in ("t", "c"):
            if f"{gate}_units" in mean:
                units = mean[f"{gate}_units"]
                numbers[gate] = units.mean()
                numbers[f"{gate}_std"] = deviation(units.mean(), mean[f"{gate}_square"])
                numbers[f"{gate}_units"] = units
        return numbers


class BlockOutputs(Rectified):
    """Mean output of each unit over examples (and positions).

    Columns that stay the same from block to block are carried. For one example: Fig. 2, fourth
    column.

    Args:
        rectified: Average the outputs after a ReLU, for networks that have one there.
        name: See `Probe`.
    """

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each unit's output."""
        return {"units": by_unit(self.output(block))}


class ClassGates(Probe):
    """Difference between a class's gates and all: mean T over its examples minus mean T over all.

    `distance` is the mean absolute difference over units: large in blocks that route by class,
    0 where the gates do not depend on it. Fig. 3.

    Args:
        of: The class, an integer.
        classes: Number of classes.
        name: See `Probe`; `None`: with the class, `class_gates_0`.
    """

    needs = ("t", "labels")

    def __init__(self, of: int, classes: int, name: str | None = None) -> None:
        super().__init__(name or f"class_gates_{of}")
        if not 0 <= of < classes:
            raise ValueError(f"`of` must be one of {classes} classes, from 0. Received: of={of!r}")
        self.of = of
        self.classes = classes

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each unit's gate, for all examples and for those of the class."""
        labels = block["labels"]
        if len(labels.shape) > 1 and labels.shape[-1] not in (1, self.classes):
            shape = tuple(labels.shape)
            raise ValueError(f"Expected one class for each example. Received: labels of {shape}.")
        inside = ops.cast(class_indices(labels, self.classes) == self.of, "float32")
        units = by_unit(block["t"])
        return {"all": units, "inside": units * inside[:, None], "share": inside}

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return the difference of each unit, and its mean absolute value."""
        with np.errstate(divide="ignore", invalid="ignore"):
            units = mean["inside"] / mean["share"] - mean["all"]
        return {"distance": np.abs(units).mean(), "units": units}


class WeightStatistics(Probe):
    """Mean, standard deviation, L1 norm and largest absolute value of a block's kernels.

    A block whose weights kept the size of their initialization may have learned nothing. Yu &
    Tomasi (2019), Table 3.
    """

    def inspect(self, info: Block, weights: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the statistics."""
        kernels = [v.ravel() for path, v in weights.items() if "kernel" in path.split("/")[-1]]
        if not kernels:
            return {}
        w = np.concatenate(kernels)
        return {"mean": w.mean(), "std": w.std(), "l1": np.abs(w).sum(), "max": np.abs(w).max()}
