"""Dominant gradient flow: does channel i learn from feature i, or from all at once?

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
appendices D and E.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from zoo.backend import compiled, gradients_at_marks
from zoo.callbacks.probes.objective import Loss, Objective, batches, nan_mask
from zoo.callbacks.probes.probe import Row, Table, is_relu
from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Graph, infer


def dominant_flow(
    model: keras.Model,
    data: Any,
    loss: Loss = None,
    batch_size: int = 8,
    blocks: Sequence[str] | None = None,
) -> Table:
    """Measure how many channels get most of their gradient through the feature of their index.

    g_ji, the gradient at channel i of a block's output that the final feature j mediates, is
    dL/df_j df_j/da_i; a is the output after its ReLU, be that inside the block or the only layer
    that reads its sum. r_i is the mean over the map's entries of |g_ii| / |sum over j != i of g_ji|
    (equations 5 and 6; the sum is our reading of appendix D.4), and the measure d of a layer is the
    share of its channels with r_i > 1 (equation 13), averaged over examples. Final features are the
    input of the last `Dense`; if there are fewer of these than channels in a layer, the rest of its
    channels is left out. So are blocks after which channels are only pooled: there d is 1 in any
    network. All features' gradients come from one backward pass over a batch that is repeated for
    each.

    Args:
        model: A Functional or built Sequential `keras.Model` that ends in a `Dense` classifier.
        data: As in `zoo.callbacks.run`, with labels.
        loss: As in `zoo.callbacks.run`.
        batch_size: Batch size of arrays; the pass is that times the number of features.
        blocks: Names of the blocks to measure; `None`: all.

    Returns:
        A `Table`: `dominant_flow`, d by block; `dominant_flow_ratio`, the mean of r, which is
        heavy-tailed; `dominant_flow_median`, the mean over examples of the median of r_i. Without
        dominance, for 64 features, d is about 0.080: `probability_of_dominance`.

    Raises:
        ValueError: if the network does not end in a `Dense`, channels do not mix after any block,
            or labels are missing.
    """
    graph = Graph(model)
    dense = [call for call in graph.calls if isinstance(call.layer, layers.Dense)]
    if not dense or dense[-1].outputs[0] not in graph.outputs:
        raise ValueError(
            f"Expected a network that ends in a Dense, whose input are the final features. "
            f"Received: {graph.model.name!r}, which ends in {graph.calls[-1].name}."
        )
    classifier = dense[-1]
    features = classifier.inputs[0][1]
    measured = [
        block
        for block in find_blocks(graph, blocks)[0]
        if any(map(_has_kernel, graph.between(block.y, features)))
    ]
    if not measured:
        raise ValueError(
            f"Expected a block whose channels reach several features. Received: "
            f"{graph.model.name!r}, where only pooling lies between blocks and classifier."
        )
    objective = Objective(graph, model, loss)
    flow = compiled(_flow(graph, measured, classifier, objective), model)
    sums = {block.name: np.zeros(3) for block in measured}
    count = 0
    for x, y in batches(data, batch_size, objective.check):
        if y is None:
            raise ValueError("Dominance is of the loss's gradient. Received: data without labels.")
        for name, numbers in flow(graph.start(x), ops.convert_to_tensor(y)).items():
            sums[name] += (ops.convert_to_numpy(numbers).astype("float64") * nan_mask(x)).sum(1)
        count += len(y)
    if not count:
        raise ValueError("Expected at least one example. Received: data without any.")
    names = ("dominant_flow", "dominant_flow_ratio", "dominant_flow_median")
    return Table(
        Row(name, block.name, block.stage, None, None, sums[block.name][i] / count)
        for i, name in enumerate(names)
        for block in measured
    )


def _has_kernel(call):
    """Return True if a call mixes channels; without, each reaches the feature of its index."""
    weights = getattr(call.layer, "weights", ())  # an operation has none
    return any("kernel" in weight.path.split("/")[-1] for weight in weights)


def _activation(graph, block):
    """Return the slot of the ReLU that alone reads a block's output, or of that output."""
    readers = [call for call in graph.calls if block.y in call.sources]
    layer = readers[0].layer if len(readers) == 1 else None
    return readers[0].outputs[0] if is_relu(layer) else block.y


def _flow(graph, blocks, classifier, objective):
    """Return a function of inputs and labels that computes `_ratios` by block."""
    names = {_activation(graph, block): block.name for block in blocks}
    features = classifier.inputs[0][1]
    num_features = classifier.layer.kernel.shape[0]
    below = graph.calls[: classifier.index]

    def weighted_features(mark, values, weights):
        """Return the sum of the features, each example's weighted by its row of `weights`."""
        values = {**values}

        def apply(call, *args, **kwargs):
            y = infer(call, *args, **kwargs)
            slot = call.outputs[0]
            return mark(names[slot], y) if slot in names else y

        graph.run(values, apply, below, keep=True)
        return ops.sum(values[features] * weights), None

    def summed_loss(mark, values, labels):
        values = graph.run({**values}, calls=below, keep=True)
        values[features] = mark("features", values[features])
        graph.run(values, objective.apply, graph.calls[classifier.index :], keep=True)
        logits = objective.logits(values[graph.outputs[0]])
        return ops.sum(objective.losses(labels, logits)), None

    def flow(values, labels):
        batch = ops.shape(labels)[0]
        gradient = gradients_at_marks(summed_loss, values, labels)[1]["features"]
        whole = gradients_at_marks(weighted_features, values, gradient)[1]
        # repetition j of the batch has the gradient of feature j alone
        identity = ops.expand_dims(ops.eye(num_features, dtype=gradient.dtype), 1)
        single = ops.reshape(identity * ops.expand_dims(gradient, 0), (-1, num_features))
        repeated = {
            slot: ops.tile(v, (num_features, *[1] * (len(v.shape) - 1)))
            for slot, v in values.items()
        }
        alone = gradients_at_marks(weighted_features, repeated, single)[1]
        return {name: _ratios(alone[name], whole[name], batch, num_features) for name in alone}

    return flow


