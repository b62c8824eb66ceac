"""A training step on torch without Keras: traced once to torch's operations, then replayed."""

import math
import warnings
from typing import Any

import keras
from keras import ops, tree

from zoo.backend import keras_private
from zoo.backend.runtime import BACKEND
from zoo.checks import check_model, check_numbers, require

if BACKEND == "torch":
    import torch

unpack = keras.utils.unpack_x_y_sample_weight
MAX_SHAPES = 8  # ours: a trace takes seconds, so of data of ever new shapes no more are traced


def fast(model: keras.Model, after: float = 20) -> keras.Model:
    """Let `fit` run a compiled model's steps on torch without Keras's Python code; return it.

    The first batch of a shape is traced: forward pass, loss and gradients become a list of torch's
    operations, which every further step replays, bit for bit what Keras computes. Metrics and the
    optimizer stay Keras's. A step of many small operations takes a third to two thirds less time,
    one of large convolutions 6 to 9 % less; a trace takes 1 to 4 seconds. With `after`, Keras
    trains that many batches of a shape before it is traced, so that short trainings pay no trace.

    As in a compiled step of TensorFlow or JAX, which `fast` leaves as they are, what Python decides
    in a call (attributes of layers, `trainable`) is decided at the trace; `compile` traces anew.
    What cannot be replayed trains by Keras's step, with a warning that tells the reason: decisions
    by values, shapes that depend on values, dropout with a seed of its own, stateful RNNs and the
    native LSTM of the zoo. So does the ninth shape.

    Raises:
        ValueError: if the model is not compiled, has its own `train_step`, scales its loss
            (float16) or is compiled by torch.

    Example:
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> model.compile("sgd", "mse")
    >>> x, y = keras.ops.ones((8, 4)), keras.ops.ones((8, 2))
    >>> history = fast(model, after=0).fit(x, y, verbose=0)
    """
    check_model(model)
    check_numbers(0, after=after)
    require(model.compiled, "compiled: call `compile`", model=model)
    if BACKEND == "torch" and not isinstance(model.train_step, FlatStep):
        kind = type(model)
        expected = f"one that trains by keras.Model's `train_step`; the class {kind.__name__} has "
        require(kind.train_step is keras.Model.train_step, f"{expected}its own", model=model)
        _check_compilation(model)
        model.train_step = FlatStep(model, after)
    return model


def _check_compilation(model):
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    expected = "an unscaled loss (use mixed_bfloat16 in place of mixed_float16), jit_compile=False"
    received = f"{type(model.optimizer).__name__}, jit_compile={model.jit_compile}"
    require(not scaled and model.jit_compile is not True, expected, compilation=received)


