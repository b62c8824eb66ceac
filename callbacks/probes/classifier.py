"""Probes of what the network's classifier makes of earlier blocks."""

from keras import ops

from zoo.callbacks.probes.batching import hits
from zoo.callbacks.probes.probe import Probe


class IntermediateAccuracy(Probe):
    """Accuracy, and `loss`, of the network's classifier reading each block of the last stage.

    Rises along the blocks if each refines the same representation. Jastrzebski et al. (2018),
    section 4.4, Figs 5, 17.
    """

    needs = ("probabilities", "loss", "labels")

    def measure(self, block, stage):
        return {self.name: correct(block), "loss": block["loss"]}


class BorderlineExamples(Probe):
    """Accuracy, loss and entropy behind each of the last blocks, of three groups of examples.

    `borderline`: the true class's probability and the highest other one differ by less than
    `margin`; `correct`: classified correctly, not borderline; `all`. If late blocks refine, the
    borderline ones gain most. `share`: what part of all a group is; where that is 0 it has no other
    number. Entropy in nats. Jastrzebski et al. (2018), section 4.4, Figs 6 and 7.

    Args:
        blocks: How many of the last stage's blocks to follow.
        margin: In probability.
        at: Where the groups are formed: "first" or "last" of these blocks.
        name: See `Probe`.
    """

    needs = ("probabilities", "loss", "labels")

    def __init__(self, blocks=5, margin=0.1, at="first", name=None):
        super().__init__(name)
        if at not in ("first", "last") or not isinstance(blocks, int) or blocks < 1:
            raise ValueError(
                f"`at` must be 'first' or 'last', and `blocks` a positive integer. "
                f"Received: at={at!r}, blocks={blocks!r}"
            )
        self.followed, self.margin, self.at = blocks, margin, at

    def measure(self, block, stage):
        followed = stage[-self.followed :]
        if not any(block is one for one in followed):
            return {}
        at = followed[0 if self.at == "first" else -1]
        borderline = ops.cast(ops.abs(margin(at)) < self.margin, "float32")
        groups = {
            "borderline": borderline,
            "correct": correct(at) * (1 - borderline),
            "all": ops.ones_like(borderline),
        }
        p = block["probabilities"]
        entropy = -ops.sum(p * ops.log(ops.maximum(p, 1e-30)), axis=-1)
        numbers = {"accuracy": correct(block), "loss": block["loss"], "entropy": entropy}
        found = {f"{group}_share": mask for group, mask in groups.items()}
        for group, mask in groups.items():
            for key, value in numbers.items():
                found[f"{group}_{key}"] = ops.where(mask > 0, value, 0.0)
        return found

    def summarize(self, mean):
        shares = {key: value for key, value in mean.items() if key.endswith("_share")}
        found = dict(shares)
        for key, value in mean.items():
            share = mean[key.split("_")[0] + "_share"]
            if key not in shares and share > 0:
                found[key] = value / share
        return found


def correct(block):
    """1 where the most probable class is the true one, `(batch,)`; NaN where there is none."""
    return hits(block["probabilities"], true_class(block))


def margin(block):
    """The true class's probability minus the highest other one, `(batch,)`."""
    p = block["probabilities"]
    true = ops.one_hot(true_class(block), p.shape[-1], dtype=p.dtype)
    return ops.sum(p * true, axis=-1) - ops.max(p - 2 * true, axis=-1)


def true_class(block):
    """The class of each example, an integer, of labels that are integers or one-hot."""
    labels, classes = block["labels"], block["probabilities"].shape[-1]
    if len(labels.shape) > 1 and labels.shape[-1] == classes:
        return ops.argmax(labels, axis=-1)
    return ops.cast(ops.reshape(labels, (-1,)), "int32")
