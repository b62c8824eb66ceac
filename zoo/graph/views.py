"""Trace the code of layers on symbolic tensors, and leave the layers alone."""

import contextlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import keras
from keras import tree

from zoo.backend import keras_private
from zoo.graph.calls import TRACKABLE, Call, Graph, functional, mapped
from zoo.types import Tensor

OF_KERAS = ("_trainable_variables", "_non_trainable_variables")  # attributes of layers


class Views:
    """Copies of layers that pass each call, at any depth, to `answer`.

    Here they compute what the layers do; a subclass may open them.

    A view has the attributes of its layer, the variables themselves, and views of the sub-layers.
    Calling it changes neither its layer nor a class of Keras, so several threads may trace a model
    that others use.
    """

    def __init__(self) -> None:
        self._views: dict[int, Any] = {}
        self._kinds: dict[type, type] = {}

    def answer(self, view: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return the outputs of a call of a view; see `trace`."""
        return run(view, args, kwargs)

    def inside(self, view: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return the outputs of a call in the code of a layer."""
        return self.answer(view, args, kwargs)

    def apply(self, call: Call, *args: Any, **kwargs: Any) -> Any:
        """Call the view of a layer: an `apply` of `Graph.run`."""
        view = self.of(call.layer)
        is_layer = isinstance(call.layer, keras.layers.Layer)
        return self.answer(view, args, kwargs) if is_layer else view(*args, **kwargs)

    def of(self, x: Any) -> Any:
        """Return the view of a layer, always the same one, or a copy of an operation."""
        if id(x) not in self._views:
            is_layer = isinstance(x, keras.layers.Layer)
            view = object.__new__(self._kind(type(x)) if is_layer else type(x))
            self._views[id(x)] = view
            attributes = vars(x).copy()
            for name in ("build", "quantize"):  # Keras wraps these, bound to the layer
                attributes.pop(name, None)
            if is_layer:
                attributes = {name: self._viewed(v) for name, v in attributes.items()}
                attributes |= {"_losses": [], "_loss_ids": set()}
            vars(view).update(attributes, _inbound_nodes=[], _outbound_nodes=[], viewed=x)
        return self._views[id(x)]

    def weight(self, layer: Any, variable: keras.Variable, name: str, x: Tensor) -> Any:
        """Return what the code of `layer` gets for its attribute, a weight, in a call on x."""
        return variable

    @contextlib.contextmanager
    def weights_replaced(self, view: Any, arguments: Any) -> Iterator[None]:
        """Within the context, attributes of a view have `weight` in place of its own weights."""
        layer = view.viewed
        own = {*map(id, keras_private.own_weights(layer))}
        x = next(filter(is_symbolic, tree.flatten(arguments)), None)

        def replaced(value, name):
            if id(value) in own:
                return self.weight(layer, value, name, x)
            return mapped(value, lambda v: replaced(v, name))

        held = {
            name: value
            for name, value in vars(view).items()
            if own and name not in OF_KERAS and not TRACKABLE.match(name)
            if any(id(leaf) in own for _, leaf in leaves(value))
        }

        def numbers():
            found = [leaf for name in held for _, leaf in leaves(vars(view)[name])]
            return [leaf for leaf in found if isinstance(leaf, int | float)]

        before = numbers()
        vars(view).update({name: replaced(value, name) for name, value in held.items()})
        try:
            yield
            if numbers() != before:
                raise ValueError("its code changes its attributes")
        finally:
            vars(view).update(held)

    def _kind(self, kind):
        if kind not in self._kinds:
            inside = self.inside

            def call(view, *args, **kwargs):
                return inside(view, args, kwargs)

            namespace = {"__module__": kind.__module__, "__call__": call}
            self._kinds[kind] = type(kind.__name__, (kind,), namespace)
        return self._kinds[kind]

    def _viewed(self, value):
        if isinstance(value, keras.layers.Layer):
            return self.of(value)
        if isinstance(value, types.MethodType) and isinstance(value.__self__, keras.layers.Layer):
            return types.MethodType(value.__func__, self.of(value.__self__))
        return mapped(value, self._viewed)


def run(view: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return what the layer's own class returns for a call of its view."""
    return type(view).__mro__[1].__call__(view, *args, **kwargs)


def trace(
    views: Views, view: Any, args: tuple, kwargs: dict[str, Any]
) -> tuple[Any, list[keras.KerasTensor]]:
    """Call a view on symbolic tensors and run the layer's code, or a model's graph, on them.

    Keras prepares the arguments of a layer as in any call: precision, masks, context. The code may
    raise anything. The results are the outputs, made by the operations and layers that the code
    calls, and tensors like the flattened outputs, with the masks that Keras gives these.
    """
    layer = view.viewed
    if not layer.built and type(layer).build is not keras.layers.Layer.build:
        raise ValueError(f"{layer.name} is not built: call the model on data first")
    if functional(layer) is not None:
        outputs = Graph(layer).call(args[0] if args else kwargs["inputs"], views.apply)
        return outputs, tree.flatten(outputs)
    found: list[Any] = []

    def symbolic_call(*args, **kwargs):
        with views.weights_replaced(view, (args, kwargs)):
            found.append(view.call(*args, **kwargs))
        tensors = [x for x in tree.flatten(found[0]) if is_symbolic(x)]
        return [keras.KerasTensor(x.shape, x.dtype) for x in tensors]

    vars(view)["symbolic_call"] = symbolic_call
    try:
        like = run(view, args, kwargs)
    finally:
        del vars(view)["symbolic_call"]
    return found[0], like


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Yield pairs of a path and a leaf; unlike in `tree`, keys of dictionaries need no order."""
    value = getattr(value, "__wrapped__", value)
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, item in value.items():
        yield from leaves(item, (*path, key))


def is_symbolic(x: Any) -> bool:
    """Return True for a symbolic tensor, or a structure with one."""
    return any(isinstance(v, keras.KerasTensor) for v in tree.flatten(x))
