"""Probes of iterative refinement: what a block adds to what it carries."""

import numpy as np
from keras import ops

from zoo.callbacks.probes.probe import Probe, cosine, dot, norm


class Scalar(Probe):
    """A probe of one number an example, of which it gives mean and standard deviation."""

    def value(self, block, stage):
        """The number of each example, `(batch,)`."""
        raise NotImplementedError(f"{type(self).__name__} must say what it measures.")

    def measure(self, block, stage):
        value = self.value(block, stage)
        return {"mean": value, "square": ops.square(value)}

    def summarize(self, mean):
        return {self.name: mean["mean"], "std": deviation(mean["mean"], mean["square"])}


def deviation(mean, square):
    """The standard deviation of what has this mean and mean square."""
    return np.sqrt(np.maximum(square - np.square(mean), 0.0))


class EstimationError(Probe):
    """Error of a block's output as an estimate of its stage's last one: y - y of the last block.

    The mean over examples of each unit, then over units: near 0 if blocks estimate without bias,
    negative if they underestimate. `std`, each unit's deviation over examples, then averaged:
    falls along a stage that refines an estimate. Greff et al. (2017), section 4.2, Fig. 3.

    Args:
        rectified: Whether outputs are compared behind a ReLU, as in networks that have one there.
        name: See `Probe`.
    """

    def __init__(self, rectified=False, name=None):
        super().__init__(name)
        self.rectified = rectified

    def measure(self, block, stage):
        ends = (ops.cast(part["y"], "float32") for part in (block, stage[-1]))
        y, last = map(ops.relu, ends) if self.rectified else ends
        return {"error": y - last, "square": ops.square(y - last)}

    def summarize(self, mean):
        spread = deviation(mean["error"], mean["square"])
        return {self.name: mean["error"].mean(), "std": spread.mean()}


class CosineLoss(Scalar):
    """cos(f, dL/dx): negative where a block moves what it carries down the loss, as a step of
    gradient descent would; 0 where it moves across it; positive where it undoes what others do.

    The mean of each example's cosine. Jastrzebski et al. (2018), section 4.1, Figs 4, 10; with
    `classifier="block"` figures 13, 15, 18, 19.

    Args:
        classifier: "network": L is the loss of the whole network. "block": of the classifier
            reading x itself, in the last stage.
        name: See `Probe`.
    """

    gradient = True

    def __init__(self, classifier="network", name=None):
        super().__init__(name)
        self.needs = ("f", gradient_of(classifier))

    def value(self, block, stage):
        return cosine(block["f"], block[self.needs[1]])


class L2Ratio(Scalar):
    """|f| / |x|: how far a block moves what it carries. Small: it refines; 1 and more: it replaces.

    The mean of each example's ratio. Jastrzebski et al. (2018), section 4.2, Figs 2, 11.
    """

    needs = ("f", "x")

    def value(self, block, stage):
        return norm(block["f"]) / norm(block["x"])


class TaylorTerm(Scalar):
    """f . dL/dx: the change of the loss by a block, to first order. Negative: the loss falls.

    The sum over the blocks behind block i approximates L at the end minus L behind block i.
    Jastrzebski et al. (2018), equations 2 to 4.

    Args:
        classifier: As in `CosineLoss`; the paper's expansion is "block".
        name: See `Probe`.
    """

    gradient = True

    def __init__(self, classifier="block", name=None):
        super().__init__(name)
        self.needs = ("f", gradient_of(classifier))

    def value(self, block, stage):
        return dot(block["f"], block[self.needs[1]])


def gradient_of(classifier):
    """The key of the gradient that `classifier` names."""
    keys = {"network": "dx", "block": "dx_classifier"}
    if classifier not in keys:
        raise ValueError(f"`classifier` must be one of {[*keys]}. Received: {classifier!r}")
    return keys[classifier]


class ActivationNorm(Scalar):
    """|y|: grows along the blocks if each adds to the last; explodes where blocks share
    normalisation badly. Jastrzebski et al. (2018), section 5, Fig. 8.
    """

    def value(self, block, stage):
        return norm(block["y"])


class GradientNorm(Scalar):
    """|dL/dh| at what a block reads, h, of each example's loss. Equal along the blocks: gradients
    neither vanish nor explode.

    `first_to_last_stage`: the mean norm before the first stage's first block over that before the
    last stage's; far above 1: gradients explode on the way down. Jastrzebski et al. (2018),
    section 5, Fig. 8.
    """

    gradient = True
    needs = ("dinput",)

    def value(self, block, stage):
        return norm(block["dinput"])

    def overall(self, values):
        found, firsts = dict(values), {}
        for block in self.blocks:
            if block.name in found:
                firsts.setdefault(block.stage, found[block.name][self.name])
        first, last = [*firsts.values()][0], [*firsts.values()][-1]
        return {"first_to_last_stage": first / last if last else np.nan}
