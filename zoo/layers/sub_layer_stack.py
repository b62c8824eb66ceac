"""Many sub-layers of a residual stream in one, for networks too deep to compile one by one."""

import types
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from zoo import backend
from zoo.backend import keras_private
from zoo.checks import check_integers, require
from zoo.layers.configured import Configured, Scanned
from zoo.layers.sub_layer import SubLayer
from zoo.types import Shape, Tensor


@keras.saving.register_keras_serializable("zoo")
class SubLayerStack(Scanned, Configured):
    """`depth` groups of sub-layers, one after the other, as one scanned layer.

    It computes what the sub-layers compute. Their weights are stacked, and one group is compiled,
    not `depth` of them. To inspect or modify single sub-layers, rewire it with its `to_layers()`.

    Args:
        groups: Lists of `zoo.SubLayer`s, such as those of a transformer's layer, which give the
            initial values; or a single list, with whose values all groups start.
        depth: Number of groups.

    Input and output shape: the state's; see `zoo.SubLayer`.

    Raises:
        ValueError: if there are neither one nor `depth` groups, or they differ in more than names
            and weights. A rule whose constants depend on the index can be stacked only where they
            are equal, as after the first layer; rules with slots for sub-layers cannot. When it is
            built: for regularizers, dropout and moving averages.

    Example:
    >>> dense = [keras.layers.Dense(4) for _ in range(3)]
    >>> groups = [[SubLayer(f, index=i, depth=3, per_layer=1)] for i, f in enumerate(dense)]
    >>> tuple(SubLayerStack(groups, depth=3)(keras.ops.ones((2, 5, 4))).shape)
    (2, 5, 4)
    """

    def __init__(self, groups: Sequence[Sequence[SubLayer]], depth: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_integers(1, depth=depth)
        lists = isinstance(groups, Iterable) and all(isinstance(v, Iterable) for v in groups)
        layers = [layer for group in groups for layer in group] if lists else []
        valid = layers and all(isinstance(layer, SubLayer) for layer in layers)
        require(valid, "lists of `zoo.SubLayer`s", groups=groups)
        groups = [[*group] for group in groups]
        sizes = [len(group) for group in groups]
        valid = len(groups) in (1, depth) and len({*sizes}) == 1
        require(valid, f"those of one group or depth={depth} groups, all the same", sizes=sizes)
        for layer, *others in zip(*groups, strict=True):
            known = _computation(layer, layer.rule)
            last = _moved(layer.rule, (depth - 1) * len(groups[0]))  # as `to_layers` makes it
            for other, rule in [*((other, other.rule) for other in others), (layer, last)]:
                _check_alike(layer, known, _computation(other, rule))
        self.depth = depth
        # Keras does not see the sub-layers: their weights are not this layer's.
        self._hidden = types.SimpleNamespace(groups=groups)

    @property
    def groups(self) -> list[list[SubLayer]]:
        """The first group, without this layer's weights."""
        return [[*self._hidden.groups[0]]]

    def build(self, input_shape: Shape) -> None:
        """Stack the values of the sub-layers."""
        values = []
        for group in self._hidden.groups:
            for layer in group:
                if not layer.built:
                    layer.build(input_shape)
            values.append([ops.convert_to_numpy(v) for v in _variables(group)])
            first, last = ([value.shape for value in one] for one in (values[0], values[-1]))
            expected = f"those of the first group, {first}"
            require(first == last, expected, shapes_of_weights=last)
        del self._hidden.groups[1:]
        for layer in self.groups[0]:
            _check_pure(layer)
        self.stacked = []
        for variable, *parts in zip(_variables(self.groups[0]), *values, strict=True):
            stack = np.stack(parts) if len(parts) > 1 else np.repeat(parts, self.depth, axis=0)
            name = variable.path.replace("/", "_")
            options = {"dtype": variable.dtype, "trainable": variable.trainable, "name": name}
            self.stacked.append(self.add_weight(stack.shape, stack, **options))

    def call(self, x: Tensor) -> Tensor:
        """Return the last group's output."""
        variables = _variables(self.groups[0])

        def step(x, slices):
            with keras.StatelessScope(state_mapping=zip(variables, slices, strict=True)):
                for layer in self.groups[0]:
                    x = layer(x)
            return x

        recompute = keras_private.is_rematerialized(self)
        return backend.scan_layers(step, x, self.stacked, recompute)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the input's shape."""
        return input_shape

    def to_layers(self) -> list[SubLayer]:
        """Return new, built sub-layers of all groups with these weights.

        Raises:
            ValueError: if the layer is not built.
        """
        self.check_built()
        values = [ops.convert_to_numpy(weight) for weight in self.stacked]
        layers = []
        for number in range(self.depth):
            shift = number * len(self.groups[0])
            # by identity, so that a rule that sub-layers of a group share stays shared
            rules = {id(layer.rule): _moved(layer.rule, shift) for layer in self.groups[0]}
            group = [_copy(layer, number, rules[id(layer.rule)]) for layer in self.groups[0]]
            for layer in group:
                layer.build(self._build_shapes_dict["input_shape"])
                layer.trainable = self.trainable and layer.trainable
            for variable, value in zip(_variables(group), values, strict=True):
                variable.assign(value[number])
            layers += group
        return layers


def _copy(layer, number, rule):
    """Return an unbuilt sub-layer of another group, with its rule."""
    config = {**layer.get_config(), "name": f"{layer.name}_{number + 1}", "rule": rule}
    config["inner"] = keras.saving.deserialize_keras_object(config["inner"])
    return type(layer)(**config)


def _moved(rule, shift):
    """Return a rule like this one of another sub-layer; both ends are within its network."""
    config = rule.get_config()
    index = config["index"] + shift
    return type(rule).from_config({**config, "index": index, "depth": max(index, config["depth"])})


def _variables(group):
    """Return the variables of sub-layers, those of a shared rule once."""
    parts = []
    for layer in group:
        parts += [layer.inner, layer.rule, layer.norm, layer.transform_gate, layer.carry_gate]
    return [*{id(v): v for part in parts if part is not None for v in part.variables}.values()]


def _computation(layer, rule):
    """Return all that a sub-layer with a rule computes with, but weights, by name."""

    def kept(node):
        if isinstance(node, dict):
            left_out = ("name", "rule", "gate_bias", "seed", "build_config", "shared_object_id")
            named = {key: v for key, v in node.items() if key not in left_out}
            return {key: kept(v) for key, v in named.items() if "initializer" not in key}
        return [*map(kept, node)] if isinstance(node, (list, tuple)) else node

    names = {*dir(rule)} - {*dir(keras.layers.Layer()), "index", "layer_number"}  # not its place
    known = {name: getattr(rule, name) for name in sorted(names) if not name.startswith("_")}
    types_of_constants = (int, float, str, tuple, types.NoneType)
    constants = {name: v for name, v in known.items() if isinstance(v, types_of_constants)}
    return {"rule": type(rule).__name__, **constants, "layer": kept(layer.get_config())}


def _check_alike(layer, one, other):
    require(not layer.rule.is_history, "one without slots for sub-layers", rule=one["rule"])
    shared = [name for name in one if name in other]  # a built rule may have more
    different = [name for name in shared if one[name] != other[name]]
    if different:
        pairs = ", ".join(f"{name}: {one[name]} and {other[name]}" for name in different)
        raise ValueError(
            f"Expected groups that differ in names and weights alone. Received: {layer.name}, "
            f"{one['rule']}, and the sub-layer of another group, in which these differ: {pairs}"
        )


def _check_pure(layer):
    """Raise ValueError for a layer that does more in a call than to compute its output.

    Rematerialization inside of it is switched off: the stack rematerializes whole groups.
    """
    regularized = bool(layer.losses)
    state = []
    for one in keras_private.inner_layers(layer):
        keras_private.store_activations(one)
        regularized |= one.activity_regularizer is not None
        state += [] if one is layer.rule else keras_private.state_of(one)
    expected = "one without regularizers, dropout and moving averages, which need single calls"
    require(not (regularized or state), expected, layer=[layer.name, *(v.path for v in state)])
