"""Fold identity skips into the kernels beside them."""

import keras

from zoo.graph.blocks import find_blocks
from zoo.graph.calls import rebuild
from zoo.layers.simplified import SimplifiedPlain, SimplifiedResidual, plain_kernel


def fold_identity(model: keras.Model) -> keras.Model:
    """Return a Functional copy with every `SimplifiedResidual` as a `SimplifiedPlain`.

    The new kernel is one larger at the identity's entries. In exact arithmetic the outputs are
    equal.

    Raises:
        ValueError: if there is no `SimplifiedResidual`.

    Example:
    >>> inputs = keras.Input((4, 4, 2))
    >>> model = keras.Model(inputs, SimplifiedResidual(2, name="block")(inputs))
    >>> [type(layer).__name__ for layer in fold_identity(model).layers[1:]]
    ['SimplifiedPlain']

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
    section 3, equation 1.
    """
    blocks, _ = find_blocks(model)
    skips = {id(b.layer): b.layer for b in blocks if isinstance(b.layer, SimplifiedResidual)}
    if not skips:
        raise ValueError(f"Expected a `SimplifiedResidual`. Received: {model.name!r}, without one.")
    plain = {key: _plain(layer) for key, layer in skips.items()}  # a layer may be shared
    return rebuild(model, lambda call: plain.get(id(call.layer)))


def _plain(layer):
    plain = SimplifiedPlain.from_config(layer.get_config())
    plain.build(layer.get_build_config()["input_shape"])
    _, *bias = layer.get_weights()
    plain.set_weights([plain_kernel(layer), *bias])
    return plain
