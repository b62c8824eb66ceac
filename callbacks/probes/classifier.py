"""Probes of the early readout: the network's classifier applied to the outputs of blocks."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from zoo.callbacks.probes.objective import agreement, class_indices, divergence, hits
from zoo.callbacks.probes.probe import Parts, Probe
from zoo.checks import check_integers
from zoo.types import Tensor


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
