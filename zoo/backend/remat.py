"""Rematerialization (gradient checkpointing) of layers that change variables."""

from collections.abc import Callable

import keras
from keras import ops, tree

from zoo.backend.keras_private import AutocastScope, current_scopes


def rematerialized(layer: keras.layers.Layer, call: Callable) -> Callable:
    """Return `call`, saving only its arguments for the backward pass, which repeats the call.

    `keras.remat` of a layer's `call` would update the moving averages of a batch normalization
    twice on TensorFlow and torch, and could not be traced on JAX. Here variables that the call
    changes (averages, seeds of dropout) change once, and the repetition reads what the first
    pass read.

    Args:
        layer: A built layer.
        call: A method of it that returns one tensor.

    Example:
    >>> dense = keras.layers.Dense(2)
    >>> dense.build((None, 2))
    >>> rematerialized(dense, dense.call)(keras.ops.ones((3, 2))).shape[1]
    2
    """

    def run(*args, **kwargs):
        leaves = tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if _has_gradient(leaf)]
        trainable, others = layer.trainable_variables, layer.non_trainable_variables
        with AutocastScope(None):  # weights at full precision: `call` casts them
            weights = [ops.convert_to_tensor(v.value) for v in trainable]
            states = [ops.copy(v.value) for v in others]  # torch assigns in place
        scopes = current_scopes()  # which `keras.remat` does not restore in the backward pass

        def pure(tensors, weights):
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            new_args, new_kwargs = tree.pack_sequence_as((args, kwargs), filled)
            mapping = zip([*trainable, *others], [*weights, *states], strict=True)
            with scopes(), keras.StatelessScope(state_mapping=[*mapping]) as scope:
                y = call(*new_args, **new_kwargs)
            return y, [scope.get_current_value(v) for v in others]

        checkpoint = _jax if keras.backend.backend() == "jax" else _tensorflow_and_torch
        y, new_values = checkpoint(pure)([leaves[i] for i in places], weights)
        for variable, value in zip(others, new_values, strict=True):
            variable.assign(value)
        return y

    return run


def _has_gradient(leaf):
    if not ops.is_tensor(leaf):
        return False
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(leaf.dtype))


def _jax(pure):
    import jax

    return jax.checkpoint(pure)


def _tensorflow_and_torch(pure):
    """Checkpoint `pure`, whose values without gradient `keras.remat` would not return."""

    def run(tensors, weights):
        values = []

        def first(*flat):
            y, new_values = pure(flat[: len(tensors)], flat[len(tensors) :])
            values.append(new_values)
            return y

        y = keras.remat(first)(*tensors, *weights)
        return y, values.pop()

    return run
