"""Gradients by each backend's own automatic differentiation, and comparison of arrays."""

import keras
import numpy as np


def gradients(fn, tensors=(), variables=()):
    """Return the gradients of the scalar `fn(*tensors)` at tensors, then variables, as arrays.

    Zeros where there is none; `fn` may use Keras layers.
    """
    return gradient_of(fn, variables)(*tensors)


def gradient_of(fn, variables=(), states=()):
    """Return `gradients` as a function of the tensors; on JAX it is compiled once.

    `fn` receives `constants` of the later call after the tensors; `states` are further variables
    that it reads and that change between calls.
    """
    body = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    compiled = body(fn, list(variables), list(states))

    def gradient(*tensors, constants=()):
        tensors, constants = (
            [keras.ops.convert_to_tensor(v) for v in values] for values in (tensors, constants)
        )
        return numpy_of(compiled(tensors, constants))

    return gradient


def _tensorflow(fn, variables, states):
    import tensorflow as tf

    def gradient(tensors, constants):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = fn(*tensors, *constants)
        at = [*tensors, *(v.value for v in variables)]
        grads = tape.gradient(y, at, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(g) for g in grads]  # an embedding's is sparse

    return gradient


def _jax(fn, variables, states):
    import jax

    def pure(tensors, values, others, constants):
        mapping = zip([*variables, *states], [*values, *others], strict=True)
        with keras.StatelessScope(state_mapping=list(mapping)):
            return fn(*tensors, *constants)

    compiled = jax.jit(jax.grad(pure, argnums=(0, 1)))

    def gradient(tensors, constants):
        values, others = ([v.value for v in group] for group in (variables, states))
        into_tensors, into_values = compiled(tensors, values, others, constants)
        return [*into_tensors, *into_values]

    return gradient


def _torch(fn, variables, states):
    import torch

    def gradient(tensors, constants):
        tensors = [t.detach().clone().requires_grad_() for t in tensors]
        at = [*tensors, *(v.value for v in variables)]
        grads = torch.autograd.grad(fn(*tensors, *constants), at, allow_unused=True)
        return [torch.zeros_like(v) if g is None else g for g, v in zip(grads, at, strict=True)]

    return gradient


def numpy_of(values):
    """Return copies of tensors or variables as arrays, which later assignments do not change."""
    return [keras.ops.convert_to_numpy(v).copy() for v in values]


def assert_close(actual, expected, atol, rtol=0.0):
    """Assert that arrays, or equally long lists of them, agree; the caller explains tolerances."""
    if isinstance(actual, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e, atol, rtol)
        return
    actual, expected = (np.asarray(keras.ops.convert_to_numpy(v)) for v in (actual, expected))
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)
