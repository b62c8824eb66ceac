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
from typing import Any, NamedTuple

import keras
import numpy as np
from absl import logging
from keras import ops

from zoo.backend import compiled
from zoo.callbacks.probes.batching import (
    Progress,
    masked_sum,
    padded_batches,
    to_arrays,
    to_tensors,
)
from zoo.callbacks.probes.objective import Loss, Objective, agreement, average, divergence
from zoo.callbacks.probes.probe import flat, norm
from zoo.callbacks.probes.table import Row, Table
from zoo.graph.blocks import Grain, Network
from zoo.graph.chain import Chain, Plan
from zoo.graph.cost import cost
from zoo.graph.surgery import lesion_plan, random_order, shuffle_plan
from zoo.layers.skip import Skip

Blocks = str | Sequence[str] | None  # names; one may be given without a list
SPAN = 9  # ours: unmodified blocks in one function, as a call costs TensorFlow up to 1 ms


class Label(NamedTuple):
    """The cells `block`, `stage` and `unit` of a network's rows in a `Table`."""

    block: str | None = None
    stage: int | None = None
    unit: int | None = None


class Trials:
    """Evaluate many plans of one chain in one pass over data.

    Plans that begin alike are evaluated together up to the first difference, the unmodified network
    first, so that the input of every block of one batch is in memory: at 54 blocks the lesions of
    all take 0.4 of the time of a compiled forward pass for each. Arguments as in `lesions`.

    Raises:
        ValueError: if there is no block, or a call reads a tensor that bypasses a block.
    """

    def __init__(
        self,
        model: keras.Model | Network,
        loss: Loss = None,
        blocks: Blocks = None,
        grain: Grain = "sum",
    ) -> None:
        network = Network.of(model, [blocks] if isinstance(blocks, str) else blocks, grain)
        self.model = network.model
        self.chain = Chain(network)
        self.objective = Objective(self.chain.graph, self.model, loss)
        self.count = 0  # examples of the last run
        self._compiled: dict[Any, Any] = {}

    def run(
        self,
        plans: Sequence[Plan],
        data: Any,
        batch_size: int = 128,
        progress: Progress | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the numbers of the unmodified network and of each plan, by name: see this module.

        Arrays `(1 + plans,)`, the unmodified network's number first; means over examples. For plans
        see `zoo.graph.chain.Chain`; other arguments as in `zoo.callbacks.run`.

        Raises:
            ValueError: if a block does not fit its position.
        """
        plans = [self.chain.plan, *map(tuple, plans)]
        for plan in plans:
            self.chain.check(plan)
        names: list[str] = []
        sums = np.zeros(0)
        seen = 0
        for x, y, mask in padded_batches(data, batch_size, progress, check=self.objective.check):
            if not names:
                names = self._names(y is not None)
                sums = np.zeros((len(plans), len(names)))
            labels = () if y is None else (to_tensors(y),)
            mask_tensor = ops.convert_to_tensor(mask)
            intact = None  # the unmodified network's outputs, which are the first
            for numbers, y in self._outputs(plans, self.chain.graph.start(x)):
                intact = intact or self._call("end", self._end, y)
                scores = self._call("score", self._score, y, intact, labels, mask_tensor)
                sums[numbers] += to_arrays(scores, mask)
            seen += int(np.count_nonzero(mask))
        own = [name in ("accuracy", "loss") for name in names]  # others: of two networks
        measured = sums[:, own] if any(own) else sums
        not_finite = int((~np.isfinite(measured)).any(axis=1).sum())
        if not_finite:
            logging.warning("%d of %d networks produced NaN or Inf.", not_finite, len(sums))
        self.count = seen
        return dict(zip(names, sums.T / seen, strict=True))

    def _names(self, labeled):
        """Return the names of the numbers, which depend on whether data have labels."""
        accuracy = ["accuracy"] if labeled and self.objective.classifies else []
        distribution = self.objective.is_distribution(labeled)
        compared = ["kl", "agreement"] if distribution else ["change"]
        return [*accuracy, *(["loss"] if labeled else []), *compared]

    def _outputs(self, plans, start):
        """Run the plans, of which number 0 is the unmodified network's, to their ends.

        Yields pairs: numbers of plans that are alike, and the output of their last block; the
        unmodified network's first.
        """
        pending = [([*range(len(plans))], 0, start)]  # plans, position, x
        while pending:
            numbers, position, x = pending.pop()
            groups = {}
            for number in numbers:
                step = plans[number][position : position + 1]
                groups.setdefault(step, []).append(number)
            end = self._end_of_span(plans, numbers, position)
            if position == len(self.chain.plan):
                yield numbers, x
            elif end:
                span = position, end
                x = self._call(("span", span), lambda x, span=span: self._run_span(*span, x), x)
                pending.append((numbers, end, x))
            elif len(groups) > 1:
                pending += [(group, position, x) for group in reversed(groups.values())]
            else:
                ((step,),) = groups
                pending.append((numbers, position + 1, self._do(position, step, x)))

    def _end_of_span(self, plans, numbers, first):
        """Return the end of a span that all plans run unmodified next, or None."""
        end = min(first + SPAN, len(self.chain.plan))
        intact = self.chain.plan[first:end]
        same = all(plans[number][first:end] == intact for number in numbers)
        return end if first % SPAN == 0 and same and len(intact) > 1 else None

    def _run_span(self, first, end, x):
        for position in range(first, end):
            x = self.chain.do(self.chain.plan[position], self.chain.link(position, x))
        return x

    def _do(self, position, step, x):
        if self.chain.links[position] or position == 0:
            x = self._call(("link", position), lambda x: self.chain.link(position, x), x)
        block = self.chain.blocks[step.block]
        finishes = block.layer is not None and type(block.layer).finish is not Skip.finish
        if step.action == "carry" and not block.changes_shape and not finishes:
            return x
        return self._call(step, lambda x: self.chain.do(step, x), x)

    def _end(self, y):
        """Return the network's outputs, the first one as logits, from the last block's output."""
        outputs = self.chain.end(y, self.objective.apply)
        return [self.objective.logits(outputs[0]), *outputs[1:]]

    def _score(self, y, intact, labels, mask):
        """Return the summed numbers of a batch, in the order of `_names`."""
        objective = self.objective
        outputs = self._end(y)
        logits = outputs[0]
        scores = []
        if labels and objective.classifies:
            scores.append(objective.hits(labels[0], logits))
        if labels:
            scores.append(objective.losses(labels[0], logits))
        if objective.is_distribution(bool(labels)):
            weights = objective.weights(labels[0] if labels else None, logits)
            pair = objective.log_probabilities(intact[0]), objective.log_probabilities(logits)
            scores += [average(v, weights) for v in (divergence(*pair), agreement(*pair))]
        else:
            difference = [flat(v) - flat(old) for v, old in zip(outputs, intact, strict=True)]
            old = ops.concatenate([flat(v) for v in intact], axis=1)
            scores.append(norm(ops.concatenate(difference, axis=1)) / norm(old))
        return masked_sum(ops.stack(scores, axis=1), mask)

    def _call(self, key, function, *arguments):
        if key not in self._compiled:
            # a compiled function would drop the masks of its arguments and results
            masked = self.chain.graph.masked
            self._compiled[key] = function if masked else compiled(function, self.model)
        return self._compiled[key](*arguments)

    def table(
        self,
        name: str,
        labels: Sequence[Label],
        plans: Sequence[Plan],
        data: Any,
        **options: Any,
    ) -> Table:
        """Return the numbers of `run` as a table whose values' names begin with `name`."""
        numbers = self.run(plans, data, **options)
        rows = [
            Row(f"{name}_{metric}", label.block, label.stage, label.unit, None, float(value))
            for metric, column in numbers.items()
            for label, value in zip([Label(), *labels], column, strict=True)
        ]
        return Table(rows, title=f"{self.model.name} on {self.count} examples")

    def labels(self) -> list[Label]:
        """Return a `Label` for each block."""
        return [Label(block.name, block.stage) for block in self.chain.blocks]


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
    trials = Trials(model, loss, blocks, grain)
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
    trials = Trials(model, loss, blocks, grain)
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
    trials = Trials(model, loss, blocks, grain)
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
    trials = Trials(model, loss, blocks, grain)
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
