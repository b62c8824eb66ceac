"""One pass over data that serves all probes: forward, and backward where a probe needs it."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from zoo.backend import compiled, gradients_at_marks, kept_random_state, keras_private
from zoo.callbacks.probes.objective import (
    Loss,
    Objective,
    Progress,
    average,
    masked_sum,
    padded_batches,
    to_arrays,
    values_of,
)
from zoo.callbacks.probes.probe import GRADIENTS, LABELED, MASKED, Parts, Probe, Row, Table, titled
from zoo.checks import as_path, check_choice, check_integers, require
from zoo.graph.blocks import Grain, Network, residual_branch, whole_network
from zoo.graph.calls import made, reads
from zoo.layers.sub_layer import StreamEnd, SubLayer
from zoo.layers.sub_layer_stack import SubLayerStack
from zoo.types import PathLike, Tensor

VIEWS = ("state", "read", "readout")
FIRST = "channels_first"  # a value of `data_format`


def run(  # noqa: PLR0913 (options by keyword)
    probes: Sequence[Probe],
    model: keras.Model | Network,
    data: Any,
    loss: Loss = None,
    batch_size: int = 128,
    blocks: Sequence[str] | None = None,
    progress: Progress | None = None,
    grain: Grain = "sum",
    view: str = "state",
) -> Table:
    """Stream `data` once through `model` and return a table of the probes' values of its blocks.

    The model is in inference mode and is not changed: no node, hook or flag is added.

    Args:
        probes: Probes to run.
        model: A Functional or built Sequential model.
        data: A tuple of arrays `(x, y)`, an array x, or an iterable of batches of these (a
            `tf.data.Dataset`, a `PyDataset`, a list); read once. x may be a dictionary of arrays.
            If an output has positions, such as `(batch, steps, classes)`, loss and accuracy are
            averaged over an example's positions. Sample weights `(batch, steps)`, the third
            element, weigh them; positions with the loss's `ignore_class` or hidden by a Keras mask
            are left out. Sample weights of whole examples are not used, with a warning.
        loss: A Keras loss or its name; `None`: the one that `model` was compiled with, or the
            cross-entropy of its softmax or sigmoid, or of labels that are class indices.
        batch_size: Examples in a batch, where `data` are arrays. Results do not depend on it. NaN
            in an example's input makes them NaN.
        blocks: Names of the blocks; `None`: all that `zoo.graph.find_blocks` returns.
        progress: A function called with the number of examples so far, after each batch.
        grain: "sum" or "layer": see `zoo.graph.find_blocks`.
        view: What x and y are in a network of `zoo.SubLayer`s. "state": a block's input and output,
            with all slots; "read": what its F and that of the next block read, before the norm;
            "readout": what `zoo.StreamEnd` makes of both. f is y - x, and there is no gradient at
            x, but in "state".

    Raises:
        ValueError: before any work, if there is no block, two probes have one name, the data have
            no labels but a probe needs them, labels are out of range, the loss is not known, no
            block has what a probe measures, or the network has no such view.

    Example:
    >>> from zoo.callbacks import L2Ratio
    >>> inputs = keras.Input((4,))
    >>> x = keras.layers.Dense(4, kernel_initializer="identity", name="branch")(inputs)
    >>> model = keras.Model(inputs, keras.layers.Add(name="sum")([inputs, x]))
    >>> table = run([L2Ratio()], model, np.ones((10, 4), "float32"))
    >>> {block: round(value, 6) for block, value in table.values("l2_ratio").items()}
    {'sum': 1.0}
    """
    probes = _probe_list(probes)
    network, names = whole_network(model, blocks, grain)
    observer = Observer(probes, network, loss, view, names)
    return observer.run(data, batch_size, progress)


class Observer:
    """The compiled pass of probes over a network; arguments and errors are those of `run`.

    `names` are those of the blocks whose values are returned; `None`: all.
    """

    def __init__(
        self,
        probes: Sequence[Probe],
        network: Network,
        loss: Loss = None,
        view: str = "state",
        names: Sequence[str] | None = None,
    ) -> None:
        self.probes = probes
        self.model = network.model
        self.graph = network.graph
        self.blocks = network.blocks
        self.notes = [f"{name} is no block: {reason}." for name, reason in network.rejected]
        self.objective = Objective(self.graph, self.model, loss)
        self.labeled = [probe.name for probe in self.probes if LABELED.intersection(probe.needs)]
        self.reads_labels = bool(self.labeled) or any(probe.reads_labels for probe in self.probes)
        self.label_check = self.objective.check if self.reads_labels else None
        self.needs = needs = {key for probe in self.probes for key in probe.needs}
        self.gradient = bool(needs.intersection(GRADIENTS))
        self.inner = {}  # calls of a residual branch with one input and one output, by block
        for block in self.blocks if "steps" in needs else ():
            calls = residual_branch(self.graph, block)
            self.inner[block.name] = [c for c in calls if len(c.sources) == len(c.outputs) == 1]
        self.compares = "network" in needs  # of a `LogitLens`, which reads labels
        self.predicts = self.compares or "probabilities" in needs
        if self.gradient or self.predicts:
            self.objective.check_blocks(self.blocks)
        self.views = _views(view, network)
        self.shown = [b for b in self.blocks if names is None or b.name in names]
        self.last = self.blocks[-1]
        # names of blocks before the last one; others are of another tower
        self.read_out = {b.name for b in self.blocks if self.graph.between(b.y, self.last.y)}
        self.read_out.add(self.last.name)
        self.tail = self.graph.after(self.last.y)
        # the classifier may read more than the last block's output
        self.keep = "steps" in needs or not reads(self.tail) <= made(self.tail) | {self.last.y}
        self.by_call = {block.call: block for block in self.blocks}
        self.by_end = {block.y: block for block in self.blocks}
        pairs = [(b, c) for b in self.blocks for c in self.graph.between(b.source, b.y)]
        first = [(b, c) for b, c in pairs if getattr(c.layer, "data_format", "") == FIRST]
        self.channels_first = {b.stage for b, c in first if len(c.shapes[0]) == len(b.shape)}
        self.marked = {slot for block in self.blocks for slot in (block.source, block.x)}
        self.step = compiled(self._step, self.model)

    def check(self, data: Any, batch_size: int) -> None:
        """Run the first batch only, to raise its errors before training."""
        self._sums(*next(padded_batches(data, batch_size, check=self.label_check)))

    def run(
        self,
        data: Any,
        batch_size: int = 128,
        progress: Progress | None = None,
        epoch: int | None = None,
    ) -> Table:
        """Make one pass; see `run`. `epoch` is that of the table's rows."""
        for probe in self.probes:
            probe.reset_state()
            probe.blocks = self.shown
        for x, labels, mask in padded_batches(data, batch_size, progress, self.label_check):
            for probe, sums in zip(self.probes, self._sums(x, labels, mask), strict=True):
                ordered = {b.name: sums[b.name] for b in self.shown if b.name in sums}
                probe.update_state(ordered, int(np.count_nonzero(mask)))
        title = titled(self.model, self.probes[0].count)
        table = Table(self._rows(epoch), self.notes, title)
        not_finite = [row.block or "the network" for row in table if not np.isfinite(row.value)]
        if not_finite:
            names = ", ".join(dict.fromkeys(not_finite))
            logging.warning("Probes measured NaN or Inf in these blocks: %s.", names)
        return table

    def _sums(self, x, labels, mask):
        expected = f"given, as {self.labeled} compare with labels: (x, y), or batches of that"
        require(labels or not self.labeled, expected, labels=None)
        sums = self.step(self.graph.start(x), labels, ops.convert_to_tensor(mask))
        return to_arrays(sums, mask)

    def _rows(self, epoch):
        stages = {block.name: block.stage for block in self.blocks}
        for probe in self.probes:
            for block, numbers in probe.result().items():
                for key, number in numbers.items():
                    is_whole = f"{key}_".startswith(f"{probe.name}_")
                    name = key if is_whole else f"{probe.name}_{key}"
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
            layers = [call.layer for call in self.inner.get(block.name, ())]
            marks = {
                "dinput": ("slot", block.source),
                "dx": ("shortcut", block.index) if block.x is None else ("slot", block.x),
                "dh": ("h", block.index),
                "dx_classifier": ("classifier", block.index),
            }
            of_block = {key: gradients[mark] for key, mark in marks.items() if mark in gradients}
            tensors = parts[block.name] | of_block
            if self.views:
                tensors = self._viewed(block, tensors)
            if block.stage in self.channels_first:
                tensors |= {k: ops.moveaxis(tensors[k], 1, -1) for k in MASKED if k in tensors}
            part = Parts(block, tensors, use, layers)
            stages.setdefault((block.stage, block.name in self.read_out), []).append(part)
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
                if values:  # JAX sorts the keys of a dict
                    reduced = OrderedDict((k, masked_sum(v, mask)) for k, v in values.items())
                    sums[part.info.name] = reduced
        if not sums:
            keys = {key for stage in stages.values() for part in stage for key in part}
            raise ValueError(
                f"Probe {probe.name!r} has nothing to measure here: it needs "
                f"{probe.needs or 'gates'} of a block. Received: blocks that have {sorted(keys)}."
            )
        return sums

    def _forward(self, mark, values, labels):
        """Run the graph; return the summed loss, and every block's parts."""
        values = {**values}
        parts = self.observe(values, mark)
        total = 0.0
        shared = {}  # by all blocks
        if self.reads_labels:
            logits = self.objective.logits(values[self.graph.outputs[0]])
            shared["weights"] = self.objective.weights(labels[0] if labels else None, logits)
            shared |= {"labels": values_of(labels[0])} if labels else {}
            if self.compares:
                shared["network"] = self.objective.log_probabilities(logits, *labels)
            if labels and self.gradient:
                total = ops.sum(self.objective.losses(labels[0], logits))
        for block in self.blocks:
            part = parts[block.name]
            part.update(shared, mask=keras_private.get_keras_mask(part["y"]))
            is_read = block.name in self.read_out
            if self.compares and is_read and block.shape == self.last.shape:  # the tail can read it
                part["lens"] = lens = self._classify(values, labels, part["y"])
                pair = part["network"], lens["log_probabilities"]
                lens |= self.objective.compare(*pair, part.get("weights"))
            if "steps" in self.needs:
                inner = self.inner[block.name]
                part["steps"] = [(values[c.sources[0]], values[c.outputs[0]]) for c in inner]
            early = is_read and block.stage == self.last.stage
            if early and not self.needs.isdisjoint(("probabilities", "loss")):
                part.update(self._classify(values, labels, part["y"]))
            if early and "dx_classifier" in self.needs and "x" in part:
                x = mark(("classifier", block.index), ops.stop_gradient(part["x"]))
                x = self.graph.keep_mask(part["x"], x)
                loss = self._classify(values, labels, x)["loss"]
                total = total + ops.sum(average(loss, part.get("weights")))
        return total, parts

    def observe(
        self, values: dict[int, Tensor], mark: Callable | None = None
    ) -> dict[str, dict[str, Any]]:
        """Run the graph up to the logits; return the parts that each block always has, by name.

        `values` are updated in place. `mark`, of `gradients_at_marks`, is called on the input and
        the skip input of every block, with the key `("slot", slot)`, or `("shortcut", block.index)`
        where the skip input is inside a skip layer.
        """
        inputs = {}  # of blocks, by slot: a sum needs its input after its branches have read it
        parts = {}

        def enter(slot, tensor):
            if slot in self.marked:
                if mark is not None:
                    tensor = self.graph.keep_mask(tensor, mark(("slot", slot), tensor))
                inputs[slot] = tensor
            return tensor

        def apply(call, *args, **kwargs):
            block = self.by_call.get(call.index)
            if block is not None and block.layer is not None:
                part = self._combined(block, *args, kwargs, mark)
                outputs = part["y"] = self.graph.keep_mask(values[call.sources[0]], part["y"])
            else:
                outputs = self.objective.apply(call, *args, **kwargs)
            flat = keras.tree.flatten(outputs)
            if block is not None:
                if block.layer is None:
                    x = inputs[block.x]
                    y = dict(zip(call.outputs, flat, strict=True)).get(block.y, flat[0])
                    part = {"x": x, "f": y - x if block.f is None else values[block.f], "y": y}
                parts[block.name] = {"input": inputs[block.source], **part}
            elif call.outputs[0] in self.by_end:  # a `DropBlock`, after the block's own call
                part = parts[self.by_end[call.outputs[0]].name]
                part |= {"f": outputs - part["x"], "y": outputs}
            flat = [enter(slot, tensor) for slot, tensor in zip(call.outputs, flat, strict=True)]
            return keras.tree.pack_sequence_as(outputs, flat)

        for slot in self.graph.inputs:
            values[slot] = enter(slot, values[slot])
        self.graph.run(values, apply, keep=self.keep)
        return parts

    def _combined(self, block, x, kwargs, mark):
        """Return all parts of a skip layer's block, from the terms of its formula."""
        layer = block.layer
        kwargs = {key: value for key, value in kwargs.items() if key != "training"}
        if "training" in keras_private.call_parameters(layer):
            kwargs["training"] = False
        cast = layer.dtype_policy.convert_input(x, layer.autocast, layer.compute_dtype)
        x = self.graph.keep_mask(x, cast)
        with keras_private.AutocastScope(layer.compute_dtype):
            terms = layer.parts(x, **kwargs)
            if mark is not None and "x" in terms and block.x is None:
                terms["x"] = mark(("shortcut", block.index), terms["x"])
            if mark is not None and "dh" in self.needs:
                terms["h"] = mark(("h", block.index), terms["h"])
            part = {**terms, "y": layer.output_of(terms)}
        if "x" in terms:
            part["f"] = layer.change(terms)
        return part

    def _viewed(self, block, tensors):
        of_x, of_y = self.views[block.index : block.index + 2]
        with keras_private.AutocastScope(block.layer.compute_dtype):
            x, y = of_x(tensors["x"]), of_y(tensors["y"])
        at_state = ("dx", "dinput", "dx_classifier")
        kept = {key: v for key, v in tensors.items() if key not in at_state}
        return {**kept, "input": x, "x": x, "f": y - x, "y": y}

    def _classify(self, values, labels, tensor):
        """Return the probabilities and the loss of the classifier applied to a tensor."""
        values = {**values, self.last.y: tensor}
        values = self.graph.run(values, self.objective.apply, self.tail, keep=True)
        logits = self.objective.logits(values[self.graph.outputs[0]])
        numbers = {}
        if self.predicts:
            numbers["log_probabilities"] = self.objective.log_probabilities(logits, *labels)
            numbers["probabilities"] = ops.exp(numbers["log_probabilities"])
        if labels:
            numbers["loss"] = self.objective.position_losses(labels[0], logits)
        return numbers


