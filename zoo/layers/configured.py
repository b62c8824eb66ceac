"""The base of the zoo's layers: a configuration made of the constructor's arguments."""

from typing import Any

import keras


class Configured(keras.layers.Layer):
    """A layer whose configuration has the attributes that `arguments` names."""

    arguments: tuple[str, ...] = ()

    def get_config(self) -> dict[str, Any]:
        """Return the layer's configuration."""
        own = {name: _serialized(name, getattr(self, name)) for name in self.arguments}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return a layer of this configuration, with new objects for those in it."""
        nested = {name: v for name, v in config.items() if isinstance(v, (dict, list))}
        new = {name: keras.saving.deserialize_keras_object(v) for name, v in nested.items()}
        return super().from_config({**config, **new})


def _serialized(argument, value):
    if argument == "activation":
        return keras.activations.serialize(value)
    return value if isinstance(value, tuple) else keras.saving.serialize_keras_object(value)
