"""The same layers in a new graph: changed, or with every block's parts among the outputs."""

import re

import keras

from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Graph


def rewire(model, apply, name=None):
    """The same layers in a new graph: a model that shares `model`'s weights.

    Args:
        model: A Functional or built Sequential `keras.Model`; nested models become flat.
        apply: A function of a `Call` and its symbolic arguments that returns what takes the call's
            place: `call.layer(*args, **kwargs)` leaves it as it is.
        name: Of the new model; `None`: the old one's.

    Returns:
        A Functional `keras.Model`. Each rewiring leaves a node on every layer, so keep it.

    Raises:
        ValueError: as `Graph`.

    Example:

    >>> inputs = keras.Input((4,))
    >>> x = keras.layers.Dense(4, name="hidden")(inputs)
    >>> model = keras.Model(inputs, keras.layers.Dense(2, name="top")(x))
    >>> shorter = rewire(model, lambda call, x: x if call.name == "hidden" else call.layer(x))
    >>> [layer.name for layer in shorter.layers[1:]]
    ['top']
    """
    graph = Graph(model)
    inputs = graph.new_inputs()
    values = graph.run({**inputs}, apply)
    return graph.new_model(inputs, [values[slot] for slot in graph.outputs], name or model.name)


def trace(model, blocks=None):
    """A model that also returns what every block takes and makes.

    It shares `model`'s weights, and its outputs have the same bits.

    Args:
        model: A Functional or built Sequential `keras.Model`; see `zoo.blocks.find_blocks`.
        blocks: Names of the blocks to take; `None`: all that are found.

    Returns:
        A Functional `keras.Model` with the outputs `{"outputs": ..., "blocks": {name: parts}}`.
        Parts are a dictionary of `x`, what the block carries, `y`, what it returns, `f = y - x`
        (before a ReLU that the block ends in), and in the zoo's layers `h`, `t` and `c`, where
        there are any. A plain block that changes the shape has no `x` and `f`.

    Raises:
        ValueError: if no block is found.

    Example:

    >>> from zoo.layers.highway import HighwayDense
    >>> inputs = keras.Input((4,))
    >>> model = keras.Model(inputs, HighwayDense(name="block")(inputs))
    >>> sorted(trace(model).output["blocks"]["block"])
    ['f', 'h', 't', 'x', 'y']
    """
    graph = Graph(model)
    found, _ = find_blocks(graph, blocks)
    by_call, parts = {block.call: block for block in found}, {}
    inputs = graph.new_inputs()
    values = {**inputs}

    def apply(call, *args, **kwargs):
        block = by_call.get(call.index)
        if block is None:
            return call.layer(*args, **kwargs)
        if block.layer:
            part = Reader(block)(*args, **kwargs)
        else:
            part = {"x": values[block.x], "f": values[block.f]}
            part["y"] = call.layer(*args, **kwargs)
        parts[block.name] = part
        return part["y"]

    graph.run(values, apply, keep=True)
    outputs = [values[slot] for slot in graph.outputs]
    outputs = keras.tree.pack_sequence_as(graph.model._outputs_struct, outputs)
    inputs = keras.tree.pack_sequence_as(graph.model._inputs_struct, [*inputs.values()])
    return keras.Model(inputs, {"outputs": outputs, "blocks": parts}, name=f"{model.name}_trace")


class Reader:
    """What a skip layer takes and makes, by letter, from the layer's own methods.

    Args:
        block: A `zoo.blocks.Block` that is a skip layer.
    """

    def __init__(self, block):
        self.block, self.branches = block, Branches(block)

    def __call__(self, x, mark=None, **context):
        """x, h, t, c, f and y, those that there are.

        Args:
            x: What the layer reads.
            mark: A function of a key and a tensor through which a projected x goes; see
                `zoo.backend.gradients_at_marks`.
            **context: What the layer's `call` takes beside x.
        """
        layer = self.block.layer
        found = self.branches(x, **context)
        if "x" not in found:
            return {**found, "y": layer.output_of(found)}
        x = found.pop("x")
        if mark and self.block.x is None:
            x = mark(f"x of {self.block.name}", x)
        y = layer.form.mix(x=x, **found, dtype=layer.compute_dtype)
        f = found["h"] if layer.variant == "residual" else y - x  # h: without cancellation
        return {"x": x, **found, "f": f, "y": layer.finish(y)}


class Branches(keras.layers.Layer):
    """What a skip layer carries and its branches make, in the layer's own precision.

    Args:
        block: A `zoo.blocks.Block` that is a skip layer.
    """

    def __init__(self, block):
        name = re.sub("[/#]", "_", block.name)
        super().__init__(name=f"{name}_branches", dtype=block.layer.dtype_policy)
        self.layer, self.built = block.layer, True
        self.takes_training = "training" in block.layer._call_signature.parameters

    def call(self, x, training=None, **context):
        if self.takes_training:
            context["training"] = training
        return self.layer.parts(x, **context)
