"""Parameters and multiply-adds of a model and of its blocks, from shapes alone."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import keras
from keras import tree

from zoo.graph.blocks import Block, Grain, find_blocks
from zoo.graph.calls import Graph


class Count(NamedTuple):
    """Parameters, and multiply-adds of one example."""

    parameters: int
    operations: int


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a model.

    Attributes:
        parameters: Number of parameters.
        operations: Multiply-adds of one example.
        blocks: The `Count` of each block, by name. A parameter that blocks share counts in the
            first of them, its multiply-adds in each.
        rest: The `Count` of all other layers.
    """

    parameters: int
    operations: int
    blocks: dict[str, Count]
    rest: Count

    def share(self, block: str) -> tuple[float, float]:
        """Return a block's shares of the model's parameters and of its multiply-adds."""
        count = self.blocks[block]
        return count.parameters / max(self.parameters, 1), count.operations / max(
            self.operations, 1
        )


def cost(model: keras.Model, blocks: Sequence[str] | None = None, grain: Grain = "sum") -> Cost:
    """Count parameters and multiply-adds of one example, of a model and of its blocks.

    Counted are the products of matrices (those of attention, too), convolutions and recurrences.
    Each layer is called on symbolic tensors and counted by the operations inside it, at any depth;
    look-ups, normalization, pooling and activations count 0. Where a layer cannot be called on
    symbolic tensors, as a recurrent one, it counts the elements of its kernels times the positions
    (steps) that they are applied at. Sparse shortcuts, such as words encoded once a batch, do not
    lower the number.

    Args:
        model: A Functional or built Sequential `keras.Model` of known size: of all shapes, only the
            batch's may be None.
        blocks: Names of the blocks; `None`: all that `zoo.blocks.find_blocks` returns, if any.
        grain: As in `zoo.blocks.find_blocks`.

    Raises:
        ValueError: if the size of an input is not known, or a name is no block's.

    Example:
    >>> inputs = keras.Input((4, 4, 3))
    >>> x = keras.layers.Conv2D(3, 3, padding="same")(inputs)
    >>> model = keras.Model(inputs, keras.layers.Add(name="sum")([inputs, x]))
    >>> cost(model).blocks
    {'sum': Count(parameters=84, operations=1296)}
    """
    graph = Graph(model)
    try:
        found, _ = find_blocks(graph, blocks, grain)
    except ValueError:
        if blocks is not None:
            raise
        found = []
    return cost_of(model, graph, found)


