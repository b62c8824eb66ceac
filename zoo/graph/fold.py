"""Fold identity skips into the kernels beside them."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from zoo.backend.layers import Conv2D
from zoo.graph.blocks import find_blocks, residual_branch
from zoo.graph.calls import Graph, rebuild
from zoo.layers.simplified import SimplifiedPlain, SimplifiedResidual, id_entries

CONVOLUTIONS = (keras.layers.Conv2D, Conv2D)  # their subclasses may compute something else


def fold_identity(model: keras.Model) -> tuple[keras.Model, dict[str, str]]:
    """Return `model` with every skip that can be folded into a kernel as a plain layer.

    A `SimplifiedResidual` becomes a `SimplifiedPlain`; an identity added to one `Conv2D` or `Dense`
    with nothing between becomes that layer, its kernel one larger at the identity's entries. In
    exact arithmetic the outputs are equal.

    Args:
        model: A Functional or built Sequential `keras.Model`.

    Returns:
        A Functional `keras.Model` with weights of its own, and a dictionary with the reason for
        each block that stayed as it is, by name.

    Raises:
        ValueError: if there is no block, or none can be folded; the message has the reasons.

    Example:
    >>> inputs = keras.Input((4, 4, 2))
    >>> branch = keras.layers.Conv2D(2, 3, padding="same", name="branch")(inputs)
    >>> model = keras.Model(inputs, keras.layers.Add(name="sum")([inputs, branch]))
    >>> folded, kept = fold_identity(model)
    >>> [layer.name for layer in folded.layers[1:]], kept
    (['branch'], {})

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
    section 3, equation 1.
    """
    graph = Graph(model)
    blocks, rejected = find_blocks(graph)
    kept = dict(rejected)
    layers: dict[int, keras.layers.Layer] = {}  # by id of the layer to replace, which may be shared
    sums: dict[int, Callable[..., Any]] = {}  # by index of a call
    for block in blocks:
        if isinstance(block.layer, SimplifiedResidual):
            if id(block.layer) not in layers:
                layers[id(block.layer)] = _shifted(block.layer, SimplifiedPlain)
            continue
        reason = _reason_to_keep(graph, block)
        if reason:
            kept[block.name] = reason
            continue
        (branch,) = residual_branch(graph, block)
        term = graph.calls[block.call].sources.index(block.f)
        layers[id(branch.layer)] = _shifted(branch.layer, type(branch.layer))
        sums[block.call] = lambda *terms, i=term: keras.tree.flatten(terms)[i]
    if not layers:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in kept.items())
        raise ValueError(f"No skip of {model.name!r} can be folded into a kernel:{reasons}")
    return rebuild(model, lambda c: sums.get(c.index) or layers.get(id(c.layer))), kept


def _shifted(layer, new_class):
    """Return a copy of a layer, as one of `new_class`, with 1 added at the identity."""
    new = new_class.from_config(layer.get_config())
    new.build(layer.get_build_config()["input_shape"])
    kernel, *bias = layer.get_weights()
    if kernel.ndim == 2:
        entries = np.diag_indices(len(kernel))
    else:
        entries = id_entries(kernel, getattr(layer, "identity", "pad"))
    kernel[entries] += 1
    new.set_weights([kernel, *bias])
    return new


def _reason_to_keep(graph, block):
    """Return why a block cannot be folded into the kernel of its residual branch, or None."""
    if block.layer is not None and block.layer.variant == "plain":
        return "it is plain already"
    if block.layer is not None:
        return (
            f"the branch of a {type(block.layer).__name__} has a normalization, an activation or a "
            f"gate between its kernel and the sum"
        )
    first, *others = (call.layer for call in residual_branch(graph, block))
    if block.changes_shape:
        return "its shortcut is not the identity"
    if others:
        kinds = " - ".join(type(layer).__name__ for layer in (first, *others))
        return f"its branch is {kinds}, not one kernel"
    if sum(call.layer is first for call in graph.calls) > 1:
        return f"{first.name} is used elsewhere too"
    readers = [call for call in graph.calls if block.f in call.sources]
    if len(readers) > 1 or block.f in graph.outputs:
        return f"the output of {first.name} is read elsewhere too"
    return _reason_of_layer(first)


def _reason_of_layer(layer):
    if type(layer) not in (*CONVOLUTIONS, keras.layers.Dense):
        return f"its branch is a {type(layer).__name__}, not a Conv2D or Dense"
    if layer.quantization_mode is not None:
        return f"the kernel of {layer.name} is quantized"
    if layer.activation is not keras.activations.linear:
        return f"the activation of {layer.name} lies between its kernel and the sum"
    if type(layer) is keras.layers.Dense:
        return None
    if layer.kernel_size[0] != layer.kernel_size[1] or layer.kernel_size[0] % 2 == 0:
        return f"a kernel of {layer.kernel_size} has no center for the identity"
    if layer.strides != (1, 1) or (layer.padding != "same" and layer.kernel_size != (1, 1)):
        return f"strides {layer.strides} and padding {layer.padding!r} move the center"
    if layer.groups > 1 or layer.data_format != "channels_last":
        return f"{layer.name} has groups, or channels first"
    return None
