"""NumPy spellings, float64, of what the layers compute: what the tests compare with."""

import numpy as np
from keras import ops

# Guideline 9, the second spelling of Table 1a: y = H·T + x·C.
TC = {
    "plain": "10",
    "residual": "11",
    "t_only": "T1",
    "c_only": "1C",
    "coupled": "Tt",
    "full": "TC",
}


def as_float64(*values):
    return [np.asarray(ops.convert_to_numpy(value), "float64") for value in values]


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def relu(z):
    return np.maximum(z, 0)


def conv(x, kernel, bias=0.0, strides=1, first=None):
    """A convolution, one output pixel at a time.

    Args:
        x: Images `(batch, height, width, channels)`.
        kernel: `(side, side, channels, filters)`.
        bias: `(filters,)`.
        strides: In pixels.
        first: Row and column of the input at which the first kernel's top left corner lies;
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
    """Batch normalisation; with the batch's own statistics where none are given."""
    mean = x.mean((0, 1, 2)) if mean is None else mean
    variance = x.var((0, 1, 2)) if variance is None else variance
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def images(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def random_weights(layer, seed=2, scale=1.0):
    """`layer` with weights drawn anew; variances are positive."""
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        draw = rng.normal(scale=scale, size=weight.shape)
        weight.assign(np.abs(draw) + 0.5 if "variance" in weight.path else draw)
    return layer
