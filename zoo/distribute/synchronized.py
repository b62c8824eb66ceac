"""Training steps on several replicas that equal the step of one device."""

import contextlib
from collections.abc import Iterator

import keras

from zoo.backend import keras_private


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
            for layer in keras_private.inner_layers(model):
                if isinstance(layer, keras.layers.BatchNormalization):
                    stack.callback(setattr, layer, "synchronized", layer.synchronized)
                    layer.synchronized = True
            optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
            if optimizer.clipnorm or optimizer.clipvalue or optimizer.global_clipnorm:
                stack.enter_context(keras_private.clipped_after_sum(optimizer))
        yield
