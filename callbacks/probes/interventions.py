"""What a network loses, or wins, when its blocks are operated on: accuracy and loss on data.

Every function returns a `Table`: rows `..._accuracy` and `..._loss`, the intact network's under
block None. Accuracy is a fraction; the loss is the mean over examples.
"""

import numpy as np

from zoo.callbacks.probes.sweep import Trials
from zoo.callbacks.probes.table import Row, Table
from zoo.graph.chain import exit_plan, lesion_plan, shuffle_plan, unroll_plan
from zoo.graph.surgery import cost, orders, prune_blocks


def lesions(model, data, loss=None, mode="removed", blocks=None, **options):
    """Each block left out, one at a time. A block that can be missed barely changes the accuracy.

    Args:
        model, data, loss: As in `Trials`.
        mode: "removed" or "closed": see `zoo.lesion`.
        blocks: Names; `None`: all.
        **options: `batch_size`, `progress` of `Trials.run`.

    Returns:
        A `Table` with `lesion_accuracy` and `lesion_loss`.

    Reference: Srivastava et al. (2015), section 4.3, Fig. 4; Jastrzebski et al. (2018), Fig. 3.
    """
    trials = Trials(model, loss, named(blocks))
    places = trials.places()
    plans = [lesion_plan(trials.chain, [name], mode) for name, _ in places]
    return trials.table("lesion", places, plans, data, **options)


def random_lesions(
    model, data, counts, repeats=5, seed=0, loss=None, mode="removed", blocks=None, **options
):
    """Several random blocks left out at once; those that change the shape stay.

    Args:
        model, data, loss, mode: As in `lesions`.
        counts: Numbers of blocks to leave out.
        repeats: Random choices for each.
        seed: Of the choices.
        blocks: Names of the blocks to take; `None`: all that are found.
        **options: As in `lesions`.

    Returns:
        A `Table` with `lesions_accuracy` and `lesions_loss`; `unit` is the number of blocks left
        out, `block` lists them.

    Reference: Veit, Wilber, Belongie (2016), arXiv:1605.06431, section 4.2.
    """
    trials, rng = Trials(model, loss, named(blocks)), np.random.default_rng(seed)
    names = [block.name for block in trials.chain.blocks if not block.changes_shape]
    if not all(0 < count <= len(names) for count in counts):
        raise ValueError(
            f"`counts` must be between 1 and {len(names)}, the blocks that can be left out. "
            f"Received: counts={[*counts]}"
        )
    chosen = [[*rng.choice(names, n, replace=False)] for n in counts for _ in range(repeats)]
    plans = [lesion_plan(trials.chain, one, mode) for one in chosen]
    table = trials.table(
        "lesions", [(" ".join(one), None) for one in chosen], plans, data, **options
    )
    return Table(
        row if row.block is None else row._replace(unit=len(row.block.split())) for row in table
    )


def shuffles(model, data, swaps=(1, 2, 4, 8), repeats=5, seed=0, loss=None, blocks=None, **options):
    """Blocks of a stage in a random order, against the order's Kendall tau.

    Blocks that change the shape stay. A network of blocks that refine the same representation
    degrades smoothly as tau falls.

    Args:
        model, data, loss: As in `lesions`.
        swaps: Numbers of random swaps of two blocks, in every stage.
        repeats: Random orders for each.
        seed: Of the orders.
        blocks: Names of the blocks to take; `None`: all that are found.
        **options: As in `lesions`.

    Returns:
        A `Table` with `shuffle_accuracy`, `shuffle_loss` and `shuffle_tau`, the mean over the
        stages; `block` numbers the orders, `unit` is the number of swaps.

    Raises:
        ValueError: if no stage has two blocks of one shape.

    Reference: Veit, Wilber, Belongie (2016), arXiv:1605.06431, section 4.3.
    """
    trials, rng = Trials(model, loss, named(blocks)), np.random.default_rng(seed)
    stages = {}
    for block in trials.chain.blocks:
        if not block.changes_shape:
            stages.setdefault(block.stage, []).append(block.name)
    stages = [names for names in stages.values() if len(names) > 1]
    if not stages:
        raise ValueError("Expected a stage with two blocks of one shape. Received: none such.")
    plans, taus, units = [], [], []
    for num in swaps:
        for _ in range(repeats):
            drawn = [orders(names, num, rng) for names in stages]
            order = {place: name for one, _ in drawn for place, name in one.items()}
            plans.append(shuffle_plan(trials.chain, order))
            taus.append(float(np.mean([tau for _, tau in drawn])))
            units.append(num)
    names = [(f"order{i}", None) for i in range(len(plans))]
    table = trials.table("shuffle", names, plans, data, **options)
    numbers = dict(zip((name for name, _ in names), units, strict=True))
    rows = [row._replace(unit=numbers.get(row.block)) for row in table]
    rows += (
        Row("shuffle_tau", name, None, unit, None, tau)
        for (name, _), unit, tau in zip(names, units, taus, strict=True)
    )
    return Table(rows)


