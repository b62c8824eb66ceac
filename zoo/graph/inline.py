"""Replace composite layers, such as transformer blocks, by the calls of their sub-layers."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras
from absl import logging
from keras import tree

from zoo.graph.blocks import candidates, composite, foreign, is_sum
from zoo.graph.calls import Graph, SetMask, functional, symbolic
from zoo.graph.places import Names
from zoo.layers.skip import Skip
from zoo.types import Shape

Selection: TypeAlias = Sequence[str] | Callable[[keras.layers.Layer], bool] | None


def inline(
    model: keras.Model, shapes: Mapping[str, Shape] | None = None, layers: Selection = None
) -> keras.Model:
    """Return a Functional model in which the sub-layers of composite layers are called directly.

    So the sums inside transformer blocks, and inside other layers that call layers, are in the
    graph, where `zoo.blocks.find_blocks` finds them. The model shares `model`'s weights, and its
    outputs are bit-identical. A layer stays whole if it has weights of its own beside those of its
    sub-layers, if its code depends on values or on `training`, or if it is Keras's or the zoo's; a
    warning names those that may hide sums, and has the reason.

    A graph needs names without duplicates: sub-layers of opened layers are renamed, in `model`,
    too, to the name of the layer that holds them and their own (or their attribute's, where they
    have none).

    Args:
        model: A built Functional or Sequential `keras.Model`.
        shapes: Shapes (with the batch) of inputs by name, where code depends on lengths that are
            unknown in `model`, as that of causal masks does.
        layers: Names of the layers to open, or a function of a layer that returns True for these;
            `None`: all that hide blocks.

    Raises:
        ValueError: if there is no input or composite layer of a name, or a named layer cannot be
            opened.

    Example:
    >>> class Sum(keras.layers.Layer):
    ...     def build(self, shape):
    ...         self.dense = keras.layers.Dense(shape[-1], name="dense0")
    ...         self.dense.build(shape)
    ...
    ...     def call(self, x):
    ...         return x + self.dense(x)
    >>> inputs = keras.Input((4,))
    >>> opened = inline(keras.Model(inputs, Sum(name="sum")(inputs)), layers=["sum"])
    >>> [call.name for call in Graph(opened).calls][0]
    'sum_dense0'
    """
    opener = _Opener(layers, Graph(model))
    result = opener.trace(model, dict(shapes or {}))
    if opener.whole(result):
        # Code that reads the batch's size, which is unknown here, can run with size 1.
        other = _Opener(layers, Graph(model))
        names = Graph(model).input_names
        sizes = {name: tuple(t.shape) for name, t in zip(names, result.inputs, strict=True)}
        ones = {name: (shape[0] or 1, *shape[1:]) for name, shape in sizes.items()}
        single = other.trace(model, ones)
        with contextlib.suppress(Exception):  # code that depends on the size has none to be freed
            freed = _rewired(single, sizes, _free_batch)
            same = [t.shape for t in freed.outputs] == [t.shape for t in result.outputs]
            if same and len(other.whole(freed)) < len(opener.whole(result)):
                result, opener = freed, other
    whole = opener.whole(result)
    if whole.keys() & {*opener.named}:
        raise ValueError(f"Expected layers that can be opened. Received: layers={layers}: {whole}")
    for name, reason in whole.items():
        logging.warning("zoo.inline: %s stays whole: %s", name, reason)
    return result


class _Opened(BaseException):  # no Exception: Keras would rewrite it
    """Carries the outputs of an opened layer past the end of `Layer.__call__`."""

    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self.outputs = outputs


class _Training:
    """A value for `training` on which code cannot depend; sub-layers are called without it."""

    def __bool__(self) -> bool:
        raise TypeError("its code depends on `training`")


class _Opener:
    """Calls of layers that leave the nodes of sub-layers, and no node of the layer, in a graph."""

    def __init__(self, selection: Selection, graph: Graph) -> None:
        self.selection = selection
        self.reasons: dict[str, str] = {}  # of layers that stay whole, by name
        self._attempt: Any = None  # the layer that is called to be opened
        self.names = Names(call.layer.name for call in graph.calls)
        self.named = () if selection is None or callable(selection) else tuple(selection)
        known = [layer.name for layer in _layers(graph)]
        missing = [name for name in self.named if name not in known]
        if missing:
            raise ValueError(f"Expected names of the layers {known}. Received: layers={missing}")

    def trace(self, model: keras.Model, shapes: Mapping[str, Shape]) -> keras.Model:
        """Return a model with inputs of other shapes, in which layers are opened."""
        result = model
        while result is model or any(functional(layer) for layer in result.layers):
            # Models inside opened layers are flattened, and their layers opened, in a next round.
            with self.overriding(Graph(result)):
                result = _rewired(result, shapes, symbolic)
        return result

    def whole(self, model: keras.Model) -> dict[str, str]:
        """Return why layers of a model that may hide sums are not opened, by their name."""
        graph = Graph(model)
        layers = {call.name: call.layer.name for call in graph.calls}
        names = [*(layers[name] for name, _ in candidates(graph)[1]), *self.named]
        return {name: self.reasons[name] for name in names if name in self.reasons}

    @contextlib.contextmanager
    def overriding(self, graph: Graph) -> Iterator[None]:
        """Make all layers of a graph, and their sub-layers, call this object."""
        kinds = [(layer, type(layer)) for layer in _layers(graph)]
        try:
            for layer, kind in kinds:
                object.__setattr__(layer, "__class__", self._subclass(kind))
            yield
        finally:
            for layer, kind in kinds:
                object.__setattr__(layer, "__class__", kind)

    def _subclass(self, kind):
        """Return a subclass of a layer's class whose calls on symbolic tensors go through here."""
        opener = self

        def call(layer, *args, **kwargs):
            if not any(isinstance(x, keras.KerasTensor) for x in tree.flatten((args, kwargs))):
                return kind.__call__(layer, *args, **kwargs)
            return opener.call(layer, kind, args, _without_defaults(layer, kwargs))

        def symbolic_call(layer, *args, **kwargs):
            if opener._attempt is not layer:
                return kind.symbolic_call(layer, *args, **kwargs)
            opener._attempt = None
            if "training" in layer._call_signature.parameters:
                kwargs["training"] = _Training()
            raise _Opened(layer.call(*args, **kwargs))

        namespace = {"__call__": call, "symbolic_call": symbolic_call}
        return type(kind.__name__, (kind,), {"__module__": kind.__module__, **namespace})

    def call(self, layer, kind, args, kwargs):
        """Return the outputs of a layer's call on symbolic tensors, opened or whole."""
        if not self._selects(layer):
            return kind.__call__(layer, *args, **kwargs)
        renamed = self.names.rename(layer)
        try:
            outputs = self._open(layer, kind, args, kwargs)
        except Exception as error:
            self.reasons[layer.name] = _sentence(error)
        else:
            if outputs is not None:
                return outputs
        self.names.restore(renamed)
        return kind.__call__(layer, *args, **kwargs)

    def _open(self, layer, kind, args, kwargs):
        """Return the outputs of the calls of sub-layers, or None if they hide no block."""
        own = [v.name for v in (*layer._trainable_variables, *layer._non_trainable_variables)]
        if own:
            raise ValueError(f"it has weights of its own, {own}")
        inputs = [x for x in tree.flatten((args, kwargs)) if isinstance(x, keras.KerasTensor)]
        mask = getattr(inputs[0], "_keras_mask", None)
        if mask is not None and type(layer).compute_mask is not keras.layers.Layer.compute_mask:
            raise ValueError("it changes the mask")
        self._attempt = layer
        try:
            outputs = kind.__call__(layer, *args, **kwargs)
        except _Opened as opened:
            outputs = opened.outputs
        finally:
            self._attempt = None
        tensors = [x for x in tree.flatten(outputs) if isinstance(x, keras.KerasTensor)]
        masks = [m for m in (getattr(x, "_keras_mask", None) for x in inputs) if m is not None]
        if len(tensors) == len(tree.flatten(outputs)):  # no None among them, which no node can have
            ends = {id(x): x for x in (*inputs, *masks)}
            graph = Graph(keras.Function([*ends.values()], tensors))
            if any(None in _newshape(call) for call in graph.calls):
                raise ValueError("it reshapes to a size that is unknown")
            adds = any(is_sum(call.layer) and len(call.sources) > 1 for call in graph.calls)
            hides = candidates(graph)[0] or adds and not layer.weights
            if self.selection is None and not hides:
                return None
        if mask is not None and layer.supports_masking:
            name = self.names.of_mask(layer)
            outputs = tree.map_structure(lambda x: SetMask(name=name)([x, mask]), outputs)
        return outputs

    def _selects(self, layer):
        if functional(layer) is not None or isinstance(layer, Skip):
            return False
        if self.selection is None:
            return foreign(layer) and (composite(layer) or not layer.weights)
        return self.selection(layer) if callable(self.selection) else layer.name in self.named


