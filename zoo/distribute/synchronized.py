"""Replicas that compute what one device would."""

import contextlib

import keras


@contextlib.contextmanager
def as_one(model):
    """While inside, a step of `model` on replicas of tf.distribute is the step of one device.

    Keras's own step differs twice: a normalisation sees its replica's examples only, and an
    optimizer clips each replica's gradient before it adds them up. Here statistics are the whole
    batch's, and gradients are added up, then clipped. Other backends do so anyway.

    Args:
        model: A compiled `keras.Model`; it is as before when the context ends.
    """
    with contextlib.ExitStack() as stack:
        if keras.backend.backend() == "tensorflow":
            for layer in model._flatten_layers():
                if isinstance(layer, keras.layers.BatchNormalization):
                    stack.callback(setattr, layer, "synchronized", layer.synchronized)
                    layer.synchronized = True
            optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
            if optimizer.clipnorm or optimizer.clipvalue or optimizer.global_clipnorm:
                stack.enter_context(_clipped_whole(optimizer))
        yield


@contextlib.contextmanager
def _clipped_whole(optimizer):
    clip, add = optimizer._clip_gradients, optimizer._all_reduce_sum_gradients

    def add_and_clip(gradients):
        pairs = add([(gradient, None) for gradient in gradients])
        return clip([gradient for gradient, _ in pairs])

    object.__setattr__(optimizer, "_clip_gradients", add_and_clip)
    object.__setattr__(optimizer, "_all_reduce_sum_gradients", lambda pairs: pairs)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "_clip_gradients")
        object.__delattr__(optimizer, "_all_reduce_sum_gradients")
