"""Convert runs of single layers to scanned stacks, and back: the same network in either form."""

import collections
import functools

import keras

from zoo.graph.calls import Call, Graph, compile_like, rebuild
from zoo.layers.highway_stack import HighwayDenseStack, stack_key


def to_stack(model: keras.Model) -> keras.Model:
    """Return a copy of `model` in which runs of `HighwayDense` are `HighwayDenseStack`s.

    A run is two or more layers of one kind (width, variant, activation, stage, dtype, trainable),
    each of which only the next one reads; it ends where an output is read twice or is the
    model's, and a layer that is called twice is in none. `model(x)` is bit-identical on every
    backend. So is `predict`, wherever it was measured, but no compiler promises to round a loop
    and a graph alike.

    Args:
        model: A Functional or built Sequential `keras.Model`; nested models are flattened. The
            copy shares no weight with it, and is compiled if it is, with a new optimizer.

    Returns:
        A Functional `keras.Model`.

    Raises:
        ValueError: if `model` is not a graph of layers.

    Example:
    >>> from zoo.layers.highway import HighwayDense
    >>> x = keras.Input((4,))
    >>> y = x
    >>> for _ in range(3):
    ...     y = HighwayDense()(y)
    >>> [layer.depth for layer in to_stack(keras.Model(x, y)).layers[1:]]
    [3]
    """
    replacements = {}
    for run in _runs(Graph(model)):
        for call in run[:-1]:
            replacements[call.index] = lambda x: x
        replacements[run[-1].index] = HighwayDenseStack.from_layers([call.layer for call in run])
    return compile_like(rebuild(model, lambda call: replacements.get(call.index)), model)


def to_layers(model: keras.Model) -> keras.Model:
    """Return a copy of `model` in which each `HighwayDenseStack` is `depth` `HighwayDense` layers.

    The inverse of `to_stack`. In the graph of single layers each block can be inspected and
    modified. Keras walks a graph recursively: for more than some 900 layers raise
    `sys.setrecursionlimit` first.

    Args:
        model: As in `to_stack`.

    Returns:
        A Functional `keras.Model`.

    Raises:
        ValueError: if `model` is not a graph of layers, or too deep for Python's recursion limit.
    """
    called = {id(call.layer): call.layer for call in Graph(model).calls}
    stacks = {key: stack for key, stack in called.items() if isinstance(stack, HighwayDenseStack)}
    replacements = {
        key: functools.partial(_apply_in_order, stack.to_layers()) for key, stack in stacks.items()
    }
    try:
        copy = rebuild(model, lambda call: replacements.get(id(call.layer)))
    except RecursionError as error:
        depths = [stack.depth for stack in stacks.values()]
        raise ValueError(
            f"Keras builds graphs as deep as Python recurses. Received: stacks of {depths} layers. "
            f"Raise the limit, `sys.setrecursionlimit({1000 + 10 * sum(depths)})`, and try again."
        ) from error
    return compile_like(copy, model)


def _apply_in_order(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def _runs(graph: Graph) -> list[list[Call]]:
    """Return lists of calls to stack: each alone reads the one before, of layers called once."""
    uses = collections.Counter(id(call.layer) for call in graph.calls)
    reads = collections.Counter(slot for call in graph.calls for slot in call.sources)
    reads.update(graph.outputs)
    runs: list[list[Call]] = []
    open_runs: dict[int, list[Call]] = {}  # by the slot that each ends in
    for call in graph.calls:
        if uses[id(call.layer)] > 1 or stack_key(call.layer) is None:
            continue
        (source,) = call.sources
        run = open_runs.get(source) if reads[source] == 1 else None
        if run is None or stack_key(run[-1].layer) != stack_key(call.layer):
            run = []
            runs.append(run)
        run.append(call)
        open_runs[call.outputs[0]] = run
    return [run for run in runs if len(run) > 1]