def _rewired(model, shapes, apply):
    """Return a model whose inputs have other shapes; otherwise as `zoo.calls.rewire`."""
    graph = Graph(model)
    inputs = graph.new_inputs(shapes)
    values = graph.run({**inputs}, apply)
    return graph.new_model(inputs, [values[slot] for slot in graph.outputs])


def _sentence(error):
    """Return what an error says, without what Keras adds."""
    lines = [line.strip() for line in re.sub("\x1b\\[[01]m", "", f"{error}").splitlines()]
    lines = [line for line in lines if line and not line.startswith("Exception encountered")]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _newshape(call):
    """Return the shape that a call reshapes to, or an empty one."""
    return tuple(getattr(call.layer, "newshape", ()))


def _free_batch(call, *args, **kwargs):
    """Apply a call that was traced with one example to any number of examples."""
    if _newshape(call)[:1] == (1,) and args[0].shape[0] is None:
        return keras.ops.reshape(args[0], (-1, *call.shapes[0][1:]))
    return symbolic(call, *args, **kwargs)


def _layers(graph):
    """Return the layers of a graph's calls and their sub-layers, once each."""
    layers = [call.layer for call in graph.calls if isinstance(call.layer, keras.layers.Layer)]
    return [*{id(v): v for layer in layers for v in layer._flatten_layers()}.values()]


def _without_defaults(layer, kwargs):
    """Drop arguments that are None by default: not every `compute_output_spec` knows them."""
    parameters = layer._call_signature.parameters
    return {
        key: value
        for key, value in kwargs.items()
        if not isinstance(value, _Training)
        and (value is not None or key not in parameters or parameters[key].default is not None)
    }
