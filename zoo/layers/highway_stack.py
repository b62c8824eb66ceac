"""Many fully connected skip layers in one, for networks too deep to compile layer by layer."""

import keras
import numpy as np
from keras import ops

from zoo import backend
from zoo.layers.highway import Highway
from zoo.layers.highway_dense import HighwayDense
from zoo.layers.skip import GateBias


@keras.saving.register_keras_serializable("zoo")
class HighwayDenseStack(Highway):
    """`depth` layers `HighwayDense` of one width, one after the other, as one scanned layer.

    It computes what they compute. Their weights are stacked, and the layer is compiled once and
    not `depth` times: a thousand layers take seconds, where a graph of them is deeper than Keras
    builds. To look inside, or to operate on single layers, take the graph:
    `zoo.stacking.to_layers`.

    Args:
        depth: Number of layers.
        units: See `HighwayDense`, as the following.
        activation: Of H; the gates are sigmoids.
        variant: A row of `zoo.layers.gating.FORMS`.
        gate_bias: Initial bias of T, a logit, in every layer; C starts at `-gate_bias`.
        **kwargs: `kernel_initializer` and `bias_initializer`, which draw the weights of one layer
            after the other (with an integer seed, the same for each), `stage`, `name`, `dtype`.

    Input shape: `(batch, ..., units)`.
    Output shape: `(batch, ..., units)`.

    Raises:
        ValueError: if `depth` is not positive, and as `HighwayDense`.

    Example:

    >>> stack = HighwayDenseStack(100, units=2, gate_bias=-100.0)  # closed gates carry
    >>> keras.ops.convert_to_numpy(stack(np.array([[3.0, -4.0]], "float32"))).tolist()
    [[3.0, -4.0]]
    >>> tuple(stack.transform_gate.kernel.shape)
    (100, 2, 2)

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, sections 2 and 3.
    """

    width_argument, before = "units", "Dense"

    def __init__(
        self, depth, units=None, activation="relu", variant="coupled", gate_bias=-2.0, **kwargs
    ):
        super().__init__(units, activation, variant, gate_bias, **kwargs)
        if not isinstance(depth, int) or depth < 1:
            raise ValueError(f"`depth` must be a positive integer. Received: depth={depth!r}")
        self.depth, self.units = depth, units

    def branch(self, name, bias):
        draw = one_by_one(self.bias_initializer)
        stacked = {
            "kernel_initializer": one_by_one(self.kernel_initializer),
            "bias_initializer": draw if bias is None else GateBias(bias, draw),
        }
        return StackedDense(self.depth, **{**self.of_branch(name, bias), **stacked})

    def parts(self, x):
        """The input x and the last layer's output y; h, t and c are the single layers' affair."""
        return {"x": x, "y": self.scan(x)}

    def scan(self, x, with_states=False):
        """The last layer's output and, if asked for, that of each: `(depth, batch, ..., units)`."""
        branches = self.branch_layers()

        def step(x, slices):
            pairs = zip(slices[::2], slices[1::2], strict=True)
            named = zip(branches.items(), pairs, strict=True)
            found = {letter: branch.call(x, *pair) for (letter, branch), pair in named}
            return self.mix(found.pop("h"), x, **found)

        if self._remat_mode:
            step = keras.remat(step)  # layer by layer: what is kept is each layer's input
        weights = [w for branch in branches.values() for w in (branch.kernel, branch.bias)]
        return backend.scan_layers(step, x, weights, self.depth, with_states)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # `scan` sees to it

    def to_layers(self):
        """New, built `HighwayDense` layers with these weights, named after this layer.

        Raises:
            ValueError: if the layer is not built.
        """
        if not self.built:
            raise ValueError(
                f"`to_layers` copies weights. Received: {self.name}, which has none yet. "
                f"Call it, or build it with its input's shape, first."
            )
        config = self.get_config()
        del config["depth"]
        weights, layers = self.get_weights(), []
        for index in range(self.depth):
            layer = HighwayDense.from_config({**config, "name": f"{self.name}_layer{index + 1}"})
            layer.build((None, self.width))
            layer.set_weights([w[index] for w in weights])
            layers.append(layer)
        return layers

    @classmethod
    def from_layers(cls, layers):
        """A new, built stack with the weights of `layers`.

        Args:
            layers: Built `HighwayDense` layers that agree in what `kind` tells. How the stack says
                that its weights were drawn, and its name, are the first one's.

        Raises:
            ValueError: if there is none, or one is not built or differs from the first.
        """
        layers = list(layers)
        kinds = [kind(layer) for layer in layers]
        odd = [index for index, one in enumerate(kinds) if one is None or one != kinds[0]]
        if odd or not layers:
            shown = [i for i in {0, *odd[:1]} if layers]
            told = [f"{layers[i].name}: {kinds[i] or 'not one'}" for i in shown]
            raise ValueError(
                f"`from_layers` expects one or more built `HighwayDense` layers of one kind. "
                f"Received: {'; '.join(told) or 'none'}. Stack each run of equal ones, as "
                f"`zoo.stacking.to_stack` does."
            )
        config = layers[0].get_config()
        name = layers[0].name.removesuffix("_layer1")  # what `to_layers` added
        stack = cls.from_config({**config, "name": name, "depth": len(layers)})
        stack.build((None, layers[0].width))
        each = zip(*(layer.get_weights() for layer in layers), strict=True)
        stack.set_weights([np.stack(weights) for weights in each])
        return stack

    def get_config(self):
        return {**super().get_config(), "depth": self.depth}


class StackedDense(keras.layers.Layer):
    """`depth` dense layers: kernels `(depth, width, width)`, biases `(depth, width)`.

    Args:
        depth: Number of layers.
        activation: Of each.
        kernel_initializer: Of all kernels at once.
        bias_initializer: Of all biases at once.
    """

    def __init__(self, depth, activation, kernel_initializer, bias_initializer, **kwargs):
        super().__init__(**kwargs)
        self.depth, self.activation = depth, keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape):
        shape = self.depth, input_shape[-1]
        self.kernel = self.add_weight(
            (*shape, shape[-1]), initializer=self.kernel_initializer, name="kernel"
        )
        self.bias = self.add_weight(shape, initializer=self.bias_initializer, name="bias")

    def call(self, x, kernel, bias):
        """One layer, with its slices: operation for operation what `keras.layers.Dense` does."""
        return self.activation(ops.add(ops.matmul(x, kernel), bias))


def one_by_one(initializer):
    """`initializer` for stacked weights, of which it would take `depth` for a part of the fan."""

    def draw(shape, dtype=None):
        if isinstance(initializer, keras.initializers.Constant | keras.initializers.Zeros):
            return initializer(shape, dtype=dtype)  # no draw, and a thousand take their time
        draws = [initializer.clone()(shape[1:], dtype=dtype) for _ in range(shape[0])]
        return ops.convert_to_tensor(np.stack([ops.convert_to_numpy(v) for v in draws]), dtype)

    return draw


def kind(layer):
    """What the layers of a stack agree in; `None` if `layer` cannot be in one."""
    if type(layer) is not HighwayDense or not layer.built:
        return None
    names = "width", "variant", "activation", "stage", "trainable"
    return {**{name: getattr(layer, name) for name in names}, "dtype": layer.dtype_policy.name}
