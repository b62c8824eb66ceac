"""Accuracy and loss of a network whose blocks are modified, and how far its output then changes.

Every function returns a `Table`. With labels it has rows `..._accuracy` (a fraction; a regression
of one output has none) and `..._loss`. Compared with the unmodified network, also without labels:
where the output is a distribution over classes `..._kl`, the KL divergence of the unmodified
network's distribution from the modified one's in nats, and `..._agreement`, the share of positions
with the same most probable class; of other outputs `..._change`, the norm of their change over that
of the unmodified network's outputs, of all of them if there are several. All are means over
examples, an example's over its positions as in `zoo.callbacks.run`. The unmodified network's are
under block None.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from zoo.callbacks.probes.objective import Loss
from zoo.callbacks.probes.sweep import Label, Trials
from zoo.callbacks.probes.table import Row, Table
from zoo.graph.blocks import Grain, Network
from zoo.graph.chain import Plan
from zoo.graph.cost import cost
from zoo.graph.surgery import lesion_plan, random_order, shuffle_plan

Blocks = str | Sequence[str] | None  # names; one may be given without a list


def lesions(
    model: keras.Model | Network,
    data: Any,
    loss: Loss = None,
    mode: str = "removed",
    blocks: Blocks = None,
    grain: Grain = "sum",
    **options: Any,
) -> Table:
    """Leave out each block, one at a time. A redundant block barely changes the output.

    Args:
        model: A Functional or built Sequential `keras.Model` whose blocks follow each other.
        data: As in `zoo.callbacks.run`, with or without labels.
        loss: As in `zoo.callbacks.run`.
        mode: "removed" or "closed": see `zoo.lesion`.
        blocks: Names of the blocks; `None`: all.
        grain: "sum" or "layer": see `zoo.blocks.find_blocks`.
        **options: `batch_size` and `progress`, as in `zoo.callbacks.run`.

    Returns:
        A `Table` with `lesion_accuracy` and `lesion_loss`, if there are labels, `lesion_kl` and
        `lesion_agreement`, or `lesion_change`: see this module.

    Reference: Srivastava et al. (2015), section 4.2, Fig. 4; Jastrzebski et al. (2018), section
    4.2, Fig. 3.
    """
    trials = Trials(model, loss, _names(blocks), grain)
    plans = [lesion_plan(trials.chain, [block.name], mode) for block in trials.chain.blocks]
    return trials.table("lesion", trials.labels(), plans, data, **options)


def random_lesions(  # noqa: PLR0913 (choices of the sample, by keyword)
    model: keras.Model,
    data: Any,
    counts: Sequence[int],
    repeats: int = 5,
    seed: int = 0,
    loss: Loss = None,
    mode: str = "removed",
    blocks: Blocks = None,
    grain: Grain = "sum",
    **options: Any,
) -> Table:
    """Leave out several random blocks at once; those that change the shape stay.

    `counts` are the numbers of blocks to leave out, `repeats` the random choices of blocks for
    each, and `seed` their random seed. Other arguments as in `lesions`.

    Returns:
        A `Table` with `lesions_loss` and the others of `lesions`; `unit` is the number of blocks
        left out, `block` lists their names, separated by "; ".

    Reference: Veit, Wilber, Belongie (2016), arXiv:1605.06431, section 4.2.
    """
    trials = Trials(model, loss, _names(blocks), grain)
    rng = np.random.default_rng(seed)
    names = [block.name for block in trials.chain.blocks if not block.changes_shape]
    if not all(0 < count <= len(names) for count in counts):
        raise ValueError(
            f"`counts` must be between 1 and {len(names)}, the blocks that can be left out. "
            f"Received: counts={[*counts]}"
        )
    choices = [[*rng.choice(names, n, replace=False)] for n in counts for _ in range(repeats)]
    labels = [Label("; ".join(choice), unit=len(choice)) for choice in choices]
    plans = [lesion_plan(trials.chain, choice, mode) for choice in choices]
    return trials.table("lesions", labels, plans, data, **options)


def shuffles(
    model: keras.Model,
    data: Any,
    swaps: Sequence[int] = (1, 2, 4, 8),
    repeats: int = 5,
    seed: int = 0,
    loss: Loss = None,
    blocks: Blocks = None,
    grain: Grain = "sum",
    **options: Any,
) -> Table:
    """Run the blocks of each stage in a random order, against the order's Kendall tau.

    Blocks that change the shape stay. A network of blocks that refine the same representation
    degrades smoothly as tau falls. `swaps` are numbers of random swaps of two blocks in every
    stage, `repeats` the random orders for each, and `seed` their random seed. Other arguments as
    in `lesions`.

    Returns:
        A `Table` with `shuffle_loss` and the others of `lesions`, and `shuffle_tau`, the mean over
        the stages; `block` numbers the orders, `unit` is the number of swaps.

    Raises:
        ValueError: if no stage has two blocks of one shape.

    Reference: Veit, Wilber, Belongie (2016), arXiv:1605.06431, section 4.3.
    """
    trials = Trials(model, loss, _names(blocks), grain)
    rng = np.random.default_rng(seed)
    by_stage: dict[int, list[str]] = {}
    for block in trials.chain.blocks:
        if not block.changes_shape:
            by_stage.setdefault(block.stage, []).append(block.name)
    stages = [names for names in by_stage.values() if len(names) > 1]
    if not stages:
        raise ValueError("Expected a stage with two blocks of one shape. Received: none such.")
    plans: list[Plan] = []
    labels = []
    rows = []
    for num_swaps in swaps:
        for _ in range(repeats):
            orders = [random_order(names, num_swaps, rng) for names in stages]
            label = Label(f"order{len(plans)}", unit=num_swaps)
            tau = float(np.mean([tau for _, tau in orders]))
            rows.append(Row("shuffle_tau", label.block, None, label.unit, None, tau))
            labels.append(label)
            order = {position: name for part, _ in orders for position, name in part.items()}
            plans.append(shuffle_plan(trials.chain, order))
    return trials.table("shuffle", labels, plans, data, **options) + Table(rows)


def early_exits(
    model: keras.Model,
    data: Any,
    loss: Loss = None,
    blocks: Blocks = None,
    grain: Grain = "sum",
    **options: Any,
) -> Table:
    """Stop the network after each block: later ones return their skip input.

    Arguments as in `lesions`.

    Returns:
        A `Table` with `exit_loss` and the others of `lesions`.

    Reference: Jastrzebski et al. (2018), section 4.2, Fig. 5.
    """
    trials = Trials(model, loss, _names(blocks), grain)
    later = [block.name for block in trials.chain.blocks if not block.changes_shape]
    plans = []
    for block in trials.chain.blocks:
        later = [name for name in later if trials.chain.index(name) > block.index]
        plans.append(lesion_plan(trials.chain, later))
    return trials.table("exit", trials.labels(), plans, data, **options)


def prune_report(
    model: keras.Model,
    data: Any,
    blocks: str | Sequence[str],
    loss: Loss = None,
    grain: Grain = "sum",
    **options: Any,
) -> dict[str, tuple[float, float]]:
    """Return the cost and the savings of `zoo.prune_blocks(model, blocks)`.

    Other arguments as in `lesions`.

    Returns:
        A dictionary of pairs, before and after: `accuracy`, `loss` and the other numbers of
        `lesions`, `parameters`, and `operations` (multiply-adds of an example).
    """
    trials = Trials(model, loss, grain=grain)
    plan = lesion_plan(trials.chain, [blocks] if isinstance(blocks, str) else blocks)
    numbers = trials.run([plan], data, **options)
    old_cost = cost(model)
    new_cost = cost(trials.chain.to_model(plan))
    report = {key: (float(before), float(after)) for key, (before, after) in numbers.items()}
    for key in ("parameters", "operations"):
        report[key] = (getattr(old_cost, key), getattr(new_cost, key))
    return report


def _names(blocks):
    return [blocks] if isinstance(blocks, str) else blocks
