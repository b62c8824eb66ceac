"""Reference implementations of the layers in NumPy, float64."""

import numpy as np
from keras import ops

from zoo import callbacks
from zoo.callbacks.probes.engine import Observer
from zoo.graph.blocks import Network

# Greff et al. (2017), Table 1a as y = H·T + x·C: the factors of H and x; t is 1 - T.
TC = {
    "plain": "10",
    "residual": "11",
    "t_only": "T1",
    "c_only": "1C",
    "coupled": "Tt",
    "full": "TC",
}


def skip_sum(variant, h, x, t=None, c=None):
    """Return the output of a form of Table 1a, from the factors in `TC`."""
    factors = {"0": 0.0, "1": 1.0, "T": t, "t": None if t is None else 1 - t, "C": c}
    of_h, of_x = (factors[letter] for letter in TC[variant])
    return h * of_h + x * of_x


def as_float64(*values):
    return [np.asarray(ops.convert_to_numpy(value), "float64") for value in values]


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def relu(z):
    return np.maximum(z, 0)


def conv(x, kernel, bias=0.0, strides=1, first=None):
    """Return a convolution, computed one output pixel at a time.

    `first` is the row and column of the input at which the first kernel's top left corner lies;
    `None` is Keras's "same".
    """
    x, kernel, bias = as_float64(x, kernel, bias)
    side, (height, width) = len(kernel), x.shape[1:3]
    rows, columns = -(-height // strides), -(-width // strides)
    if first is None:
        needed = max((rows - 1) * strides + side - height, 0)
        first = -(needed // 2)
    y = np.zeros((len(x), rows, columns, kernel.shape[-1]))
    for row, column, i, j in np.ndindex(rows, columns, side, side):
        r, c = first + row * strides + i, first + column * strides + j
        if 0 <= r < height and 0 <= c < width:
            y[:, row, column] += x[:, r, c] @ kernel[i, j]
    return y + bias


def normalized(x, gamma, beta, mean=None, variance=None, epsilon=1e-3):
    """Return batch-normalized x; with the batch's own statistics where none are given."""
    mean = x.mean((0, 1, 2)) if mean is None else mean
    variance = x.var((0, 1, 2)) if variance is None else variance
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def images(*shape, seed=1):
    """Return Gaussian noise of any shape, float32."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def random_weights(layer, seed=2, scale=1.0):
    """Return `layer` with new random weights; variances are positive."""
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        sample = rng.normal(scale=scale, size=weight.shape)
        weight.assign(np.abs(sample) + 0.5 if "variance" in weight.path else sample)
    return layer


def block_parts(model, x):
    """Return the logits of a model, and by block what it reads, computes and returns."""
    observer = Observer([callbacks.ActivationNorm()], Network.of(model))
    values = observer.graph.start(x)
    parts = observer.observe(values)
    return values[observer.graph.outputs[0]], parts


def penalty(model):
    """Return the sum of a model's penalties."""
    return sum(float(ops.convert_to_numpy(value)) for value in model.losses)
