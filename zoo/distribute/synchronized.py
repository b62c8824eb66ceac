"""Training steps on several replicas that equal the step of one device."""

import contextlib
from collections.abc import Iterator

import keras


@contextlib.contextmanager
def synchronized(model: keras.Model) -> Iterator[None]:
    """Make a step of a compiled model on replicas of tf.distribute equal the step of one device.

    Keras's own step differs twice: a normalization sees its replica's examples only, and an
    optimizer clips each replica's gradient before it adds them up. Here statistics are the whole
    batch's, and gradients are added up, then clipped. Other backends do so anyway. The model is
    restored when the context ends.
    """
    with contextlib.ExitStack() as stack:
        if keras.backend.backend() == "tensorflow":
            for layer in model._flatten_layers():
                if isinstance(layer, keras.layers.BatchNormalization):
                    stack.callback(setattr, layer, "synchronized", layer.synchronized)
                    layer.synchronized = True
            optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
            if optimizer.clipnorm or optimizer.clipvalue or optimizer.global_clipnorm:
                stack.enter_context(_clipped_after_sum(optimizer))
        yield


@contextlib.contextmanager
def _clipped_after_sum(optimizer):
    """Exchange the order of two steps of this optimizer; Keras has no public way to do it."""
    clip = optimizer._clip_gradients
    all_reduce = optimizer._all_reduce_sum_gradients

    def sum_and_clip(gradients):
        pairs = all_reduce([(gradient, None) for gradient in gradients])
        return clip([gradient for gradient, _ in pairs])

    # past Keras's own `__setattr__`, which would track the functions as state
    object.__setattr__(optimizer, "_clip_gradients", sum_and_clip)
    object.__setattr__(optimizer, "_all_reduce_sum_gradients", lambda pairs: pairs)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "_clip_gradients")
        object.__delattr__(optimizer, "_all_reduce_sum_gradients")
