"""A Functional model as a list of layer calls that can be run, replaced and copied."""

import collections
import dataclasses
import functools
import itertools
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
from keras import tree

from zoo.backend import keras_private
from zoo.checks import check_model, fits, require
from zoo.types import Shape, Tensor

Values: TypeAlias = dict[int, Tensor]  # tensors by slot
Apply: TypeAlias = Callable[..., Any]  # a `Call` and its arguments -> its outputs
# set by `Layer.__init__` or `__new__`, but kept
SHARED = ("_input_spec", "_remat_mode", "_build_shapes_dict", "_auto_config")

CONTAINERS: dict[str, Any] = {"list": list, "TrackedList": list, "tuple": tuple}
CONTAINERS |= {"set": set, "TrackedSet": set}


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a layer (or operation) in a graph.

    Its name is the layer's, with the names of enclosing models before it and "#1", "#2" after it
    for its second and third call. `inputs` are pairs of a key of `arguments` and the slot that
    holds its value, `masks` of a key and the slot whose mask is its value.
    """

    index: int  # in `Graph.calls`
    name: str
    layer: Any
    arguments: Any  # as Keras recorded them
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[int, ...]  # slots of the flattened outputs
    shapes: tuple[Shape, ...]  # of the outputs
    masks: tuple[tuple[int, int], ...] = ()

    @property
    def sources(self) -> tuple[int, ...]:
        """Slots that the call reads, in the order of its arguments."""
        return tuple(slot for _, slot in self.inputs)


def infer(call: Call, *args: Any, **kwargs: Any) -> Any:
    """Call the layer in inference mode: the `apply` for values that are not symbolic."""
    return call.layer(*args, **keras_private.with_training(call.layer, kwargs, False))


def symbolic(call: Call, *args: Any, **kwargs: Any) -> Any:
    """Call the layer as it is: the `apply` for symbolic values."""
    return call.layer(*args, **kwargs)


# attributes that TensorFlow sets on layers, and no others such as `_self_attention`
TRACKABLE = re.compile("_self_(setattr|unconditional|update_uid|name_based|saveable|tracked)")
# modules of Keras's layers that return what their attribute `activation` does
ACTIVATED = re.compile(r"keras\.src\.layers\.(core\.(einsum_)?dense|convolutional|activations)")


class Graph:
    """The layer calls of a built Functional or Sequential model, in the order in which they run.

    Nested models are flattened. Every tensor of the model has a slot, an integer; running the graph
    fills a dictionary of slots. The layers are not changed, and the weights are the model's.

    `inputs` and `outputs` are slots of the flattened inputs and outputs, `input_names` those of the
    inputs, `shapes` by slot, with the batch. `masked` is True if a tensor has a Keras mask.

    Raises:
        ValueError: if the model is subclassed or not built, or no model.

    Example:
    >>> inputs = keras.Input((4,))
    >>> graph = Graph(keras.Model(inputs, keras.layers.Dense(2, name="top")(inputs)))
    >>> [(call.name, call.outputs, call.shapes) for call in graph.calls]
    [('top', (1,), ((None, 2),))]
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = functional(model)
        self._name = getattr(model, "name", None)  # a Sequential's graph has another
        if self.model is None:
            check_model(model)
            raise ValueError(
                f"Expected a Functional model of Keras or a built Sequential one, which have a "
                f"graph. Received: {type(model).__name__} {self._name!r}. A subclassed model has "
                f"one by zoo.graph.inline(keras.Model(i, model(i))), i = keras.Input(shape)."
            )
        self.calls: list[Call] = []
        self.masked = False
        self._next_slot = itertools.count()
        self._num_uses: dict[int, int] = {}
        self._prefixes: dict[str, Any] = {}
        slots = {id(tensor): next(self._next_slot) for tensor in self.model.inputs}
        self.inputs = [*slots.values()]
        self.input_names = _input_names(self.model)
        self.outputs = self._flatten(self.model, slots, "")
        needed = {call.index for slot in self.outputs for call in calls_before(slot, self.calls)}
        kept = [call for call in self.calls if call.index in needed]  # without those of masks
        self.calls = [dataclasses.replace(call, index=i) for i, call in enumerate(kept)]
        self._names = {call.layer.name for call in self.calls}
        shapes = [tuple(tensor.shape) for tensor in self.model.inputs]
        self.shapes = dict(zip(self.inputs, shapes, strict=True))
        for call in self.calls:
            self.shapes |= zip(call.outputs, call.shapes, strict=True)
        last = {slot: call.index for call in self.calls for slot in call.sources}
        self._last_readers = last | dict.fromkeys(self.outputs)  # indices; of outputs None

    def _flatten(self, model, slots, prefix, training=None):
        nodes = keras_private.nodes_by_depth(model)
        for depth in sorted(nodes, reverse=True):
            for node in nodes[depth]:
                if node.is_input:
                    continue
                inner = functional(node.operation)
                fixed = node.arguments.kwargs.get("training") if training is None else training
                if inner is None or _has_own_mask(node):
                    outputs = self._add(node, slots, prefix, training)
                else:
                    args, kwargs = node.arguments.args, node.arguments.kwargs
                    given = _in_order(inner, args[0] if args else kwargs["inputs"])
                    pairs = zip(given, inner.inputs, strict=True)
                    sources = [self._cast(t, v.dtype, slots, prefix) for t, v in pairs]
                    inner_slots = dict(zip(map(id, inner.inputs), sources, strict=True))
                    name = self._prefix(prefix, node.operation)
                    outputs = self._flatten(inner, inner_slots, name, fixed)
                slots.update(zip(map(id, node.outputs), outputs, strict=True))
        return [slots[id(tensor)] for tensor in model.outputs]

    def _cast(self, tensor, dtype, slots, prefix):
        """Return the slot of a nested model's input, in the dtype to which the model casts it."""
        if tensor.dtype == dtype:
            return slots[id(tensor)]
        source = keras.KerasTensor(tensor.shape, tensor.dtype)  # no node of the user's layers
        slots[id(source)] = slots[id(tensor)]
        node = keras_private.node_of(keras.ops.cast(source, dtype)._keras_history)
        (slot,) = self._add(node, slots, prefix, None)
        return slot

    def _prefix(self, prefix, model):
        """Return what the names of a nested model's calls begin with."""
        name = f"{prefix}{stem(model.name) if auto_named(model) else model.name}"
        while self._prefixes.setdefault(name, model) is not model:
            name += "_"
        return f"{name}/"

    def _add(self, node, slots, prefix, training):
        layer = node.operation
        arguments = node.arguments
        if training is not None:  # a model's is that of its layers
            kwargs = keras_private.with_training(layer, arguments.kwargs, training)
            arguments = type(arguments)(*arguments.args, **kwargs)
        tensors = [] if isinstance(layer, Weight) else node.arguments.keras_tensors
        masks = {id(keras_private.get_keras_mask(t)): t for t in tensors}
        masks.pop(id(None), None)
        # Masks are those of the inputs when the layer is called: with slots of their own they would
        # bypass the blocks.
        read = [t for t in tensors if id(t) not in masks]
        self.masked |= len(masks) > 0
        use = self._num_uses.get(id(layer), 0)
        self._num_uses[id(layer)] = use + 1
        call = Call(
            index=len(self.calls),
            name=f"{prefix}{layer.name}" + (f"#{use}" if use else ""),
            layer=layer,
            arguments=arguments,
            inputs=tuple((id(t), slots[id(t)]) for t in read),
            outputs=tuple(next(self._next_slot) for _ in node.outputs),
            shapes=tuple(tuple(tensor.shape) for tensor in node.outputs),
            masks=tuple((key, slots[id(t)]) for key, t in masks.items()),
        )
        self.calls.append(call)
        return call.outputs

    def start(self, x: Any) -> Values:
        """Return inputs in the structure that the model takes as tensors by slot, for `run`."""
        flat = _in_order(self.model, x)
        expected = f"one for each of {self.input_names}. A list of data is a list of batches: give "
        expected += "a dictionary, or for inputs without labels a tuple of one list, ([a, b],)"
        require(len(flat) == len(self.inputs), expected, number_of_inputs=len(flat))
        return {
            slot: _as_tensor(value, like)
            for slot, value, like in zip(self.inputs, flat, self.model.inputs, strict=True)
        }

    def call(self, x: Any, apply: Apply = infer) -> Any:
        """Return the model's outputs, in their structure, for inputs as in `start`."""
        values = self.run(self.start(x), apply)
        return tree.pack_sequence_as(self.model.output, [values[slot] for slot in self.outputs])

    def run(
        self,
        values: Values,
        apply: Apply = infer,
        calls: Iterable[Call] | None = None,
        keep: bool = False,
    ) -> Values:
        """Run calls, or all, one after the other; update `values`, by slot, and return them.

        `apply`, a function of a `Call` and its arguments, returns the outputs.
        Without `keep`, slots that no later call reads are dropped.
        """
        for call in self.calls if calls is None else calls:
            masks = {slot: keras_private.get_keras_mask(values[slot]) for slot in call.sources}
            read = {key: values[slot] for key, slot in call.inputs}
            read |= {key: keras_private.get_keras_mask(values[slot]) for key, slot in call.masks}
            if isinstance(call.layer, Weight):
                args, kwargs = (next(v for v in values.values() if v is not None),), {}
            else:
                args, kwargs = call.arguments.fill_in(read)
            outputs = tree.flatten(apply(call, *args, **kwargs))
            # `MultiHeadAttention` takes the masks off its inputs, which other layers read, too.
            for slot, mask in masks.items():
                if mask is not None:
                    keras_private.set_keras_mask(values[slot], mask)
            if not isinstance(call.layer, keras.layers.Layer):
                _mark_dense(outputs, tree.flatten((args, kwargs)))
            values.update(zip(call.outputs, outputs, strict=True))
            for slot in () if keep else call.sources:
                if self._last_readers[slot] == call.index:
                    values.pop(slot, None)
        return values

    def keep_mask(self, source: Tensor, tensor: Tensor) -> Tensor:
        """Return `tensor` with the mask of `source`, which operations outside of layers drop."""
        return KeepMask()(source, tensor) if self.masked else tensor

    def drop_mask(self, tensor: Tensor) -> Tensor:
        """Return `tensor` without a mask."""
        return DropMask()(tensor) if self.masked else tensor

    def new_inputs(self, shapes: Mapping[str, Shape] | None = None) -> Values:
        """Return new symbolic inputs by slot, of the model's shapes or of `shapes`, batch included.

        Raises:
            ValueError: if there is no input of a name.
        """
        shapes = shapes or {}
        known = isinstance(shapes, Mapping) and {*shapes} <= {*self.input_names}
        require(known, f"a dictionary by names of the inputs {self.input_names}", shapes=shapes)
        inputs = {}
        for slot, name, like in zip(self.inputs, self.input_names, self.model.inputs, strict=True):
            optional = keras_private.is_optional(like)
            options = {"dtype": like.dtype, "name": like.name, "optional": optional}
            inputs[slot] = keras.Input(batch_shape=shapes.get(name, like.shape), **options)
        return inputs

    def new_name(self, name: str) -> str:
        """Return a name for one more layer, like `name`, that no other has."""
        return unused(re.sub("[/#]", "_", name), self._names)

    def new_model(self, inputs: Values, outputs: Sequence[Tensor]) -> keras.Model:
        """Return a model from `new_inputs` to flattened outputs, in the old model's structure.

        Raises:
            ValueError: if layers of nested models have one name, which a flat model cannot have.
        """
        layers = {id(call.layer): call.layer.name for call in self.calls}
        twice = [n for n, count in collections.Counter(layers.values()).items() if count > 1]
        try:
            return keras.Model(
                tree.pack_sequence_as(self.model.input, [*inputs.values()]),
                tree.pack_sequence_as(self.model.output, outputs),
                name=self._name,
            )
        except ValueError as error:
            if not twice:
                raise
            raise ValueError(
                f"Expected layers with names of their own, as nested models are flattened. "
                f"Received: {self.model.name!r}, in which several layers are called {twice[0]!r} "
                f"({len(twice)} such names). Rename them in one model: `layer.name = ...`."
            ) from error

    def after(self, slot: int) -> list[Call]:
        """Return the calls that depend on a slot's value, in running order."""
        reached = {slot}
        calls = []
        for call in self.calls:
            if reached.intersection(call.sources):
                reached.update(call.outputs)
                calls.append(call)
        return calls

    def between(self, first: int, last: int) -> list[Call]:
        """Return the calls on the paths from slot `first` to slot `last`, in running order.

        With them are the weights that they read.
        """
        calls = calls_before(last, self.after(first))
        read = reads(calls)
        weights = [c for c in self.calls if isinstance(c.layer, Weight) and c.outputs[0] in read]
        return sorted([*calls, *weights], key=lambda call: call.index)


