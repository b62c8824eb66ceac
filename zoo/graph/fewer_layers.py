"""Models of a class that counts its layers, with fewer of them."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from absl import logging

from zoo.graph.blocks import foreign
from zoo.graph.inline import SIZES, agrees, numbers_of
from zoo.graph.saving import attributes

Keys = tuple[str, ...]  # nested attributes
NESTED = 3  # ours: attributes of attributes to look through, as a layer may refer to its owner


def without_layers(
    model: keras.Model, removed: Sequence[keras.layers.Layer], lesioned: keras.Model
) -> keras.Model | None:
    """Return a model of `model`'s class without some layers of its lists, with its own weights.

    The class has the number of its layers in its configuration, as backbones and tasks of KerasHub
    do. The new model is not compiled, and shares the preprocessor. On random inputs it has the
    outputs of `lesioned`, a model without the `removed` layers. Return None if the class is Keras's
    own, or if there is no such model; then a warning says why.
    """
    if not foreign(model):
        return None
    old = dict(_lists(model))
    kept = {path: [v for v in layers if v not in removed] for path, layers in old.items()}
    kept = {path: layers for path, layers in kept.items() if len(layers) < len(old[path])}
    sizes = {len(old[path]): len(layers) for path, layers in kept.items()}
    reason = "they are in no list of layers that its configuration counts"
    configs = _counted(model.get_config(), *sizes, *sizes.values()) if len(sizes) == 1 else ()
    for config in configs:
        new = _of_config(model, config)
        if new is None or not _take_weights(new, model, kept, removed):
            continue
        probe = numbers_of(lesioned, {}, 0, SIZES)
        if probe is not None and agrees(new, [probe]):
            return new
        reason = "a model with fewer of them computes something else, or nothing of random inputs"
    logging.warning(
        f"{model.name} becomes a plain keras.Model, no {type(model).__name__}, without "
        f"{', '.join(layer.name for layer in removed)}: {reason}."
    )
    return None


def _lists(layer: Any, path: Keys = ()) -> Iterator[tuple[Keys, list[keras.layers.Layer]]]:
    """Yield lists of layers of one class, of a layer or its sub-layers, by path of attributes."""
    attributes = {**vars(layer), **vars(layer).get("_modules", {})}  # PyTorch moves layers there
    for name, value in attributes.items() if len(path) < NESTED else ():
        if isinstance(value, keras.layers.Layer):
            yield from _lists(value, (*path, name))
        elif isinstance(value, list) and len({*map(type, value)}) == 1:
            if isinstance(value[0], keras.layers.Layer):
                yield (*path, name), value


def _counted(config: Any, old: int, new: int) -> Iterator[dict[str, Any]]:
    """Yield copies of a configuration, each with another one of the integers `old` as `new`."""
    for key, value in config.items() if isinstance(config, dict) else ():
        found = [new] if type(value) is int and value == old else _counted(value, old, new)
        yield from ({**config, key: other} for other in found)


def _of_config(model, config):
    """Return a model of another configuration, or None if the class refuses it."""
    try:
        new = type(model).from_config(copy.deepcopy(config))
        if not new.built:
            new.build_from_config(model.get_build_config())
    except Exception:  # noqa: BLE001  # the number may be that of heads
        return None
    if getattr(model, "preprocessor", None) is not None:
        new.preprocessor = model.preprocessor  # with the vocabulary, which no configuration has
    return new


def _take_weights(new, model, kept, removed):
    """Copy weights and what is frozen; return whether the layers left are the new model's."""
    found = dict(_lists(new))
    for path, layers in kept.items():
        if [*map(_constants, layers)] != [*map(_constants, found.get(path, []))]:
            return False
    dropped = {id(weight) for layer in removed for weight in layer.weights}
    weights = [weight for weight in model.weights if id(weight) not in dropped]
    if [weight.shape for weight in weights] != [weight.shape for weight in new.weights]:
        return False
    for weight, other in zip(weights, new.weights, strict=True):
        other.assign(weight)
        other.trainable = weight.trainable
    return True


def _constants(layer):
    """Return the numbers and texts among the arguments of a layer, but its name."""
    known = attributes(layer).items()
    return {k: v for k, v in known if isinstance(v, int | float | str | None) and k != "name"}
