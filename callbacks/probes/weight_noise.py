"""Noise sensitivity: what noise on the weights does to a network.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 5.
"""

import numpy as np
from keras import ops

from zoo.backend import compiled
from zoo.callbacks.probes.batching import batches, example_loss, normalizes
from zoo.callbacks.probes.table import Row, Table
from zoo.graph.calls import Graph
from zoo.layers.simplified import SimplifiedResidual, plain_kernel


def noise_sensitivity(
    model, data, sizes=(0.01, 0.03, 0.1), repeats=3, seed=0, loss=None, batch_size=128
):
    """Accuracy, loss and relative change of the output under normal noise on all kernels at once.

    Args:
        model: A Functional or built Sequential `keras.Model`; its weights are restored.
        data: As in `zoo.callbacks.run`, with labels.
        sizes: Norms of the noise, relative to each kernel's norm; of a `SimplifiedResidual`, to
            that of the plain kernel that computes the same: equal networks get equal noise.
        repeats: Draws of each size.
        seed: Of the draws.
        loss: As in `zoo.callbacks.run`.
        batch_size: Of arrays.

    Returns:
        A `Table`: `noise_accuracy`, `noise_loss` and `noise_change`, |y' - y| / |y| of what the
        model returns (of most: probabilities); means over draws and examples; `unit` is the index
        of the size, and None without noise.

    Raises:
        ValueError: if the data have no labels.
    """
    graph = Graph(model)
    each = example_loss(loss or getattr(model, "loss", None), normalizes(graph))

    def forward(values):
        return graph.run({**values})[graph.outputs[0]]

    forward, rng = compiled(forward, model), np.random.default_rng(seed)
    weights = model.get_weights()
    kernels = [i for i, w in enumerate(model.weights) if "kernel" in w.path.split("/")[-1]]
    plain = {id(v.transform.kernel): plain_kernel(v) for v in _residual(model)}
    norms = {i: np.linalg.norm(plain.get(id(model.weights[i]), weights[i])) for i in kernels}
    pieces = [*batches(data, batch_size)]
    if any(y is None for _, y in pieces):
        raise ValueError("Accuracy and loss need labels. Received: data without them.")
    clean = [ops.convert_to_numpy(forward(graph.start(x))) for x, _ in pieces]

    def score():
        found = []
        for (x, y), old in zip(pieces, clean, strict=True):
            new = ops.convert_to_numpy(forward(graph.start(x)))
            losses = ops.convert_to_numpy(
                each(ops.convert_to_tensor(y), ops.convert_to_tensor(new))
            )
            change = np.linalg.norm(new - old, axis=-1) / np.linalg.norm(old, axis=-1)
            true = y.argmax(-1) if y.shape == new.shape else y.reshape(-1)
            found.append([new.argmax(-1) == true, losses, change])
        return np.concatenate(found, axis=1).mean(1)

    results = {None: score()}
    try:
        for unit, size in enumerate(sizes):
            draws = []
            for _ in range(repeats):
                noisy = [*weights]
                for i in kernels:
                    noise = rng.standard_normal(weights[i].shape)
                    noise *= size * norms[i] / np.linalg.norm(noise)
                    noisy[i] = weights[i] + noise.astype(weights[i].dtype)
                model.set_weights(noisy)
                draws.append(score())
            results[unit] = np.mean(draws, axis=0)
    finally:
        model.set_weights(weights)
    names = ("accuracy", "loss", "change")
    return Table(
        Row(f"noise_{name}", None, None, unit, None, float(values[column]))
        for column, name in enumerate(names)
        for unit, values in results.items()
    )


def _residual(model):
    return [layer for layer in model.layers if isinstance(layer, SimplifiedResidual)]