class _OfMasks(keras.layers.Layer):
    """A layer that changes masks alone, and not the dtype of a tensor to that of its policy."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True


@keras.saving.register_keras_serializable("zoo")
class KeepMask(_OfMasks):
    """The second of two tensors, with the mask of the first."""

    def call(self, source: Tensor, tensor: Tensor) -> Tensor:
        """Return `tensor`; Keras adds the mask."""
        return tensor


@keras.saving.register_keras_serializable("zoo")
class DropMask(_OfMasks):
    """A tensor without its mask."""

    def call(self, x: Tensor) -> Tensor:
        """Return a copy, to which Keras adds no mask."""
        return keras.ops.copy(x)

    def compute_mask(self, x: Tensor, previous_mask: Any) -> None:
        """Return None."""


@keras.saving.register_keras_serializable("zoo")
class SetMask(_OfMasks):
    """The first of two tensors, with the second as its mask."""

    def call(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the first tensor; Keras adds the mask."""
        return tensors[0]

    def compute_mask(self, tensors: Sequence[Tensor], previous_mask: Any) -> Tensor:
        """Return the second tensor."""
        return tensors[1]


@keras.saving.register_keras_serializable("zoo")
class Weight(keras.layers.Layer):
    """A weight of a layer whose code is in the graph, whatever the input; `Graph` gives it none.

    `options` are arguments of `add_weight`, without the initializer, which Keras forgets.
    """

    def __init__(self, options: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.options = options
        self.weight: Any = None

    def build(self, shape: Any) -> None:
        """Create the weight, unless it is another layer's."""
        if self.weight is None:
            self.weight = self.add_weight(**self.options)

    def call(self, x: Tensor) -> Tensor:
        """Return the weight, in its own precision."""
        return keras.ops.convert_to_tensor(self.weight)

    def compute_mask(self, x: Tensor, previous_mask: Any) -> None:
        """Return None."""

    def get_config(self) -> dict[str, Any]:
        """Return the layer's configuration."""
        return {**super().get_config(), "options": {**self.options}}


def calls_before(slot: int, calls: Sequence[Call]) -> list[Call]:
    """Return those of `calls` on which a slot's value depends, in running order."""
    needed = {slot}
    selected = []
    for call in reversed(calls):
        if needed.intersection(call.outputs):
            needed.update(call.sources)
            selected.append(call)
    return selected[::-1]


def reads(calls: Iterable[Call]) -> set[int]:
    """Return the slots that calls read."""
    return {slot for call in calls for slot in call.sources}


def made(calls: Iterable[Call]) -> set[int]:
    """Return the slots that calls fill."""
    return {slot for call in calls for slot in call.outputs}


def activation_of(call: Call | None) -> str | None:
    """Return "softmax" or "sigmoid" if one of them makes a call's output, else None."""
    if call is None:
        return None
    layer = call.layer
    if type(layer).__name__ in ("Softmax", "Sigmoid"):  # the layer, and the operation
        last = getattr(layer, "axis", -1) in (-1, len(call.shapes[0]) - 1)
        return type(layer).__name__.lower() if last else None
    if not any(ACTIVATED.search(kind.__module__) for kind in type(layer).__mro__):
        return None  # its activation may be inside, as that of attention pooling
    names = {keras.activations.softmax: "softmax", keras.activations.sigmoid: "sigmoid"}
    return names.get(getattr(layer, "activation", None))


def _input_names(model):
    return [tensor.name.split("/")[-1] for tensor in model.inputs]


def _has_own_mask(node):
    """Return True if a call was given a mask that is not that of its inputs."""
    masks = [mask for mask in tree.flatten(node.arguments.kwargs.get("mask")) if mask is not None]
    implicit = {id(keras_private.get_keras_mask(t)) for t in node.arguments.keras_tensors}
    return not {*map(id, masks)} <= implicit


def _in_order(model, x):
    """Return inputs in a structure that a model takes in the order of its flattened inputs."""
    if isinstance(x, dict):
        keyed = isinstance(model.input, dict)
        names = sorted(model.input) if keyed else _input_names(model)
        if {*names} <= {*x}:
            x = [x[name] for name in names]
        elif _is_flat(x) and _is_flat(model.input):
            raise ValueError(f"Expected a dictionary with the inputs {names}. Received: {[*x]}.")
    return tree.flatten(x)


def _is_flat(structure):
    values = structure.values() if isinstance(structure, dict) else structure
    return not tree.is_nested(structure) or not any(map(tree.is_nested, values))


def _as_tensor(value, like):
    """Return a value in the dtype of an input and, as `fit`, with its last axis of 1 or without."""
    if value is None:  # of an optional input
        return None
    dtype = getattr(value, "dtype", None)
    valid = like.dtype == "string" or getattr(dtype, "kind", "") not in ("O", "S", "U")
    require(valid, f"that of numbers. Convert the inputs: x.astype({like.dtype!r})", dtype=dtype)
    if not isinstance(value, keras.KerasTensor):
        value = keras.ops.convert_to_tensor(value, dtype=like.dtype)
    if len(value.shape) == len(like.shape) - 1 and like.shape[-1] == 1:
        value = keras.ops.expand_dims(value, -1)
    elif len(value.shape) == len(like.shape) + 1 and value.shape[-1] == 1:
        value = keras.ops.squeeze(value, -1)
    if not isinstance(value, keras.KerasTensor):  # those of `shapes` may be others
        expected = f"the model's, {tuple(like.shape)}: give data as it was trained on, in batches"
        require(fits(value.shape[1:], like.shape[1:]), expected, shape=tuple(value.shape))
    return value if value.dtype == like.dtype else keras.ops.cast(value, like.dtype)


def _mark_dense(outputs, inputs):
    """Undo that Keras marks a product of a symbolic tensor and an array as sparse."""
    if not any(getattr(x, "sparse", False) is True for x in inputs):
        for x in outputs:
            if isinstance(x, keras.KerasTensor):
                x._sparse = False


def rewire(
    model: keras.Model, apply: Apply = symbolic, shapes: Mapping[str, Shape] | None = None
) -> keras.Model:
    """Return a model of the same layers in a new graph; it shares `model`'s weights.

    `model` is a Functional or built Sequential model, nested ones are flattened. `apply` is a
    function of a `Call` and its symbolic arguments that returns the outputs; `call.layer(*args,
    **kwargs)` leaves the call as it is. `shapes` are those of `Graph.new_inputs`. Each rewiring
    leaves a node on every layer, so reuse its result.

    Raises:
        ValueError: if `model` is not a graph of layers; see `Graph`.

    Example:
    >>> inputs = keras.Input((4,))
    >>> x = keras.layers.Dense(4, name="hidden")(inputs)
    >>> model = keras.Model(inputs, keras.layers.Dense(2, name="top")(x))
    >>> shorter = rewire(model, lambda call, x: x if call.name == "hidden" else call.layer(x))
    >>> [layer.name for layer in shorter.layers[1:]]
    ['top']
    """
    graph = Graph(model)
    inputs = graph.new_inputs(shapes)
    values = graph.run({**inputs}, apply)
    return graph.new_model(inputs, [values[slot] for slot in graph.outputs])


def rebuild(
    model: keras.Model, replace: Callable[[Call], Callable[..., Any] | None] | None = None
) -> keras.Model:
    """Return a copy of a model with weights of its own, some of its calls replaced.

    Copied are a layer's attributes (layers, variables, seed generators and containers of these),
    not its configuration, which layers of other libraries may return incomplete. `model` is as in
    `rewire`. `replace` returns what to call instead of a `Call`, such as a layer, or None to copy
    the layer; `replace=None` copies all.

    Raises:
        ValueError: if `model` is not a graph of layers; see `Graph`.
    """
    copies: dict[int, Any] = {}

    def own(value):
        return _copied(value, copies) if isinstance(value, keras.Variable) else value

    def apply(call, *args, **kwargs):
        args, kwargs = tree.map_structure(own, (args, kwargs))  # a tied kernel, for example
        new = replace(call) if replace else None
        if new is None:
            is_layer = isinstance(call.layer, keras.layers.Layer)
            new = _copied(call.layer, copies) if is_layer else call.layer
        return new(*args, **kwargs)

    return rewire(model, apply)


def alias(layer: keras.layers.Layer, name: str) -> keras.layers.Layer:
    """Return a layer of another name that shares a built layer's weights and sub-layers."""
    return _layer(layer, name, {}, deep=False)


def _copied(value: Any, copies: dict[int, Any], deep: bool = True) -> Any:
    """Return a copy of an attribute; `copies` has those made before, by the original's id."""
    if id(value) in copies:
        return copies[id(value)]
    owner = value.__self__ if isinstance(value, types.MethodType) else None
    if id(owner) in copies or deep and isinstance(owner, keras.layers.Layer):
        return types.MethodType(value.__func__, _copied(owner, copies))
    if not deep:
        return value
    if isinstance(value, keras.Function):
        expected = "one without a `call` of its own, to be copied inside of a layer"
        require(functional(value) is not None, expected, model=value)
        own = functools.partial(_copied, copies=copies)
        copies[id(value)] = keras.models.clone_model(value, clone_function=own)
    elif isinstance(value, keras.layers.Layer):
        _layer(value, value.name, copies, deep)
    elif isinstance(value, keras.Variable):
        copies[id(value)] = keras_private.copy_variable(value)
    elif isinstance(value, keras.random.SeedGenerator):
        copies[id(value)] = keras.random.SeedGenerator(0, name=value.name)
        copies[id(value)].state.assign(keras.ops.convert_to_numpy(value.state))
    else:
        new = mapped(value, lambda v: _copied(v, copies))
        if new is value:
            _refuse_hidden(value)
        return new
    return copies[id(value)]


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a container with a function's results for what is in it; other values as they are."""
    if isinstance(value, dict):
        return {key: function(v) for key, v in value.items()}
    if isinstance(value, types.SimpleNamespace):
        return types.SimpleNamespace(**function(vars(value)))
    if isinstance(value, functools.partial):
        args, keywords = function(value.args), function(value.keywords)
        return functools.partial(function(value.func), *args, **keywords)
    kind = value.__class__  # TensorFlow wraps tuples in another type
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*map(function, value))
    kind = CONTAINERS.get(kind.__name__)
    return value if kind is None else kind(map(function, value))


