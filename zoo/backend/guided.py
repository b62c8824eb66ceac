"""Guided backpropagation: a ReLU that passes only positive gradients back."""

import contextlib
import functools
from unittest import mock

import keras
from keras.src import backend  # not public: the one function that every ReLU of Keras ends in


@contextlib.contextmanager
def guided_relus():
    """Within it, every ReLU that is called or traced passes only positive gradients back.

    Values stay as they are. It replaces a function of Keras for all threads, so keep it short.

    Example:

    >>> from zoo.backend import gradients_at_marks
    >>> def negative_relu(mark, x):
    ...     return -keras.ops.sum(keras.ops.relu(mark("x", x))), None
    >>> with guided_relus():
    ...     _, gradients = gradients_at_marks(negative_relu, keras.ops.array([2.0]))
    >>> abs(float(gradients["x"][0]))  # and not -1
    0.0

    Reference: Springenberg, Dosovitskiy, Brox, Riedmiller (2015), arXiv:1412.6806, section 3.4.
    """
    body = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    with mock.patch.object(backend.nn, "relu", body()):
        yield


@functools.cache
def _tensorflow():
    import tensorflow as tf

    @tf.custom_gradient
    def relu(x):
        return tf.nn.relu(x), lambda dy: tf.where((x > 0) & (dy > 0), dy, tf.zeros_like(dy))

    return relu


@functools.cache
def _jax():
    import jax
    import jax.numpy as jnp

    relu = jax.custom_vjp(jax.nn.relu)
    relu.defvjp(
        lambda x: (jax.nn.relu(x), x),
        lambda x, dy: (jnp.where((x > 0) & (dy > 0), dy, 0.0),),
    )
    return relu


@functools.cache
def _torch():
    import torch

    class GuidedReLU(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.relu(x)

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return torch.where((x > 0) & (dy > 0), dy, torch.zeros_like(dy))

    return GuidedReLU.apply
