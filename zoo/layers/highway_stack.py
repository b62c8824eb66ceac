"""Many fully connected highway layers in one, for networks too deep to compile layer by layer."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from zoo import backend
from zoo.backend.keras_private import is_rematerialized
from zoo.checks import check_integers, require
from zoo.initializers import copied
from zoo.layers.configured import Scanned
from zoo.layers.highway import HighwayDense
from zoo.types import Shape, Tensor


@keras.saving.register_keras_serializable("zoo")
class HighwayDenseStack(Scanned, HighwayDense):
    """`depth` layers `HighwayDense` of one width, one after the other, as one scanned layer.

    It computes what they compute. Their weights are stacked, and the layer is compiled once and
    not `depth` times: a thousand layers take seconds, where a graph of them is deeper than Keras
    builds. To inspect or modify single layers, rewire it with its `to_layers()`.

    Arguments and shapes are those of `HighwayDense`, save the regularizers. Initializers are those
    of one layer, sampled for each, but alike if they have an integer seed.

    Raises:
        ValueError: if `depth` is not positive, for a regularizer, and as `HighwayDense`.

    Example:
    >>> stack = HighwayDenseStack(100, units=2, gate_bias=-100.0)  # closed gates carry
    >>> keras.ops.convert_to_numpy(stack(keras.ops.array([[3.0, -4.0]]))).tolist()
    [[3.0, -4.0]]
    >>> tuple(stack.transform_gate.kernel.shape)
    (100, 2, 2)

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, sections 2 and 3.
    """

    def __init__(self, depth: int, units: int | None = None, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        check_integers(1, depth=depth)
        for name, value in {**self.regularizers(), "activity": self.activity_regularizer}.items():
            expected = "None, as a stack has no regularizers. Use single `zoo.HighwayDense` layers"
            require(value is None, expected, **{name: value})
        self.depth = depth

    def branch(self, name: str, bias: float | None) -> keras.layers.Layer:
        """Return the stacked dense layers of one branch; see `Skip.branch`."""
        options = self.branch_options(name, bias).items()
        return StackedDense(self.depth, **{key: v for key, v in options if v is not None})

    def call(self, x: Tensor) -> Tensor:
        """Return the last layer's output."""
        branches = self._branches()
        weights = [w for branch in branches.values() for w in (branch.kernel, branch.bias)]

        def step(x, slices):
            parts = {"x": x}
            for i, (letter, branch) in enumerate(branches.items()):
                parts[letter] = branch.call(x, slices[2 * i], slices[2 * i + 1])
            return self.form.mix(**parts, dtype=self.compute_dtype)

        return backend.scan_layers(step, x, weights, is_rematerialized(self))

    def to_layers(self) -> list[HighwayDense]:
        """Return new, built `HighwayDense` layers with these weights, named after this layer.

        Raises:
            ValueError: if the layer is not built.
        """
        self.check_built()
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


class StackedDense(keras.layers.Layer):
    """`depth` dense layers: kernels `(depth, width, width)`, biases `(depth, width)`."""

    def __init__(
        self,
        depth: int,
        activation: Callable,
        kernel_initializer: keras.initializers.Initializer,
        bias_initializer: keras.initializers.Initializer,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.depth = depth
        self.activation = activation
        self.initializers = each_layer(kernel_initializer), each_layer(bias_initializer)

    def build(self, input_shape: Shape) -> None:
        """Create the stacked weights."""
        width = input_shape[-1]
        kernel, bias = self.initializers
        self.kernel = self.add_weight((self.depth, width, width), kernel, name="kernel")
        self.bias = self.add_weight((self.depth, width), bias, name="bias")

    def call(self, x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        """Return one layer's output, with the operations of `keras.layers.Dense`."""
        return self.activation(ops.add(ops.matmul(x, kernel), bias))


def each_layer(initializer: keras.initializers.Initializer) -> Callable:
    """Return an initializer of stacked weights, without the axis of layers in the fan."""

    def sample(shape, dtype=None):
        return ops.stack([copied(initializer)(shape[1:], dtype=dtype) for _ in range(shape[0])])

    return sample
