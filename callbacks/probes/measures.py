"""The probes: refinement of the skip input, early readouts, gates and weights of blocks.

Gates and weights: Srivastava, Greff, Schmidhuber (2015), section 4, Figs 2 and 3.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from zoo.callbacks.probes.objective import agreement, average, class_indices, divergence, hits
from zoo.callbacks.probes.probe import Parts, Probe, by_unit, cosine, deviation, dot, norm
from zoo.checks import check_integers
from zoo.graph.blocks import Block
from zoo.types import Tensor

CLASSIFIERS = {"network": "dx", "block": "dx_classifier"}  # keys of a block, by `classifier`


class Ratio(Probe):
    """Base of probes of ratios of norms: mean and deviation over the examples that have one.

    `dead`: the share of the other examples, whose denominator is zero.
    """

    def averages(self, ratios: Tensor, alive: Tensor) -> dict[str, Tensor]:
        """Return each example's means of ratios, `(batch, ratios)`, 0 where not `alive`, 0 or 1."""
        values = {"mean": ratios, "alive": alive, "square": ops.square(ratios)}
        return {key: ops.mean(v, axis=1) for key, v in values.items()}

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return mean, deviation, and the share of dead examples."""
        with np.errstate(invalid="ignore"):  # all dead: NaN
            living = {key: mean[key] / mean["alive"] for key in ("mean", "square")}
        return {**super().summarize(living), "dead": 1 - mean["alive"]}


class BlockInfluence(Probe):
    """Mean of 1 - cos(x, y) between a block's skip input and its output, at each position.

    Near 0: the block may be removed. The last axis is that of features, all others are positions.
    0 where x and y are both zero. Men et al. (2024), arXiv:2403.03853, equation 1.
    """

    needs = ("x", "y")

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the mean over each example's positions."""
        x, y = (
            ops.normalize(ops.cast(block[key], "float32"), axis=-1, order=2) for key in ("x", "y")
        )
        # of unit vectors: without the cancellation of 1 - cos
        return average(ops.sum(ops.square(x - y), axis=-1) / 2)


