"""Copy a layer with its weights, whatever its configuration says."""

import types
from typing import Any

import keras


def duplicate(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Return a copy of a built layer with weights of its own.

    Attributes are copied, and not the configuration, which layers of other libraries may lack or
    return incomplete. Layers, variables, seed generators and containers of these are copied; other
    attributes are shared.
    """
    return _copied(layer, {})


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """Return a copy of an attribute; `copies` has those made before, by the original's id."""
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, keras.layers.Layer):
        return _layer(value, copies)
    if isinstance(value, dict):
        return {key: _copied(v, copies) for key, v in value.items()}
    if type(value).__name__ in ("list", "TrackedList", "tuple"):
        result = [_copied(v, copies) for v in value]
        return tuple(result) if isinstance(value, tuple) else result
    if isinstance(value, types.MethodType) and id(value.__self__) in copies:
        return getattr(copies[id(value.__self__)], value.__name__)
    if isinstance(value, keras.Variable):
        array = keras.ops.convert_to_numpy(value)
        options = {"trainable": value.trainable, "dtype": value.dtype, "name": value.name}
        copies[id(value)] = keras.Variable(array, **options)
    elif isinstance(value, keras.random.SeedGenerator):
        copies[id(value)] = keras.random.SeedGenerator(0, name=value.name)
        copies[id(value)].state.assign(keras.ops.convert_to_numpy(value.state))
    return copies.get(id(value), value)


def _layer(layer, copies):
    new = type(layer).__new__(type(layer))
    copies[id(layer)] = new
    keras.layers.Layer.__init__(new, name=layer.name, dtype=layer.dtype_policy)
    attributes = vars(layer)
    mine = {*vars(new)}
    for key, value in {**attributes, **attributes.get("_modules", {})}.items():
        if key not in mine:
            setattr(new, key, _copied(value, copies))  # Keras tracks what it holds
        elif isinstance(value, (bool, str, type(None))):
            vars(new)[key] = value
    return new
