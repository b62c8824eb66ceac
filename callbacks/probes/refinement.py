"""Probes of iterative refinement: the change that a block makes to its skip input."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from zoo.callbacks.probes.objective import average
from zoo.callbacks.probes.probe import Parts, Probe, by_unit, cosine, deviation, dot, norm
from zoo.types import Tensor

CLASSIFIERS = {"network": "dx", "block": "dx_classifier"}  # keys of a block, by `classifier`


class Ratio(Probe):
    """Base of probes of ratios of norms: mean and deviation over the examples that have one.

    `dead`: the share of the other examples, whose denominator is zero.

    Class attributes:
        bound: "min" or "max": the smallest or largest ratio of all is given, too; or None.
    """

    bound: str | None = None

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.extremes = {self.bound: self.bound} if self.bound else {}

    def ratios(self, block: Parts) -> tuple[Tensor, Tensor]:
        """Return a block's ratios, `(batch, ratios)`, and where there is one."""
        raise NotImplementedError(f"{type(self).__name__} must define `ratios`.")

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each example's mean ratio and square, and the share of its ratios that exist."""
        ratios, exist = self.ratios(block)
        if not ratios.shape[1]:
            return {}
        alive = ops.cast(exist, ratios.dtype)
        values = {"mean": ops.where(exist, ratios, 0.0), "alive": alive}
        values["square"] = ops.square(values["mean"])
        more = self.more(values["mean"], alive)
        values = {key: ops.mean(v, axis=1) for key, v in values.items()} | more
        if self.bound:
            reduce, none = (ops.min, np.inf) if self.bound == "min" else (ops.max, -np.inf)
            values[self.bound] = reduce(ops.where(exist, ratios, none), axis=1)
        return values

    def more(self, ratios: Tensor, alive: Tensor) -> dict[str, Tensor]:
        """Return further values by key; a missing ratio is 0."""
        return {}

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return mean, deviation, bound, and the share of dead examples."""
        with np.errstate(invalid="ignore"):  # all dead: NaN
            living = {key: mean[key] / mean["alive"] for key in ("mean", "square")}
        numbers = super().summarize(living)
        if self.bound:  # NaN as the mean
            numbers[self.bound] = mean[self.bound] if np.isfinite(living["mean"]) else np.nan
        return {**numbers, "dead": 1 - mean["alive"]}


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
    `absolute`: the mean of |E[F]|; `relative`: the norm of E[F] over the root mean square of F, 0
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
        numbers = {self.name: units.mean(), "absolute": np.abs(units).mean()}
        return {**numbers, "relative": relative, "units": units}


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

    def ratios(self, block: Parts) -> tuple[Tensor, Tensor]:
        """Return the ratio of each example."""
        length = norm(block["x"])[:, None]
        return norm(block["f"])[:, None] / length, length != 0

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