class FlatStep:
    """`train_step` of a model; see `fast`."""

    def __init__(self, model: keras.Model, after: float) -> None:
        self._model = model
        self._after = after
        self._keras_step = model.train_step
        self._compilation: Any = None

    def __call__(self, data: Any) -> dict[str, Any]:
        """Train on a batch; return the metrics."""
        if keras_private.compilation(self._model) is not self._compilation:
            self._begin()
        leaves = [v if v is None else ops.convert_to_tensor(v) for v in tree.flatten(data)]
        shape = tuple(v if v is None else (v.shape, v.stride(), v.dtype) for v in leaves)
        if shape not in self._programs:
            self._seen[shape] = self._seen.get(shape, 0) + 1
            if self._seen[shape] <= self._after or len(self._programs) == MAX_SHAPES:
                return self._keras_step(data)
            self._programs[shape] = self._traced(data, leaves)
        program = self._programs[shape]
        return self._keras_step(data) if program is None else self._replay(program, data, leaves)

    def _begin(self):
        """Forget what belongs to another call of `compile`."""
        model = self._model
        _check_compilation(model)
        self._compilation = keras_private.compilation(model)
        self._seen: dict[Any, int] = {}  # batches by shape
        self._programs: dict[Any, Any] = {}  # by shape; None: cannot be traced
        self._trainable = [*model.trainable_variables]
        self._others = [*model.non_trainable_variables, *model.metrics_variables]

    def _replay(self, program, data, leaves):
        model = self._model
        x, y, sample_weight = unpack(data)
        others = keras_private.raw_values(self._others)
        with torch.no_grad():
            results = program(keras_private.raw_values(self._trainable), others, leaves)
            loss, gradients, y_pred, masks, new = results
            pairs = [(old, v) for old, v in zip(others, new, strict=True) if v is not old]
            if pairs:
                torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))
            tree.map_structure(keras_private.set_keras_mask, y_pred, masks)
            size = next(len(leaf) for leaf in leaves if leaf is not None)
            keras_private.update_loss(model, loss, size)
            model.optimizer.apply(gradients, self._trainable)
            return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def _traced(self, data, leaves):
        """Return the program of the step; None, and a warning, if it has none."""
        from torch.fx.experimental.proxy_tensor import make_fx

        def step(trainable, others, leaves):
            x, y, sample_weight = unpack(tree.pack_sequence_as(data, leaves))
            with torch.enable_grad():
                trainable = [value.detach().requires_grad_() for value in trainable]
                mapping = zip(variables, [*trainable, *others], strict=True)
                with keras.StatelessScope([*mapping], collect_losses=True) as scope:
                    y_pred = keras_private.call_in_training(self._model, x)
                    loss = keras_private.loss_in_training(self._model, x, y, y_pred, sample_weight)
                if {*scope.state_mapping} - {id(variable) for variable in variables}:
                    raise ValueError("it changes variables that the model does not track")
                scaled = self._model.optimizer.scale_loss(loss)
                gradients = torch.autograd.grad(scaled, trainable, allow_unused=True)
            # in memory as `backward` leaves them: sums for a norm are rounded by this order
            gradients = [dy if dy is None else dy.contiguous() for dy in gradients]
            masks = tree.map_structure(keras_private.get_keras_mask, y_pred)
            new = [scope.get_current_value(variable) for variable in self._others]
            return loss, gradients, y_pred, masks, new

        variables = [*self._trainable, *self._others]
        # one tensor given twice, as x and y, would be one argument of the program
        leaves = [v if v is None else v.view_as(v) for v in leaves]
        arguments = [*map(keras_private.raw_values, (self._trainable, self._others)), leaves]
        trace = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)
        try:
            with torch.no_grad(), torch.random.fork_rng():
                program = trace(*arguments)
                _simplify(program.graph)
                _reuse_memory(program.graph)
                _call_functions(program.graph)
                program.recompile()
                program(*arguments)  # kernels may refuse what their shapes promise: oneDNN's LSTM
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            reason = reason or "values decide, as the seed of a layer with a seed of its own"
            warnings.warn(
                f"zoo.fast: {self._model.name!r} trains by Keras's own step, because its step "
                f"cannot be replayed: {type(error).__name__}: {reason}",
                stacklevel=2,
            )
            return None
        return program


def _simplify(graph):
    """Take out what changes nothing without gradients: detached tensors, permutations undone."""
    aten = torch.ops.aten
    for node in graph.nodes:
        if node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.permute.default and node.args[0].target is node.target:
            source, order = node.args[0].args
            if [order[i] for i in node.args[1]] == sorted(order):
                node.replace_all_uses_with(source)
    graph.eliminate_dead_code()


def _reuse_memory(graph):
    """Let an elementwise operation write over its first argument if nothing reads that later."""
    aten = torch.ops.aten
    outputs = dict.fromkeys([aten.threshold_backward, aten.sigmoid_backward], "grad_input")
    outputs |= dict.fromkeys([aten.add, aten.mul, aten.sub, aten.sigmoid, aten.tanh], "out")
    outputs |= {aten.tanh_backward: "grad_input", aten.relu: ""}
    order = {node: index for index, node in enumerate(graph.nodes)}
    last: dict[Any, float] = {}  # index of the last reader, by memory
    for node in graph.nodes:
        given = node.op in ("placeholder", "get_attr")  # the latter: constant tensors
        given = given or any(n.op == "get_attr" for n in node.all_input_nodes)
        readers = [math.inf] if given else [order[user] for user in node.users]
        last[_memory(node)] = max([last.get(_memory(node), 0), *readers])
    for node in graph.nodes:
        packet = getattr(node.target, "overloadpacket", None)
        first, *others = node.all_input_nodes or [node]
        if packet not in outputs or node.args[0] is not first or _layout(first) != _layout(node):
            continue
        if last[_memory(first)] != order[node] or _memory(first) in map(_memory, others):
            continue
        if packet is aten.relu:
            node.target = aten.relu_.default
        else:
            node.target = getattr(packet, outputs[packet])
            node.kwargs = {**node.kwargs, outputs[packet]: first}


def _call_functions(graph):
    """Call `torch`'s own functions where it has them: half of the Python of operations by name."""
    names = {"add", "addmm", "clone", "mm", "mul", "native_batch_norm", "permute", "relu_"}
    names |= {"convolution", "sigmoid", "sub", "sum", "tanh", "zeros_like"}
    functions = {getattr(torch.ops.aten, name): getattr(torch, name) for name in names}
    for node in graph.nodes:
        node.target = functions.get(getattr(node.target, "overloadpacket", None), node.target)


def _memory(node):
    """Return what tensors share that are views of the same memory."""
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if ops.is_tensor(value) else node


def _layout(node):
    value = node.meta.get("val")
    return (value.shape, value.stride(), value.dtype) if ops.is_tensor(value) else node
