"""Many MLPs of one shape side by side: stacked weights, each network trained as if it were alone.

Used by mnist_depth_search.py: on a CPU, layers of 50 units are too small to compute one by one.
recipe imports it from beside itself.
"""

import math
import time

import keras
import numpy as np
from keras import ops

from zoo import backend
from zoo.initializers import GlorotUniform, KaimingNormal
from zoo.layers.gating import form, gate

FORMS = {"plain": "plain", "highway": "coupled"}


def build(kind, depth, units, activation, seeds, gate_biases, input_shape, classes):
    """Networks as `zoo.plain_mlp` or `zoo.highway_mlp` build one, of the same images.

    Args:
        kind: "plain" or "highway".
        depth, units, activation, classes: As the builders take them.
        seeds: One a network: `zoo.seed_everything(seed)` and the builder give its weights.
        gate_biases: One a network; plain ones have no gates.
        input_shape: Of an image.

    Returns:
        A `keras.Model` from images to logits, `(batch, networks, classes)`.
    """
    shape = kind, depth, units, activation, seeds, gate_biases, classes
    inputs = keras.Input(tuple(input_shape))
    x = keras.layers.Flatten()(inputs)
    return keras.Model(inputs, SideBySide(*shape, name="networks")(x))


class SideBySide(keras.layers.Layer):
    """The networks of `build`, whose arguments it has, from flat images on.

    First and last weights have the shape `(networks, in, out)`, those between `(depth - 1,
    networks, in, out)`, and biases an `in` of 1.
    """

    def __init__(self, kind, depth, units, activation, seeds, gate_biases, classes, **kwargs):
        super().__init__(**kwargs)
        self.form, self.depth, self.units = form(FORMS[kind]), depth, units
        self.activation = keras.activations.get(activation)
        self.initializer = KaimingNormal() if activation == "relu" else GlorotUniform()
        self.seeds, self.gate_biases, self.classes = list(seeds), list(gate_biases), classes

    def build(self, input_shape):
        pairs = zip(self.seeds, self.gate_biases, strict=True)
        drawn = [self.draw(input_shape[-1], *pair) for pair in pairs]
        self.stacked = {}
        for name, kernel in drawn[0].items():
            axis = kernel.ndim - 2
            self.stacked[name] = self.constant(name, np.stack([d[name] for d in drawn], axis))

    def draw(self, features, seed, gate_bias):
        """The weights of one network, drawn in the order in which the builders make layers."""
        generator, units = np.random.default_rng(seed), self.units
        branches = "h" + self.form.gates

        def kernel(rows, columns):
            return self.initializer.draw(generator, (rows, columns))

        first = kernel(features, units)
        blocks = [[kernel(units, units) for _ in branches] for _ in range(self.depth - 1)]
        weights = {"first": first, "first_bias": np.zeros((1, units))}
        for branch, kernels in zip(branches, zip(*blocks, strict=True), strict=True):
            bias = 0.0 if branch == "h" else gate_bias
            weights[branch] = np.stack(kernels)
            weights[f"{branch}_bias"] = np.full((self.depth - 1, 1, units), float(bias))
        last = kernel(units, self.classes)
        return {**weights, "last": last, "last_bias": np.zeros((1, self.classes))}

    def constant(self, name, values):
        def initializer(shape, dtype=None):
            return ops.convert_to_tensor(values, dtype)

        half = not name.startswith("last")  # the classifier's sum over classes is float32
        return self.add_weight(values.shape, initializer=initializer, name=name, autocast=half)

    def call(self, x):
        w = self.stacked

        def dense(x, kernel, bias, activation):
            return activation(ops.add(ops.matmul(x, kernel), bias))

        def step(x, slices):
            h = dense(x, *slices[:2], self.activation)
            t = dense(x, *slices[2:], gate) if self.form.gates else None
            return self.form.mix(h, x, t, None, self.compute_dtype)

        x = dense(x, w["first"], w["first_bias"], self.activation)  # (networks, batch, units)
        deep = [w[branch + end] for branch in "h" + self.form.gates for end in ("", "_bias")]
        x = backend.scan_layers(step, x, deep, self.depth - 1)
        x = ops.cast(x, self.variable_dtype)
        logits = ops.add(ops.matmul(x, w["last"]), w["last_bias"])
        return ops.transpose(logits, (1, 0, 2))


