"""Functions compiled, scanned, differentiated or rematerialized."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops, tree

from zoo.backend.keras_private import AutocastScope, current_scopes
from zoo.backend.runtime import BACKEND
from zoo.types import Tensor

MAX_UNREAD = 64  # ours: variables that a JAX function may get unread, 3 microseconds each


def compiled(function: Callable, model: keras.Model, eager: bool = False) -> Callable:
    """Compile `function` on TensorFlow and JAX; every call uses the model's weights of that moment.

    It takes and returns structures of tensors. What it assigns to variables, such as the state of
    an RNN, is dropped. On torch it runs eagerly, without gradients; elsewhere with `eager` only,
    because a compiled function drops the Keras masks of arguments and results. Several replicas of
    TensorFlow do not share the work.
    """
    if BACKEND == "jax" and not eager:
        return _compiled_jax(function, model)

    def stateless(*arguments):
        with _Frozen():
            return function(*arguments)

    if BACKEND == "tensorflow" and not eager:
        import tensorflow as tf

        traced = tf.function(stateless, reduce_retracing=True, autograph=False)
        # TensorFlow counts by source line: the functions of ten blocks look like one, traced again
        traced._omit_frequent_tracing_warning = True
        return traced
    if BACKEND != "torch":
        return stateless
    import torch

    return torch.no_grad()(stateless)


class _Frozen(keras.StatelessScope):
    """A scope in which variables keep their values."""

    def add_update(self, update):
        pass


def _compiled_jax(function, model):
    import jax

    traced = len(model.variables) <= MAX_UNREAD
    read = {id(variable): variable for variable in (model.variables if traced else [])}

    class Reading(_Frozen):
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


def gradients_at_marks(function: Callable, *arguments: Any) -> tuple[Any, dict]:
    """Run `function(mark, *arguments)` and differentiate its first result at the marked tensors.

    `function` calls `mark(key, tensor)` where a gradient is needed and continues with the returned
    tensor; it returns a scalar and any structure. On JAX it is run more than once. Return this
    structure and the gradients by key, all from one backward pass; zeros where the scalar does not
    depend on a marked tensor.

    Example:
    >>> def cube(mark, x):
    ...     y = mark("y", x * x)
    ...     return keras.ops.sum(y * x), None
    >>> _, gradients = gradients_at_marks(cube, keras.ops.array([3.0]))
    >>> float(gradients["y"][0])  # d(y x)/dy
    3.0
    """
    bodies = {"tensorflow": _gradients_tensorflow, "jax": _gradients_jax, "torch": _gradients_torch}
    return bodies[BACKEND](function, arguments)


def _gradients_tensorflow(function, arguments):
    import tensorflow as tf

    marked = {}
    with tf.GradientTape(watch_accessed_variables=False) as tape:

        def mark(key, tensor):
            tensor = tf.identity(tensor)  # layers that do nothing return their input itself
            tape.watch(tensor)
            marked[key] = tensor
            return tensor

        scalar, rest = function(mark, *arguments)
    return rest, tape.gradient(scalar, marked, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def _gradients_jax(function, arguments):
    import jax
    import jax.numpy as jnp

    def record(*arguments):
        marked = {}
        function(lambda key, tensor: marked.setdefault(key, tensor), *arguments)
        return marked

    shapes = jax.eval_shape(record, *arguments)
    offsets = {key: jnp.zeros(spec.shape, spec.dtype) for key, spec in shapes.items()}

    def shifted(offsets):
        return function(lambda key, tensor: tensor + offsets[key], *arguments)

    gradients, rest = jax.grad(shifted, has_aux=True)(offsets)
    return rest, gradients


def _gradients_torch(function, arguments):
    import torch

    marked = {}

    def mark(key, tensor):
        leaf = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        marked[key] = leaf.view_as(leaf)  # layers that do nothing return their input itself
        return marked[key]

    with torch.enable_grad():
        scalar, rest = function(mark, *arguments)
        gradients = torch.autograd.grad(
            scalar, [*marked.values()], allow_unused=True, materialize_grads=True
        )
    return rest, dict(zip(marked, gradients, strict=True))


def jacobian_product(function: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Tensor:
    """Return J v, of the shape of `function(x)`, where J is the Jacobian of `function` at x."""
    if BACKEND == "jax":
        import jax

        return jax.jvp(function, (x,), (v,))[1]
    # Forward mode has no rule for loops on TensorFlow and for the native LSTM on torch, and warns
    # of a deprecated compiler there; so two reverse passes: d/du of (J' u) v is J v.
    if BACKEND == "torch":
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
            return torch.autograd.functional.jvp(function, x, v)[1]
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as outer:
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(x)
            y = function(x)
        u = tf.ones_like(y)
        outer.watch(u)
        gradient = inner.gradient(y, x, output_gradients=u)
    return outer.gradient(gradient, u, output_gradients=v)


def scan_layers(step: Callable, x: Tensor, weights: Sequence[Tensor], remat: bool) -> Tensor:
    """Apply layers: x = step(x, slices), once for each slice of the stacked `weights`.

    One layer is compiled instead of `depth`. The loop is differentiable, under XLA too, unlike
    `keras.ops.scan` on TensorFlow. Where nothing is compiled, on torch and for values that JAX does
    not trace, Python loops over the slices, and the result has exactly the bits of single layers.

    The weights are tensors or variables `(depth, ...)`, and `slices` one slice of each; `step`
    keeps the shape and dtype of `x`. Returns the last x. With `remat` the backward pass stores only
    each layer's x.
    """
    step = keras.remat(step) if remat else step
    weights = [ops.convert_to_tensor(weight) for weight in weights]
    if not isinstance(x, keras.KerasTensor):  # as in `zoo.graph.cost`
        x = ops.convert_to_tensor(x)
        if BACKEND == "tensorflow":
            import tensorflow as tf

            return tf.foldl(step, weights, x)  # XLA: a gradient six times faster than a scan's
        if BACKEND == "jax":
            import jax

            if any(isinstance(v, jax.core.Tracer) for v in (x, *weights)):
                return jax.lax.scan(lambda x, w: (step(x, w), None), x, weights)[0]
    # torch iterates by `unbind`: indexing would make a gradient of the whole stack for each slice
    return functools.reduce(step, zip(*weights, strict=True), x)


def rematerialized(layer: keras.layers.Layer, call: Callable) -> Callable:
    """Return `call`, saving only its arguments for the backward pass, which repeats the call.

    `keras.remat` of a layer's `call` would update the moving averages of a batch normalization
    twice on TensorFlow and torch, and could not be traced on JAX. Here variables that the call
    changes (averages, seeds of dropout) change once, and the repetition reads what the first
    pass read. `call` is a method of the built layer that returns one tensor.
    """

    def run(*args, **kwargs):
        leaves = tree.flatten((args, kwargs))
        is_float = keras.backend.is_float_dtype
        places = [i for i, v in enumerate(leaves) if ops.is_tensor(v) and is_float(v.dtype)]
        trainable, others = layer.trainable_variables, layer.non_trainable_variables
        with AutocastScope(None):  # weights at full precision: `call` casts them
            weights = [ops.convert_to_tensor(v.value) for v in trainable]
            states = [ops.copy(v.value) for v in others]  # torch assigns in place
        scopes = current_scopes()  # which `keras.remat` does not restore in the backward pass

        def pure(tensors, weights):
            given = dict(zip(places, tensors, strict=True))
            filled = [given.get(i, leaf) for i, leaf in enumerate(leaves)]
            new_args, new_kwargs = tree.pack_sequence_as((args, kwargs), filled)
            mapping = zip([*trainable, *others], [*weights, *states], strict=True)
            with scopes(), keras.StatelessScope(state_mapping=[*mapping]) as scope:
                y = call(*new_args, **new_kwargs)
            return y, [scope.get_current_value(v) for v in others]

        checkpoint = keras.remat if BACKEND == "jax" else _tensorflow_and_torch
        y, new_values = checkpoint(pure)([leaves[i] for i in places], weights)
        for variable, value in zip(others, new_values, strict=True):
            variable.assign(value)
        return y

    return run


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
