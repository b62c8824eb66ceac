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
from zoo.callbacks.probes.batching import batches, nan_mask
from zoo.callbacks.probes.objective import Loss, Objective
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
    objective = Objective(graph, model, loss)
    saved = [*batches(data, batch_size, objective.check)]
    if any(y is None for _, y in saved):
        raise ValueError("Accuracy and loss need labels. Received: data without them.")

    def forward(values, labels):
        logits = objective.logits(graph.run({**values}, objective.apply)[graph.outputs[0]])
        scores = [objective.hits(labels, logits), objective.losses(labels, logits)]
        return objective.outputs(logits), ops.stack(scores)

    forward = compiled(forward, model)

    def outputs_and_scores():
        for x, y in saved:
            results = forward(graph.start(x), ops.convert_to_tensor(y))
            outputs, scores = map(ops.convert_to_numpy, results)
            mask = nan_mask(x)
            yield outputs * mask.reshape(-1, *[1] * (outputs.ndim - 1)), scores * mask

    clean = [outputs for outputs, _ in outputs_and_scores()]

    def score():
        scores = []
        for (outputs, numbers), expected in zip(outputs_and_scores(), clean, strict=True):
            flat = len(outputs), -1
            change = np.linalg.norm((outputs - expected).reshape(flat), axis=1)
            scores.append([*numbers, change / np.linalg.norm(expected.reshape(flat), axis=1)])
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
        if name != "accuracy" or objective.classifies
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
