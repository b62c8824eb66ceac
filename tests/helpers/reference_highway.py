"""A small highway network, in Keras and in NumPy: what the tests of probes compare with."""

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


def highway_model():
    """A stem, three coupled highway layers, a softmax; fixed weights."""
    inputs = keras.Input((5,))
    x = layers.Dense(UNITS, activation="tanh", name="stem")(inputs)
    for i in range(BLOCKS):
        x = zoo.HighwayDense(activation="tanh", name=f"block{i}", stage=1)(x)
    outputs = layers.Dense(CLASSES, activation="softmax", name="top")(x)
    return reference.random_weights(keras.Model(inputs, outputs))


class Spelled:
    """The same network in NumPy, float64, whose states can be replaced."""

    def __init__(self, model):
        weights = {v.path: reference.as_float64(v)[0] for v in model.variables}
        self.stem = weights["stem/kernel"], weights["stem/bias"]
        self.top = weights["top/kernel"], weights["top/bias"]
        self.blocks = [
            [weights[f"block{i}/{part}"] for part in (
                "transform/kernel", "transform/bias", "transform_gate/kernel", "transform_gate/bias"
            )]
            for i in range(BLOCKS)
        ]  # fmt: skip

    def states(self, x):
        """What each block reads, and what the last one returns."""
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
        """The classifier's output if block `first` reads x."""
        for i in range(first, BLOCKS):
            x = self.block(i, x)
        logits = x @ self.top[0] + self.top[1]
        p = np.exp(logits - logits.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)

    def losses(self, x, first):
        return -np.log(self.probabilities(x, first)[np.arange(len(x)), Y])

    def gradient(self, x, first, step=1e-6):
        """Of each example's loss at x, by central differences."""
        found = np.zeros_like(x)
        for j in range(x.shape[1]):
            e = np.zeros(x.shape[1])
            e[j] = step
            found[:, j] = (self.losses(x + e, first) - self.losses(x - e, first)) / (2 * step)
        return found


def rows(u):
    return np.linalg.norm(u, axis=1)


def cosines(u, v):
    return (u * v).sum(1) / (rows(u) * rows(v))


def values(probe, model, name=None, **more):
    more = {"batch_size": 3, **more}
    return callbacks.run([probe], model, (X, Y), **more).values(name or probe.name)


def spell(model):
    """The spelled network, its states, and what each block adds."""
    net = Spelled(model)
    states = net.states(X.astype("float64"))
    return net, states, [states[i + 1] - states[i] for i in range(BLOCKS)]


def check(found, expected, **tolerance):
    tolerance = tolerance or {"rtol": 1e-4, "atol": 1e-6}
    numbers = [value for block, value in found.items() if block]
    np.testing.assert_allclose(numbers, expected, **tolerance)
