"""Many MLPs of one shape side by side: stacked weights, each trained as if it were alone.

On a CPU, layers of 50 units are too small to compute network by network.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.optimizers import schedules

from zoo import backend
from zoo.initializers import GlorotUniform, KaimingNormal
from zoo.layers.gating import Form, form, gate
from zoo.types import Tensor


def build(
    kind: str,
    depth: int,
    units: int,
    activation: str,
    seeds: Sequence[int],
    gate_biases: Sequence[float | None],
    input_shape: Sequence[int],
    classes: int,
) -> keras.Model:
    """Return networks side by side: from images to logits, `(batch, networks, classes)`.

    Each has the weights that `zoo.seed_everything` of its seed and `zoo.highway_mlp` give it.
    """
    chosen = form("coupled" if kind == "highway" else kind)
    sizes = math.prod(input_shape), units, classes, depth
    networks = [
        sample(chosen, activation, sizes, seed, bias)
        for seed, bias in zip(seeds, gate_biases, strict=True)
    ]
    stacked = [np.stack(values, axis=-3) for values in zip(*networks, strict=True)]
    inputs = keras.Input(tuple(input_shape))
    x = keras.layers.Flatten()(inputs)
    x = SideBySide(chosen, activation, stacked, name="networks")(x)
    return keras.Model(inputs, x)


def sample(
    form: Form, activation: str, sizes: Sequence[int], seed: int, gate_bias: float | None
) -> list[np.ndarray]:
    """Sample one network's weights in the order in which the builders make layers."""
    generator = np.random.default_rng(seed)
    initializer = KaimingNormal() if activation == "relu" else GlorotUniform()
    features, units, classes, depth = sizes
    biases = [0.0, gate_bias] if form.gates else [0.0]  # of H and T

    def kernel(rows, columns):
        return initializer.sample(generator, (rows, columns))

    weights = [kernel(features, units), np.zeros((1, units))]
    blocks = [[kernel(units, units) for _ in biases] for _ in range(depth - 1)]
    for bias, kernels in zip(biases, zip(*blocks, strict=True), strict=True):
        weights += [np.stack(kernels), np.full((depth - 1, 1, units), float(bias))]
    return [*weights, kernel(units, classes), np.zeros((1, classes))]


class SideBySide(keras.layers.Layer):
    """Networks with the stacked weights of `build`, from flat images to logits.

    Kernels and biases, whose `in` is 1, alternate: of the first layer, H, T, and the last layer.
    First and last ones are `(networks, in, out)`, others `(depth - 1, networks, in, out)`.
    """

    def __init__(
        self, form: Form, activation: str, weights: Sequence[np.ndarray], name: str
    ) -> None:
        super().__init__(name=name)
        self.form = form
        self.activation = keras.activations.get(activation)
        self.stacked = []
        for index, values in enumerate(weights, 1):
            is_last = index >= len(weights) - 1  # the classifier's sum over classes is float32
            self.stacked.append(self.add_weight(values.shape, "zeros", autocast=not is_last))
            self.stacked[-1].assign(values)

    def call(self, x: Tensor) -> Tensor:
        """Return logits, `(batch, networks, classes)`."""
        first, first_bias, *deep, last, last_bias = self.stacked

        def dense(x, kernel, bias, activation):
            return activation(ops.add(ops.matmul(x, kernel), bias))

        def step(x, slices):
            h = dense(x, *slices[:2], self.activation)
            t = dense(x, *slices[2:], gate) if self.form.gates else None
            return self.form.mix(h, x, t, None, self.compute_dtype)

        x = dense(x, first, first_bias, self.activation)  # (networks, batch, units)
        x = backend.scan_layers(step, x, deep, deep[0].shape[0])
        x = ops.cast(x, self.variable_dtype)
        logits = ops.add(ops.matmul(x, last), last_bias)
        return ops.transpose(logits, (1, 0, 2))


def compile_networks(model: keras.Model, settings: Sequence[Any], steps: int) -> None:
    """Compile a model of `build` so that its networks train independently of each other.

    Each has its rate, momentum and decay, the factor of an epoch of `steps` batches, in `settings`.
    """

    def column(name):
        values = [getattr(network, name) for network in settings]
        return np.reshape(np.array(values, "float32"), (-1, 1, 1))  # to all weights' shapes

    decay = schedules.ExponentialDecay
    optimizer = SGD(decay(column("rate"), steps, column("decay")), column("momentum"))
    model.compile(optimizer, summed_loss, metrics=[NetworkLosses(len(settings))])


class SGD(keras.optimizers.SGD):
    """`keras.optimizers.SGD` with a momentum for each network."""

    def __init__(self, rates: schedules.LearningRateSchedule, momenta: np.ndarray) -> None:
        super().__init__(rates, momentum=1.0)  # of what `update_step` leaves
        self.momenta = momenta

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """Update one variable."""
        m = self.momentums[self._get_variable_index(variable)]
        self.assign(m, ops.multiply(m, ops.cast(self.momenta, m.dtype)))
        super().update_step(gradient, variable, learning_rate)


def network_losses(labels: Tensor, logits: Tensor) -> Tensor:
    """Return cross entropies, `(batch, networks)`."""
    labels = ops.repeat(ops.reshape(labels, (-1, 1)), logits.shape[1], axis=1)
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def summed_loss(labels: Tensor, logits: Tensor) -> Tensor:
    """Return the sum over the networks: no network's gradient depends on another's weights."""
    return ops.sum(network_losses(labels, logits), axis=1)


def key(index: int) -> str:
    """Return the name of a network's loss in the logs."""
    return f"loss{index:03d}"


class NetworkLosses(keras.metrics.Metric):
    """Mean cross entropy of each network as it trains, over the batches of an epoch."""

    def __init__(self, networks: int, name: str = "each") -> None:
        super().__init__(name=name)
        self.total = self.add_weight((networks,), initializer="zeros", name="total")
        self.batches = self.add_weight((), initializer="zeros", name="batches")

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Add one batch."""
        loss = ops.mean(network_losses(y_true, y_pred), axis=0)
        self.total.assign_add(ops.cast(loss, self.total.dtype))
        self.batches.assign_add(1.0)

    def result(self) -> dict[str, Tensor]:
        """Return the losses by `key`."""
        means = ops.divide_no_nan(self.total, self.batches)
        return {key(index): means[index] for index in range(self.total.shape[0])}
