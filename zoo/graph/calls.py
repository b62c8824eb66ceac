"""A Functional model as a list of calls, which can be run, and changed, call by call."""

import itertools
from dataclasses import dataclass

import keras
from keras import tree


@dataclass(frozen=True)
class Call:
    """One call of a layer (or operation) in a graph.

    Attributes:
        index: Its place in `Graph.calls`.
        name: The layer's name; "#1", "#2" for its second and third call, and before it the names
            of the models that it is nested in.
        layer: The layer.
        arguments: What Keras recorded of the call.
        inputs: Pairs of a key of `arguments` and the slot that holds its value.
        outputs: The slots of what it returns, flattened.
        shapes: Their shapes.
    """

    index: int
    name: str
    layer: object
    arguments: object
    inputs: tuple
    outputs: tuple
    shapes: tuple

    def filled(self, values):
        """The call's arguments with the values of their slots: positional and named ones."""
        return self.arguments.fill_in({key: values[slot] for key, slot in self.inputs})


class Graph:
    """The calls of a Functional or Sequential model, nested models included, in running order.

    Every tensor of the model has a slot, a number; running the graph fills a dictionary of slots.
    Nothing is added to the layers: no node, no hook. Weights are the model's own.

    Args:
        model: A built `keras.Model` that is a graph of layers.

    Attributes:
        calls: A list of `Call`.
        inputs, outputs: The slots of the model's inputs and outputs, flattened.

    Raises:
        ValueError: if the model is subclassed or not built, so that Keras knows no graph of it.

    Example:

    >>> inputs = keras.Input((4,))
    >>> graph = Graph(keras.Model(inputs, keras.layers.Dense(2, name="top")(inputs)))
    >>> [(call.name, call.outputs, call.shapes) for call in graph.calls]
    [('top', (1,), ((None, 2),))]
    """

    def __init__(self, model):
        self.model = _functional(model)
        if self.model is None:
            raise ValueError(
                f"Expected a Functional model, or a Sequential one that is built: what lies "
                f"between its layers must be a graph. Received: {model!r}. Rewrite a subclassed "
                f"model as keras.Model(inputs, outputs)."
            )
        self.calls, self._new, self._uses = [], itertools.count(), {}
        slots = {id(tensor): next(self._new) for tensor in self.model.inputs}
        self.inputs = [*slots.values()]
        self.outputs = self._flatten(self.model, slots, "")
        last = {slot: call.index for call in self.calls for _, slot in call.inputs}
        self._frees = {}
        for slot, index in last.items():
            if slot not in self.outputs:
                self._frees.setdefault(index, []).append(slot)

    def _flatten(self, model, slots, prefix):
        for depth in sorted(model._nodes_by_depth, reverse=True):
            for node in model._nodes_by_depth[depth]:
                if node.is_input:
                    continue
                tensors = node.arguments.keras_tensors
                inner = _functional(node.operation)
                if inner is None:
                    found = self._add(node, slots, prefix)
                else:
                    keys = map(id, inner.inputs)
                    own = dict(zip(keys, (slots[id(t)] for t in tensors), strict=True))
                    found = self._flatten(inner, own, f"{prefix}{node.operation.name}/")
                slots.update(zip(map(id, node.outputs), found, strict=True))
        return [slots[id(tensor)] for tensor in model.outputs]

    def _add(self, node, slots, prefix):
        layer = node.operation
        use = self._uses[id(layer)] = self._uses.get(id(layer), -1) + 1
        name = f"{prefix}{layer.name}" + (f"#{use}" if use else "")
        inputs = tuple((id(t), slots[id(t)]) for t in node.arguments.keras_tensors)
        outputs = tuple(next(self._new) for _ in node.outputs)
        shapes = tuple(tuple(tensor.shape) for tensor in node.outputs)
        arguments = node.arguments
        call = Call(len(self.calls), name, layer, arguments, inputs, outputs, shapes)
        self.calls.append(call)
        return outputs

    def start(self, x):
        """The slots that hold the model's inputs, for `run`.

        Args:
            x: The input, or a list or dictionary of inputs, as the model takes it.
        """
        names = [tensor.name.split("/")[-1] for tensor in self.model.inputs]
        flat = [x[name] for name in names] if isinstance(x, dict) else tree.flatten(x)
        tensors = zip(flat, self.model.inputs, strict=True)
        flat = (keras.ops.convert_to_tensor(value, dtype=like.dtype) for value, like in tensors)
        return dict(zip(self.inputs, flat, strict=True))

    def run(self, values, apply=None, calls=None, keep=False):
        """Runs calls, each on the slots that it reads and into the slots that it writes.

        Args:
            values: Tensors by slot; changed.
            apply: A function of a `Call` and its arguments that returns what the call would;
                `None` is `infer`.
            calls: Which; `None`: all.
            keep: Whether slots that no later call reads are kept.

        Returns:
            `values`.
        """
        apply = apply or infer
        for call in self.calls if calls is None else calls:
            args, kwargs = call.filled(values)
            found = tree.flatten(apply(call, *args, **kwargs))
            values.update(zip(call.outputs, found, strict=True))
            for slot in () if keep else self._frees.get(call.index, ()):
                values.pop(slot, None)
        return values

    def new_inputs(self):
        """Symbolic inputs like the model's, by slot."""
        return {
            slot: keras.Input(batch_shape=like.shape, dtype=like.dtype, name=like.name)
            for slot, like in zip(self.inputs, self.model.inputs, strict=True)
        }

    def new_model(self, inputs, outputs, name=None):
        """A model from `new_inputs` to symbolic outputs, in the structure of the old one's.

        Args:
            inputs: What `new_inputs` returned.
            outputs: Flattened, one for each slot of `outputs`.
            name: Of the model; `None`: the old one's.
        """
        return keras.Model(
            tree.pack_sequence_as(self.model._inputs_struct, [*inputs.values()]),
            tree.pack_sequence_as(self.model._outputs_struct, outputs),
            name=name or self.model.name,
        )

    def after(self, slot):
        """The calls that depend on a slot's value, in running order."""
        reached, calls = {slot}, []
        for call in self.calls:
            if any(read in reached for _, read in call.inputs):
                reached.update(call.outputs)
                calls.append(call)
        return calls

    def between(self, first, last):
        """The calls on the ways from slot `first` to slot `last`, in running order."""
        wanted, calls = {last}, []
        for call in reversed(self.after(first)):
            if wanted & {*call.outputs}:
                wanted.update(slot for _, slot in call.inputs)
                calls.append(call)
        return calls[::-1]


def infer(call, *args, **kwargs):
    """What a call returns in inference mode: the `apply` of values that are not symbolic."""
    if "training" in getattr(call.layer, "_call_context_args", {}):
        kwargs["training"] = False
    return call.layer(*args, **kwargs)


def _functional(x):
    """The graph of `x`, itself or a Sequential's, or None."""
    x = getattr(x, "_functional", None) or x
    return x if isinstance(x, keras.Model) and hasattr(x, "_nodes_by_depth") else None
