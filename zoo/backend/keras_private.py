"""Every private name of Keras that the zoo reads or sets, with the reason.

Keras promises nothing about them. The tests run with the oldest Keras of pyproject.toml and 3.15.1.
"""

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
from keras.src.backend import AutocastScope as AutocastScope
from keras.src.backend import get_autocast_scope
from keras.src.backend import get_keras_mask as get_keras_mask
from keras.src.backend import set_keras_mask as set_keras_mask
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from keras.src.random.seed_generator import global_seed_generator as global_seed_generator

# `keras.config.enable_unsafe_deserialization()` overrules `load_model(safe_mode=True)`, not this.
from keras.src.saving.serialization_lib import SafeModeScope as SafeModeScope
from keras.src.trainers.data_adapters import get_data_adapter

from zoo.checks import require

CALL_CONTEXT = "current_call_ctx"  # what hands `training` to inner layers
CATCHES_INTERRUPTS = "_maybe_warn_inputs_struct_mismatch"  # a function with a bare `except:`


def inner_layers(layer: keras.layers.Layer, include_self: bool = True) -> list[keras.layers.Layer]:
    """Return the layers within `layer` at any depth; `model.layers` holds the outermost only."""
    return list(layer._flatten_layers(include_self=include_self))


def batch_normalizations(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Return the batch normalizations of a model, at any depth."""
    return [v for v in inner_layers(model) if isinstance(v, keras.layers.BatchNormalization)]


def own_weights(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the weights that `layer` itself holds, without those of its inner layers."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def state_of(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return what calls of `layer` itself may change: moving averages, and states of seeds."""
    return [*layer._non_trainable_variables, *(one.state for one in seed_generators(layer))]


def seed_generators(layer: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    """Return the seed generators that `layer` itself holds."""
    return layer._seed_generators


def forget_global_seed_generator() -> None:
    """Let the next random operation without a seed draw one from Python's generator."""
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, None)


def has_global_seed_generator() -> bool:
    """Return True if a random operation without a seed has run since seeds were set."""
    return global_state.get_global_attribute(GLOBAL_SEED_GENERATOR) is not None


def store_activations(layer: keras.layers.Layer) -> None:
    """Switch off the rematerialization of a layer that was built in a `keras.RematScope`."""
    layer._remat_mode = None


def frozen_weights(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the weights that `layer` itself tracks as trainable and that are frozen now."""
    return [weight for weight in layer._trainable_variables if not weight.trainable]


def copy_variable(variable: keras.Variable) -> keras.Variable:
    """Return a variable of the same value and options, its path included."""
    options = options_of(variable)
    regularizer, constraint = options.pop("regularizer"), options.pop("constraint")
    new = keras.Variable(keras.ops.convert_to_numpy(variable), **options)
    new.regularizer, new.constraint = regularizer, constraint
    new._path = variable.path
    return new


def options_of(variable: keras.Variable) -> dict[str, Any]:
    """Return the arguments of `add_weight` for a weight like a variable."""
    names = ("shape", "trainable", "aggregation", "regularizer", "constraint", "name")
    options = {name: getattr(variable, name) for name in names}
    return options | {"autocast": variable._autocast, "dtype": variable._dtype}  # whatever casts


def holder_of(
    layer: keras.layers.Layer, variable: keras.Variable, kind: Callable, name: str
) -> keras.layers.Layer:
    """Return a layer of a `kind`, made from `options_of`, that shares a weight of `layer`."""
    options = options_of(variable)
    # Keras tracks a variable by what it is now, and later cannot train it.
    options["trainable"] = any(variable is one for one in layer._trainable_variables)
    holder = kind(options, name=name, dtype=options["dtype"], trainable=layer.trainable)
    now, variable.trainable = variable.trainable, options["trainable"]
    holder.weight = variable
    variable.trainable = now
    return holder


def held_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the list in which `layer` keeps the layers that it itself holds."""
    return layer._layers


def is_optional(tensor: Any) -> bool:
    """Return True for a symbolic input for which the model also takes None."""
    return tensor._keras_history.operation.optional


def node_of(history: Any) -> Any:
    """Return the node that produced a symbolic tensor, from the tensor's `_keras_history`."""
    return history.operation._inbound_nodes[history.node_index]


def call_parameters(layer: keras.layers.Layer) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the layer's own `call`; that of torch's wrapper has others."""
    return layer._call_signature.parameters


def with_training(layer: Any, kwargs: dict[str, Any], training: bool | None) -> dict[str, Any]:
    """Return arguments of a call with `training`, unless None, if a layer or operation takes it."""
    takes = training is not None and "training" in getattr(layer, "_call_context_args", {})
    return {**kwargs, "training": training} if takes else kwargs


def is_rematerialized(layer: keras.layers.Layer) -> bool:
    """Return True if the layer was made in a `keras.RematScope`."""
    return layer._remat_mode is not None


def nodes_by_depth(model: keras.Model) -> dict[int, list[Any]]:
    """Return the nodes of a functional model by their distance from its outputs."""
    return model._nodes_by_depth


def current_scopes() -> Callable[[], contextlib.AbstractContextManager]:
    """Return a function that opens the autocast scope and the context of the running call again."""
    context = copy.copy(global_state.get_global_attribute(CALL_CONTEXT))
    autocast = get_autocast_scope()

    @contextlib.contextmanager
    def scopes() -> Iterator[None]:
        before = global_state.get_global_attribute(CALL_CONTEXT)
        global_state.set_global_attribute(CALL_CONTEXT, copy.copy(context))
        try:
            with AutocastScope(autocast and autocast.dtype):
                yield
        finally:
            global_state.set_global_attribute(CALL_CONTEXT, before)

    return scopes


def symbolic_build(model: keras.Model, batch: Any) -> None:
    """Build optimizer and metrics for the shapes of a batch, as `fit` does before its first."""
    model._symbolic_build(data_batch=batch)


def raw_values(variables: Sequence[keras.Variable]) -> list[Any]:
    """Return the tensors that variables hold, without the cast and the scopes of `value`."""
    return [variable._value for variable in variables]


def call_in_training(model: keras.Model, x: Any) -> Any:
    """Return the model's outputs as its `train_step` computes them."""
    return model(x, training=True) if model._call_has_training_arg else model(x)


def loss_in_training(model: keras.Model, *batch: Any) -> Any:
    """Return the loss of a batch (x, y, y_pred, sample_weight) as `train_step` does."""
    return model._compute_loss(*batch, training=True)


def compilation(model: keras.Model) -> Any:
    """Return an object that each call of `compile` makes anew."""
    return model._compile_config


def update_loss(model: keras.Model, loss: Any, weight: int) -> None:
    """Add the loss of a batch to its mean over the epoch."""
    model._loss_tracker.update_state(loss, sample_weight=weight)


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Make `fit`, which has called `on_train_begin`, start from another epoch, unless None."""
    model._initial_epoch = epoch


def path_of(optimizer: keras.optimizers.Optimizer, variable: Any) -> str:
    """Return the path of a variable in `update_step`: TensorFlow passes its own, without one."""
    return optimizer._trainable_variables[optimizer._get_variable_index(variable)].path


@contextlib.contextmanager
def _replaced(target, functions):
    # past Keras's own `__setattr__`, which would track the functions as state
    for name, function in functions.items():
        object.__setattr__(target, name, function)
    try:
        yield
    finally:
        for name in functions:
            object.__delattr__(target, name)


def clipped_after_sum(optimizer: Any) -> contextlib.AbstractContextManager:
    """Within the context, clip gradients after the sum over TensorFlow's replicas, not before."""
    clip = optimizer._clip_gradients
    all_reduce = optimizer._all_reduce_sum_gradients

    def sum_and_clip(gradients):
        pairs = all_reduce([(gradient, None) for gradient in gradients])
        return clip([gradient for gradient, _ in pairs])

    functions = {"_clip_gradients": sum_and_clip, "_all_reduce_sum_gradients": lambda pairs: pairs}
    return _replaced(optimizer, functions)


def refused_masks(layer: Any) -> contextlib.AbstractContextManager:
    """Within the context, refuse masked batch normalization, which Keras does not synchronize."""
    moments = layer._moments

    def unmasked_moments(inputs, mask):
        expected = f"None for {layer.name!r}: TensorFlow does not synchronize masked normalization "
        expected += 'over several devices. Use the strategy "one", or JAX'
        require(mask is None, expected, mask=mask)
        return moments(inputs, None)

    return _replaced(layer, {"_moments": unmasked_moments})


def without_autotuning(
    x: Any, y: Any = None, sample_weight: Any = None, parts: int = 0, **options: Any
) -> Any:
    """Return data for `fit` or `evaluate` on TensorFlow that are read without tf.data's autotuning.

    At the end of its data an iterator waits for the autotuning thread, which often misses the
    signal to stop and sleeps on, for about as long as the iterator lived and at most a minute.
    `options` are `batch_size`, `shuffle`, `class_weight` and `steps_per_epoch`, as in `fit`.

    With `parts`, batches are copies that split into so many equal ones: a replica overwrites its
    shard, whose memory may be that of arrays which a generator or `PyDataset` gives views of.
    """
    import tensorflow as tf

    adapter = get_data_adapter(x, y, sample_weight, **options)
    with_autotuning = adapter.get_tf_dataset

    def copy(tensor):
        return tensor if tensor.dtype == tf.variant else tf.raw_ops.DeepCopy(x=tensor)

    def copies(*batch):
        first = tf.nest.flatten(batch)[0]
        if isinstance(first, tf.Tensor):
            message = f"Expected batches that {parts} devices can split evenly."
            tf.debugging.assert_equal(tf.shape(first)[0] % parts, 0, message)
        return tf.nest.map_structure(copy, batch, expand_composites=True)

    def get_tf_dataset():
        chosen = tf.data.Options()
        chosen.autotune.enabled = False
        dataset = with_autotuning().with_options(chosen)
        return dataset.map(copies) if parts else dataset

    adapter.get_tf_dataset = get_tf_dataset
    return adapter
