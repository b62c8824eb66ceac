"""One pass over data that serves all probes: forward, and backward where one asks for it."""

import itertools

import keras
import numpy as np
from absl import logging
from keras import ops

from zoo.backend import compiled, gradients_at_marks
from zoo.callbacks.probes.batching import (
    batches,
    example_loss,
    filled,
    masked_sum,
    normalizes,
    probabilities,
)
from zoo.callbacks.probes.probe import Probe
from zoo.callbacks.probes.table import Table
from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Graph, infer
from zoo.graph.tracing import Reader


def run(probes, model, data, loss=None, batch_size=128, blocks=None, progress=None, epoch=None):
    """Streams `data` once through `model` and returns what the probes say of its blocks.

    The model is in inference mode and is not changed: no node, hook or flag is added.

    Args:
        probes: A list of `Probe`.
        model: A Functional or built Sequential `keras.Model`.
        data: A tuple of arrays `(x, y)`, an array x, or an iterable of batches of these (a
            `tf.data.Dataset`, a `PyDataset`, a list); read once.
        loss: A Keras loss or its name; `None`: the one that `model` was compiled with, or sparse
            categorical cross-entropy.
        batch_size: Of arrays. Results do not depend on it.
        blocks: Names of the blocks to take; `None`: all that `zoo.blocks.find_blocks` finds.
        progress: A function that is told the number of examples after each batch.
        epoch: A number that the rows of the table carry.

    Returns:
        A `Table`: one row a value.

    Raises:
        ValueError: before any work, if no block is found, the data hold no labels that a probe
            needs, or none of the blocks has what a probe measures.

    Example:

    >>> from zoo.callbacks import L2Ratio
    >>> inputs = keras.Input((4,))
    >>> x = keras.layers.Dense(4, kernel_initializer="identity", name="branch")(inputs)
    >>> model = keras.Model(inputs, keras.layers.Add(name="sum")([inputs, x]))
    >>> table = run([L2Ratio()], model, np.ones((10, 4), "float32"))
    >>> {block: round(value, 6) for block, value in table.values("l2_ratio").items()}
    {'sum': 1.0}
    """
    return Observer(probes, model, loss, blocks).run(data, batch_size, progress, epoch)


