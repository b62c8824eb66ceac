"""Skips folded into the kernels beside them: fewer operations and tensors at inference."""

import keras
import numpy as np

from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Graph
from zoo.graph.mapping import to_plain
from zoo.graph.surgery import copied
from zoo.graph.tracing import rewire
from zoo.layers.simplified import SimplifiedResidual, id_entries


def fold_identity(model):
    """`model` with every skip that can be folded into a kernel turned into a plain layer.

    A `SimplifiedResidual` becomes a `SimplifiedPlain`; an identity added to one `Conv2D` or `Dense`
    with nothing between becomes that layer, its kernel one larger at the identity's entries. In the
    reals the outputs are equal.

    Args:
        model: A Functional or built Sequential `keras.Model`.

    Returns:
        A Functional `keras.Model` with weights of its own, and a dictionary: the names of the
        blocks that stayed as they are, and why.

    Raises:
        ValueError: if no block is found, or none can be folded; the message says why.

    Example:

    >>> inputs = keras.Input((4, 4, 2))
    >>> branch = keras.layers.Conv2D(2, 3, padding="same", name="branch")(inputs)
    >>> model = keras.Model(inputs, keras.layers.Add(name="sum")([inputs, branch]))
    >>> folded, kept = fold_identity(model)
    >>> [layer.name for layer in folded.layers[1:]], kept
    (['branch'], {})

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise
    Stability", section 3.1, equation 1.
    """
    graph = Graph(model)
    blocks, missing = find_blocks(graph)
    kept = dict(missing)
    simplified, sums, inner = set(), {}, set()
    for block in blocks:
        if isinstance(block.layer, SimplifiedResidual):
            simplified.add(block.call)
            continue
        call, reason = _foldable(graph, block)
        if reason:
            kept[block.name] = reason
        else:
            sums[block.call] = call
            inner.add(call.index)
    if not simplified and not sums:
        told = "".join(f"\n  {name}: {why}" for name, why in kept.items())
        raise ValueError(f"No skip of {model.name!r} can be folded into a kernel:{told}")
    made = {}

    def apply(call, *args, **kwargs):
        if call.index in inner:
            return args[0]  # the sum, which alone reads it, takes its place
        if call.index in simplified:
            if id(call.layer) not in made:
                made[id(call.layer)] = to_plain(call.layer)
            return made[id(call.layer)](*args)
        if call.index in sums:
            branch = sums[call.index]
            source = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
            return _folded(branch.layer)(source)
        return call.layer(*args, **kwargs)

    return copied(rewire(model, apply)), kept


def _foldable(graph, block):
    """The one call of a block's residual branch, or why it cannot be folded."""
    if block.layer is not None and block.layer.variant == "plain":
        return None, "it is plain already"
    if block.layer is not None:
        return None, (
            f"the branch of a {type(block.layer).__name__} has a normalisation, an activation or a "
            f"gate between its kernel and the sum"
        )
    calls = graph.between(block.source, block.f)
    kinds = [type(call.layer).__name__ for call in calls]
    layer = calls[0].layer
    strided = getattr(layer, "strides", (1, 1)) != (1, 1) and layer.kernel_size != (1, 1)
    if block.changes_shape and len(calls) == 1 and strided:
        return None, (
            f"strides {layer.strides} with padding {layer.padding!r} centre the kernel beside the "
            f"pixels that a shortcut keeps: SimplifiedResidual pads both sides alike"
        )
    if block.changes_shape:
        return None, "its shortcut is not the identity"
    if len(calls) > 1:
        return None, f"its branch is {' - '.join(kinds)}, not one kernel"
    if type(layer) not in (keras.layers.Conv2D, keras.layers.Dense):
        return None, f"its branch is a {kinds[0]}, not a Conv2D or Dense"
    if layer.activation is not keras.activations.linear:
        return None, f"the activation of {layer.name} lies between its kernel and the sum"
    if sum(call.layer is layer for call in graph.calls) > 1:
        return None, f"{layer.name} is used elsewhere too"
    readers = [c for c in graph.calls if block.f in {slot for _, slot in c.inputs}]
    if len(readers) > 1 or block.f in graph.outputs:
        return None, f"the output of {layer.name} is read elsewhere too"
    if type(layer) is keras.layers.Dense:
        return calls[0], None
    if layer.kernel_size[0] != layer.kernel_size[1] or layer.kernel_size[0] % 2 == 0:
        return None, f"a kernel of {layer.kernel_size} has no centre for the identity"
    if layer.strides != (1, 1) or layer.padding != "same" and layer.kernel_size != (1, 1):
        return None, f"strides {layer.strides} and padding {layer.padding!r} move the centre"
    if layer.groups > 1 or layer.data_format != "channels_last":
        return None, f"{layer.name} has groups, or channels first"
    return calls[0], None


def _folded(layer):
    """A new layer with the kernel of `layer` plus the identity."""
    new = type(layer).from_config(layer.get_config())
    new.build(layer.get_build_config()["input_shape"])
    kernel, *bias = layer.get_weights()
    if kernel.ndim == 2:
        kernel = kernel + np.eye(len(kernel), dtype=kernel.dtype)
    else:
        kernel[id_entries(kernel)] += 1
    new.set_weights([kernel, *bias])
    return new