def compile_networks(model, settings, steps):
    """Compiles a model of `build` such that its networks train independently of each other.

    Args:
        model: Of `build`.
        settings: One a network, with `rate`, `momentum` and `decay`, the factor of an epoch.
        steps: Batches of an epoch.
    """

    def column(name):
        values = [getattr(one, name) for one in settings]
        return np.reshape(np.array(values, "float32"), (-1, 1, 1))  # to all weights' shapes

    rates = Rates(column("rate"), column("decay"), steps)
    model.compile(SGD(rates, column("momentum")), summed_loss, metrics=[EachLoss(len(settings))])


class Rates(keras.optimizers.schedules.LearningRateSchedule):
    """`keras.optimizers.schedules.ExponentialDecay` of arrays: a rate a network."""

    def __init__(self, rates, decays, steps):
        self.rates, self.decays, self.steps = rates, decays, steps

    def __call__(self, step):
        epochs = ops.divide(ops.cast(step, "float32"), float(self.steps))
        return ops.multiply(self.rates, ops.power(self.decays, epochs))


class SGD(keras.optimizers.Optimizer):
    """`keras.optimizers.SGD` with a momentum a network."""

    def __init__(self, rates, momenta, **kwargs):
        super().__init__(rates, **kwargs)
        self.momenta = momenta

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.steps = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient, variable, learning_rate):
        m = self.steps[self._get_variable_index(variable)]
        kept = ops.multiply(m, ops.cast(self.momenta, m.dtype))
        self.assign(m, ops.subtract(kept, ops.multiply(gradient, ops.cast(learning_rate, m.dtype))))
        self.assign_add(variable, m)


def each_loss(labels, logits):
    """Cross entropies, `(batch, networks)`."""
    labels = ops.repeat(ops.reshape(labels, (-1, 1)), logits.shape[1], axis=1)
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def summed_loss(labels, logits):
    """Added over the networks, of which none sees another's weights in its gradient."""
    return ops.sum(each_loss(labels, logits), axis=1)


def key(index):
    """The name of a network's loss in the logs."""
    return f"loss{index:03d}"


class EachLoss(keras.metrics.Metric):
    """The mean cross entropy of each network as it trains, over the batches of an epoch."""

    def __init__(self, networks, name="each"):
        super().__init__(name=name)
        self.networks = networks
        self.total = self.add_weight((networks,), initializer="zeros", name="total")
        self.batches = self.add_weight((), initializer="zeros", name="batches")

    def update_state(self, y_true, y_pred, sample_weight=None):
        loss = ops.mean(each_loss(y_true, y_pred), axis=0)
        self.total.assign_add(ops.cast(loss, self.total.dtype))
        self.batches.assign_add(1.0)

    def result(self):
        means = ops.divide_no_nan(self.total, self.batches)
        return {key(index): means[index] for index in range(self.networks)}


class Watch(keras.callbacks.Callback):
    """A line every 20 seconds and at the end: epoch, lowest loss, how many diverged, and `tell()`.

    Args:
        name: Of the networks.
        epochs: In all.
        tell: Called after each epoch: how far all is.
    """

    def __init__(self, name, epochs, tell):
        super().__init__()
        self.name, self.epochs, self.tell, self.elapsed = name, epochs, tell, 0.0
        self.state = ("elapsed",)  # what `Resume` restores

    def on_train_begin(self, logs=None):
        self._said = time.perf_counter()

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        now = time.perf_counter()
        self.elapsed += now - self._start
        told = self.tell()
        if now - self._said < 20 and epoch + 1 < self.epochs:
            return
        self._said = now
        losses = [value for name, value in logs.items() if name != "loss"]
        finite = [value for value in losses if math.isfinite(value)]
        lowest = f"{min(finite):.4g}" if finite else "none"
        print(
            f"{self.name}: epoch {epoch + 1}/{self.epochs}  lowest loss {lowest}"
            f"  {len(losses) - len(finite)} of {len(losses)} diverged  {told}",
            flush=True,
        )