class Observer:
    """The compiled pass of some probes over one model; see `run` for the arguments.

    Args:
        probes, model, loss, blocks: As in `run`.
    """

    def __init__(self, probes, model, loss=None, blocks=None):
        self.probes, self.model = list(probes), model
        if not self.probes:
            raise ValueError("Expected at least one probe. Received: an empty list.")
        self.graph = Graph(model)
        self.normalized = normalizes(self.graph)
        self.loss = example_loss(loss or getattr(model, "loss", None), self.normalized)
        self.blocks, self.missing = find_blocks(self.graph, blocks)
        self.by_call = {block.call: block for block in self.blocks}
        last = self.blocks[-1]
        self.tail = self.graph.after(last.y)
        made = {last.y, *(slot for call in self.tail for slot in call.outputs)}
        read = {slot for call in self.tail for _, slot in call.inputs}
        self.keep = bool(read - made)  # what the classifier reads beside the last block
        self.last_stage = [b.name for b in self.blocks if b.stage == last.stage]
        self.readers = {b.call: Reader(b) for b in self.blocks if b.layer}
        self.gradient = any(probe.gradient for probe in self.probes)
        self.labels = any(probe.labels for probe in self.probes)
        wanted = {key for probe in self.probes for key in probe.needs}
        self.plugged = "dx_classifier" in wanted
        self.scored = any(key.startswith(("probabilities", "loss")) for key in wanted)
        self._check_weights()
        self.strategy = getattr(model, "distribute_strategy", None)
        self.step = compiled(self._step, model, self.strategy)

    def check(self, data, batch_size=128):
        """Raises what a pass would raise at its first batch, which is all that it reads."""
        for x, y in batches(data, batch_size):
            self._sums(x, y, len(keras.tree.flatten(x)[0]))
            return
        raise ValueError("Expected at least one example. Received: data without any.")

    def run(self, data, batch_size=128, progress=None, epoch=None):
        """One pass; see `run`."""
        for probe in self.probes:
            probe.reset_state()
            probe.blocks = self.blocks
        seen, size = 0, None
        for x, y in batches(data, batch_size):
            count = len(keras.tree.flatten(x)[0])
            size = max(size or 0, count)
            sums = self._sums(x, y, size)
            for probe, index in zip(self.probes, itertools.count()):
                probe.update_state(self._ordered(sums[str(index)]), count)
            seen += count
            if progress:
                progress(seen)
        if not seen:
            raise ValueError("Expected at least one example. Received: data without any.")
        self._inspect(seen)
        table = Table.of(self.probes, self.blocks, epoch, self.missing)
        odd = dict.fromkeys(r.block or "the network" for r in table if not np.isfinite(r.value))
        if odd:
            logging.warning("Not finite: what was measured of %s.", ", ".join(odd))
        return table

    def _sums(self, x, y, size):
        """What the step returns for a batch, filled up to `size` examples, as arrays."""
        if self.labels and y is None:
            names = [probe.name for probe in self.probes if probe.labels]
            raise ValueError(
                f"{names} compare with labels. Received: data without. Give (x, y), or batches "
                f"of that."
            )
        count, size = len(keras.tree.flatten(x)[0]), self._padded(size)
        mask = np.arange(size) < count
        x, labels = filled(x, size), filled(y, size) if self.labels else mask
        x, labels, mask = self.graph.start(x), *map(ops.convert_to_tensor, (labels, mask))
        return keras.tree.map_structure(ops.convert_to_numpy, self.step(x, labels, mask))

    def _check_weights(self):
        for probe in self.probes:
            if inspects(probe) and not any(self._inspected(probe).values()):
                raise ValueError(
                    f"Probe {probe.name!r} found no weights of its kind. Received: blocks "
                    f"{[block.name for block in self.blocks]}."
                )

    def _inspected(self, probe):
        return {b.name: probe.inspect(b, weights_of(self.graph, b)) for b in self.blocks}

    def _inspect(self, seen):
        """What probes say of weights counts as if every example said it."""
        for probe in filter(inspects, self.probes):
            for name, found in self._inspected(probe).items():
                if found:
                    probe.update_state({name: {k: v * seen for k, v in found.items()}}, 0)

    def _padded(self, size):
        """Batches that replicas share must have a multiple of their number of examples."""
        num = self.strategy.num_replicas_in_sync if self.strategy else 1
        return -(-size // num) * num

    def _ordered(self, sums):
        return {b.name: sums[b.name] for b in self.blocks if b.name in sums}  # JAX sorts keys

    def _step(self, values, labels, mask):
        if self.gradient:
            parts, found = gradients_at_marks(self._observe, values, labels)
        else:
            (_, parts), found = self._observe(lambda key, tensor: tensor, values, labels), {}
        parts = {b.name: Parts(b, parts[b.name], self._use(b)) for b in self.blocks}
        for name, part in parts.items():
            at = {"input": part.info.source, "x": part.info.x}
            at = {**at, "x": f"x of {name}"} if part.info.x is None else at
            at["x_classifier"] = f"classifier of {name}"
            part.update({f"d{key}": found[str(v)] for key, v in at.items() if str(v) in found})
        sums = {}
        for index, probe in enumerate(self.probes):
            sums[str(index)] = mine = {}
            for part in parts.values():
                if not {*probe.needs} <= {*part}:
                    continue
                stage = [p for p in parts.values() if p.info.stage == part.info.stage]
                if found := probe.measure(part, stage):
                    sums_of = {k: masked_sum(v, mask) for k, v in found.items()}
                    mine[part.info.name] = sums_of
            if not mine and not inspects(probe):
                raise ValueError(
                    f"Probe {probe.name!r} has nothing to measure here: it needs "
                    f"{probe.needs or 'gates'} of a block. Received: blocks that have "
                    f"{sorted(set().union(*parts.values()))}."
                )
        return sums

    def _use(self, block):
        return self.graph.calls[block.call].arguments.kwargs.get("use", 0)

    def _observe(self, mark, values, labels):
        """Runs the graph; returns the summed loss, and what every block took and made."""
        values, parts, read = {**values}, {}, {}
        sources = {b.source for b in self.blocks}
        marked = {slot for b in self.blocks for slot in (b.source, b.x)}

        def visit(slot, tensor):
            tensor = mark(str(slot), tensor) if slot in marked else tensor
            if slot in sources:
                read[slot] = tensor  # a sum needs it when its branches no longer do
            return tensor

        def apply(call, *args, **kwargs):
            block = self.by_call.get(call.index)
            if block is None:
                found = infer(call, *args, **kwargs)
            else:
                part = parts[block.name] = {"input": read[block.source]}
                if block.layer:
                    part.update(
                        self.readers[call.index](*args, mark=mark, training=False, **kwargs)
                    )
                else:
                    part.update(x=values[block.x], f=values[block.f])
                    part["y"] = infer(call, *args, **kwargs)
                found = part["y"]
            flat = keras.tree.flatten(found)
            flat = [visit(slot, v) for slot, v in zip(call.outputs, flat, strict=True)]
            return keras.tree.pack_sequence_as(found, flat)

        for slot in self.graph.inputs:
            values[slot] = visit(slot, values[slot])
        values = self.graph.run(values, apply, keep=self.keep)
        outputs = values[self.graph.outputs[0]]
        if not self.labels and not self.scored:
            return 0.0, parts
        for part in parts.values():
            part["labels"] = labels
        total = ops.sum(self.loss(labels, outputs)) if self.labels else 0.0
        if self.scored or self.plugged:
            total = total + self._classify(mark, parts, values, labels)
        return total, parts

    def _classify(self, mark, parts, values, labels):
        """The classifier after every block of the last stage; returns the sum of its losses."""
        total = 0.0
        for name in self.last_stage:
            part = parts[name]
            pairs = [("probabilities", "loss", part["y"])] if self.scored else []
            if "x" in part:
                x = ops.stop_gradient(part["x"])
                x = mark(f"classifier of {name}", x) if self.plugged else x
                pairs.append(("probabilities_before", "loss_before", x))
            for key, loss, tensor in pairs:
                below = {**values, self.blocks[-1].y: tensor}
                below = self.graph.run(below, calls=self.tail, keep=True)
                outputs = below[self.graph.outputs[0]]
                part[key] = probabilities(outputs, self.normalized)
                if self.labels:
                    part[loss] = self.loss(labels, outputs)
            if self.plugged and "loss_before" in part:
                total = total + ops.sum(part["loss_before"])
        return total


class Parts(dict):
    """What a block took and made, by letter; `info` is the `zoo.blocks.Block`, `use` its use."""

    def __init__(self, info, parts=(), use=0):
        super().__init__(parts)
        self.info, self.use = info, use


def inspects(probe):
    """Whether a probe reads weights instead of data."""
    return type(probe).inspect is not Probe.inspect


def weights_of(graph, block):
    """A block's weights as arrays, by path; of a sum, those of its residual branch."""
    layers = [block.layer]
    if block.layer is None:
        layers = [call.layer for call in graph.between(block.source, block.f)]
    weights = (w for layer in layers for w in getattr(layer, "weights", ()))
    return {w.path: ops.convert_to_numpy(w) for w in weights}
