"""Plain and residual networks are one: the exact mapping between their weights.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 3.1, equation 1.
"""

import keras
import numpy as np

from zoo.layers.simplified import IDENTITIES, SimplifiedPlain, SimplifiedResidual


def id_entries(kernel, identity="pad"):
    """Where a kernel holds the identity: its centre, from each input channel to its own output.

    Args:
        kernel: Array of shape `(side, side, channels, filters)`, or that shape.
        identity: Where filters are more than channels: "pad" leaves the rest without, "duplicate"
            starts again with the first channel.

    Returns:
        A tuple of four index arrays: `kernel[id_entries(kernel)]` are the entries, `channels` many
        for "pad" and `filters` many for "duplicate".

    Raises:
        ValueError: if the side is even, or channels and filters do not allow the identity.

    Example:

    >>> kernel = np.zeros((3, 3, 2, 2))
    >>> kernel[id_entries(kernel)] = 1
    >>> kernel[1, 1].tolist(), int(kernel.sum())
    ([[1.0, 0.0], [0.0, 1.0]], 2)
    """
    shape = tuple(kernel) if np.ndim(kernel) == 1 else tuple(kernel.shape)
    if identity not in IDENTITIES:
        raise ValueError(f"`identity` must be one of {IDENTITIES}. Received: identity={identity!r}")
    if len(shape) != 4 or shape[0] != shape[1] or shape[0] % 2 == 0:
        raise ValueError(
            f"The identity sits at a kernel's centre, so `kernel` must be (side, side, channels, "
            f"filters) with an odd side. Received: shape {shape}"
        )
    side, _, channels, filters = shape
    if filters < channels or (identity == "duplicate" and filters % channels):
        raise ValueError(
            f"A kernel from {channels} channels to {filters} filters holds no identity of the kind "
            f"{identity!r}: 'pad' needs as many filters or more, 'duplicate' a multiple."
        )
    outputs = np.arange(channels if identity == "pad" else filters)
    centre = np.full_like(outputs, side // 2)
    return centre, centre, outputs % channels, outputs


def plain_kernel(layer):
    """The kernel, an array, of the plain block that computes what a simplified one computes.

    Args:
        layer: A built `SimplifiedPlain` or `SimplifiedResidual`.

    Example:

    >>> block = SimplifiedResidual(2, kernel_size=1, kernel_initializer="zeros")
    >>> block.build((None, 4, 4, 2))
    >>> plain_kernel(block).tolist()
    [[[[1.0, 0.0], [0.0, 1.0]]]]
    """
    kernel = np.array(keras.ops.convert_to_numpy(layer.transform.kernel))
    if isinstance(layer, SimplifiedResidual):
        kernel[id_entries(kernel, layer.identity)] += 1
    return kernel


def to_plain(x):
    """The plain block or network that computes what a residual one computes.

    Each `SimplifiedResidual` becomes a `SimplifiedPlain` whose kernel has one more at each of its
    identity entries; so does a `Conv2D` or `Dense` whose input is added to its output with nothing
    between. Everything else is copied.

    Args:
        x: A built `SimplifiedResidual`, or a Functional `keras.Model`.

    Returns:
        A built `SimplifiedPlain`, or a Functional `keras.Model`, with weights of its own. In the
        reals the outputs are equal; in float64 they differ by some 1e-15, relatively, because
        1 + w is rounded.

    Raises:
        ValueError: if a block has no such mapping, or there is none; the message says why.
        `zoo.fold_identity` maps what can be mapped, and leaves the rest.

    Example:

    >>> block = SimplifiedResidual(2, kernel_size=1, kernel_initializer="zeros")
    >>> block.build((None, 4, 4, 2))
    >>> to_plain(block).get_weights()[0].tolist()
    [[[[1.0, 0.0], [0.0, 1.0]]]]
    """
    if not isinstance(x, keras.Model):
        return _mapped(x, SimplifiedResidual, SimplifiedPlain, 1.0)
    from zoo.graph.blocks import find_blocks
    from zoo.graph.fold import fold_identity

    blocks = find_blocks(x)[0]
    names = {b.name: b.layer for b in blocks if getattr(b.layer, "variant", None) != "plain"}
    if not names:
        raise ValueError(f"Expected a network with skips. Received: {x.name!r}, plain already.")
    if all(isinstance(layer, SimplifiedResidual) for layer in names.values()):
        return _mapped(x, SimplifiedResidual, SimplifiedPlain, 1.0)
    mapped, kept = fold_identity(x)
    if stay := [f"\n  {name}: {kept[name]}" for name in names if name in kept]:
        raise ValueError(f"These blocks have no plain equal of one kernel:{''.join(stay)}")
    return mapped


def to_residual(x):
    """The residual block or network that computes what a plain one computes: `to_plain` undone.

    Args:
        x: A built `SimplifiedPlain` or `Conv2D`, or a Functional `keras.Model` of the former.

    Returns:
        A built `SimplifiedResidual`; of a `Conv2D`, a Functional `keras.Model` that adds the input
        to a convolution; of a model, a model. See `to_plain`.

    Raises:
        ValueError: if there is nothing to map, or the convolution leaves no place for an identity.
    """
    if type(x) is keras.layers.Conv2D:
        return _with_skip(x)
    return _mapped(x, SimplifiedPlain, SimplifiedResidual, -1.0)


def _with_skip(conv):
    same = conv.padding == "same" or conv.kernel_size == (1, 1)
    square = (
        conv.built and conv.kernel.shape[2] == conv.filters and conv.data_format == "channels_last"
    )
    linear = conv.activation is keras.activations.linear and conv.groups == 1
    if not (square and same and linear and conv.strides == (1, 1)):
        raise ValueError(
            f"Expected a built Conv2D, channels last, that keeps shape and channels, without "
            f"groups or activation: only there an identity can be taken out. Received: {conv!r} "
            f"with strides {conv.strides}, padding {conv.padding!r}, {conv.filters} filters."
        )
    inputs = keras.Input(conv.get_build_config()["input_shape"][1:], dtype=conv.dtype)
    branch = keras.layers.Conv2D.from_config(conv.get_config())
    outputs = keras.layers.Add(dtype=conv.dtype_policy)([inputs, branch(inputs)])
    kernel, *bias = conv.get_weights()
    kernel[id_entries(kernel)] -= 1  # refuses an even side
    branch.set_weights([kernel, *bias])
    return keras.Model(inputs, outputs)


def _mapped(x, old, new, change):
    if isinstance(x, old) and x.built:
        block = new.from_config(x.get_config())
        block.build(x.get_build_config()["input_shape"])
        block.set_weights(_moved(x, change))
        return block
    found = [v for v in x.layers if isinstance(v, old)] if hasattr(x, "_nodes_by_depth") else []
    if not found:
        raise ValueError(
            f"Expected a built `{old.__name__}`, or a Functional model that has some. "
            f"Received: {x!r}. Blocks with normalisation or an activation between convolution and "
            f"sum have no such mapping."
        )
    pairs = []

    def clone(layer):
        made = (new if isinstance(layer, old) else type(layer)).from_config(layer.get_config())
        pairs.append((layer, made))
        return made

    copy = keras.models.clone_model(x, clone_function=clone)
    for layer, made in pairs:
        if isinstance(layer, keras.layers.Layer):  # and not an operation
            made.set_weights(
                _moved(layer, change) if isinstance(layer, old) else layer.get_weights()
            )
    return copy


def _moved(block, change):
    kernel, bias = block.get_weights()
    kernel[id_entries(kernel, block.identity)] += change
    return [kernel, bias]
