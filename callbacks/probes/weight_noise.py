"""Noise sensitivity: the effect on a network of noise on its weights.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 5.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from zoo.backend import compiled
from zoo.callbacks.probes.batching import Loss, batches, example_loss, normalizes
from zoo.callbacks.probes.table import Row, Table
from zoo.graph.calls import Graph
from zoo.layers.simplified import SimplifiedResidual, plain_kernel


def noise_sensitivity(
    model: keras.Model,
    data: Any,
    sizes: Sequence[float] = (0.01, 0.03, 0.1),
    repeats: int = 3,
    seed: int = 0,
    loss: Loss = None,
    batch_size: int = 128,
) -> Table:
    """Measure accuracy, loss and change of the output under normal noise on all kernels at once.

    Args:
        model: A Functional or built Sequential `keras.Model`; its weights are restored.
        data: As in `zoo.callbacks.run`, with labels.
        sizes: Norms of the noise, relative to each kernel's norm; for a `SimplifiedResidual`, to
            that of the equivalent plain kernel: equal networks get equal noise.
        repeats: Number of samples of each size.
        seed: Random seed of the noise.
        loss: As in `zoo.callbacks.run`.
        batch_size: Batch size of arrays.

    Returns:
        A `Table`: `noise_accuracy`, `noise_loss` and `noise_change`, |y' - y| / |y| of the model's
        output (usually probabilities); means over samples and examples; `unit` is the index of the
        size, and None without noise.

    Raises:
        ValueError: if the data have no labels.
    """
    graph = Graph(model)
    forward = compiled(lambda values: graph.run({**values})[graph.outputs[0]], model)
    loss_of = example_loss(loss or getattr(model, "loss", None), normalizes(graph))
    saved = [*batches(data, batch_size)]
    if any(y is None for _, y in saved):
        raise ValueError("Accuracy and loss need labels. Received: data without them.")
    clean = [ops.convert_to_numpy(forward(graph.start(x))) for x, _ in saved]

    def score():
        scores = []
        for (x, y), expected in zip(saved, clean, strict=True):
            outputs = ops.convert_to_numpy(forward(graph.start(x)))
            losses = loss_of(ops.convert_to_tensor(y), ops.convert_to_tensor(outputs))
            change = np.linalg.norm(outputs - expected, axis=-1)
            change /= np.linalg.norm(expected, axis=-1)
            true = y.argmax(-1) if y.shape == outputs.shape else y.reshape(-1)
            hits = outputs.argmax(-1) == true
            scores.append([hits, ops.convert_to_numpy(losses), change])
        return np.concatenate(scores, axis=1).mean(1)

    weights = model.get_weights()
    norms = _kernel_norms(model)
    rng = np.random.default_rng(seed)
    results: dict[int | None, np.ndarray] = {None: score()}
    try:
        for unit, size in enumerate(sizes):
            samples = []
            for _ in range(repeats):
                noisy = [*weights]
                for i, norm in norms.items():
                    noise = rng.standard_normal(weights[i].shape)
                    noise *= size * norm / np.linalg.norm(noise)
                    noisy[i] = weights[i] + noise.astype(weights[i].dtype)
                model.set_weights(noisy)
                samples.append(score())
            results[unit] = np.mean(samples, axis=0)
    finally:
        model.set_weights(weights)
    return Table(
        Row(f"noise_{name}", None, None, unit, None, float(values[column]))
        for column, name in enumerate(("accuracy", "loss", "change"))
        for unit, values in results.items()
    )


def _kernel_norms(model):
    """Return the norms of the kernels, or of their plain equivalents, by index of the weight."""
    plain = {
        id(layer.transform.kernel): plain_kernel(layer)
        for layer in model.layers
        if isinstance(layer, SimplifiedResidual)
    }
    return {
        i: np.linalg.norm(plain.get(id(weight), ops.convert_to_numpy(weight)))
        for i, weight in enumerate(model.weights)
        if "kernel" in weight.path.split("/")[-1]
    }
