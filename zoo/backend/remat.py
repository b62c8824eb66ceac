"""Activations computed again in the backward pass instead of kept."""

import contextlib
import copy

import keras
from keras import ops, tree
from keras.src import backend  # its scopes; not public
from keras.src.backend.common import global_state

CONTEXT = "current_call_ctx"  # where Keras keeps what an outer layer's call passes on: `training`


def recomputed(layer, call):
    """`call`, which keeps but its arguments for the backward pass, and repeats itself there.

    `keras.remat` of a layer's `call` would move the averages of a batch normalisation twice on
    TensorFlow and torch, and not be traced on JAX. Here variables that the call changes (averages,
    seeds of dropout) change once, and the repetition reads what the first pass read.

    Args:
        layer: A built layer.
        call: A method of it that returns one tensor.

    Returns:
        A function of the same arguments.

    Example:

    >>> dense = keras.layers.Dense(2)
    >>> dense.build((None, 2))
    >>> recomputed(dense, dense.call)(keras.ops.ones((3, 2))).shape[1]
    2
    """

    def run(*args, **kwargs):
        leaves = tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if _has_gradient(leaf)]
        trainable, others = layer.trainable_variables, layer.non_trainable_variables
        with backend.AutocastScope(None):  # weights as they are: `call` rounds them
            weights = [ops.convert_to_tensor(v.value) for v in trainable]
            states = [ops.copy(v.value) for v in others]  # torch assigns in place
        scopes = _scopes()

        def pure(tensors, weights):
            given = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor
            args_now, kwargs_now = tree.pack_sequence_as((args, kwargs), given)
            mapping = zip([*trainable, *others], [*weights, *states], strict=True)
            with scopes(), keras.StatelessScope(state_mapping=[*mapping]) as scope:
                y = call(*args_now, **kwargs_now)
            return y, [scope.get_current_value(v) for v in others]

        body = {"jax": _jax}.get(keras.backend.backend(), _beside)
        y, new = body(pure)([leaves[i] for i in places], weights)
        for variable, value in zip(others, new, strict=True):
            variable.assign(value)
        return y

    return run


def _has_gradient(leaf):
    return ops.is_tensor(leaf) and backend.is_float_dtype(backend.standardize_dtype(leaf.dtype))


def _scopes():
    """A function that makes the scopes of Keras which are open now, to be entered later."""
    context = copy.copy(global_state.get_global_attribute(CONTEXT))
    autocast = backend.get_autocast_scope()

    @contextlib.contextmanager
    def again():
        before = global_state.get_global_attribute(CONTEXT)
        global_state.set_global_attribute(CONTEXT, copy.copy(context))
        try:
            with backend.AutocastScope(autocast and autocast.dtype):
                yield
        finally:
            global_state.set_global_attribute(CONTEXT, before)

    return again


def _jax(pure):
    import jax

    return jax.checkpoint(pure)


def _beside(pure):
    """TensorFlow and torch: what has no gradient is handed out beside the function."""

    def run(tensors, weights):
        beside = []

        def first(*flat):
            y, new = pure(flat[: len(tensors)], flat[len(tensors) :])
            beside.append(new)
            return y

        y = keras.remat(first)(*tensors, *weights)
        return y, beside.pop()

    return run
