"""Names of the sub-layers of opened layers, which do not depend on what else was built."""

import itertools
from collections.abc import Iterable
from typing import Any

import keras
from keras import tree

from zoo.graph.calls import auto_named, stem


class Names:
    """Names without duplicates, by place: of the owner, and of the sub-layer or its attribute.

    Args:
        taken: Names that are used.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {*taken}
        self._places: dict[int, str] = {}  # what the names of a layer's sub-layers begin with

    def rename(self, layer: keras.layers.Layer) -> list[tuple[Any, str]]:
        """Name the sub-layers of a layer by place; return pairs of sub-layer and old name."""
        place = self._place(layer)
        renamed = []
        for key, sublayer in _attributes(layer):
            if not sublayer.name.startswith(f"{place}_"):
                own = key if auto_named(sublayer) else sublayer.name
                renamed.append((sublayer, sublayer.name))
                sublayer.name = self._unique(f"{place}_{own}")
        return renamed

    def restore(self, renamed: list[tuple[Any, str]]) -> None:
        """Undo `rename`."""
        for sublayer, name in renamed:
            self._taken.discard(sublayer.name)
            sublayer.name = name

    def of_mask(self, layer: keras.layers.Layer) -> str:
        """Return a name for one more layer, which sets the mask of a layer's output."""
        return self._unique(f"{self._place(layer)}_mask")

    def _place(self, layer):
        if id(layer) not in self._places:
            name = stem(layer.name) if auto_named(layer) else layer.name
            taken = {*self._places.values()}
            numbered = (f"{name}_{number}" for number in itertools.count(1))
            free = (place for place in itertools.chain([name], numbered) if place not in taken)
            self._places[id(layer)] = next(free)
        return self._places[id(layer)]

    def _unique(self, name):
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _attributes(layer):
    """Return pairs of an attribute's name and the sub-layer in it."""
    found = {}
    attributes = vars(layer)
    for name, value in {**attributes, **attributes.get("_modules", {})}.items():
        if name in ("_layers", "_modules"):
            continue
        for path, leaf in tree.flatten_with_path(value):
            if isinstance(leaf, keras.layers.Layer):
                key = "_".join([name, *map(str, path)]).strip("_")
                found[id(leaf)] = key, leaf  # the last: TensorFlow's own attributes are first
    return [*found.values()]
