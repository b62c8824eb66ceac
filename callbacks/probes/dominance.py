"""Dominant gradient flow: does channel i learn from feature i, or from all at once?

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
appendix D.
"""

from typing import Any

import keras
from keras import layers, ops

from zoo.backend import compiled, gradients_at_marks
from zoo.callbacks.probes.objective import Loss, Objective, batches, nan_mask
from zoo.callbacks.probes.probe import Row, Table, is_relu
from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Graph, infer


def dominant_flow(model: keras.Model, data: Any, loss: Loss = None, batch_size: int = 8) -> Table:
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

    Returns:
        A `Table`: `dominant_flow`, d by block. Without dominance, for 64 features, d is about
        0.080, (2 / pi) arctan(1 / sqrt(63)).

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
        for block in find_blocks(graph)[0]
        if any(map(_has_kernel, graph.between(block.y, features)))
    ]
    if not measured:
        raise ValueError(
            f"Expected a block whose channels reach several features. Received: "
            f"{graph.model.name!r}, where only pooling lies between blocks and classifier."
        )
    objective = Objective(graph, model, loss)
    flow = compiled(_flow(graph, measured, classifier, objective), model)
    sums = dict.fromkeys((block.name for block in measured), 0.0)
    count = 0
    for x, y in batches(data, batch_size, objective.check):
        if y is None:
            raise ValueError("Dominance is of the loss's gradient. Received: data without labels.")
        for name, shares in flow(graph.start(x), ops.convert_to_tensor(y)).items():
            shares = ops.convert_to_numpy(shares).astype("float64")
            sums[name] += (shares * nan_mask(x)).sum()
        count += len(y)
    if not count:
        raise ValueError("Expected at least one example. Received: data without any.")
    return Table(
        Row("dominant_flow", block.name, block.stage, None, None, sums[block.name] / count)
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
    """Return a function of inputs and labels that computes `_shares` by block."""
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
        return {name: _shares(alone[name], whole[name], batch, num_features) for name in alone}

    return flow


def _shares(alone, whole, batch, num_features):
    """Return the share of channels with r > 1 of each example."""
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
    return ops.mean(ops.where(r == r, ops.cast(r > 1, r.dtype), r), axis=1)  # NaN stays
