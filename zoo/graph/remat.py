"""Training in less memory, at the price of time."""

from keras.src.backend.common.remat import RematMode  # not public: what RematScope gives a layer

from zoo.layers.skip import Skip


def remat(model, blocks=None):
    """Lets blocks compute their activations again in the backward pass, instead of keeping them.

    A block then keeps its input only, and a `HighwayDenseStack` each layer's input. A step takes
    about a third more time; outputs, gradients, moving averages and dropout masks stay what they
    are. Weights, names, saved files, probes and rewired graphs, too: nothing is added to the model.

    On JAX's CPU it saves in a `HighwayDenseStack` alone: there XLA drops the barriers that
    `jax.checkpoint` sets, and merges what is computed twice (recipes/benchmark.py memory).

    Args:
        model: A `keras.Model`, changed in place, as every model that shares its blocks. Before its
            first step: what is compiled stays as it is.
        blocks: Names of skip layers, or `None`: all of them.

    Returns:
        `model`.

    Raises:
        ValueError: if the model has no such block.

    Example:

    >>> import keras
    >>> from zoo.layers.highway import HighwayDense
    >>> inputs = keras.Input((4,))
    >>> model = remat(keras.Model(inputs, HighwayDense(name="block")(inputs)))

    Reference: Chen, Xu, Zhang, Guestrin (2016), arXiv:1604.06174.
    """
    found = {layer.name: layer for layer in model._flatten_layers() if isinstance(layer, Skip)}
    missing = set(blocks or ()) - {*found}
    if missing or not found:
        raise ValueError(
            f"`remat` recomputes skip layers. Received: {model.name!r}, which has none"
            f"{f' called {sorted(missing)}' if missing else ''}; there are {[*found]}. Of other "
            f"layers, build the model in a `keras.RematScope`."
        )
    for name in found if blocks is None else blocks:
        found[name]._remat_mode = RematMode("full", None, [])
    return model
