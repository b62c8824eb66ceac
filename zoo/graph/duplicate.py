"""Copy a layer, with or without its weights, whatever its configuration says."""

import types
from typing import Any

import keras

SHARED = ("_input_spec", "_remat_mode", "_build_shapes_dict")  # set by `Layer.__init__`, but kept


def duplicate(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Return a copy of a built layer with weights of its own.

    Attributes are copied, and not the configuration, which layers of other libraries may lack or
    return incomplete. Layers, variables, seed generators and containers of these are copied; other
    attributes are shared.
    """
    return _layer(layer, layer.name, {}, deep=True)


def alias(layer: keras.layers.Layer, name: str) -> keras.layers.Layer:
    """Return a layer of another name that shares a built layer's weights and sub-layers."""
    return _layer(layer, name, {}, deep=False)


def _copied(value: Any, copies: dict[int, Any], deep: bool) -> Any:
    """Return a copy of an attribute; `copies` has those made before, by the original's id."""
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, types.MethodType) and id(value.__self__) in copies:
        return getattr(copies[id(value.__self__)], value.__name__)
    if not deep:
        return value
    if isinstance(value, keras.layers.Layer):
        return _layer(value, value.name, copies, deep)
    if isinstance(value, dict):
        return {key: _copied(v, copies, deep) for key, v in value.items()}
    if type(value).__name__ in ("list", "TrackedList", "tuple"):
        result = [_copied(v, copies, deep) for v in value]
        return tuple(result) if isinstance(value, tuple) else result
    if isinstance(value, keras.Variable):
        array = keras.ops.convert_to_numpy(value)
        options = {"trainable": value.trainable, "dtype": value.dtype, "name": value.name}
        new = keras.Variable(array, **options)
        new.regularizer, new.constraint = value.regularizer, value.constraint
        copies[id(value)] = new
    elif isinstance(value, keras.random.SeedGenerator):
        copies[id(value)] = keras.random.SeedGenerator(0, name=value.name)
        copies[id(value)].state.assign(keras.ops.convert_to_numpy(value.state))
    return copies.get(id(value), value)


def _layer(layer, name, copies, deep):
    new = type(layer).__new__(type(layer))
    copies[id(layer)] = new
    options = {"dtype": layer.dtype_policy, "activity_regularizer": layer.activity_regularizer}
    keras.layers.Layer.__init__(new, name=name, **options)
    attributes = vars(layer).copy()
    mine = {*vars(new), "_torch_params"}  # PyTorch's parameters are found from the variables
    for key, value in {**attributes, **attributes.get("_modules", {})}.items():
        if key not in mine:
            setattr(new, key, _copied(value, copies, deep))  # Keras tracks what it holds
        elif isinstance(value, (bool, str, type(None))) and key != "name" or key in SHARED:
            vars(new)[key] = value
    return new
