"""Plan which blocks of a network to remove."""

import dataclasses
import math
from typing import Any

import keras

from zoo.callbacks.probes.batching import repeatable
from zoo.callbacks.probes.engine import run
from zoo.callbacks.probes.objective import Loss
from zoo.callbacks.probes.refinement import BlockInfluence, L2Ratio
from zoo.callbacks.probes.sweep import Trials
from zoo.graph.blocks import Network
from zoo.graph.chain import Chain
from zoo.graph.cost import Count, cost
from zoo.graph.surgery import lesion_plan

CHEAP = {"block_influence": BlockInfluence, "l2_ratio": L2Ratio}  # scores without lesions
KINDS = ("parameters", "multiply-adds")
LESIONS = ("lesion_kl", "lesion_change", "lesion_loss")


@dataclasses.dataclass(frozen=True)
class DepthPlan:
    """Blocks to remove, as `depth_plan` returns them.

    Attributes:
        blocks: Their names, in the order of removal.
        score: Name of the score.
        scores: The score of each of them when it was chosen: with "greedy" that of the network
            without it and the ones before.
        before, after: Parameters and multiply-adds of the network, and of it without the blocks; 0
            multiply-adds where they depend on sizes that the network does not fix.
    """

    blocks: tuple[str, ...]
    score: str
    scores: tuple[float, ...]
    before: Count
    after: Count

    def __str__(self) -> str:
        lines = [
            f"{name}  {self.score} {value:.4g}"
            for name, value in zip(self.blocks, self.scores, strict=True)
        ]
        shares = [
            f"{after / before:.1%} of the {kind}"
            for kind, before, after in zip(KINDS, self.before, self.after, strict=True)
            if before
        ]
        return "\n".join([f"Remove {len(lines)} blocks; {' and '.join(shares)} stay:", *lines])


def depth_plan(
    model: keras.Model,
    data: Any,
    keep: float = 0.75,
    score: str = "lesion_kl",
    search: str = "greedy",
    loss: Loss = None,
    batch_size: int = 128,
    **options: Any,
) -> DepthPlan:
    """Choose blocks to remove, those with the lowest score first.

    Blocks that change the shape stay. Remove the chosen ones with `zoo.prune_blocks`, and heal the
    smaller network by training it.

    Args:
        model: A Functional or built Sequential `keras.Model` whose blocks follow each other.
        data: As in `zoo.callbacks.run`; only "lesion_loss" needs labels.
        keep: Share of the blocks that stay, rounded so that no fewer do.
        score: "lesion_kl", "lesion_change" (of outputs that are no distribution) or "lesion_loss":
            of the network without the block. "block_influence" or "l2_ratio": of one pass.
        search: "once": score each block in the whole network. "greedy": score again after each
            removal, in the network without the blocks before; for scores of lesions.
        loss: As in `zoo.callbacks.run`.
        batch_size: As in `zoo.callbacks.run`.
        **options: `blocks` and `grain`, as in `zoo.callbacks.run`.

    Returns:
        A `DepthPlan`.

    Raises:
        ValueError: before any work, if `keep`, `score` or `search` has another value, or too few
            blocks can be removed; or the score is not defined for the network or the data, or NaN.

    Reference: Men et al. (2024), arXiv:2403.03853 (block influence, once); Gromov et al. (2024),
    arXiv:2403.17887 (healing).

    Example:
    >>> x = inputs = keras.Input((4,))
    >>> for i in range(4):
    ...     f = keras.layers.Dense(4, kernel_initializer=keras.initializers.Constant(0.1 * i))
    ...     x = keras.layers.Add(name=f"sum{i}")([x, f(x)])
    >>> plan = depth_plan(keras.Model(inputs, x), keras.ops.ones((8, 4)), score="lesion_change")
    >>> plan.blocks, plan.after.parameters
    (('sum0',), 60)
    """
    _check_arguments(keep, score, search)
    network = Network.of(model, **options)
    names = [block.name for block in network.blocks if not block.changes_shape]
    count = int((1 - keep) * len(network.blocks) + 1e-9)
    if not 0 < count <= len(names):
        raise ValueError(
            f"Expected a share that removes 1 to {len(names)} of {len(network.blocks)} blocks: "
            f"those that change the shape stay. Received: keep={keep}, which removes {count}."
        )
    chain = Chain(network)
    lowest: dict[str, float] = {}
    if score in CHEAP:
        table = run([CHEAP[score]()], network, data, loss=loss, batch_size=batch_size)
        values = table.values(score)
        lowest = _lowest({name: values[name] for name in names}, count)
    else:
        trials = Trials(network, loss)
        data = repeatable(data)
    while len(lowest) < count:
        rest = [name for name in names if name not in lowest]
        plans = [lesion_plan(chain, [*lowest, name]) for name in rest]
        values = _scores(trials.run(plans, data, batch_size), score)
        # the first is the unmodified network's
        by_name = dict(zip(rest, map(float, values[1:]), strict=True))
        lowest |= _lowest(by_name, 1 if search == "greedy" else count)
    smaller = chain.to_model(lesion_plan(chain, [*lowest]))
    return DepthPlan((*lowest,), score, (*lowest.values(),), _count(model), _count(smaller))


def _count(model):
    """Return a network's `Count`, with 0 operations where sizes are unknown."""
    try:
        counted = cost(model)
    except ValueError:  # of networks for any length of text or size of image
        return Count(model.count_params(), 0)
    return Count(counted.parameters, counted.operations)


def _check_arguments(keep, score, search):
    known = {"greedy": LESIONS, "once": (*LESIONS, *CHEAP)}
    if search not in known:
        raise ValueError(f"`search` must be one of {[*known]}. Received: search={search!r}")
    if score not in known[search]:
        raise ValueError(
            f"`score` must be one of {known[search]} with search={search!r}. Received: "
            f"score={score!r}. Scores of one pass go with search='once'."
        )
    if not 0 < keep < 1:
        raise ValueError(f"`keep` must be between 0 and 1. Received: keep={keep}")


def _lowest(values, count):
    """Return the lowest scores by block, in ascending order; NaN is above all."""
    pairs = sorted(values.items(), key=lambda pair: (math.isnan(pair[1]), pair[1]))[:count]
    if any(math.isnan(value) for _, value in pairs):
        raise ValueError(
            f"Expected scores that are numbers. Received: NaN for {[name for name, _ in pairs]}. "
            f"Look for NaN in the data, and with `zoo.diagnose` in the network's blocks."
        )
    return dict(pairs)


def _scores(measured, score):
    """Return the scores of lesions, of what `Trials` measured."""
    names = [f"lesion_{name}" for name in measured]
    if score not in names:
        raise ValueError(
            f"Expected a score that is defined for these outputs and data. Received: {score!r}, "
            f"where lesions have {names}: 'lesion_loss' needs labels, 'lesion_kl' outputs that "
            f"are a distribution, and others have 'lesion_change'."
        )
    return measured[score.removeprefix("lesion_")]
