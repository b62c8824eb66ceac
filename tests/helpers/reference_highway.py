"""A small highway network, in Keras and in NumPy, as the reference of the probes."""

import keras
import numpy as np
from keras import layers

import zoo
from helpers import reference
from helpers.reference import sigmoid
from zoo import callbacks

CLASSES, UNITS, BLOCKS = 3, 4, 3
X = reference.images(7, 5)
Y = np.array([0, 1, 2, 1, 0, 2, 2])
PARTS = ("transform/kernel", "transform/bias", "transform_gate/kernel", "transform_gate/bias")


def highway_model():
    """Return a stem, three coupled highway layers and a softmax, with fixed weights."""
    inputs = keras.Input((5,))
    x = layers.Dense(UNITS, activation="tanh", name="stem")(inputs)
    for i in range(BLOCKS):
        x = zoo.HighwayDense(activation="tanh", name=f"block{i}", stage=1)(x)
    outputs = layers.Dense(CLASSES, activation="softmax", name="top")(x)
    return reference.random_weights(keras.Model(inputs, outputs))


class ReferenceNetwork:
    """The same network in NumPy, float64, whose states can be replaced."""

    def __init__(self, model):
        weights = {v.path: reference.as_float64(v)[0] for v in model.variables}
        self.stem = weights["stem/kernel"], weights["stem/bias"]
        self.top = weights["top/kernel"], weights["top/bias"]
        self.blocks = [[weights[f"block{i}/{part}"] for part in PARTS] for i in range(BLOCKS)]

    def states(self, x):
        """Return the input of each block, and the last one's output."""
        states = [np.tanh(x @ self.stem[0] + self.stem[1])]
        for i in range(BLOCKS):
            states.append(self.block(i, states[-1]))
        return states

    def gates(self, i, x):
        wh, bh, wt, bt = self.blocks[i]
        return np.tanh(x @ wh + bh), sigmoid(x @ wt + bt)

    def block(self, i, x):
        h, t = self.gates(i, x)
        return h * t + x * (1 - t)

    def probabilities(self, x, first):
        """Return the class probabilities if x is the input of block `first`."""
        for i in range(first, BLOCKS):
            x = self.block(i, x)
        logits = x @ self.top[0] + self.top[1]
        p = np.exp(logits - logits.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)

    def losses(self, x, first):
        return -np.log(self.probabilities(x, first)[np.arange(len(x)), Y])

    def gradient(self, x, first, step=1e-6):
        """Return the gradient of each example's loss at x, by central differences."""
        gradient = np.zeros_like(x)
        for j in range(x.shape[1]):
            e = np.zeros(x.shape[1])
            e[j] = step
            gradient[:, j] = (self.losses(x + e, first) - self.losses(x - e, first)) / (2 * step)
        return gradient


def norms(u):
    """Return the norm of each example."""
    return np.linalg.norm(u.reshape(len(u), -1), axis=1)


def cosines(u, v):
    """Return the cosine of each example."""
    return (u * v).sum(1) / (norms(u) * norms(v))


def values(probe, model, name=None, **options):
    """Run one probe and return its values by block."""
    options = {"batch_size": 3, **options}
    return callbacks.run([probe], model, (X, Y), **options).values(name or probe.name)


def reference_run(model):
    """Return the reference network, its states, and the residual f of each block."""
    network = ReferenceNetwork(model)
    states = network.states(X.astype("float64"))
    return network, states, [states[i + 1] - states[i] for i in range(BLOCKS)]


def check(actual, expected, **tolerance):
    """Assert that the values by block are the expected ones."""
    tolerance = tolerance or {"rtol": 1e-4, "atol": 1e-6}
    numbers = [value for block, value in actual.items() if block]
    np.testing.assert_allclose(numbers, expected, **tolerance)
