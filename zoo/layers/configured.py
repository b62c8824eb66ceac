"""Bases of the zoo's layers: configurations of the constructor's arguments, scanned stacks."""

import inspect
from collections.abc import Callable
from typing import Any

import keras

from zoo.checks import require


class Configured(keras.layers.Layer):
    """A layer whose configuration has the attributes that `arguments` names.

    They are the arguments of its constructor and those of the class it inherits from, unless it
    lists them itself.
    """

    arguments: tuple[str, ...] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "arguments" not in vars(cls):
            _, *parameters = inspect.signature(cls.__init__).parameters.values()
            named = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
            cls.arguments = tuple(dict.fromkeys([*cls.arguments, *named]))

    def get_config(self) -> dict[str, Any]:
        """Return the layer's configuration."""
        known = [name for name in self.arguments if hasattr(self, name)]
        own = {name: _serialized(name, getattr(self, name)) for name in known}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return a layer of this configuration, with new objects for those in it.

        Layers, which are in no file's configuration as they are, are copied.
        """
        layers = {name: v for name, v in config.items() if isinstance(v, keras.layers.Layer)}
        config = {**config, **keras.saving.serialize_keras_object(layers)}
        nested = {name: v for name, v in config.items() if isinstance(v, (dict, list))}
        new = {name: keras.saving.deserialize_keras_object(v) for name, v in nested.items()}
        return super().from_config({**config, **new})


class Scanned(keras.layers.Layer):
    """Base of scanned stacks: `depth` equal parts, each with weights of its own."""

    def rematerialized_call(self, layer_call: Callable, *args, **kwargs) -> Callable:
        """Return `layer_call`, because the scan rematerializes each part."""
        return layer_call

    def check_built(self) -> None:
        """Raise ValueError unless there are weights, which `to_layers` copies."""
        expected = "built, as `to_layers` copies weights: call it, or build it with a shape, first"
        require(self.built, expected, layer=self.name)


def _serialized(argument, value):
    if argument == "activation":
        return keras.activations.serialize(value)
    return value if isinstance(value, tuple) else keras.saving.serialize_keras_object(value)
