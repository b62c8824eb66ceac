"""Replace composite layers, such as transformer blocks, by the calls of their sub-layers."""

import contextlib
import inspect
import itertools
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from absl import logging
from keras import ops, tree

from zoo.backend import keras_private
from zoo.graph.blocks import candidates, composite, foreign, is_sum
from zoo.graph.calls import (
    Graph,
    SetMask,
    Weight,
    alias,
    auto_named,
    functional,
    rewire,
    stem,
    unused,
)
from zoo.graph.saving import warn_of_training
from zoo.graph.views import Views, is_symbolic, leaves, run, trace
from zoo.types import Shape, Tensor

# Inputs, pairs of a variable and its value, and the outputs.
Probe: TypeAlias = tuple[list[Tensor], list[tuple[keras.Variable, Tensor]], list[np.ndarray]]
SIZES = ((2, 3), (2, 64))  # ours: of batch and lengths to try; some networks need longer inputs
_LOCK = threading.Lock()  # Keras numbers the calls of a layer, those that stay whole, without one


def inline(model: keras.Model, shapes: Mapping[str, Shape] | None = None) -> keras.Model:
    """Return a Functional model in which the sub-layers of composite layers are called directly.

    So `zoo.graph.find_blocks` finds the sums inside them. The model shares `model`'s weights, and
    its outputs are bit-identical; `model` and its layers do not change. A layer stays whole if it
    is Keras's or the zoo's, or if its trace does not hold all that it does: it draws random
    numbers, uses a sub-layer's weights without calling it, or not at all, changes weights or
    attributes, adds losses, sets `training`, or its code depends on values or on `training`. Code
    is traced three times, `training` being None, True and False, the last time with other weights,
    seeds and another size of the batch; if it computes other constants, the layer stays whole.
    Finally both models are run with other weights on random inputs of two sizes, and layers with
    which the outputs differ stay whole, too. Not detected: code that reads variables outside of
    `model`, code that compares own weights by `==`, and a layer of `model` that is frozen later
    (freeze it in the opened model). A warning names those that may hide sums, and the reason.

    The name of a layer (or of its attribute, where Keras named it) follows that of its owner.

    `shapes` are those (with the batch) of inputs by name, where code depends on lengths that are
    unknown in `model`, as that of causal masks does.

    Raises:
        ValueError: if there is no input of a name.

    Example:
    >>> class Sum(keras.layers.Layer):
    ...     def build(self, shape):
    ...         self.dense = keras.layers.Dense(shape[-1], name="dense0")
    ...         self.dense.build(shape)
    ...
    ...     def call(self, x):
    ...         return x + self.dense(x)
    >>> Sum.__module__ = "yours"  # here it would be the zoo's
    >>> inputs = keras.Input((4,))
    >>> opened = inline(keras.Model(inputs, Sum(name="sum")(inputs)))
    >>> [call.name for call in Graph(opened).calls][0]
    'sum_dense0'
    """
    with _LOCK:
        shapes = shapes or {}
        opener, result = _opened(model, shapes, {})
        while changing := opener.tied(result) or opener.changing(model):
            opener, result = _opened(model, shapes, changing)
        opener, result = _checked(model, shapes, opener, result)
    for name, reason in opener.whole(result).items():
        logging.warning("zoo.graph.inline: %s stays whole: %s", name, reason)
    warn_of_training(model)
    return result


def _opened(model, shapes, refused):
    """Return the model in which layers are opened, and the `_Opener` that knows the others."""
    graph = Graph(model)
    opener = _Opener(graph, refused)
    result = opener.open(shapes)
    if opener.whole(result):
        # Code that reads the batch's size, which is unknown here, can run with size 1.
        sizes = {tensor.name: tuple(tensor.shape) for tensor in result.inputs}
        ones = {name: (shape[0] or 1, *shape[1:]) for name, shape in sizes.items()}
        for open_all in (False, True):
            other = _Opener(graph, refused, open_all=open_all)
            with contextlib.suppress(Exception):  # code that depends on the size cannot be freed
                freed = rewire(other.open(ones), _free_batch, shapes=sizes)
                same = [t.shape for t in freed.outputs] == [t.shape for t in result.outputs]
                if same and len(other.whole(freed)) < len(opener.whole(result)):
                    return other, freed
    return opener, result


