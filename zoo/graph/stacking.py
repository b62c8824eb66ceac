"""Runs of single layers as stacks, and back: the same network in two spellings."""

import collections

import keras

from zoo.layers.highway_stack import HighwayDenseStack, stack_key


def to_stack(model):
    """A copy of `model` in which runs of `HighwayDense` are `HighwayDenseStack`s.

    A run is two or more layers of one kind (width, variant, activation, stage, dtype, trainable),
    each of which only the next one reads; it ends where an output is read twice or is the
    model's, and a layer that is called twice is in none. Layers inside of layers are not searched.
    `model(x)` stays the same to the last bit, on every backend. So does `predict`, wherever it was
    measured, but no compiler promises to round a loop and a graph alike.

    Args:
        model: A Functional `keras.Model`. It is not changed and shares no weight with the copy,
            which is compiled if it is, with a new optimizer.

    Returns:
        A Functional `keras.Model`.

    Raises:
        ValueError: if `model` is not Functional.

    Example:

    >>> from zoo.layers.highway import HighwayDense
    >>> x = keras.Input((4,))
    >>> y = x
    >>> for _ in range(3):
    ...     y = HighwayDense()(y)
    >>> [layer.depth for layer in to_stack(keras.Model(x, y)).layers[1:]]
    [3]
    """
    _check(model)
    replacements = {}
    for chain in _chains(model):
        replacements |= {id(layer): [] for layer in chain[:-1]}
        replacements[id(chain[-1])] = [HighwayDenseStack.from_layers(chain)]
    return _copy(model, replacements)


def to_layers(model):
    """A copy of `model` in which each `HighwayDenseStack` is `depth` layers `HighwayDense`.

    `to_stack`, the other way. In the graph of single layers each block can be looked at and
    operated on. Keras walks a graph recursively: beyond some 900 layers raise
    `sys.setrecursionlimit` first.

    Args:
        model: A Functional `keras.Model`; see `to_stack`.

    Returns:
        A Functional `keras.Model`.

    Raises:
        ValueError: if `model` is not Functional, or too deep for Python's recursion limit.
    """
    _check(model)
    stacks = [layer for layer in model.layers if isinstance(layer, HighwayDenseStack)]
    try:
        return _copy(model, {id(stack): stack.to_layers() for stack in stacks})
    except RecursionError as error:
        depths = [stack.depth for stack in stacks]
        raise ValueError(
            f"Keras builds graphs as deep as Python recurses. Received: stacks of {depths} layers. "
            f"Raise the limit, `sys.setrecursionlimit({1000 + 10 * sum(depths)})`, and try again."
        ) from error


def _check(model):
    if not isinstance(model, keras.Model) or not hasattr(model, "_nodes_by_depth"):
        raise ValueError(
            f"Expected a Functional `keras.Model`, whose layers are a graph. Received: {model!r}. "
            f"Of a built Sequential, take keras.Model(model.inputs, model.outputs)."
        )


def _chains(model):
    """Lists of layers that may be stacked: each alone reads the one before, and is called once."""
    nodes = [n for _, group in sorted(model._nodes_by_depth.items()) for n in group][::-1]
    calls = collections.Counter(node.operation for node in nodes)
    reads = collections.Counter(id(x) for node in nodes for x in node.input_tensors)
    reads.update(id(y) for y in model.outputs)
    chains, ending = [], {}  # the latter by the tensor that each ends in
    for node in nodes:
        layer = node.operation
        if calls[layer] > 1 or stack_key(layer) is None:
            continue
        (x,), (y,) = node.input_tensors, node.outputs
        chain = ending.get(id(x)) if reads[id(x)] == 1 else None
        if chain is None or stack_key(chain[-1]) != stack_key(layer):
            chain = []
            chains.append(chain)
        chain.append(layer)
        ending[id(y)] = chain
    return [chain for chain in chains if len(chain) > 1]


def _copy(model, replacements):
    """`model` in new layers with the same weights; `replacements`: lists of layers by the `id` of
    the one that they stand for, each called on what the one before returns."""
    pairs = []

    def clone(layer):
        if id(layer) in replacements:
            return layer
        new = layer.from_config(layer.get_config())
        pairs.append((layer, new))
        return new

    def call(layer, *args, **kwargs):
        if id(layer) not in replacements:
            return layer(*args, **kwargs)
        (x,) = *args, *kwargs.values()
        for replacement in replacements[id(layer)]:
            x = replacement(x)
        return x

    copy = keras.models.clone_model(model, clone_function=clone, call_function=call)
    for layer, new in pairs:
        if isinstance(layer, keras.layers.Layer):  # and not an operation
            new.set_weights(layer.get_weights())
    return copy
