"""Parameters and multiply-adds of a model and of its blocks, from shapes alone."""

import contextlib
from collections.abc import Callable, Sequence
from math import isqrt, prod
from typing import Any, NamedTuple

import keras
from keras import tree

from zoo.backend import keras_private
from zoo.checks import check_choice, require
from zoo.graph.blocks import GRAINS, Grain, Network, foreign
from zoo.graph.calls import Graph
from zoo.graph.views import Views, is_symbolic, run, trace
from zoo.types import Shape


class Count(NamedTuple):
    """Parameters, and multiply-adds of one example."""

    parameters: int
    operations: int


class Cost(NamedTuple):
    """Parameters, and multiply-adds of one example, of a model and of its blocks.

    A parameter that blocks share counts in the first of them, its multiply-adds in each.
    """

    parameters: int
    operations: int
    blocks: dict[str, Count]


def cost(
    model: keras.Model | Network, blocks: Sequence[str] | None = None, grain: Grain = "sum"
) -> Cost:
    """Count parameters and multiply-adds of one example, of a model and of its blocks.

    Counted are the products of matrices (those of attention, too), convolutions and recurrences, at
    any depth; look-ups, normalization, pooling and activations count 0. A layer that cannot be
    called on symbolic tensors, as a recurrent one, counts the elements of its kernels times the
    positions (steps) that they are applied at. A word that is encoded once a batch counts at each
    of its places.

    Of all shapes of the model only the batch's may be None. `blocks` are names; `None`: all that
    `zoo.graph.find_blocks` returns for the `grain`, if any.

    Raises:
        ValueError: if the size of an input is not known, or a name is no block's.

    Example:
    >>> inputs = keras.Input((4, 4, 3))
    >>> x = keras.layers.Conv2D(3, 3, padding="same")(inputs)
    >>> model = keras.Model(inputs, keras.layers.Add(name="sum")([inputs, x]))
    >>> cost(model).blocks
    {'sum': Count(parameters=84, operations=1296)}
    """
    check_choice(GRAINS, grain=grain)
    try:
        network = Network.of(model, blocks, grain)
    except ValueError:
        if blocks is not None:
            raise
        network = Network(model, Graph(model), [], [])
    graph, model = network.graph, network.model
    for tensor in model.inputs:
        expected = "of a fixed size, on which operations depend"
        require(None not in tensor.shape[1:], expected, **{tensor.name: tuple(tensor.shape)})
    batch = model.inputs[0].shape[0] or 1
    operations = [0] * len(graph.calls)
    views = _Opened()
    counted: dict[int, Any] = {}  # nodes by id

    def count(call, *args, **kwargs):
        outputs = views.apply(call, *args, **kwargs)
        operations[call.index] = sum(map(_operations, _new_nodes(outputs, counted)))
        return outputs

    shapes = [(tensor.shape[0] or 1, *tensor.shape[1:]) for tensor in model.inputs]
    graph.run(graph.new_inputs(dict(zip(graph.input_names, shapes, strict=True))), count)
    found: dict[str, Count] = {}
    known: set[int] = set()  # ids of weights
    for block in network.blocks:
        calls = graph.between(block.source, block.y)
        weights = {id(w): w for call in calls for w in getattr(call.layer, "weights", ())}
        parameters = sum(prod(weights[key].shape) for key in weights.keys() - known)
        known |= weights.keys()
        number = sum(operations[call.index] for call in calls) // batch
        found[block.name] = Count(parameters, number)
    return Cost(model.count_params(), sum(operations) // batch, found)


class _Opened(Views):
    """Calls in which layers' own code runs on symbolic tensors, at any depth, wherever it can."""

    has_tensors = False  # in place of weights

    def weight(self, layer, variable, name, x):
        return keras.KerasTensor(variable.shape) if self.has_tensors else variable

    def answer(self, view, args, kwargs):
        whole = isinstance(view, keras.layers.RNN) or _has_recurrence(view) and not foreign(view)
        outputs = None
        if is_symbolic((args, kwargs)) and not whole:
            # As its code is, then with tensors for its weights, of which not all code takes both.
            for self.has_tensors in (False, True):
                with contextlib.suppress(Exception):
                    outputs = trace(self, view, args, kwargs)[0]
                    if all(map(is_symbolic, tree.flatten(outputs))):  # none is of weights alone
                        break
        return run(view, args, kwargs) if outputs is None else outputs


def _new_nodes(outputs, known):
    """Add the nodes behind tensors to those that are known; return the new ones."""
    new = []
    tensors = tree.flatten(outputs)
    while tensors:
        history = getattr(tensors.pop(), "_keras_history", None)
        if history is None or isinstance(history.operation, keras.layers.InputLayer | None):
            continue
        node = keras_private.node_of(history)
        if id(node) not in known:
            known[id(node)] = node
            new.append(node)
            tensors += node.input_tensors
    return new


def _operations(node):
    """Return the multiply-adds of a node, an operation or a layer that could not be opened."""
    arguments = tree.flatten((node.arguments.args, node.arguments.kwargs))
    shapes = [tuple(v.shape) for v in arguments if hasattr(v, "shape")]
    if isinstance(node.operation, keras.layers.Layer):
        return _of_kernels(node.operation, shapes[0], tuple(node.outputs[0].shape))
    rule = RULES.get(type(node.operation).__name__)
    return rule(node.operation, shapes, tuple(node.outputs[0].shape)) if rule else 0


def _has_recurrence(layer):
    return any(isinstance(v, keras.layers.RNN) for v in keras_private.inner_layers(layer))


def _einsum(operation, shapes, output):
    """Every letter is a loop: those of the output and those that are summed over."""
    terms, arrow, result = operation.subscripts.replace(" ", "").partition("->")
    if "," not in terms:
        return 0
    kept = result if arrow else [letter for letter in terms if terms.count(letter) == 1]
    summed: dict[str, int] = {}
    for term, shape in zip(terms.split(","), shapes, strict=True):
        before, _, after = term.partition("...")
        sizes = [*zip(before, shape, strict=False), *zip(after[::-1], shape[::-1], strict=False)]
        summed |= {letter: size for letter, size in sizes if letter not in kept}
    return prod(output) * prod(summed.values())


# Functions of an operation, the shapes of its arguments and that of its output. Kernels are
# `(..., inputs / groups, outputs)`, of depthwise convolutions `(..., inputs, multiplier)`;
# transposed ones spread every position of the input by a kernel `(..., outputs, inputs)`. Attention
# is QK^T and AV, of queries `(batch, steps, heads, size)`, keys and values `(batch, ...)`. In
# a tensor product every summed letter counts in both arguments, every other in one and the output.
RULES: dict[str, Callable[[Any, list[Shape], Shape], int]] = {
    **dict.fromkeys(("Matmul", "Dot"), lambda _, shapes, out: prod(out) * shapes[0][-1]),
    # Not by its output, of which Keras 3.14 gives another shape.
    "Inner": lambda _, shapes, out: prod(shapes[0]) * prod(shapes[1][:-1]),
    "Einsum": _einsum,
    "Tensordot": lambda _, shapes, out: isqrt(prod(shapes[0]) * prod(shapes[1]) * prod(out)),
    "Conv": lambda _, shapes, out: prod(out) * prod(shapes[1][:-1]),
    "DepthwiseConv": lambda _, shapes, out: prod(out) * prod(shapes[1][:-2]),
    "SeparableConv": lambda _, shapes, out: (
        prod(out) // shapes[2][-1] * (prod(shapes[1]) + prod(shapes[2]))
    ),
    "ConvTranspose": lambda _, shapes, out: prod(shapes[0]) * prod(shapes[1][:-1]),
    "DotProductAttention": lambda _, shapes, out: (
        prod(shapes[0][:-1]) * (shapes[0][-1] + shapes[2][-1]) * shapes[1][1]
    ),
}


def _of_kernels(layer, shape, output):
    kernels = sum(prod(w.shape) for w in layer.weights if "kernel" in w.path.split("/")[-1])
    first = getattr(layer, "data_format", None) == "channels_first"
    positions = output[2:] if first else output[1:-1]
    if _has_recurrence(layer):
        sides = len(shape) - 3 if hasattr(layer, "data_format") else 0  # of images
        positions = (shape[1], *positions[-sides:]) if sides else shape[1:-1]
    return kernels * (output[0] or 1) * prod(size or 1 for size in positions)
