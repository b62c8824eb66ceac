"""Rematerialization (gradient checkpointing): training in less memory, at the price of time."""

from collections.abc import Sequence

import keras

from zoo.backend import keras_private
from zoo.layers.skip import Skip


def remat(model: keras.Model, blocks: Sequence[str] | None = None) -> keras.Model:
    """Let blocks recompute their activations in the backward pass instead of storing them.

    A block then stores its input only, and a `HighwayDenseStack` each layer's input. A step takes
    about a third more time; outputs, gradients, moving averages and dropout masks do not change.
    Nor do weights, names, saved files, probes and rewired graphs: the model gets no new layer.

    On JAX's CPU it saves memory in a `HighwayDenseStack` alone: there XLA drops the barriers that
    `jax.checkpoint` sets, and merges duplicate computations.

    Args:
        model: A `keras.Model`, changed in place, as are all models that share its blocks. Call
            this before its first step: functions that are already compiled do not change.
        blocks: Names of skip layers; `None`: all.

    Returns:
        `model`.

    Raises:
        ValueError: if the model has no such block.

    Example:
    >>> from zoo.layers.highway import HighwayDense
    >>> inputs = keras.Input((4,))
    >>> model = remat(keras.Model(inputs, HighwayDense(name="block")(inputs)))

    Reference: Chen, Xu, Zhang, Guestrin (2016), arXiv:1604.06174.
    """
    layers = {
        layer.name: layer for layer in keras_private.inner_layers(model) if isinstance(layer, Skip)
    }
    missing = set(blocks or ()) - {*layers}
    if missing or not layers:
        names = f" called {sorted(missing)}" if missing else ""
        raise ValueError(
            f"`remat` recomputes skip layers. Received: {model.name!r}, which has none{names}; "
            f"there are {[*layers]}. To recompute other layers, build the model in a "
            f"`keras.RematScope`."
        )
    with keras.RematScope(mode="full"):
        mode = keras.layers.Identity(name="remat")._remat_mode  # its type is not public
    for name in layers if blocks is None else blocks:
        layers[name]._remat_mode = mode
    return model
