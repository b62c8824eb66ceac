"""One pass over data that serves all probes: forward, and backward where a probe needs it."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from zoo.backend import compiled, gradients_at_marks
from zoo.callbacks.probes.batching import (
    Progress,
    masked_extreme,
    masked_sum,
    padded_batches,
    to_arrays,
    to_tensors,
)
from zoo.callbacks.probes.objective import Loss, Objective, average, values_of
from zoo.callbacks.probes.probe import Parts, Probe
from zoo.callbacks.probes.table import Row, Table
from zoo.graph.blocks import Grain, Network, residual_branch
from zoo.graph.tracing import observe


def run(  # noqa: PLR0913 (options of one pass, by keyword)
    probes: Sequence[Probe],
    model: keras.Model | Network,
    data: Any,
    loss: Loss = None,
    batch_size: int = 128,
    blocks: Sequence[str] | None = None,
    progress: Progress | None = None,
    epoch: int | None = None,
    grain: Grain = "sum",
) -> Table:
    """Stream `data` once through `model` and return the probes' values of its blocks.

    The model is in inference mode and is not changed: no node, hook or flag is added.

    Args:
        probes: Probes to run.
        model: A Functional or built Sequential `keras.Model`.
        data: A tuple of arrays `(x, y)`, an array x, or an iterable of batches of these (a
            `tf.data.Dataset`, a `PyDataset`, a list); read once. x may be a dictionary of arrays.
            Of labels for each position of an output, such as `(batch, steps)`, the loss and the
            accuracy are averaged over an example's positions, with sample weights `(batch, steps)`
            as a third element, and without the `ignore_class` of the loss and what a Keras mask
            hides. Sample weights of whole examples are not used.
        loss: A Keras loss or its name; `None`: the one that `model` was compiled with, or the
            cross-entropy of its softmax or sigmoid, or of labels that are class indices.
        batch_size: Examples in a batch, where `data` are arrays. Results do not depend on it. NaN
            in an example's input makes them NaN.
        blocks: Names of the blocks; `None`: all that `zoo.blocks.find_blocks` returns.
        progress: A function called with the number of examples so far, after each batch.
        epoch: Epoch of the table's rows.
        grain: "sum" or "layer": see `zoo.blocks.find_blocks`.

    Returns:
        A `Table` with one value a row.

    Raises:
        ValueError: before any work, if there is no block, the data have no labels but a probe
            needs them, labels are out of range, the loss is not known, or no block has what a probe
            measures.

    Example:
    >>> from zoo.callbacks import L2Ratio
    >>> inputs = keras.Input((4,))
    >>> x = keras.layers.Dense(4, kernel_initializer="identity", name="branch")(inputs)
    >>> model = keras.Model(inputs, keras.layers.Add(name="sum")([inputs, x]))
    >>> table = run([L2Ratio()], model, np.ones((10, 4), "float32"))
    >>> {block: round(value, 6) for block, value in table.values("l2_ratio").items()}
    {'sum': 1.0}
    """
    return Observer(probes, model, loss, blocks, grain).run(data, batch_size, progress, epoch)


class Observer:
    """The compiled pass of probes over one model; arguments and errors are those of `run`."""

    def __init__(
        self,
        probes: Sequence[Probe],
        model: keras.Model | Network,
        loss: Loss = None,
        blocks: Sequence[str] | None = None,
        grain: Grain = "sum",
    ) -> None:
        self.probes = probe_list(probes)
        network = Network.of(model, blocks, grain)
        self.model = network.model
        self.graph = network.graph
        self.blocks = network.blocks
        self.rejected = network.rejected
        self.objective = Objective(self.graph, self.model, loss)
        self.gradient = any(probe.gradient for probe in self.probes)
        self.labels = any(probe.labels for probe in self.probes)
        self.reads_labels = self.labels or any(probe.reads_labels for probe in self.probes)
        needs = {key for probe in self.probes for key in probe.needs}
        self.classifier_gradient = "dx_classifier" in needs
        self.steps = "steps" in needs
        self.inner = {b.name: self._simple_calls(b) for b in self.blocks if self.steps}
        self.compares = "network" in needs  # of a `Lens`, which reads labels
        self.predicts = self.compares or any(key.startswith("probabilities") for key in needs)
        self.readout = any(key.startswith(("probabilities", "loss")) for key in needs)
        last = self.blocks[-1]
        self.tail = self.graph.after(last.y)
        written = {last.y, *(slot for call in self.tail for slot in call.outputs)}
        read = {slot for call in self.tail for slot in call.sources}
        # the classifier reads more than the last block's output
        self.keep = self.steps or bool(read - written)
        self.strategy = getattr(self.model, "distribute_strategy", None)
        self.step = compiled(self._step, self.model, self.strategy)

    def _simple_calls(self, block):
        """Return the calls of a block's residual branch that have one input and one output."""
        calls = residual_branch(self.graph, block)
        return [call for call in calls if len(call.sources) == len(call.outputs) == 1]

    def check(self, data: Any, batch_size: int = 128) -> None:
        """Raise what a pass would raise at its first batch, which is all that is read."""
        for probe in self.probes:
            self._inspected(probe)
        self._sums(*next(self._batches(data, batch_size)))

    def run(
        self,
        data: Any,
        batch_size: int = 128,
        progress: Progress | None = None,
        epoch: int | None = None,
    ) -> Table:
        """Make one pass; see `run`."""
        for probe in self.probes:
            probe.reset_state()
            probe.blocks = self.blocks
            probe.inspected = self._inspected(probe)
        for x, y, mask in self._batches(data, batch_size, progress):
            count = int(np.count_nonzero(mask))
            for probe, sums in zip(self.probes, self._sums(x, y, mask), strict=True):
                ordered = {b.name: sums[b.name] for b in self.blocks if b.name in sums}
                probe.update_state(ordered, count)
        rejected = [f"{name} is no block: {reason}." for name, reason in self.rejected]
        table = Table(self._rows(epoch), rejected)
        table.notes += [note for probe in self.probes for note in probe.notes()]
        table.title = f"{self.model.name} on {self.probes[0].count} examples"
        not_finite = [row.block or "the network" for row in table if not np.isfinite(row.value)]
        if not_finite:
            names = ", ".join(dict.fromkeys(not_finite))
            logging.warning("Probes measured NaN or Inf in these blocks: %s.", names)
        return table

    def _batches(self, data, batch_size, progress=None):
        # replicas share a batch: its size is a multiple of their number
        replicas = self.strategy.num_replicas_in_sync if self.strategy else 1
        check = self.objective.check if self.reads_labels else None
        return padded_batches(data, batch_size, progress, replicas, check)

    def _sums(self, x, y, mask):
        """Return the step's results for a padded batch, as arrays."""
        if self.labels and y is None:
            names = [probe.name for probe in self.probes if probe.labels]
            raise ValueError(
                f"{names} compare with labels. Received: data without. Give (x, y), or batches "
                f"of that."
            )
        labels = (to_tensors(y),) if self.reads_labels and y is not None else ()
        sums = self.step(self.graph.start(x), labels, ops.convert_to_tensor(mask))
        return to_arrays(sums, mask)

    def _inspected(self, probe):
        """Return a probe's numbers about weights by block."""
        if not probe.inspects:
            return {}
        numbers = {b.name: probe.inspect(b, self._weights(b)) for b in self.blocks}
        if not any(numbers.values()):
            raise ValueError(
                f"Probe {probe.name!r} found no weights of its kind. Received: blocks {[*numbers]}."
            )
        return {name: values for name, values in numbers.items() if values}

    def _weights(self, block):
        """Return a block's weights as arrays, by path; of a sum, those of its residual branch."""
        layers = [block.layer]
        if block.layer is None:
            layers = [call.layer for call in residual_branch(self.graph, block)]
        weights = (w for layer in layers for w in getattr(layer, "weights", ()))
        return {w.path: ops.convert_to_numpy(w) for w in weights}

    def _rows(self, epoch):
        """Yield the rows of the probes' results."""
        stages = {block.name: block.stage for block in self.blocks}
        for probe in self.probes:
            for block, numbers in probe.result().items():
                for key, number in numbers.items():
                    name = key if key.startswith(probe.name) else f"{probe.name}_{key}"
                    values = np.asarray(number, "float64")
                    units = [None] if values.ndim == 0 else range(values.size)
                    for unit, value in zip(units, values.ravel(), strict=True):
                        yield Row(name, block, stages.get(block), unit, epoch, float(value))

    def _step(self, values, labels, mask):
        """Return, for each probe, by block, its values' sums over the examples of a batch."""
        gradients = {}
        if self.gradient:
            parts, gradients = gradients_at_marks(self._forward, values, labels)
        else:
            _, parts = self._forward(None, values, labels)
        stages = {}
        for block in self.blocks:
            use = self.graph.calls[block.call].arguments.kwargs.get("use", 0)
            part = Parts(block, parts[block.name], use)
            part.layers = [call.layer for call in self.inner.get(block.name, ())]
            marks = {
                "dinput": ("slot", block.source),
                "dx": ("shortcut", block.index) if block.x is None else ("slot", block.x),
                "dx_classifier": ("classifier", block.index),
            }
            part.update({key: gradients[mark] for key, mark in marks.items() if mark in gradients})
            stages.setdefault(block.stage, []).append(part)
        return [self._measure(probe, stages, mask) for probe in self.probes]

    def _measure(self, probe, stages, mask):
        sums = {}
        for stage in stages.values():
            for part in stage:
                if not {*probe.needs} <= {*part}:
                    continue
                values = probe.measure(part, stage)
                if not isinstance(values, dict):
                    values = {"mean": values, "square": ops.square(values)}
                if values:
                    reduced = [
                        (key, masked_extreme(v, mask, probe.extremes[key]))
                        if key in probe.extremes
                        else (key, masked_sum(v, mask))
                        for key, v in values.items()
                    ]
                    sums[part.info.name] = OrderedDict(reduced)  # JAX sorts the keys of a dict
        if not sums and not probe.inspects:
            keys = {key for stage in stages.values() for part in stage for key in part}
            raise ValueError(
                f"Probe {probe.name!r} has nothing to measure here: it needs "
                f"{probe.needs or 'gates'} of a block. Received: blocks that have {sorted(keys)}."
            )
        return sums

    def _forward(self, mark, values, labels):
        """Run the graph; return the summed loss, and every block's parts."""
        values = {**values}
        apply = self.objective.apply
        parts = observe(self.graph, self.blocks, values, mark, apply, self.keep)
        total = 0.0
        shared = {}  # by all blocks
        if self.reads_labels:
            logits = self.objective.logits(values[self.graph.outputs[0]])
            weights = self.objective.weights(labels[0] if labels else None, logits)
            shared |= {} if weights is None else {"weights": weights}
            shared |= {"labels": values_of(labels[0])} if labels else {}
            shared |= {"network": self._network(logits, labels)} if self.compares else {}
            if labels and self.gradient:
                total = ops.sum(self.objective.losses(labels[0], logits))
        for block in self.blocks:
            part = parts[block.name]
            part.update(shared)
            if self.compares and block.shape == self.blocks[-1].shape:  # the tail can read it
                part["lens"] = self._classify(values, labels, part["y"])
            if self.steps:
                part["steps"] = [
                    (values[call.sources[0]], values[call.outputs[0]])
                    for call in self.inner[block.name]
                ]
        if self.readout or self.classifier_gradient:
            total = total + self._read_out(mark, parts, values, labels)
        return total, parts

    def _network(self, logits, labels):
        """Return the logarithms of the network's own class probabilities."""
        if not self.objective.is_distribution(bool(labels)):
            raise ValueError(
                "Expected outputs that are a distribution over classes: after a softmax or "
                "sigmoid, or of a network with a cross-entropy as loss. Received: linear outputs. "
                "Give the loss, such as keras.losses.SparseCategoricalCrossentropy("
                "from_logits=True), or compile the model with it."
            )
        return self.objective.log_probabilities(logits)

    def _read_out(self, mark, parts, values, labels):
        """Apply the classifier after every block of the last stage; return its summed losses."""
        total = 0.0
        for block in self.blocks:
            if block.stage != self.blocks[-1].stage:
                continue
            part = parts[block.name]
            if self.readout:
                part.update(self._classify(values, labels, part["y"]))
            if "x" in part:
                x = ops.stop_gradient(part["x"])
                if self.classifier_gradient and mark is not None:
                    x = mark(("classifier", block.index), x)
                before = self._classify(values, labels, x)
                part.update({f"{key}_before": value for key, value in before.items()})
            if self.classifier_gradient and "loss_before" in part:
                weights = part.get("weights")
                total = total + ops.sum(average(part["loss_before"], weights))
        return total

    def _classify(self, values, labels, tensor):
        """Return the probabilities and the loss of the classifier applied to a tensor."""
        values = {**values, self.blocks[-1].y: tensor}
        values = self.graph.run(values, self.objective.apply, self.tail, keep=True)
        logits = self.objective.logits(values[self.graph.outputs[0]])
        numbers = {}
        if self.predicts:
            numbers["log_probabilities"] = self.objective.log_probabilities(logits)
            numbers["probabilities"] = ops.exp(numbers["log_probabilities"])
        if labels:
            numbers["loss"] = self.objective.position_losses(labels[0], logits)
        return numbers


def probe_list(probes: Probe | Sequence[Probe]) -> list[Probe]:
    """Return the probes as a list.

    Raises:
        ValueError: if there is none, or one is no probe.
    """
    result: list[Any] = [probes]
    if isinstance(probes, Sequence) and not isinstance(probes, str):
        result = list(probes)
    if not result or not all(isinstance(probe, Probe) for probe in result):
        raise ValueError(
            f"Expected at least one probe, such as [zoo.callbacks.CosineLoss()]. Received: "
            f"{probes!r}. A class must be called, and a name is no probe."
        )
    return result
