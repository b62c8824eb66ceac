"""Evaluate many modified networks in one pass over data."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from absl import logging
from keras import ops

from zoo.backend import compiled
from zoo.callbacks.probes.batching import Progress, masked_sum, padded_batches
from zoo.callbacks.probes.objective import Loss, Objective
from zoo.callbacks.probes.table import Row, Table
from zoo.graph.chain import Chain, Plan, Step
from zoo.layers.skip import Skip

SPAN = 9  # unmodified blocks that are compiled as one function; ours: a call costs TensorFlow 1 ms


class Label(NamedTuple):
    """The cells `block`, `stage` and `unit` of a network's rows in a `Table`."""

    block: str | None = None
    stage: int | None = None
    unit: int | None = None


class Operation(NamedTuple):
    """One step of a plan: `repetition` counts the steps at one position, from 0."""

    position: int
    repetition: int
    step: Step


class Trials:
    """Evaluate many plans of one chain in one pass over data.

    Plans that begin alike are evaluated together up to the first difference. At 54 blocks the
    lesions of all blocks take 0.4 of the time of one compiled forward pass with a mask over
    blocks, run once a lesion (medians: TensorFlow 0.39, JAX 0.46, torch 0.33; `cifar_resnet(110)`,
    one core).

    Args:
        model: A Functional or built Sequential `keras.Model` whose blocks follow each other.
        loss: As in `zoo.callbacks.run`.
        blocks: Names of the blocks; `None`: all.

    Raises:
        ValueError: if there is no block, or a call reads a tensor that bypasses a block.
    """

    def __init__(
        self, model: keras.Model, loss: Loss = None, blocks: Sequence[str] | None = None
    ) -> None:
        self.chain = Chain(model, blocks)
        self.objective = Objective(self.chain.graph, model, loss)
        self.model = model
        self.count = 0  # examples of the last run
        self._compiled: dict[Any, Any] = {}
        self._intact = _operations(self.chain.plan)

    def run(
        self,
        plans: Sequence[Plan],
        data: Any,
        batch_size: int = 128,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Return accuracy and mean loss of the unmodified network and of each plan.

        The accuracy of networks that are no classifiers is NaN.

        Args:
            plans: See `zoo.graph.chain.Chain`.
            data: As in `zoo.callbacks.run`, with labels.
            batch_size: Examples in a batch, where `data` are arrays.
            progress: A function called with the number of examples so far, after each batch.

        Returns:
            An array `(1 + plans, 2)`, the unmodified network's numbers first.

        Raises:
            ValueError: if a block does not fit its position, or the data have no labels.
        """
        plans = [self.chain.plan, *plans]
        for plan in plans:
            self.chain.check(plan)
        operations = [_operations(plan) for plan in plans]
        sums = np.zeros((len(plans), 2))
        seen = 0
        for x, y, mask in padded_batches(data, batch_size, progress, check=self.objective.check):
            if y is None:
                raise ValueError("Accuracy and loss need labels. Received: data without them.")
            labels = ops.convert_to_tensor(y)
            mask_tensor = ops.convert_to_tensor(mask)
            start = self.chain.graph.start(x)
            for numbers, output in self._outputs(operations, range(len(plans)), 0, start):
                pair = self._call("score", self._score, output, labels, mask_tensor)
                sums[numbers] += ops.convert_to_numpy(pair)
            seen += int(np.count_nonzero(mask))
        measured = sums if self.objective.classifies else sums[:, 1:]
        not_finite = int((~np.isfinite(measured)).any(axis=1).sum())
        if not_finite:
            logging.warning("%d of %d networks produced NaN or Inf.", not_finite, len(sums))
        self.count = seen
        return sums / seen

    def _outputs(self, operations, numbers, done, x):
        """Run the plans `numbers`, of which the first `done` operations are done, to their ends.

        Yields pairs: numbers of plans that are alike, and the output of their last block.
        """
        while True:
            span = self._span(operations, numbers, done)
            if span is not None:
                x = self._call(("span", span), lambda x, first=span: self._run_span(first, x), x)
                done += SPAN
                continue
            groups = {}
            for number in numbers:
                rest = operations[number][done : done + 1]
                groups.setdefault(rest[0] if rest else None, []).append(number)
            ended = groups.pop(None, None)
            if ended:
                yield ended, x
            if not groups:
                return
            (operation, numbers), *others = groups.items()
            for other, other_numbers in others:
                y = self._do(other, x)
                yield from self._outputs(operations, other_numbers, done + 1, y)
            x = self._do(operation, x)
            done += 1

    def _span(self, operations, numbers, done):
        """Return the first position of a span that all plans run unmodified next, or None."""
        rest = operations[numbers[0]][done : done + SPAN]
        if len(rest) < SPAN or rest[0].position % SPAN:
            return None
        first = rest[0].position
        intact = self._intact[first : first + SPAN]
        same = all(operations[number][done : done + SPAN] == intact for number in numbers)
        return first if same else None

    def _run_span(self, first, x):
        for operation in self._intact[first : first + SPAN]:
            x = self.chain.do(operation.step, self.chain.link(operation.position, x))
        return x

    def _do(self, operation, x):
        position, repetition, step = operation
        needs_link = self.chain.repeats_link(position) if repetition else self.chain.links[position]
        if needs_link or position == 0 and not repetition:
            x = self._call(("link", position), lambda x: self.chain.link(position, x), x)
        block = self.chain.blocks[step.block]
        finishes = block.layer is not None and type(block.layer).finish is not Skip.finish
        if step.action == "carry" and not block.changes_shape and not finishes:
            return x
        return self._call(step, lambda x: self.chain.do(step, x), x)

    def _score(self, y, labels, mask):
        """Return summed accuracy and loss of a batch, from the last block's output."""
        logits = self.objective.logits(self.chain.end(y, self.objective.apply)[0])
        losses = self.objective.losses(labels, logits)
        return masked_sum(ops.stack([self.objective.hits(labels, logits), losses], axis=1), mask)

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
        intact: Label = Label(),  # noqa: B008  # immutable
        **options: Any,
    ) -> Table:
        """Return the numbers of `run` as a table, without the accuracy of what does not classify.

        Args:
            name: Beginning of the values' names.
            labels: A `Label` for each plan.
            plans: See `run`.
            data: See `run`.
            intact: The `Label` of the unmodified network.
            **options: `batch_size` and `progress` of `run`.
        """
        numbers = self.run(plans, data, **options)
        rows = [
            Row(f"{name}_{metric}", label.block, label.stage, label.unit, None, float(value))
            for metric, column in zip(("accuracy", "loss"), numbers.T, strict=True)
            if metric == "loss" or self.objective.classifies
            for label, value in zip([intact, *labels], column, strict=True)
        ]
        return Table(rows, title=f"{self.model.name} on {self.count} examples")

    def labels(self) -> list[Label]:
        """Return a `Label` for each block."""
        return [Label(block.name, block.stage) for block in self.chain.blocks]


def _operations(plan: Plan) -> tuple[Operation, ...]:
    return tuple(
        Operation(position, repetition, step)
        for position, steps in enumerate(plan)
        for repetition, step in enumerate(steps)
    )
