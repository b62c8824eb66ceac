"""Many fully connected highway layers in one, for networks too deep to compile layer by layer."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from zoo import backend
from zoo.backend import keras_private
from zoo.checks import check_integers
from zoo.layers.gating import gate
from zoo.layers.highway import HighwayDense
from zoo.layers.skip import GateBias
from zoo.types import Activation, Initializer, Shape, Tensor

WITHOUT_FAN = (  # initializers whose values do not depend on the shape
    keras.initializers.Constant,
    keras.initializers.Zeros,
    keras.initializers.Ones,
    keras.initializers.RandomNormal,
    keras.initializers.RandomUniform,
    keras.initializers.TruncatedNormal,
)


@keras.saving.register_keras_serializable("zoo")
class HighwayDenseStack(HighwayDense):
    """`depth` layers `HighwayDense` of one width, one after the other, as one scanned layer.

    It computes what they compute. Their weights are stacked, and the layer is compiled once and
    not `depth` times: a thousand layers take seconds, where a graph of them is deeper than Keras
    builds. To inspect or modify single layers, rewire it with its `to_layers()`.

    Args:
        depth: Number of layers.
        units: Width, in features, as for `HighwayDense`.
        activation: Activation of H.
        variant: Functional form, as for `HighwayDense`.
        gate_bias: Initial bias of T, a logit.
        kernel_initializer: Initializer of one layer's kernels, sampled for each layer.
        bias_initializer: Initializer of one layer's biases, sampled for each layer.
        **kwargs: Regularizers, constraints, `stage`, `name` and `dtype` as for `HighwayDense`;
            each layer's weights are penalized and constrained separately.

    Input shape: `(batch, ..., units)`.
    Output shape: `(batch, ..., units)`.

    Raises:
        ValueError: if `depth` is not positive, for an `activity_regularizer`, and as
            `HighwayDense`.

    Example:
    >>> stack = HighwayDenseStack(100, units=2, gate_bias=-100.0)  # closed gates carry
    >>> keras.ops.convert_to_numpy(stack(np.array([[3.0, -4.0]], "float32"))).tolist()
    [[3.0, -4.0]]
    >>> tuple(stack.transform_gate.kernel.shape)
    (100, 2, 2)

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, sections 2 and 3.
    """

    arguments = ("depth", *HighwayDense.arguments)

    def __init__(
        self,
        depth: int,
        units: int | None = None,
        activation: Activation = "relu",
        variant: str = "coupled",
        gate_bias: float = -2.0,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs,
    ) -> None:
        super().__init__(
            units,
            activation,
            variant,
            gate_bias,
            kernel_initializer,
            bias_initializer,
            **kwargs,
        )
        if self.activity_regularizer is not None:
            raise ValueError(
                "A stack returns its last layer's output, so it cannot penalize each layer's. "
                "Received: `activity_regularizer`. Use single `zoo.HighwayDense` layers."
            )
        check_integers(1, depth=depth)
        self.depth = depth

    def branch(self, name: str, bias: float | None) -> keras.layers.Layer:
        """Return the stacked dense layers of one branch; see `Skip.branch`."""
        initializer = per_layer(self.bias_initializer)
        weights = {
            "kernel": {"initializer": per_layer(self.kernel_initializer)},
            "bias": {"initializer": initializer if bias is None else GateBias(bias, initializer)},
        }
        for option, function in self.weight_options().items():
            weight, kind = option.split("_")
            each = _PenaltyOfEach if kind == "regularizer" else _ConstrainedEach
            weights[weight][kind] = function and each(function)
        activation = self.activation if bias is None else gate
        dtype = self.branch_policy(name)
        return StackedDense(self.depth, activation, **weights, dtype=dtype, name=name)

    def parts(self, x: Tensor, **context) -> dict[str, Tensor]:
        """Raise an error: each layer of the stack has parts of its own."""
        raise NotImplementedError(
            f"A stack has no h, t and c; its layers have. Received: {self.name}. "
            f"Convert it with `to_layers`."
        )

    def call(self, x: Tensor) -> Tensor:
        """Return the last layer's output."""
        return self.scan(x)

    def scan(self, x: Tensor, with_states: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Return the last layer's output, and every layer's if `with_states`.

        The layers' outputs have the shape `(depth, batch, ..., units)`.
        """
        branches = self._branches()
        weights = [w for branch in branches.values() for w in (branch.kernel, branch.bias)]

        def step(x, slices):
            parts = {"x": x}
            for i, (letter, branch) in enumerate(branches.items()):
                parts[letter] = branch.call(x, slices[2 * i], slices[2 * i + 1])
            return self.form.mix(**parts, dtype=self.compute_dtype)

        if keras_private.is_rematerialized(self):
            step = keras.remat(step)  # layer by layer: each layer's input is all that is stored
        return backend.scan_layers(step, x, weights, self.depth, with_states)

    def rematerialized_call(self, layer_call: Callable, *args, **kwargs) -> Callable:
        """Return `layer_call`, because `scan` rematerializes each layer."""
        return layer_call

    def to_layers(self) -> list[HighwayDense]:
        """Return new, built `HighwayDense` layers with these weights, named after this layer.

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
        weights = self.get_weights()
        layers = []
        for index in range(self.depth):
            layer = HighwayDense.from_config({**config, "name": f"{self.name}_layer{index + 1}"})
            layer.build((None, self.width))
            layer.set_weights([w[index] for w in weights])
            layers.append(layer)
        return layers

    @classmethod
    def from_layers(cls, layers: Sequence[HighwayDense]) -> "HighwayDenseStack":
        """Return a new, built stack with the weights of `layers`.

        Args:
            layers: Built `HighwayDense` layers with equal `stack_key`. The stack takes its name
                and initializers from the first.

        Raises:
            ValueError: if there is none, or one is not built or differs from the first.
        """
        layers = list(layers)
        keys = [stack_key(layer) for layer in layers]
        differing = [i for i, key in enumerate(keys) if key is None or key != keys[0]]
        if differing or not layers:
            shown = sorted({0, *differing[:1]}) if layers else []
            received = [f"{layers[i].name}: {keys[i] or 'not one'}" for i in shown]
            raise ValueError(
                f"`from_layers` expects one or more built `HighwayDense` layers of one kind. "
                f"Received: {'; '.join(received) or 'none'}."
            )
        config = layers[0].get_config()
        name = layers[0].name.removesuffix("_layer1")  # which `to_layers` added
        stack = cls.from_config({**config, "name": name, "depth": len(layers)})
        stack.build((None, layers[0].width))
        by_weight = zip(*(layer.get_weights() for layer in layers), strict=True)
        stack.set_weights([np.stack(weights) for weights in by_weight])
        return stack


class StackedDense(keras.layers.Layer):
    """`depth` dense layers: kernels `(depth, width, width)`, biases `(depth, width)`.

    Args:
        depth: Number of layers.
        activation: Activation of each.
        kernel, bias: Arguments of `add_weight` for all kernels and all biases at once.
        **kwargs: `name`, `dtype`.
    """

    def __init__(
        self, depth: int, activation: Activation, kernel: dict, bias: dict, **kwargs
    ) -> None:
        super().__init__(**kwargs)
        self.depth = depth
        self.activation = keras.activations.get(activation)
        self.options = kernel, bias

    def build(self, input_shape: Shape) -> None:
        """Create the stacked weights."""
        width = input_shape[-1]
        kernel, bias = self.options
        self.kernel = self.add_weight((self.depth, width, width), name="kernel", **kernel)
        self.bias = self.add_weight((self.depth, width), name="bias", **bias)

    def call(self, x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        """Return one layer's output, with the operations of `keras.layers.Dense`."""
        return self.activation(ops.add(ops.matmul(x, kernel), bias))


def per_layer(initializer: keras.initializers.Initializer) -> Callable:
    """Return an initializer of stacked weights that samples `initializer` once per layer.

    `initializer` itself would count the axis of layers into the fan. Keras's own are sampled for
    all layers at once: a thousand calls take a second.
    """
    scaling = keras.initializers.VarianceScaling
    has_axes = getattr(initializer, "input_axes", ()) is None  # Keras 3.15 and newer
    is_scaled = has_axes and type(initializer).__call__ is scaling.__call__

    def sample(shape, dtype=None):
        if type(initializer) in WITHOUT_FAN:
            return initializer.clone()(shape, dtype=dtype)
        if is_scaled and len(shape) == 3:
            fresh = initializer.clone()  # with a seed of its own, unless one was given
            options = {"seed": fresh.seed, "input_axes": [1], "output_axes": [2]}
            stacked = scaling(fresh.scale, fresh.mode, fresh.distribution, **options)
            return stacked(shape, dtype=dtype)
        samples = [initializer.clone()(shape[1:], dtype=dtype) for _ in range(shape[0])]
        return ops.convert_to_tensor(np.stack([ops.convert_to_numpy(v) for v in samples]), dtype)

    return sample


class _PenaltyOfEach(keras.regularizers.Regularizer):
    """The sum of a regularizer's penalties of the layers of stacked weights."""

    def __init__(self, regularizer) -> None:
        self.regularizer = regularizer

    def __call__(self, weights) -> Any:
        return ops.sum(_of_each(self.regularizer, weights))


class _ConstrainedEach(keras.constraints.Constraint):
    """A constraint of each layer of stacked weights."""

    def __init__(self, constraint) -> None:
        self.constraint = constraint

    def __call__(self, weights) -> Any:
        return _of_each(self.constraint, weights)


def _of_each(function, weights):
    """Return a constraint's weights, or a regularizer's penalties, of each layer."""
    return ops.vectorized_map(function, ops.convert_to_tensor(weights))


def stack_key(layer: keras.layers.Layer) -> dict[str, Any] | None:
    """Return what the layers of one stack have in common, or None if `layer` cannot be in one."""
    if type(layer) is not HighwayDense or not layer.built or layer.activity_regularizer:
        return None
    if any(branch.quantization_mode for branch in layer._branches().values()):
        return None
    names = ("width", "variant", "activation", "stage", "trainable")
    config = layer.get_config()
    options = {name: config[name] for name in layer.weight_options() if config[name] is not None}
    return {
        **{name: getattr(layer, name) for name in names},
        "dtype": layer.dtype_policy.name,
        **options,
    }
