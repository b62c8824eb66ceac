"""Observe every block's skip input, gates and output, on values or in a new symbolic graph."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras

from zoo.backend import keras_private
from zoo.graph.blocks import Block, find_blocks
from zoo.graph.calls import Apply, Graph, Values, infer, symbolic
from zoo.layers.skip import Skip
from zoo.types import Tensor

Mark = Callable[[tuple[str, int], Tensor], Tensor]


def observe(
    graph: Graph,
    blocks: Sequence[Block],
    values: Values,
    mark: Mark | None = None,
    apply: Apply = infer,
    keep: bool = False,
) -> dict[str, dict[str, Tensor]]:
    """Run a graph and return what every block reads, computes and returns.

    Args:
        graph: The graph.
        blocks: Its blocks.
        values: The graph's inputs by slot; updated in place as by `Graph.run`.
        mark: A function of a key and a tensor that returns the tensor to continue with. It is
            called on the input of every block, key `("slot", slot)`, and on its skip input, with
            the same kind of key, or `("shortcut", block.index)` where that is inside a skip layer.
        apply: As in `Graph.run`.
        keep: As in `Graph.run`.

    Returns:
        By block name a dictionary: `input`, what the block reads; `x`, the skip input, `f = y - x`
        (before a final ReLU of the block) and `y`, the output; of a skip layer also `h`, `t` and
        `c`, where it has them. A plain skip layer that changes the shape has no `x` and `f`.
    """
    by_call = {block.call: block for block in blocks}
    by_end = {block.y: block for block in blocks}
    sources = {block.source for block in blocks}
    marked = sources | {block.x for block in blocks}
    inputs = {}  # of blocks, by slot: a sum needs its input after its branches have read it
    parts: dict[str, dict[str, Tensor]] = {}

    def enter(slot, tensor):
        if mark is not None and slot in marked:
            tensor = graph.keep_mask(tensor, mark(("slot", slot), tensor))
        if slot in marked:
            inputs[slot] = tensor
        return tensor

    def observing(call, *args, **kwargs):
        block = by_call.get(call.index)
        if block is None:
            outputs = apply(call, *args, **kwargs)
            dropped = by_end.get(call.outputs[0])
            if dropped is not None:  # by a `DropBlock`, after the block's own call
                part = parts[dropped.name]
                part |= {"f": outputs - part["x"], "y": outputs}
        else:
            if block.layer is None:
                x = inputs[block.x]
                outputs = apply(call, *args, **kwargs)
                flat = keras.tree.flatten(outputs)
                y = dict(zip(call.outputs, flat, strict=True)).get(block.y, flat[0])
                part = {"x": x, "f": y - x if block.f is None else values[block.f], "y": y}
            else:
                name = graph.new_name(f"{block.name}_branches")
                branches = dataclasses.replace(call, layer=Branches(block.layer, name))
                part = _combined(block, {**apply(branches, *args, **kwargs)}, mark)
                part["y"] = graph.keep_mask(values[call.sources[0]], part["y"])
                outputs = part["y"]
            parts[block.name] = {"input": inputs[block.source], **part}
        flat = keras.tree.flatten(outputs)
        flat = [enter(slot, tensor) for slot, tensor in zip(call.outputs, flat, strict=True)]
        return keras.tree.pack_sequence_as(outputs, flat)

    for slot in graph.inputs:
        values[slot] = enter(slot, values[slot])
    graph.run(values, observing, keep=keep)
    return parts


def trace(model: keras.Model, blocks: Sequence[str] | None = None) -> keras.Model:
    """Return a model that also returns every block's skip input, gates and output.

    It shares `model`'s weights, and its outputs are bit-identical.

    Args:
        model: A Functional or built Sequential `keras.Model`; see `zoo.blocks.find_blocks`.
        blocks: Names of the blocks; `None`: all.

    Returns:
        A Functional `keras.Model` with the outputs `{"outputs": ..., "blocks": {name: parts}}`;
        `parts` is a dictionary of `x`, `f`, `y`, `h`, `t` and `c`, as `observe` describes it.

    Raises:
        ValueError: if there is no block.

    Example:
    >>> from zoo.layers.highway import HighwayDense
    >>> inputs = keras.Input((4,))
    >>> model = keras.Model(inputs, HighwayDense(name="block")(inputs))
    >>> sorted(trace(model).output["blocks"]["block"])
    ['f', 'h', 't', 'x', 'y']
    """
    graph = Graph(model)
    selected, _ = find_blocks(graph, blocks)
    inputs = graph.new_inputs()
    values = {**inputs}
    parts = observe(graph, selected, values, apply=symbolic)
    for part in parts.values():
        del part["input"]
    copy = graph.new_model(inputs, [values[slot] for slot in graph.outputs])
    outputs = {"outputs": copy.output, "blocks": parts}
    return keras.Model(copy.input, outputs, name=f"{model.name}_trace")


def _combined(block, terms, mark):
    """Return all parts of a skip layer's block, from the terms of its formula."""
    layer = block.layer
    if "x" in terms and block.x is None and mark is not None:
        terms["x"] = mark(("shortcut", block.index), terms["x"])
    y = layer.form.mix(**terms, dtype=layer.compute_dtype)
    part = {**terms, "y": layer.finish(y)}
    if "x" in terms:  # h: without cancellation
        part["f"] = terms["h"] if layer.variant == "residual" else y - terms["x"]
    return part


class Branches(keras.layers.Layer):
    """The terms x, h, t and c of a skip layer's formula, in the layer's own precision."""

    def __init__(self, layer: Skip, name: str) -> None:
        super().__init__(name=name, dtype=layer.dtype_policy)
        self.layer = layer
        self.built = True
        self.supports_masking = True
        self.takes_training = "training" in keras_private.call_parameters(layer)

    def call(self, x: Tensor, training: bool | None = None, **context: Any) -> dict[str, Tensor]:
        """Return the terms, as far as the layer has them."""
        if self.takes_training:
            context["training"] = training
        return self.layer.parts(x, **context)
