"""Fold identity skips into the kernels beside them."""

import keras

from zoo.graph.blocks import find_blocks
from zoo.graph.calls import rebuild
from zoo.layers.simplified import SimplifiedPlain, SimplifiedResidual, plain_kernel


def fold_identity(model: keras.Model) -> tuple[keras.Model, dict[str, str]]:
    """Return a Functional copy with every `SimplifiedResidual` as a `SimplifiedPlain`.

    The new kernel is one larger at the identity's entries. In exact arithmetic the outputs are
    equal. The second result has the reason for each block that stayed as it is, by name.

    Raises:
        ValueError: if there is no block, or none can be folded; the message has the reasons.

    Example:
    >>> inputs = keras.Input((4, 4, 2))
    >>> model = keras.Model(inputs, SimplifiedResidual(2, name="block")(inputs))
    >>> folded, kept = fold_identity(model)
    >>> [type(layer).__name__ for layer in folded.layers[1:]], kept
    (['SimplifiedPlain'], {})

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
    section 3, equation 1.
    """
    blocks, rejected = find_blocks(model)
    kept = dict(rejected)
    layers: dict[int, SimplifiedPlain] = {}  # by id of the layer to replace, which may be shared
    for block in blocks:
        if not isinstance(block.layer, SimplifiedResidual):
            is_plain = getattr(block.layer, "variant", "") == "plain"
            kept[block.name] = "it is plain already" if is_plain else "no SimplifiedResidual"
        elif id(block.layer) not in layers:
            layers[id(block.layer)] = _plain(block.layer)
    if not layers:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in kept.items())
        raise ValueError(f"No skip of {model.name!r} can be folded into a kernel:{reasons}")
    return rebuild(model, lambda call: layers.get(id(call.layer))), kept


def _plain(layer):
    plain = SimplifiedPlain.from_config(layer.get_config())
    plain.build(layer.get_build_config()["input_shape"])
    _, *bias = layer.get_weights()
    plain.set_weights([plain_kernel(layer), *bias])
    return plain