def _ratios(alone, whole, batch, num_features):
    """Return the share of r > 1, mean r and median r of each example: `(3, batch)`."""
    channels = whole.shape[-1]
    common = min(channels, num_features)
    alone = ops.cast(alone, "float32")  # sums of half precision cancel
    whole = ops.cast(whole, "float32")
    alone = ops.reshape(alone, (num_features, batch, -1, channels))
    whole = ops.reshape(whole, (batch, -1, channels))[..., :common]
    own = ops.stack([alone[i, :, :, i] for i in range(common)], axis=-1)  # (batch, places, common)
    rest = ops.abs(whole - own)
    size = ops.abs(own)
    # 0 / 0, a dead entry, is no dominance
    ratio = ops.where(size == 0, 0.0, size / ops.maximum(rest, 1e-30))
    r = ops.mean(ratio, axis=1)  # (batch, common)
    share = ops.mean(ops.where(r == r, ops.cast(r > 1, r.dtype), r), axis=1)  # NaN stays
    return ops.stack([share, ops.mean(r, axis=1), ops.median(r, axis=1)])


def probability_of_dominance(ratio: Any, logistic: bool = False) -> Any:
    """Return P(|X| > |Y|) of independent normal X and Y of mean 0: (2/pi) arctan(sx / sy).

    Args:
        ratio: sx / sy, positive; a number or an array.
        logistic: Use the approximation 1 / (1 + (sy / sx)^(4/pi)), which has the value and the
            slope of the exact one at 1.

    Raises:
        ValueError: if a ratio is not positive.

    Example:
    >>> round(float(probability_of_dominance(1 / np.sqrt(63))), 3)  # 64 alike, none dominant
    0.08

    Reference: Yu & Tomasi (2019), appendix E, Fig. 13; the exponent is our assumption.
    """
    ratio = np.asarray(ratio, "float64")
    if not (ratio > 0).all():
        raise ValueError(f"`ratio` must be positive. Received: {ratio}")
    if logistic:
        return 1 / (1 + ratio ** (-4 / np.pi))
    return 2 / np.pi * np.arctan(ratio)


def trivial_dominance(
    width: int,
    depth: int,
    sigma: float,
    keep: float = 1.0,
    residual: bool = True,
    samples: int | None = None,
    seed: int = 0,
    feature_sigma: float = 1.0,
) -> float:
    """Approximate or simulate P(r_i > 1) of a network of 1 x 1 convolutions on one pixel.

    M is the product of `depth` layers W' Lambda, times diag(g), with W = E or I + E, E of normal
    entries, Lambda of Bernoulli(`keep`) masks: row i is the gradient at feature i, after its ReLU,
    by final feature, and r_i = |M_ii| / |sum over j != i of M_ij|.

    Args:
        width: Number of channels.
        depth: Number of layers.
        sigma: Standard deviation of E's entries.
        keep: Share of ReLUs that are open.
        residual: W is I + E instead of E.
        samples: Number of simulated networks; `None`: the approximation, of residual networks: p^n
            (2/pi) arctan(1 / (sigma sqrt((d - 1) S))), S = p (1 - p^n) / (1 - p), or n at p = 1.
        seed: Random seed of the simulation.
        feature_sigma: Standard deviation of g, the features' gradients; r does not depend on it.

    Raises:
        ValueError: if the approximation of a plain network is asked for.

    Example:
    >>> round(trivial_dominance(64, 5, 0.01), 3)
    0.888

    Reference: Yu & Tomasi (2019), appendix D.4.1, Fig. 11; the formula is derived by us, to first
    order.
    """
    if samples is None:
        if not residual:
            raise ValueError(
                "The approximation is of residual networks. Give `samples` to simulate."
            )
        total = depth if keep == 1 else keep * (1 - keep**depth) / (1 - keep)
        ratio = 1 / (sigma * np.sqrt((width - 1) * total))
        return float(keep**depth * probability_of_dominance(ratio))
    rng = np.random.default_rng(seed)
    dominant = 0.0
    for _ in range(samples):
        product = np.eye(width)
        for _ in range(depth):
            w = sigma * rng.standard_normal((width, width)) + (np.eye(width) if residual else 0)
            mask = rng.random(width) < keep
            product = product @ (w.T * mask)  # the layer's ReLU scales columns of W'
        product = product * feature_sigma * rng.standard_normal(width)
        own = np.abs(np.diag(product))
        dominant += (own > np.abs(product.sum(1) - np.diag(product))).mean()
    return float(dominant / samples)