def _refuse_hidden(value):
    """Raise ValueError for a function or an object in which a copy would find the old layers."""
    is_module = hasattr(value, "named_parameters") and not isinstance(value, type)
    expected = "a Keras layer, which can be copied, and not a PyTorch module inside of a layer"
    require(not is_module, expected, attribute=type(value))  # as of a `TorchModuleWrapper`
    cells = getattr(value, "__closure__", None) or ()
    held = [cell.cell_contents for cell in cells if cell != types.CellType()]
    held += [getattr(value, name, None) for name in ("__defaults__", "__kwdefaults__")]
    module = type(value).__module__.split(".")[0]
    if module not in ("keras", "builtins", "numpy", "tensorflow", "torch", "jax"):
        held += getattr(value, "__dict__", {}).values()
    for one in tree.flatten(held):
        if isinstance(one, types.FunctionType) and one is not value:
            _refuse_hidden(one)
        if isinstance(one, keras.layers.Layer | keras.Variable):
            raise ValueError(
                f"Expected a layer's sub-layers as attributes of it, or in lists or dictionaries, "
                f"where a copy finds them. Received: {one.name} in {value!r}."
            )


def _layer(layer, name, copies, deep):
    new = type(layer).__new__(type(layer))
    copies[id(layer)] = new
    options = {"dtype": layer.dtype_policy, "activity_regularizer": layer.activity_regularizer}
    keras.layers.Layer.__init__(new, name=name, **options)
    frozen = [_copied(v, copies, deep) for v in keras_private.frozen_weights(layer)]
    for variable in frozen:  # Keras tracks a variable by what it is now, and later cannot train it
        variable.trainable = True
    mine = {*vars(new), "_torch_params"}  # PyTorch's parameters are found from the variables
    for key, value in {**vars(layer), **vars(layer).get("_modules", {})}.items():
        if TRACKABLE.match(key):  # TensorFlow finds what is set below
            continue
        if key == "_functional":  # the graph of a Sequential, which tracks its layers instead
            layers = [_copied(v, copies, deep) for v in keras_private.held_layers(layer)]
            keras_private.held_layers(new).extend(layers)
            vars(new)[key] = _copied(value, copies, deep)
        elif key not in mine and _untracked(value, layer):  # as the states of a recurrent layer
            vars(new)[key] = _copied(value, copies, deep)
        elif key not in mine:
            setattr(new, key, _copied(value, copies, deep))  # Keras tracks what it holds
        elif isinstance(value, (bool, str, type(None))) and key != "name" or key in SHARED:
            vars(new)[key] = value
    for variable in frozen:
        variable.trainable = False
    return new


def _untracked(value, layer):
    """Return True if a value has variables, of which the layer tracks none."""
    found = {id(v) for v in tree.flatten(value) if isinstance(v, keras.Variable)}
    return bool(found) and found.isdisjoint(map(id, keras_private.own_weights(layer)))


def functional(x: Any) -> Any:
    """Return the graph of `x`, itself or a Sequential's, or None.

    A model with a `call` of its own may compute something else than its graph, and has none.
    """
    if not isinstance(x, keras.Operation) or not type(x).call.__module__.startswith("keras.src."):
        return None
    x = getattr(x, "_functional", None) or x
    return x if isinstance(x, keras.Function) else None


def unused(name: str, taken: set[str]) -> str:
    """Return a name like `name` that is not taken, and take it."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def auto_named(layer: Any) -> bool:
    """Return True if Keras named the layer, by its class and the layers built before it."""
    return stem(layer.name).replace("_", "") == type(layer).__name__.lower()


def stem(name: str) -> str:
    """Return a name without the number that Keras appends."""
    return re.sub(r"_\d+$", "", name)
