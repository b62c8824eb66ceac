"""Configurations of copied layers, from which a saved model is built again."""

import inspect
import random
import types
from typing import Any

import keras
from absl import logging

from zoo.graph.blocks import foreign


def make_savable(model: keras.Model) -> keras.Model:
    """Give a model's layers whose configuration is incomplete a complete one, and return the model.

    Layers of other libraries may lack arguments in their `get_config`, or have some that their
    constructor does not know. Arguments are read from the attributes of their names. A warning
    names the layers that cannot be made again. No other model may use the layers.
    """
    for layer in model.layers:
        if not foreign(layer) and (isinstance(layer, keras.Model) or not _failure(layer)):
            continue
        # Built by its first call: `build` may create no layer inside, or refuse a list as a shape.
        vars(layer)["get_build_config"] = lambda: None
        if _failure(layer) or attributes(layer).keys() - layer.get_config().keys():
            # a method, so that a copy of the layer gets one of its own: `zoo.graph.calls._copied`
            vars(layer)["get_config"] = types.MethodType(get_config, layer)
            failure = _failure(layer)
            if not failure:
                continue
            del vars(layer)["get_config"]
            logging.warning(
                f"{layer.name} cannot be saved in a .keras file: {failure.rstrip('.')}. Call "
                f"`model.save_weights`, and edit the original model in the same way to load; or "
                f'remove whole layers: grain="layer".'
            )
    return model


def warn_of_training(model: keras.Model) -> None:
    """Warn that a copy of a model's graph has no training code of the model's class."""
    names = ("train_step", "compute_loss")
    own = [name for name in names if getattr(type(model), name) is not getattr(keras.Model, name)]
    if own:
        logging.warning(
            f"{model.name} becomes a plain keras.Model, no {type(model).__name__}: its `fit` will "
            f"not call {', '.join(own)}."
        )


def get_config(layer: keras.layers.Layer) -> dict[str, Any]:
    """Return a layer's configuration by the arguments of its constructor."""
    try:
        standard = keras.layers.Layer.get_config(layer)
    except NotImplementedError:  # as of keras.layers.Identity(dtype=a policy)
        policy = keras.dtype_policies.serialize(layer.dtype_policy)
        standard = {"name": layer.name, "trainable": layer.trainable, "dtype": policy}
    arguments = inspect.signature(type(layer).__init__).parameters
    variadic = {key for key, v in arguments.items() if v.kind in (v.VAR_POSITIONAL, v.VAR_KEYWORD)}
    known = {*arguments, *standard}
    try:
        own = type(layer).get_config(layer)
    except (AttributeError, NotImplementedError):  # LlamaAttention reads an attribute it lacks
        own = standard
    lost = known - attributes(layer).keys() - {*standard, "self", *variadic}
    misnamed = own.keys() - known
    if lost and (misnamed or own.keys() == standard.keys()):  # defaults would take their place
        raise TypeError(f"no `get_config` and no attributes have the arguments {sorted(lost)}")
    return attributes(layer) | standard | {key: own[key] for key in own.keys() & known}


def attributes(layer: keras.layers.Layer) -> dict[str, Any]:
    """Return those arguments of a layer's constructor that are attributes of the layer."""
    names = [*inspect.signature(type(layer).__init__).parameters]
    keys = {name: name if name in vars(layer) else f"_{name}" for name in names}
    return {name: vars(layer)[key] for name, key in keys.items() if key in vars(layer)}


def _failure(layer):
    """Return why a layer cannot be made again from its configuration, or an empty text."""
    state = random.getstate()  # Keras draws the seeds of unseeded layers
    try:
        type(layer).from_config(keras.saving.serialize_keras_object(layer)["config"])
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    finally:
        random.setstate(state)
    return ""
