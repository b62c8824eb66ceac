"""Many changed networks evaluated in one pass over data."""

import numpy as np
from absl import logging
from keras import ops

from zoo.backend import compiled
from zoo.callbacks.probes.batching import (
    batches,
    example_loss,
    filled,
    hits,
    normalizes,
    probabilities,
)
from zoo.callbacks.probes.table import Row, Table
from zoo.graph.chain import Chain
from zoo.layers.skip import Skip

SPAN = 9  # blocks that are one call where none is changed; ours: a call costs TensorFlow 1 ms


def odd(sums):
    """How many rows are not finite, and how many there are."""
    return int((~np.isfinite(sums)).any(1).sum()), len(sums)


class Trials:
    """Evaluates many plans of one chain in one pass over data.

    A plan shares with the intact network what lies before the first place where they differ; that
    part is computed once for all plans. Each block is compiled once.

    Args:
        model: A Functional or built Sequential `keras.Model` whose blocks follow each other.
        loss: A Keras loss or its name; `None`: the model's own, or sparse categorical
            cross-entropy.
        blocks: Names of the blocks to take; `None`: all that are found.

    Raises:
        ValueError: if no block is found, or something passes by one.
    """

    def __init__(self, model, loss=None, blocks=None):
        self.chain = Chain(model, blocks)
        self.normalized = normalizes(self.chain.graph)
        self.loss = example_loss(loss or getattr(model, "loss", None), self.normalized)
        self.model, self._compiled = model, {}

    def run(self, plans, data, batch_size=128, progress=None):
        """Accuracy and loss of the intact network and of each plan.

        Args:
            plans: A list of plans: see `zoo.graph.chain.Chain`.
            data: As in `zoo.callbacks.run`, with labels.
            batch_size: Of arrays.
            progress: A function that is told the number of examples after each batch.

        Returns:
            An array `(1 + plans, 2)`: accuracy and mean loss, the intact network's first.

        Raises:
            ValueError: if a block does not fit its place, or the data have no labels.
        """
        plans = [self.chain.plan, *plans]
        for plan in plans:
            self.chain.check(plan)
        sums, seen, size = np.zeros((len(plans), 2)), 0, 0
        for x, y in batches(data, batch_size):
            if y is None:
                raise ValueError("Accuracy and loss need labels. Received: data without them.")
            count = len(y)
            size = max(size, count)
            mask = ops.convert_to_tensor(np.arange(size) < count)
            labels = ops.convert_to_tensor(filled(y, size))
            sums += self._batch(plans, self.chain.graph.start(filled(x, size)), labels, mask)
            seen += count
            if progress:
                progress(seen)
        if not seen:
            raise ValueError("Expected at least one example. Received: data without any.")
        if not np.isfinite(sums).all():
            logging.warning("Not finite: what %d of %d networks make.", *odd(sums))
        return sums / seen

    def _batch(self, plans, x, labels, mask):
        found = np.zeros((len(plans), 2))
        waiting = {}
        for number, plan in enumerate(plans):
            pairs = enumerate(zip(plan, self.chain.plan, strict=True))
            first = next((i for i, (own, intact) in pairs if own != intact), len(plan))
            waiting.setdefault(first, []).append(number)
        for place in range(len(self.chain.blocks) + 1):
            known = {}
            for number in waiting.get(place, ()):
                y = x
                if place < len(plans[number]):  # plans may begin with the same steps
                    y = self._place(place, plans[number][place], x, known)
                y = self._rest(place + 1, plans[number], y)
                found[number] = self._score(y, labels, mask)
            if place < len(self.chain.blocks):
                x = self._place(place, self.chain.plan[place], x)
        return found

    def _rest(self, place, plan, x):
        """What the last block makes of x, which block `place` (or its link) reads, in `plan`."""
        while place < len(plan):
            end = place + SPAN
            if place % SPAN or end > len(plan) or plan[place:end] != self.chain.plan[place:end]:
                x, place = self._place(place, plan[place], x), place + 1
            else:
                x, place = self._call(("span", place), self._span(place), x), end
        return x

    def _span(self, first):
        def span(x):
            for place in range(first, first + SPAN):
                x = self.chain.do(self.chain.plan[place][0], self.chain.link(place, x))
            return x

        return span

    def _place(self, place, steps, x, known=None):
        """What a place makes of x; `known` remembers the states between several steps."""
        if self.chain.links[place] or place == 0:
            x = self._call(("link", place), lambda x: self.chain.link(place, x), x)
        for repetition, step in enumerate(steps):
            block, done = self.chain.blocks[step.block], (place, steps[: repetition + 1])
            if known is not None and done in known:
                x = known[done]
                continue
            if repetition and self.chain.links_again(place):
                x = self._call(("link", place), lambda x: self.chain.link(place, x), x)
            finishes = block.layer is not None and type(block.layer).finish is not Skip.finish
            if step.what == "carry" and not block.changes_shape and not finishes:
                continue
            x = self._call(step, lambda x, step=step: self.chain.do(step, x), x)
            if known is not None and len(steps) > 1:
                known[done] = x
        return x

    def _score(self, y, labels, mask):
        def score(y, labels, mask):
            outputs = self.chain.end(y)[0]
            p, loss = probabilities(outputs, self.normalized), self.loss(labels, outputs)
            integers = labels
            if len(labels.shape) > 1 and labels.shape[-1] == outputs.shape[-1]:
                integers = ops.argmax(labels, axis=-1)
            pair = ops.stack([hits(p, ops.reshape(integers, (-1,))), loss])
            return ops.sum(ops.where(mask, pair, 0.0), axis=1)

        return ops.convert_to_numpy(self._call("score", score, y, labels, mask))

    def _call(self, key, function, *arguments):
        if key not in self._compiled:
            self._compiled[key] = compiled(function, self.model)
        return self._compiled[key](*arguments)

    def table(self, name, labels, plans, data, **options):
        """`run` as a table: `labels` are pairs of a block (or what stands for it) and its stage."""
        found = self.run(plans, data, **options)
        pairs = [(None, None), *labels]
        return Table(
            Row(f"{name}_{metric}", *pair, None, None, float(values[column]))
            for column, metric in enumerate(("accuracy", "loss"))
            for pair, values in zip(pairs, found, strict=True)
        )

    def places(self):
        """Pairs of name and stage of the blocks."""
        return [(block.name, block.stage) for block in self.chain.blocks]
