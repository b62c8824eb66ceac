"""Fold identity skips into the kernels beside them, and take them out again.

Plain and residual networks are equivalent: the exact mapping between their weights adds one to a
kernel's identity entries, or subtracts it.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 3, equation 1.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from zoo.backend.layers import Conv2D
from zoo.graph.blocks import Block, find_blocks, residual_branch
from zoo.graph.calls import Graph, compile_like, rebuild
from zoo.layers.simplified import Simplified, SimplifiedPlain, SimplifiedResidual
from zoo.layers.simplified import id_entries as id_entries
from zoo.layers.simplified import plain_kernel as plain_kernel

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
    """
    graph = Graph(model)
    blocks, rejected = find_blocks(graph)
    kept = dict(rejected)
    replacements: dict[int, Callable[..., Any]] = {}  # by index of a call
    plain_layers: dict[int, Simplified] = {}  # by id of the residual layer, which may be shared
    for block in blocks:
        layer = block.layer
        if isinstance(layer, SimplifiedResidual):
            if id(layer) not in plain_layers:
                plain_layers[id(layer)] = _shifted(layer, 1, SimplifiedPlain)
            replacements[block.call] = plain_layers[id(layer)]
            continue
        reason = _reason_to_keep(graph, block)
        if reason:
            kept[block.name] = reason
            continue
        (branch,) = residual_branch(graph, block)
        replacements[branch.index] = _shifted(branch.layer, 1)
        replacements[block.call] = _select(graph.calls[block.call].sources.index(block.f))
    if not replacements:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in kept.items())
        raise ValueError(f"No skip of {model.name!r} can be folded into a kernel:{reasons}")
    return rebuild(model, lambda call: replacements.get(call.index)), kept


def to_plain(x: keras.Model | SimplifiedResidual) -> keras.Model | SimplifiedPlain:
    """Return the plain block or network that is equivalent to a residual one.

    Each `SimplifiedResidual` becomes a `SimplifiedPlain` whose kernel has one more at each of its
    identity entries; so does a `Conv2D` or `Dense` whose input is added to its output with nothing
    between. Everything else is copied.

    Args:
        x: A built `SimplifiedResidual`, or a Functional `keras.Model`.

    Returns:
        A built `SimplifiedPlain`, or a Functional `keras.Model`, with weights of its own. In exact
        arithmetic the outputs are equal; in float64 they differ by some 1e-15, relatively, because
        1 + w is rounded.

    Raises:
        ValueError: if a block has no plain equivalent, or there is none. `zoo.fold_identity`
            converts the blocks that have one, and keeps the rest.

    Example:
    >>> block = SimplifiedResidual(2, kernel_size=1, kernel_initializer="zeros")
    >>> block.build((None, 4, 4, 2))
    >>> to_plain(block).get_weights()[0].tolist()
    [[[[1.0, 0.0], [0.0, 1.0]]]]
    """
    if not isinstance(x, keras.Model):
        _check_block(x, SimplifiedResidual)
        return _shifted(x, 1, SimplifiedPlain)
    blocks, _ = find_blocks(x)
    skips = [b.name for b in blocks if b.layer is None or b.layer.variant != "plain"]
    if not skips:
        raise ValueError(f"Expected a network with skips. Received: {x.name!r}, plain already.")
    model, kept = fold_identity(x)
    reasons = "".join(f"\n  {name}: {kept[name]}" for name in skips if name in kept)
    if reasons:
        raise ValueError(f"These blocks have no plain equivalent of one kernel:{reasons}")
    return compile_like(model, x)


def to_residual(
    x: keras.Model | SimplifiedPlain | keras.layers.Conv2D,
) -> keras.Model | SimplifiedResidual:
    """Return the residual block or network that is equivalent to a plain one; undoes `to_plain`.

    Args:
        x: A built `SimplifiedPlain` or `Conv2D`, or a Functional `keras.Model` of the former.

    Returns:
        A built `SimplifiedResidual`; for a `Conv2D`, a Functional `keras.Model` that adds the input
        to a convolution; for a model, a model. See `to_plain`.

    Raises:
        ValueError: if there is nothing to convert, or no identity fits the convolution.
    """
    if type(x) in CONVOLUTIONS:
        return _residual_convolution(x)
    if not isinstance(x, keras.Model):
        _check_block(x, SimplifiedPlain)
        return _shifted(x, -1, SimplifiedResidual)
    plain_layers = {id(c.layer): c.layer for c in Graph(x).calls}
    residual_layers = {
        key: _shifted(layer, -1, SimplifiedResidual)
        for key, layer in plain_layers.items()
        if isinstance(layer, SimplifiedPlain)
    }
    if not residual_layers:
        raise ValueError(f"Expected a model with `SimplifiedPlain` layers. Received: {x!r}.")
    return compile_like(rebuild(x, lambda call: residual_layers.get(id(call.layer))), x)


def _check_block(x, expected):
    if not isinstance(x, expected) or not x.built:
        raise ValueError(
            f"Expected a built `{expected.__name__}`, or a Functional model that has some. "
            f"Received: {x!r}. Blocks with normalization or an activation between convolution and "
            f"sum have no equivalent."
        )


def _shifted(layer, change, new_class=None):
    """Return a copy of a layer, as one of `new_class`, with `change` added at the identity."""
    new = (new_class or type(layer)).from_config(layer.get_config())
    new.build(layer.get_build_config()["input_shape"])
    kernel, *bias = layer.get_weights()
    if kernel.ndim == 2:
        entries = np.diag_indices(len(kernel))
    else:
        entries = id_entries(kernel, getattr(layer, "identity", "pad"))  # refuses an even side
    kernel[entries] += change
    new.set_weights([kernel, *bias])
    return new


def _residual_convolution(conv):
    reason = _layer_reason(conv) if conv.built else "it is not built"
    if reason or conv.kernel.shape[2] != conv.filters:
        raise ValueError(
            f"Expected a built Conv2D that keeps shape and channels, in which an identity fits. "
            f"Received: {conv!r} with {conv.filters} filters: {reason or 'other channels'}."
        )
    inputs = keras.Input(conv.get_build_config()["input_shape"][1:], dtype=conv.dtype)
    branch = _shifted(conv, -1)
    return keras.Model(inputs, keras.layers.Add(dtype=conv.dtype_policy)([inputs, branch(inputs)]))


def _select(index):
    """Return a function that replaces a sum by its term `index`."""
    return lambda *tensors: keras.tree.flatten(tensors)[index]


def _reason_to_keep(graph: Graph, block: Block) -> str | None:
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
        strided = getattr(first, "strides", (1, 1)) != (1, 1) and first.kernel_size != (1, 1)
        if strided and not others:
            return (
                f"strides {first.strides} with padding {first.padding!r} center the kernel beside "
                f"the pixels that a shortcut keeps: SimplifiedResidual pads both sides alike"
            )
        return "its shortcut is not the identity"
    if others:
        kinds = " - ".join(type(layer).__name__ for layer in (first, *others))
        return f"its branch is {kinds}, not one kernel"
    if sum(call.layer is first for call in graph.calls) > 1:
        return f"{first.name} is used elsewhere too"
    readers = [call for call in graph.calls if block.f in call.sources]
    if len(readers) > 1 or block.f in graph.outputs:
        return f"the output of {first.name} is read elsewhere too"
    return _layer_reason(first)


def _layer_reason(layer):
    """Return why the identity cannot be added to a layer's kernel, or None."""
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
