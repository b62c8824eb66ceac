"""Plain and residual networks are one: the exact mapping between their weights.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 3.1, equation 1.
"""

import keras

from zoo.layers.simplified import SimplifiedPlain, SimplifiedResidual, id_entries


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