def _checked(model, shapes, opener, result):
    """Return the opened model, without those layers with which it computes something else.

    What a trace cannot show, such as code that reads sizes, shows in numbers.
    """
    if not opener.traces:
        return opener, result
    tried = [numbers_of(model, shapes, 1, SIZES), numbers_of(model, shapes, -1, ((17, 19),))]
    if opener.weights:  # such as zeros, with which code may compare
        tried.append(numbers_of(model, shapes, 0, SIZES))
    probes = [probe for probe in tried if probe is not None]
    if not probes:
        logging.warning("zoo.graph.inline: %s was not computed on random inputs.", model.name)
    if agrees(result, probes):
        return opener, result
    traced = {key: layer for key, (layer, _) in opener.traces.items()}
    reason = "its outputs differ for other sizes, weights or inputs"
    for kind in dict.fromkeys(type(layer) for layer in traced.values()):
        same = {key: reason for key, layer in traced.items() if type(layer) is kind}
        found = _opened(model, shapes, {**opener.refused, **same})
        if agrees(found[1], probes):
            return found
    return _opened(model, shapes, {**opener.refused, **dict.fromkeys(traced, reason)})


def numbers_of(
    model: keras.Model, shapes: Mapping[str, Shape], sign: int, sizes: Sequence[tuple[int, int]]
) -> Probe | None:
    """Return inputs, weights, and the outputs of a model for them; None where it has none.

    `sizes` are pairs to try: that of the batch, and of other axes whose size is not known. Noise is
    added to the weights, `sign` times; less of it where outputs are not finite.
    """
    for noise, (batch, side) in itertools.product((0.5, 0.05, 0.0), sizes):
        try:
            inputs = _random_inputs(model, shapes, batch, side)
            weights = _other_weights(model, sign * noise)
            outputs = _outputs(model, inputs, weights)
        except Exception:  # noqa: BLE001, S112  # a network may need other sizes or values
            continue
        if all(np.isfinite(y).all() for y in outputs):
            return inputs, weights, outputs
    return None


def _random_inputs(model, shapes, batch, side):
    random = np.random.default_rng(batch)
    inputs = []
    for like in model.inputs:
        known = shapes.get(like.name, like.shape)
        first = batch if like.shape[0] is None else known[0]
        shape = (first, *(side if size is None else size for size in known[1:]))
        is_float = keras.backend.is_float_dtype(like.dtype)
        x = random.normal(size=shape) if is_float else random.integers(0, 2, shape)
        inputs.append(ops.cast(x, like.dtype))
    return inputs


def _other_weights(model, noise):
    """Return pairs of a variable of floating point and another value, of about the same scale."""
    random = np.random.default_rng(0)
    weights = []
    for variable in model.variables:
        if keras.backend.is_float_dtype(variable.dtype):
            shape = variable.shape
            change = noise * random.normal(0.0, np.prod(shape[:-1]) ** -0.5, shape)
            if not variable.trainable and len(shape) < 2:
                change = np.abs(change)  # a variance is positive
            weights.append((variable, ops.cast(ops.add(variable.value, change), variable.dtype)))
    return weights


def _outputs(model, inputs, weights):
    graph = Graph(model)
    values = dict(zip(graph.inputs, inputs, strict=True))
    with keras.StatelessScope(weights, collect_losses=True):
        values = graph.run(values, Views().apply)  # which change nothing of the layers
        return [ops.convert_to_numpy(ops.cast(values[slot], "float32")) for slot in graph.outputs]


def agrees(model: keras.Model, probes: Sequence[Probe]) -> bool:
    """Return True if a model has the outputs that another one had."""
    halves = any(v.compute_dtype in ("float16", "bfloat16") for v in model.layers)
    tolerance = 0.05 if halves else 1e-3
    for inputs, weights, expected in probes:
        try:
            outputs = _outputs(model, inputs, weights)
        except Exception:  # noqa: BLE001  # as of a batch of another size
            return False
        for y, other in zip(outputs, expected, strict=True):
            scale = np.abs(np.nan_to_num(other)).max(initial=1e-6)
            if not np.allclose(y, other, rtol=0, atol=tolerance * scale, equal_nan=True):
                return False
    return True