def cost_of(model: keras.Model, graph: Graph, blocks: Sequence[Block]) -> Cost:
    """Return the cost of a model with a known graph and blocks; see `cost`."""
    for tensor in model.inputs:
        if None in tensor.shape[1:]:
            raise ValueError(
                f"Operations depend on the input's size. Received: {tensor.name} of shape "
                f"{tuple(tensor.shape)}. Build the model with a fixed size."
            )
    batch = max(model.inputs[0].shape[0] or 1, 1)
    operations = [0] * len(graph.calls)

    def count(call, *args, **kwargs):
        before = counted[0]
        outputs = call.layer(*args, **kwargs)
        operations[call.index] = counted[0] - before
        return outputs

    values = {
        slot: keras.KerasTensor((like.shape[0] or 1, *like.shape[1:]), like.dtype)
        for slot, like in zip(graph.inputs, model.inputs, strict=True)
    }
    with _counting() as counted:
        graph.run(values, count)
    by_block: dict[str, Count] = {}
    known: set[int] = set()
    for block in blocks:
        calls = graph.between(block.source, block.y)
        number = sum(operations[call.index] for call in calls) // batch
        by_block[block.name] = Count(_new_parameters(calls, known), number)
    total = Count(model.count_params(), sum(operations) // batch)
    inside = [sum(numbers) for numbers in zip(*by_block.values(), strict=True)] or [0, 0]
    rest = Count(total.parameters - inside[0], total.operations - inside[1])
    return Cost(*total, by_block, rest)


def _new_parameters(calls, known):
    """Return the number of parameters of calls that are not among `known`, and add them."""
    weights = {id(w): w for call in calls for w in getattr(call.layer, "weights", ())}
    new = {key: w for key, w in weights.items() if key not in known}
    known.update(new)
    return sum(math.prod(w.shape) for w in new.values())


@contextlib.contextmanager
def _counting() -> Iterator[list[int]]:
    """Count the multiply-adds of symbolic calls, in the number that is yielded in a list.

    Meanwhile a layer that is called on symbolic tensors runs its own code on them, and so do the
    layers inside it. As Keras calls it, it would be one node without operations, and some layers
    (`EinsumDense`) would return sizes of None.
    """
    counted = [0]
    operate = keras.Operation.symbolic_call
    call_layer = keras.Layer.__call__

    def count_operation(self, *args, **kwargs):
        before = counted[0]
        outputs = operate(self, *args, **kwargs)
        rule = RULES.get(type(self).__name__)
        if rule and not isinstance(self, keras.Layer):  # `layers.Dot` is none of these
            flat = tree.flatten((args, kwargs))
            shapes = [tuple(v.shape) for v in flat if hasattr(v, "shape")]
            counted[0] = before + rule(self, shapes, tuple(outputs.shape))
        return outputs

    def open_layer(self, *args, **kwargs):
        if not any(isinstance(v, keras.KerasTensor) for v in tree.flatten((args, kwargs))):
            return call_layer(self, *args, **kwargs)
        before = counted[0]
        if not _has_recurrence(self):
            try:
                return self.call(*args, **kwargs)
            except Exception:  # noqa: BLE001, S110  # a layer's own code may raise anything
                pass
        outputs = call_layer(self, *args, **kwargs)
        counted[0] = before + _of_kernels(self, (args, kwargs), outputs)
        return outputs

    keras.Operation.symbolic_call = count_operation
    keras.Layer.__call__ = open_layer
    try:
        yield counted
    finally:
        keras.Operation.symbolic_call = operate
        keras.Layer.__call__ = call_layer


def _has_recurrence(layer):
    return any(isinstance(v, keras.layers.RNN) for v in layer._flatten_layers())


def _matmul(_operation, shapes, output):
    return math.prod(output) * shapes[0][-1]


def _einsum(operation, shapes, output):
    """Every letter is a loop; an ellipsis stands for axes of the output."""
    terms = operation.subscripts.replace(" ", "").partition("->")[0].split(",")
    if len(terms) < 2:
        return 0
    sizes: dict[str, int] = {}
    rest: dict[int, int] = {}  # axes of an ellipsis, counted from its end
    for term, shape in zip(terms, shapes, strict=True):
        before, dots, after = term.partition("...")
        hidden = shape[len(before) : len(shape) - len(after)] if dots else ()
        for i, size in enumerate(hidden[::-1]):
            rest[i] = max(rest.get(i, 1), size)
        letters = before + after
        known = shape[: len(before)] + shape[len(shape) - len(after) :] if dots else shape
        for letter, size in zip(letters, known, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    return math.prod(sizes.values()) * math.prod(rest.values())


def _tensordot(operation, shapes, output):
    axes = operation.axes
    if isinstance(axes, int):
        return math.prod(output) * math.prod(shapes[0][len(shapes[0]) - axes :])
    first = axes[0] if isinstance(axes[0], (list, tuple)) else [axes[0]]
    return math.prod(output) * math.prod(shapes[0][axis] for axis in first)


def _convolution(_operation, shapes, output):
    """Positions of the output times elements of the kernel `(..., inputs / groups, outputs)`."""
    kernel = shapes[1]
    return math.prod(output) // kernel[-1] * math.prod(kernel)


def _depthwise(_operation, shapes, output):
    kernel = shapes[1]
    return math.prod(output) // (kernel[-1] * kernel[-2]) * math.prod(kernel)


def _separable(_operation, shapes, output):
    pointwise = shapes[2]
    return math.prod(output) // pointwise[-1] * (math.prod(shapes[1]) + math.prod(pointwise))


def _transposed(_operation, shapes, output):
    """Every position of the input is spread by the kernel, `(..., outputs, inputs)`."""
    kernel = shapes[1]
    return math.prod(shapes[0]) // kernel[-1] * math.prod(kernel)


def _attention(_operation, shapes, output):
    """QK^T and AV: queries `(batch, steps, heads, size)`, keys `(batch, other steps, ...)`."""
    query, key = shapes[:2]
    return 2 * math.prod(query) * key[1]


RULES = {
    "Matmul": _matmul,
    "Dot": _matmul,
    "Einsum": _einsum,
    "Tensordot": _tensordot,
    "Conv": _convolution,
    "DepthwiseConv": _depthwise,
    "SeparableConv": _separable,
    "ConvTranspose": _transposed,
    "DotProductAttention": _attention,
}


def _of_kernels(layer, args, outputs):
    """Return the elements of a layer's kernels times the positions they are applied at."""
    weights = getattr(layer, "weights", ())
    kernels = sum(math.prod(w.shape) for w in weights if "kernel" in w.path.split("/")[-1])
    x = tree.flatten(args)[0]
    output = tuple(tree.flatten(outputs)[0].shape)
    if _has_recurrence(layer):
        return kernels * x.shape[0] * x.shape[1] * math.prod(x.shape[2:-1])
    first = getattr(layer, "data_format", None) == "channels_first"
    sides = (output[0], *output[2:]) if first else output[:-1]
    return kernels * math.prod(side or 1 for side in sides)