def _views(view, network):
    """Return functions of the state before each block and of the last one; none for "state"."""
    check_choice(VIEWS, view=view)
    if view == "state":
        return []
    layers = [block.layer for block in network.blocks]
    ends = [call.layer for call in network.graph.calls if isinstance(call.layer, StreamEnd)]
    kinds = SubLayer | SubLayerStack
    sub_layers = [call.layer for call in network.graph.calls if isinstance(call.layer, kinds)]
    names = [block.name for block in network.blocks]
    expected = f"'state' here: {view!r} is that of all blocks of a network of `zoo.SubLayer`s with "
    expected += f"one `zoo.StreamEnd`, and not of {names}"
    require(len(ends) == 1 and layers == sub_layers, expected, view=view)
    if view == "readout":
        return [ends[0]] * (len(layers) + 1)
    reads = [lambda x, rule=one.rule: rule.read(x, rule.coefficients(x)) for one in layers]
    return [*reads, ends[0].rule.reduce]


class RunProbes(keras.callbacks.Callback):
    """Run probes every few epochs during `fit`.

    One number for each probe, the mean over blocks of its first number, is added to `logs` under
    the probe's name, for `History`, the progress bar, and with `every=1` `CSVLogger` (which fixes
    its columns at the first epoch). The probes' pass is compiled once; training steps cost the same
    as without it. List it before loggers and `Resume`. Arguments are those of `run`, with `data`
    that can be read repeatedly; `every`, the epochs between two passes; and `path`, a CSV file that
    each pass rewrites, and from which `fit` with `Resume` reads the rows of earlier epochs.

    Attributes:
        table: A `Table` of all passes; its epochs count from 1.

    Raises:
        ValueError: if there is no probe, `every` is no positive integer, or `data` is an iterator;
            when training starts, as `run` does.
    """

    def __init__(  # noqa: PLR0913 (options by keyword, as of Keras's callbacks)
        self,
        probes: Sequence[Probe],
        data: Any,
        every: int = 1,
        batch_size: int = 128,
        loss: Any = None,
        path: PathLike | None = None,
        blocks: Sequence[str] | None = None,
        grain: Grain = "sum",
        view: str = "state",
    ) -> None:
        super().__init__()
        check_integers(1, every=every)
        expected = "arrays, a list of batches or a dataset, and no iterator, which is read once"
        require(not isinstance(data, Iterator), expected, data=data)
        self.probes = _probe_list(probes)
        self.data = data
        self.every = every
        self.batch_size = batch_size
        self.path = None if path is None else as_path(path=path)
        self.table = Table()
        self._found: dict[str, Any] = {"blocks": blocks, "grain": grain}
        self._options = loss, view

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Build the probes' pass and check that it runs."""
        network, names = whole_network(self.model, **self._found)
        self._observer = Observer(self.probes, network, *self._options, names)
        with kept_random_state():
            self._observer.check(self.data, self.batch_size)
        self._first_epoch = True

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Keep the rows of earlier epochs when training starts, or read them when it resumes."""
        if self._first_epoch:
            self._first_epoch = False
            rows = self.table
            if epoch > 0 and not len(rows) and self.path is not None and self.path.exists():
                rows = Table.from_csv(self.path)
            self.table = Table(row for row in rows if row.epoch and row.epoch <= epoch)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Run the probes if they are due."""
        if (epoch + 1) % self.every:
            return
        self.model  # noqa: B018  # on JAX, attaches the trained values to the variables
        with kept_random_state():
            self.table += self._observer.run(self.data, self.batch_size, epoch=epoch + 1)
        if self.path is not None:
            self.table.to_csv(self.path)
        if logs is not None:
            logs.update({probe.name: probe.summary() for probe in self.probes})


def _probe_list(probes):
    found = list(probes) if isinstance(probes, (list, tuple)) else [probes]
    valid = found and all(isinstance(probe, Probe) for probe in found)
    expected = "one or more probes, such as [zoo.callbacks.CosineLoss()], no classes or names"
    require(valid, expected, probes=probes)
    names = [probe.name for probe in found]
    require(len({*names}) == len(names), "different: give probes a `name`", names=names)
    return found