class Rectified(Probe):
    """Base of probes of outputs, which are measured after a ReLU if `rectified`."""

    def __init__(self, rectified: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        self.rectified = rectified

    def output(self, block: Parts) -> Tensor:
        """Return a block's output, float32."""
        y = ops.cast(block["y"], "float32")
        return ops.relu(y) if self.rectified else y


class EstimationError(Rectified):
    """Error of a block's output as an estimate of its stage's last one: y - y of the last block.

    The mean over examples of each unit, then over units: near 0 if blocks estimate without bias,
    negative if they underestimate. `std`, each unit's deviation over examples, then averaged:
    falls along a stage that refines an estimate. Greff et al. (2017), section 4.2, Fig. 3.

    Args:
        rectified: Compare the outputs after a ReLU, for networks that have one there.
        name: See `Probe`.
    """

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each unit's error and its square."""
        error = self.output(block) - self.output(stage[-1])
        return {"error": error, "square": ops.square(error)}

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return averages over units."""
        spread = deviation(mean["error"], mean["square"])
        return {self.name: mean["error"].mean(), "std": spread.mean()}


class ResidualMean(Probe):
    """Mean over examples, E[F], of a block's residual function F: 0 if it refines without bias.

    It is taken for each channel, over positions, too. `residual_mean`: the mean over channels;
    `relative`: the norm of E[F] over the root mean square of F, 0
    without bias and 1 if F is the same for all examples; `units`: each channel's. A batch
    normalization at the end of F makes it that layer's beta, over a training batch in training mode
    (`batch_statistics`). Greff et al. (2017), section 3.2, equation 9.
    """

    needs = ("f",)

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each channel's mean, and the mean square over channels."""
        f = ops.cast(block["f"], "float32")
        return {"units": by_unit(f), "square": ops.mean(by_unit(ops.square(f)), axis=1)}

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return averages over channels, and each channel's mean."""
        units = mean["units"]
        square = np.square(units).mean()
        with np.errstate(invalid="ignore"):  # F is 0: NaN
            relative = np.sqrt(square / mean["square"])
        return {self.name: units.mean(), "relative": relative, "units": units}


class CosineLoss(Probe):
    """Mean cosine of f and dL/dx, the gradient of each example's loss at the skip input.

    Negative: the block moves its input down the loss, as a step of gradient descent would; 0: it
    moves across it; positive: it undoes the work of others. Jastrzebski et al. (2018), section
    4.1, Figs 4, 10; with `classifier="block"` figures 13, 15, 18, 19.

    Args:
        classifier: "network": L is the loss of the whole network. "block": L is the loss of the
            early readout of x, in the last stage.
        name: See `Probe`.
    """

    def __init__(self, classifier: str = "network", name: str | None = None) -> None:
        super().__init__(name)
        if classifier not in CLASSIFIERS:
            raise ValueError(
                f"`classifier` must be one of {[*CLASSIFIERS]}. Received: {classifier!r}"
            )
        self.needs = ("f", CLASSIFIERS[classifier])

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the cosine of each example."""
        return cosine(block["f"], block[self.needs[1]])


class L2Ratio(Ratio):
    """Mean ratio |f| / |x|: the size of a block's change, relative to its skip input.

    Small: it refines; 1 and more: it replaces. Examples whose x is zero have no ratio and are left
    out; `dead`, given where there are any, is their share. Jastrzebski et al. (2018), section 4.2,
    Figs 2, 11.
    """

    needs = ("f", "x")

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return the ratio of each example."""
        length = norm(block["x"])[:, None]
        ratios = ops.where(length != 0, norm(block["f"])[:, None] / length, 0.0)
        return self.averages(ratios, ops.cast(length != 0, ratios.dtype))

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return mean, deviation, and the share of dead examples if there are any."""
        numbers = super().summarize(mean)
        return numbers if numbers["dead"] else {k: v for k, v in numbers.items() if k != "dead"}


class TaylorTerm(CosineLoss):
    """Mean of f . dL/dx: a block's change of the loss, to first order; negative: the loss falls.

    The sum over the blocks after block i approximates L at the end minus L after block i.
    Jastrzebski et al. (2018), equations 2 to 4.

    Args:
        classifier: As in `CosineLoss`; the paper's expansion is "block".
        name: See `Probe`.
    """

    def __init__(self, classifier: str = "block", name: str | None = None) -> None:
        super().__init__(classifier, name)

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the term of each example."""
        return dot(block["f"], block[self.needs[1]])


class CosineInput(Probe):
    """Mean cosine of f and x: negative where a block takes away from its skip input."""

    needs = ("f", "x")

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the cosine of each example."""
        return cosine(block["f"], block["x"])


class NormGrowth(Probe):
    """Mean ratio |y| / |x|: the growth of activations through a block; 0 where x is zero."""

    needs = ("x", "y")

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the ratio of each example."""
        length = norm(block["x"])
        zero = length == 0
        return ops.where(zero, 0.0, norm(block["y"]) / ops.where(zero, 1.0, length))


class ActivationNorm(Probe):
    """Mean norm |y| of a block's output.

    It grows along the blocks if each adds to the last, and explodes where blocks share
    normalization badly. Jastrzebski et al. (2018), section 4.5, Fig. 8.
    """

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the norm of each example."""
        return norm(block["y"])


class GradientNorm(Probe):
    """Mean norm |dL/dh| of the gradient of each example's loss at the input h of a block.

    Equal along the blocks: gradients neither vanish nor explode. `first_to_last_stage`: the mean
    norm before the first stage's first block over that before the last stage's; far above 1:
    gradients explode on the way down. Jastrzebski et al. (2018), section 4.5, Fig. 8.
    """

    needs = ("dinput",)

    def measure(self, block: Parts, stage: Sequence[Parts]) -> Tensor:
        """Return the norm of each example."""
        return norm(block["dinput"])

    def result(self) -> dict[str | None, dict[str, Any]]:
        """Return the norms, and the ratio of the first stage's to the last one's."""
        result = super().result()
        of_stages: dict[int, Any] = {}  # the norm before each stage's first block
        for block in self.blocks:
            if block.name in result:
                of_stages.setdefault(block.stage, result[block.name][self.name])
        if of_stages:
            first, last = [*of_stages.values()][0], [*of_stages.values()][-1]
            result[None] = {"first_to_last_stage": first / last if last else np.nan}
        return result


class IntermediateAccuracy(Probe):
    """Accuracy, and `loss`, of the early readout after each block of the last stage.

    It rises along the blocks if each refines the same representation. Jastrzebski et al. (2018),
    section 4.2, Figs 5, 17.
    """

    needs = ("probabilities", "loss", "labels")

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return correctness and loss of each example."""
        return {
            self.name: block.average(correct(block)),
            "loss": block.average(block["loss"]),
        }


class BorderlineExamples(Probe):
    """Accuracy, loss and entropy of the early readout for three groups of examples.

    The groups are formed at the first of the measured blocks, of outputs such as `(batch, steps,
    classes)` of positions. `borderline`: the true class's probability and the highest other one
    differ by less than `margin`; `correct`: classified correctly, not borderline; `all`. If late
    blocks refine, the borderline ones gain most. `share`: the group's share of all examples; a
    group without examples has no other number. Entropy in nats. Jastrzebski et al. (2018), sections
    4.3, 4.4, Figs 6, 7.

    Args:
        blocks: Number of the last stage's blocks to measure.
        margin: Difference of probabilities.
        name: See `Probe`.
    """

    needs = ("probabilities", "loss", "labels")

    def __init__(self, blocks: int = 5, margin: float = 0.1, name: str | None = None) -> None:
        super().__init__(name)
        check_integers(1, blocks=blocks)
        self.num_blocks = blocks
        self.margin = margin

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each example's membership of the groups, and the groups' numbers."""
        last_blocks = stage[-self.num_blocks :]
        if not any(block is other for other in last_blocks):
            return {}
        first = last_blocks[0]
        p = first["probabilities"]
        true = ops.one_hot(true_class(first), p.shape[-1], dtype=p.dtype)
        difference = ops.abs(ops.sum(p * true, axis=-1) - ops.max(p - 2 * true, axis=-1))
        borderline = ops.cast(difference < self.margin, "float32") + 0 * difference  # NaN stays
        groups = {
            "borderline": borderline,
            "correct": correct(first) * (1 - borderline),
            "all": ops.ones_like(borderline),
        }
        p = block["probabilities"]
        entropy = -ops.sum(p * ops.log(ops.maximum(p, 1e-30)), axis=-1)
        numbers = {"accuracy": correct(block), "loss": block["loss"], "entropy": entropy}
        values = {f"{group}_share": block.average(mask) for group, mask in groups.items()}
        for group, mask in groups.items():
            for key, value in numbers.items():
                masked = ops.where(mask == 0, 0.0, value * mask)
                values[f"{group}_{key}"] = block.average(masked)
        return values

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return the shares, and the other numbers averaged over each group's examples."""
        numbers = {key: value for key, value in mean.items() if key.endswith("_share")}
        for key, value in mean.items():
            share = mean[key.split("_")[0] + "_share"]
            if key not in numbers and share != 0:
                numbers[key] = value / share
        return numbers


class LogitLens(Probe):
    """Early readout after the blocks of every stage, compared with the network's own output.

    The network's tail (final normalization and classifier) is applied to each block's output of the
    last one's shape. `kl`: the KL divergence of the network's distribution from the early one's,
    in nats; `agreement`: the share of positions with the same most probable class; with labels also
    `accuracy` and `loss`, in the last stage those of `IntermediateAccuracy`. nostalgebraist (2020),
    "interpreting GPT: the logit lens"; Belrose et al. (2023), arXiv:2303.08112.
    """

    needs = ("network", "y")
    reads_labels = True

    def notes(self) -> list[str]:
        """Return a sentence about the blocks whose outputs the tail cannot read."""
        shape = self.blocks[-1].shape
        others = [block.name for block in self.blocks if block.shape != shape]
        reason = f"their outputs do not have the last block's shape, {shape}"
        return [f"No {self.name} of {', '.join(others)}: {reason}."] if others else []

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each example's numbers, if the tail can read the block."""
        early = block.get("lens")
        if early is None:
            return {}
        pair = block["network"], early["log_probabilities"]
        values = {"kl": divergence(*pair), "agreement": agreement(*pair)}
        if "labels" in block:
            read = Parts(block.info, {**early, "labels": block["labels"]})
            values |= {"accuracy": correct(read), "loss": early["loss"]}
        return {key: block.average(value) for key, value in values.items()}


def correct(block: Parts) -> Tensor:
    """Return 1 where the most probable class is the true one, `(batch, ...)`; NaN without one."""
    return hits(block["probabilities"], true_class(block))


def true_class(block: Parts) -> Tensor:
    """Return the true class of each example or position, an integer."""
    p = block["probabilities"]
    return class_indices(block["labels"], p.shape[-1], len(p.shape))


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