class _Opener(Views):
    """Views that replace a layer's call by the calls of its sub-layers, if nothing is lost."""

    def __init__(self, graph, refused, training=None, values=(), open_all=False) -> None:
        super().__init__()
        self.training = training
        self.scope = keras.StatelessScope(values, collect_losses=True)
        self.graph = graph
        self.refused = refused  # why a layer, by its id, is not opened
        self.open_all = open_all  # also layers in which no sum is a block
        self.call_training: bool | None = None  # of the call that is opened; `fit` overrides it
        self.shapes: Mapping[str, Shape] = {}
        self.stayed: dict[int, str] = {}  # why a layer, by its id, was not opened in some call
        # Of layers' code, with the layer and by its id, from inner to outer ones.
        self.traces: dict[int, tuple[keras.layers.Layer, list]] = {}
        self.reasons: dict[str, str] = {}  # of layers that stay whole, by name
        self._taken: set[str] = set()
        self._places: dict[int, str] = {}  # what the names of a layer's sub-layers begin with
        self._whole: dict[int, Any] = {}  # for the new graph
        for layer in dict.fromkeys(call.layer for call in graph.calls):
            name = unused(layer.name, self._taken)  # nested models may have the same names
            other = isinstance(layer, keras.layers.Layer) and name != layer.name
            self._whole[id(layer)] = alias(layer, name) if other else layer
        self._called = {*self._whole}
        self.weights: dict[int, Weight] = {}  # by the variable's id
        self._owners: dict[int, keras.layers.Layer] = {}

    def open(self, shapes: Mapping[str, Shape]) -> keras.Model:
        """Return the model with inputs of these shapes in which layers are opened."""
        self.shapes = shapes
        with self.scope:
            return rewire(self.graph.model, self.apply, shapes=shapes)

    def tied(self, model: keras.Model) -> dict[int, str]:
        """Return `refused` and layers whose own weights a saved model would have twice, or {}."""
        found = {}
        for layer in model.layers:
            for weight in () if isinstance(layer, Weight) else layer.weights:
                owner = self._owners.get(id(weight))
                if owner is not None and id(owner) not in self.stayed:
                    found[id(owner)] = f"its weight {weight.name} is one of {layer.name}, too"
        return {**self.refused, **found} if found else {}

    def changing(self, model: keras.Model) -> dict[int, str]:
        """Return `refused` and the innermost layers whose code differs in other traces.

        In the second and third trace `training` is another, in the third all weights and random
        seeds, and the size of the batch. Numbers that change are drawn, counted or computed from
        these, and would be constants in the graph.
        """
        partly = {key: reason for key, reason in self.stayed.items() if key in self.traces}
        if partly:  # a saved model would have the layer twice
            return {**self.refused, **partly}
        integers = [v for v in model.variables if not keras.backend.is_float_dtype(v.dtype)]
        others = _other_weights(model, 1.0)
        others += [(v, ops.cast(ops.add(v.value, 1), v.dtype)) for v in integers]
        sizes = {**self.shapes}
        for name, like in zip(self.graph.input_names, self.graph.model.inputs, strict=True):
            size, *rest = self.shapes.get(name, like.shape)
            sizes[name] = ((size or 10) + 1 if like.shape[0] is None else size, *rest)
        for training, values, shapes in ((True, (), self.shapes), (False, others, sizes)):
            again = _Opener(self.graph, self.refused, training, values, self.open_all)
            with contextlib.suppress(Exception):  # then traces are missing
                again.open(shapes)
            constant = "computes numbers that do not come from its inputs"
            reason = "depends on `training`" if training else constant
            found: dict[int, str] = {}
            for key, (layer, first) in self.traces.items():
                inner = {id(v) for v in keras_private.inner_layers(layer)}
                second = again.traces.get(key, (layer, []))[1]
                if not (found.keys() & inner or _same_code(first, second)):
                    found[key] = f"its code {reason}"
            if found:
                return {**self.refused, **found}
        return {}

    def whole(self, model: keras.Model) -> dict[str, str]:
        """Return why layers of a model that may hide sums are not opened, by their name."""
        graph = Graph(model)
        layers = {call.name: call.layer.name for call in graph.calls}
        names = [layers[name] for name, _ in candidates(graph)[1]]
        return {name: self.reasons[name] for name in names if name in self.reasons}

    def answer(self, view: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return the outputs of a call, of the layer's code or of the layer as it is."""
        layer = view.viewed
        if not is_symbolic((args, kwargs)):
            if layer.weights:  # the graph would hold its output, but not its weights
                raise ValueError(f"it calls {layer.name} on numbers that are not its inputs")
            return run(view, args, kwargs)
        kwargs = _without_defaults(layer, kwargs)
        call_training = kwargs.pop("training", self.call_training)
        outputs = reason = None
        may_hide = foreign(layer) and (composite(layer) or not layer.weights)
        if may_hide or functional(layer) is not None:
            outer, self.call_training = self.call_training, call_training
            try:
                outputs = self._open(view, args, kwargs)
            except Exception as error:
                reason = _sentence(error)
                own = [v.name for v in keras_private.own_weights(layer)]
                if own and isinstance(error, AttributeError | TypeError):
                    reason += f". It has weights of its own, {own}, which are tensors here"
            self.call_training = outer
        if outputs is not None:
            return outputs
        whole = self._as_it_is(layer)
        if may_hide and not reason:
            inner = keras_private.inner_layers(layer, include_self=False)
            found = [self.stayed[id(v)] for v in inner if id(v) in self.stayed]
            if found:
                self.reasons[layer.name] = f"of a layer inside it, {found[0]}"
        if reason:
            self.stayed[id(layer)] = reason
            self.reasons |= dict.fromkeys((whole.name, layer.name), reason)
        return whole(*args, **keras_private.with_training(layer, kwargs, call_training))

    def inside(self, view: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return the outputs of a call in a layer's code, where Keras passes `training` on."""
        training = kwargs.pop("training", None)
        if training is not None and training is not bool(self.training):  # None may become False
            raise ValueError(f"it calls {view.viewed.name} with training={training}")
        return self.answer(view, args, kwargs)

    def _open(self, view, args, kwargs):
        """Return the outputs of the calls of sub-layers, or None if they hide no block."""
        layer = view.viewed
        self._name_sublayers(layer)
        if functional(layer) is not None:
            return trace(self, view, args, kwargs)[0]
        _refuse_own_state(layer)
        if id(layer) in self.refused:
            raise ValueError(self.refused[id(layer)])
        numbers = _numbers(view)
        histories = [(x, vars(x).get("_keras_history")) for x in _symbolic(args, kwargs)]
        state = self.scope.state_mapping.copy()
        context = {} if self.training is None else {"training": self.training}
        outputs, like = trace(self, view, args, {**kwargs, **context})
        new_state = self.scope.state_mapping
        self.scope.state_mapping = state
        changed = [x for x, history in histories if vars(x).get("_keras_history") is not history]
        for x, history in histories:
            vars(x)["_keras_history"] = history
        if changed:
            raise ValueError("it uses `ops.cond`, which returns what it got where it is traced")
        if numbers != _numbers(view):
            raise ValueError("its code changes its attributes")
        if {*map(id, state.values())} != {*map(id, new_state.values())}:
            raise ValueError("its code changes weights or draws random numbers")
        if self.scope.losses:
            self.scope.losses.clear()
            raise ValueError("it adds a loss")
        everything = tree.flatten(outputs)
        flat = [x for x in everything if is_symbolic(x)]
        inputs = _symbolic(args, kwargs)
        masks = [m for m in map(keras_private.get_keras_mask, inputs) if m is not None]
        ends = {id(x): x for x in (*inputs, *masks)}
        graph = Graph(keras.Function([*ends.values()], flat))
        _refuse_lost_code(graph, layer)
        penalized = [v for v in keras_private.inner_layers(layer) if v.activity_regularizer]
        if penalized and id(layer) in self.traces:
            raise ValueError(f"{penalized[0].name}, inside it, adds a loss in each of its calls")
        self.traces.setdefault(id(layer), (layer, []))[1].append(graph.calls)
        sums = [call for call in graph.calls if is_sum(call.layer) and len(call.sources) > 1]
        read = {slot: graph.shapes[slot] for slot in graph.inputs}
        # A branch may begin outside of the layer.
        joins = any(read.get(slot) == call.shapes[0] for call in sums for slot in call.sources)
        hides = self.open_all or candidates(graph)[0] or joins or sums and not layer.weights
        has_none = len(flat) < len(everything)  # which no node can have
        inner = map(id, keras_private.inner_layers(layer, include_self=False))
        hides = hides or not self._called.isdisjoint(inner)  # a saved model would have those twice
        if not hides and not has_none:
            return None
        masks = dict(zip(map(id, flat), like, strict=True))
        return tree.map_structure(lambda x: self._masked(x, masks.get(id(x)), layer), outputs)

    def weight(self, layer: Any, variable: keras.Variable, name: str, x: Tensor) -> Any:
        """Return the output of a layer that has the weight, the same layer in each call."""
        if id(variable) not in self.weights:
            own = name if stem(variable.name) == "variable" else variable.name
            name = unused(f"{self._place(layer)}_{own}", self._taken)
            made = keras_private.holder_of(layer, variable, Weight, name)
            self.weights[id(variable)] = made
            self._owners[id(variable)] = layer
        tensor = self.weights[id(variable)](x)  # in its own precision, unlike in the code
        return tensor if tensor.dtype == variable.dtype else ops.cast(tensor, variable.dtype)

    def _masked(self, x, like, layer):
        mask = keras_private.get_keras_mask(like) if like is not None else None
        if mask is None or mask is keras_private.get_keras_mask(x):
            return x
        return SetMask(name=unused(f"{self._place(layer)}_mask", self._taken))([x, mask])

    def _as_it_is(self, layer):
        """Return the layer for the new graph: one from inside of another has a name by place."""
        if id(layer) not in self._whole:
            if not layer.built and type(layer).build is not keras.layers.Layer.build:
                raise ValueError(f"{layer.name} is not built: call the model on data first")
            name = unused(self._places[id(layer)], self._taken)
            self._whole[id(layer)] = alias(layer, name)
        return self._whole[id(layer)]

    def _name_sublayers(self, layer):
        place = self._place(layer)
        for key, sublayer in _attributes(layer):
            own = key if auto_named(sublayer) else sublayer.name
            name = own if own.startswith(f"{place}_") else f"{place}_{own}"
            self._places.setdefault(id(sublayer), name)

    def _place(self, layer):
        if id(layer) not in self._places:
            name = stem(layer.name) if auto_named(layer) else layer.name
            taken = {*self._places.values()}
            places = (f"{name}_{number}" if number else name for number in itertools.count())
            self._places[id(layer)] = next(place for place in places if place not in taken)
        return self._places[id(layer)]


def _symbolic(*structures):
    return [x for x in tree.flatten(structures) if is_symbolic(x)]


def _refuse_own_state(layer):
    if keras_private.seed_generators(layer):
        raise ValueError("it draws random numbers")
    if layer.activity_regularizer is not None:
        raise ValueError("it has an activity regularizer")
    values = [*vars(layer).values()]
    with contextlib.suppress(TypeError, ValueError):  # no Python function; an empty cell
        used = inspect.getclosurevars(inspect.unwrap(type(layer).call))
        values += [*used.nonlocals.values(), *used.globals.values()]
    if "custom_gradient" in {type(value).__name__ for value in values}:  # PyTorch traces through it
        raise ValueError("its code has a gradient of its own")


def _numbers(layer):
    """Return the attributes of a layer that are numbers, and the identity of those with a shape."""
    return {
        path: leaf if isinstance(leaf, int | float) else id(leaf)
        for path, leaf in leaves(vars(layer))
        if isinstance(leaf, int | float) or hasattr(leaf, "shape") and not is_symbolic(leaf)
        if path != ("_called",)  # Keras sets it in the first call
    }


def _same_code(first, second):
    same = [*map(len, first)] == [*map(len, second)]
    return same and all(map(_same_call, itertools.chain(*first), itertools.chain(*second)))


def _same_call(first, second):
    constants = []
    sizes = _newshape(first)[:1] + _newshape(second)[:1]
    for call in (first, second):
        kwargs = {key: v for key, v in call.arguments.kwargs.items() if key != "training"}
        settings = {"name": call.layer.name}
        if not isinstance(call.layer, keras.layers.Layer):
            settings = {key: v for key, v in vars(call.layer).items() if not key.startswith("_")}
            settings.pop("name")
        if len(sizes) == 2 and sizes[1] == 2 * sizes[0]:  # as those of the batches, 1 and 2
            settings["newshape"] = _newshape(call)[1:]
        constants.append(tree.flatten((call.arguments.args, kwargs, settings)))
    if type(first.layer) is not type(second.layer) or len({*map(len, constants)}) > 1:
        return False
    return all(map(_same_constant, *constants))


def _same_constant(first, second):
    """Return True if two constants are equal, but for repetitions for each example of a batch."""
    if is_symbolic(first) or is_symbolic(second):
        return is_symbolic(first) and is_symbolic(second)
    if not hasattr(first, "shape"):
        return bool(first == second)
    try:
        values = [ops.convert_to_numpy(value) for value in (first, second)]
    except (TypeError, ValueError, NotImplementedError):
        return False  # a tensor of the trace, as the batch's size in half precision
    if values[0].ndim and values[1].shape[1:] == values[0].shape[1:] and len(values[0]) == 1:
        values[0] = np.broadcast_to(values[0], values[1].shape)
    return np.array_equal(*values)


def _refuse_lost_code(graph, layer):
    """Raise an error if the trace of a layer does not hold all that the code does."""
    known = {id(v) for call in graph.calls for v in getattr(call.layer, "weights", ())}
    unused = [v.path for v in layer.weights if id(v) not in known]
    if unused:
        raise ValueError(f"its code does not use its weights {unused}")
    for call in graph.calls:
        penalized = getattr(call.layer, "activity_regularizer", None) is not None
        if penalized and sum(other.layer is call.layer for other in graph.calls) > 1:
            raise ValueError(f"it calls {call.layer.name}, which adds a loss, more than once")
        if type(call.layer).__name__ == "Cond":
            raise ValueError("it uses `ops.cond`, which returns what it got where it is traced")
        if None in _newshape(call):
            raise ValueError("it reshapes to a size that is unknown")
        if not isinstance(call.layer, keras.layers.Layer):
            values = tree.flatten((call.arguments.args, call.arguments.kwargs))
            used = [v.path for v in values if isinstance(v, keras.Variable)]
            if used:
                raise ValueError(f"its code uses the weights {used} without calling their layer")


def _attributes(layer):
    """Return pairs of an attribute's name and a sub-layer in it; TensorFlow wraps tuples."""
    inner = functional(layer)
    if inner is not None:
        return [(f"{number}", sublayer) for number, sublayer in enumerate(inner.layers)]
    found = {}
    for name, value in {**vars(layer), **vars(layer).get("_modules", {})}.items():
        if name in ("_layers", "_modules"):
            continue
        for path, leaf in leaves(value):
            if isinstance(leaf, keras.layers.Layer):
                key = "_".join([name, *map(str, path)]).strip("_")
                found[id(leaf)] = key, leaf  # the last: TensorFlow's own attributes are first
    return [*found.values()]


def _sentence(error):
    lines = [line.strip() for line in re.sub("\x1b\\[[01]m", "", f"{error}").splitlines()]
    lines = [line for line in lines if line and not line.startswith("Exception encountered")]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _newshape(call):
    return tuple(getattr(call.layer, "newshape", ()))


def _free_batch(call, *args, **kwargs):
    """Apply a call that was traced with one example to any number of examples."""
    if _newshape(call) and args[0].shape[0] is None:
        return keras.ops.reshape(args[0], (-1, *call.shapes[0][1:]))
    return call.layer(*args, **kwargs)


def _without_defaults(layer, kwargs):
    """Drop arguments that are None by default: not every `compute_output_spec` knows them."""
    parameters = keras_private.call_parameters(layer)
    return {
        key: value
        for key, value in kwargs.items()
        if value is not None or key not in parameters or parameters[key].default is not None
    }
