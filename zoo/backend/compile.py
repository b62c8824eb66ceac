"""Compilation of a function that reads a model's current weights."""

import functools
from collections.abc import Callable
from typing import Any

import keras

FEW = 64  # ours: variables that a JAX function may get without reading them, 3 microseconds each


def compiled(function: Callable, model: keras.Model, strategy: Any = None) -> Callable:
    """Compile `function` on TensorFlow and JAX; every call uses the model's weights of that moment.

    Args:
        function: A function from tensors, or structures of them, to a structure of tensors; it
            reads weights of `model` and changes none.
        model: A built `keras.Model`.
        strategy: A `tf.distribute.Strategy` or None. With one, the arguments are split along their
            first axis over the replicas and the results are summed.

    Returns:
        A function of the same arguments. On torch it runs eagerly, without gradients.

    Example:
    >>> import numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    >>> double = compiled(lambda x: 2 * model(x), model)
    >>> model.set_weights([np.array([[1.0], [10.0]])])
    >>> float(double(keras.ops.array([[1.0, 2.0]]))[0, 0])
    42.0
    """
    body = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    return body(function, model, strategy)


def _tensorflow(function, model, strategy):
    import tensorflow as tf

    # Workers would have to synchronize here; instead each computes the whole result itself.
    alone = strategy is None or strategy.num_replicas_in_sync == 1
    if alone or strategy.extended._in_multi_worker_mode():
        traced = tf.function(function, reduce_retracing=True, autograph=False)
        # TensorFlow counts by source line: the functions of ten blocks look like one, traced again
        traced._omit_frequent_tracing_warning = True
        return traced

    @functools.partial(tf.function, reduce_retracing=True, autograph=False)
    def summed(shards):
        results = strategy.run(lambda shards: function(*shards), args=(shards,))
        return tf.nest.map_structure(lambda v: strategy.reduce("SUM", v, axis=None), results)

    def replicated(*arguments):
        num = strategy.num_replicas_in_sync

        def shard(context):
            index = context.replica_id_in_sync_group
            return tf.nest.map_structure(lambda v: tf.split(v, num)[index], arguments)

        return summed(strategy.experimental_distribute_values_from_function(shard))

    return replicated


def _jax(function, model, strategy):
    import jax

    few = len(model.variables) <= FEW
    read = {id(variable): variable for variable in (model.variables if few else [])}
    traced = few

    class Reading(keras.StatelessScope):
        def get_current_value(self, variable):
            read.setdefault(id(variable), variable)
            return super().get_current_value(variable)

    def pure(values, arguments):
        mapping = [*zip([*read.values()][: len(values)], values, strict=True)]
        with Reading(state_mapping=mapping):
            return function(*arguments)

    jitted = jax.jit(pure)

    def call(*arguments):
        nonlocal traced
        if not traced:
            jax.eval_shape(pure, [], arguments)  # to know what it reads
            traced = True
        while True:
            known = len(read)
            results = jitted([v.value for v in read.values()], arguments)
            if len(read) == known:
                return results  # else this trace took other variables' values as constants

    return call


def _torch(function, model, strategy):
    import torch

    return torch.no_grad()(function)