def early_exits(model, data, loss=None, blocks=None, **options):
    """The network stopped behind each block: later ones return what they carry.

    Args:
        model, data, loss: As in `lesions`.
        blocks: Names of the blocks to take; `None`: all that are found.
        **options: As in `lesions`.

    Returns:
        A `Table` with `exit_accuracy` and `exit_loss`.

    Reference: Jastrzebski et al. (2018), section 4.4.
    """
    trials = Trials(model, loss, named(blocks))
    places = trials.places()
    plans = [exit_plan(trials.chain, name) for name, _ in places]
    return trials.table("exit", places, plans, data, **options)


def unrollings(
    model, data, times=20, scales=(1.0, 0.5, 0.25, 0.1, 0.05), loss=None, blocks=None, **options
):
    """The last block applied up to `times` times more, f scaled; and which scale is best.

    Args:
        model, data, loss: As in `lesions`; choose the scale on training data, as the paper does.
        times: Most repetitions.
        scales: To try; ours, the paper gives no value.
        blocks: Names of the blocks to take; `None`: all that are found.
        **options: As in `lesions`.

    Returns:
        The scale with the lowest loss after `times` repetitions, and a `Table` with
        `unroll_SCALE_accuracy` and `unroll_SCALE_loss`; `block` is the last block's name, `unit`
        the number of repetitions.

    Reference: Jastrzebski et al. (2018), section 4.5, Figs 7 and 20.
    """
    trials, tables, last = Trials(model, loss, named(blocks)), [], {}
    name, stage = trials.places()[-1]
    for scale in scales:
        plans = [unroll_plan(trials.chain, n, scale) for n in range(1, times + 1)]
        table = trials.table(f"unroll_{scale}", [(name, stage)] * times, plans, data, **options)
        rows = [row._replace(unit=i % (times + 1)) for i, row in enumerate(table)]
        tables.append(Table(rows))
        last[scale] = rows[-1].value
    finite = {scale: value for scale, value in last.items() if np.isfinite(value)}
    best = min(finite or last, key=last.get)
    return best, sum(tables, Table())


def prune_report(model, data, blocks, loss=None, **options):
    """What `zoo.prune_blocks(model, blocks)` would cost and save.

    Args:
        model, data, loss: As in `lesions`.
        blocks: Names of blocks.
        **options: As in `lesions`.

    Returns:
        A dictionary: `accuracy`, `loss`, `parameters` and `operations` (multiply-adds of an
        example), each a pair: before and after.
    """
    trials = Trials(model, loss)
    plan = lesion_plan(trials.chain, named(blocks))
    costs = [cost(model), cost(prune_blocks(model, named(blocks)))]
    before, after = trials.run([plan], data, **options)
    return {
        "accuracy": (float(before[0]), float(after[0])),
        "loss": (float(before[1]), float(after[1])),
        **{key: tuple(one[key] for one in costs) for key in costs[0]},
    }


def named(blocks):
    """Names as a list, if there are any; one may come by itself."""
    return [blocks] if isinstance(blocks, str) else blocks
