"""Evaluate many modified networks in one pass over data."""

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
from zoo.layers.skip import Skip

SPAN = 9  # ours: unmodified blocks in one function, as a call costs TensorFlow up to 1 ms


class Label(NamedTuple):
    """The cells `block`, `stage` and `unit` of a network's rows in a `Table`."""

    block: str | None = None
    stage: int | None = None
    unit: int | None = None


class Trials:
    """Evaluate many plans of one chain in one pass over data.

    Plans that begin alike are evaluated together up to the first difference, the unmodified network
    first, so that the input of every block of one batch is in memory. At 54 blocks the
    lesions of all blocks take 0.4 of the time of one compiled forward pass with a mask over
    blocks, run once a lesion (medians: TensorFlow 0.39, JAX 0.46, torch 0.33; `cifar_resnet(110)`,
    one core).

    Args:
        model: A Functional or built Sequential `keras.Model` whose blocks follow each other.
        loss: As in `zoo.callbacks.run`.
        blocks: Names of the blocks; `None`: all.
        grain: As in `zoo.blocks.find_blocks`.

    Raises:
        ValueError: if there is no block, or a call reads a tensor that bypasses a block.
    """

    def __init__(
        self,
        model: keras.Model | Network,
        loss: Loss = None,
        blocks: Sequence[str] | None = None,
        grain: Grain = "sum",
    ) -> None:
        network = Network.of(model, blocks, grain)
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
        """Return the numbers of the unmodified network and of each plan, by name.

        With labels `accuracy`, which networks that are no classifiers do not have, and `loss`. In
        comparison with the unmodified network: of class distributions `kl`, the KL divergence of
        its distribution from the modified network's (nats), and `agreement`, the share of
        positions with the same most probable class; of other outputs `change`, the norm of their
        difference over that of the unmodified network's outputs.

        Args:
            plans: See `zoo.graph.chain.Chain`.
            data: As in `zoo.callbacks.run`.
            batch_size: Examples in a batch, where `data` are arrays.
            progress: A function called with the number of examples so far, after each batch.

        Returns:
            Arrays `(1 + plans,)` by name, the unmodified network's number first; means over
            examples.

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
        """Return the numbers of `run` as a table.

        Args:
            name: Beginning of the values' names.
            labels: A `Label` for each plan.
            plans: See `run`.
            data: See `run`.
            **options: `batch_size` and `progress` of `run`.
        """
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
