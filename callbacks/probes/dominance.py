"""Dominant gradient flow: whether channel i learns from feature i, or from all at once.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 4 and appendices D and E.
"""

import numpy as np
from keras import layers, ops

from zoo.backend import compiled, gradients_at_marks
from zoo.callbacks.probes.batching import batches, example_loss, normalizes
from zoo.callbacks.probes.table import Row, Table
from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Graph, infer

DENOMINATORS = ("sum", "absolute", "channels")


def dominant_flow(model, data, loss=None, denominator="sum", batch_size=8, blocks=None):
    """How many of a layer's channels get most of their gradient through the feature of their index.

    g_ji, the gradient at channel i of a layer's output that the final feature j mediates, is
    dL/df_j df_j/da_i. r_i is the mean over the map's entries of |g_ii| / |sum over j != i of g_ji|
    (equations 5 and 6), and the measure d of a layer the share of its channels with r_i > 1
    (equation 13), averaged over examples. Final features are what the last `Dense` reads; if there
    are fewer of these than channels in a layer, the rest of its channels has none of its own and
    is left out. So are blocks behind which channels are only pooled: there d is 1 in any network.
    All features' gradients come from one backward pass over a batch repeated for each.

    Args:
        model: A Functional or built Sequential `keras.Model` that ends in a `Dense` classifier.
        data: As in `zoo.callbacks.run`, with labels.
        loss: As in `zoo.callbacks.run`.
        denominator: "sum": as above, appendix D.4's reading. "absolute": the sum of the |g_ji|.
            "channels": |sum over j != i of g_ij|, what feature i passes to the other channels, as
            the text below equation 5 can be read.
        batch_size: Of arrays; the pass is as large as that times the number of features.
        blocks: Names of the blocks whose outputs to take; `None`: all.

    Returns:
        A `Table`: `dominant_flow`, d by block; `dominant_flow_ratio`, the mean of r, which is
        heavy-tailed; `dominant_flow_median`, the mean over examples of the median of r_i. Without
        dominance, for 64 features, d is about 0.080: `probability_of_dominance`.

    Raises:
        ValueError: if no `Dense` ends the network, no block has channels that mix behind it,
            `denominator` is unknown, or labels are missing.
    """
    if denominator not in DENOMINATORS:
        raise ValueError(f"`denominator` must be of {DENOMINATORS}. Received: {denominator!r}")
    graph = Graph(model)
    found, _ = find_blocks(graph, blocks)
    dense = [call for call in graph.calls if isinstance(call.layer, layers.Dense)]
    if not dense or dense[-1].outputs[0] not in graph.outputs:
        raise ValueError(
            f"Final features are what a last Dense reads. Received: {graph.model.name!r}, which "
            f"ends in {graph.calls[-1].name}."
        )
    features = dense[-1].inputs[0][1]
    found = [block for block in found if _mixes(graph.between(block.y, features))]
    if not found:
        raise ValueError(
            f"Expected a block whose channels reach several features. Received: "
            f"{graph.model.name!r}, where only pooling lies between blocks and classifier."
        )
    num = dense[-1].layer.kernel.shape[0]
    each = example_loss(loss or getattr(model, "loss", None), normalizes(graph))
    flow = compiled(_flow(graph, found, dense[-1], features, num, each, denominator), model)
    sums, seen = {block.name: np.zeros(3) for block in found}, 0
    for x, y in batches(data, batch_size):
        if y is None:
            raise ValueError("Dominance is of the loss's gradient. Received: data without labels.")
        values = flow(graph.start(x), ops.convert_to_tensor(y))
        for name, numbers in values.items():
            sums[name] += ops.convert_to_numpy(numbers).astype("float64").sum(1)
        seen += len(y)
    if not seen:
        raise ValueError("Expected at least one example. Received: data without any.")
    names = ("dominant_flow", "dominant_flow_ratio", "dominant_flow_median")
    return Table(
        Row(name, block.name, block.stage, None, None, sums[block.name][i] / seen)
        for i, name in enumerate(names)
        for block in found
    )


def _mixes(calls):
    """Whether channels are mixed: without, each reaches the feature of its index alone."""
    return any("kernel" in w.path.split("/")[-1] for c in calls for w in _weights(c.layer))


def _weights(layer):
    return getattr(layer, "weights", ())


def _flow(graph, blocks, dense, features, num, each, denominator):
    slots = {block.y: block.name for block in blocks}
    below = graph.calls[: dense.index]

    def mediated(mark, values, weights):
        """The sum of the features, each example's weighted by its row of `weights`."""
        values = {**values}

        def apply(call, *args, **kwargs):
            y = infer(call, *args, **kwargs)
            return mark(slots[call.outputs[0]], y) if call.outputs[0] in slots else y

        graph.run(values, apply, below, keep=True)
        return ops.sum(values[features] * weights), None

    def flow(values, labels):
        batch = ops.shape(labels)[0]

        def risk(mark, values, labels):
            run = graph.run({**values}, calls=below, keep=True)
            f = mark("f", run[features])
            rest = graph.run({**run, features: f}, calls=graph.calls[dense.index :], keep=True)
            return ops.sum(each(labels, rest[graph.outputs[0]])), None

        of_f = gradients_at_marks(risk, values, labels)[1]["f"]  # (batch, num)
        whole = gradients_at_marks(mediated, values, of_f)[1]
        # replica j of the batch carries feature j alone
        only = ops.expand_dims(ops.eye(num, dtype=of_f.dtype), 1) * ops.expand_dims(of_f, 0)
        only = ops.reshape(only, (-1, num))  # (num * batch, num)
        repeated = {
            slot: ops.tile(v, (num, *[1] * (len(v.shape) - 1))) for slot, v in values.items()
        }
        alone = gradients_at_marks(mediated, repeated, only)[1]
        return {name: _ratios(alone[name], whole[name], batch, num, denominator) for name in alone}

    return flow


def _ratios(alone, whole, batch, num, denominator):
    """Share of r > 1, mean r and median r of each example: `(3, batch)`."""
    channels = whole.shape[-1]
    common = min(channels, num)
    alone, whole = (ops.cast(v, "float32") for v in (alone, whole))  # sums of halves cancel
    alone = ops.reshape(alone, (num, batch, -1, channels))
    whole = ops.reshape(whole, (batch, -1, channels))[..., :common]
    own = ops.stack([alone[i, :, :, i] for i in range(common)], axis=-1)  # (batch, places, common)
    if denominator == "sum":
        rest = ops.abs(whole - own)
    elif denominator == "channels":
        rest = ops.abs(ops.transpose(ops.sum(alone, axis=-1)[:common], (1, 2, 0)) - own)
    else:
        rest = ops.sum(ops.abs(alone), axis=0)[..., :common] - ops.abs(own)
    size = ops.abs(own)
    # 0 / 0, a dead entry, is no dominance
    ratio = ops.where(size == 0, 0.0, size / ops.maximum(rest, 1e-30))
    r = ops.mean(ratio, axis=1)  # (batch, common)
    middle = ops.median(r, axis=1)
    share = ops.mean(ops.cast(r > 1, r.dtype), axis=1)
    return ops.stack([share, ops.mean(r, axis=1), middle])


def probability_of_dominance(ratio, logistic=False):
    """P(|X| > |Y|) of independent normal X and Y of mean 0: (2/pi) arctan(sx / sy).

    Args:
        ratio: sx / sy, positive; a number or an array.
        logistic: Whether by the approximation 1 / (1 + (sy / sx)^(4/pi)), which has the value and
            the slope of the exact one at 1.

    Raises:
        ValueError: if a ratio is not positive.

    Example:
    >>> round(float(probability_of_dominance(1 / np.sqrt(63))), 3)  # 64 alike, none dominant
    0.08

    Reference: Yu & Tomasi (2019), appendix E, Fig. 13; the exponent: reconstructed.
    """
    ratio = np.asarray(ratio, "float64")
    if not (ratio > 0).all():
        raise ValueError(f"`ratio` must be positive. Received: {ratio}")
    if logistic:
        return 1 / (1 + ratio ** (-4 / np.pi))
    return 2 / np.pi * np.arctan(ratio)


def trivial_dominance(
    width, depth, sigma, keep=1.0, residual=True, draws=None, seed=0, feature_sigma=1.0
):
    """P(r_i > 1) of a network of 1 x 1 convolutions on one pixel: approximated, or simulated.

    M, the product of `depth` layers Lambda W' diag(g), with W = E or I + E, E of normal entries,
    Lambda of Bernoulli(`keep`) masks: r_i = |M_ii| / |sum over j != i of M_ij|.

    Args:
        width: Channels.
        depth: Layers between the two places.
        sigma: Deviation of E's entries.
        keep: Share of ReLUs that are open.
        residual: Whether W = I + E.
        draws: How many to simulate; `None`: the approximation, of residual networks: p^n (2/pi)
            arctan(1 / (sigma sqrt((d - 1) S))), S = p (1 - p^n) / (1 - p), or n at p = 1.
        seed: Of the simulation.
        feature_sigma: Deviation of g, the features' gradients; r does not depend on it.

    Raises:
        ValueError: if the approximation of a plain network is asked for.

    Example:
    >>> round(trivial_dominance(64, 5, 0.01), 3)
    0.888

    Reference: Yu & Tomasi (2019), appendix D.4.1, Fig. 11; the formula: re-derived to first order.
    """
    if draws is None:
        if not residual:
            raise ValueError("The approximation is of residual networks. Give `draws` to simulate.")
        total = depth if keep == 1 else keep * (1 - keep**depth) / (1 - keep)
        ratio = 1 / (sigma * np.sqrt((width - 1) * total))
        return float(keep**depth * probability_of_dominance(ratio))
    rng, dominant = np.random.default_rng(seed), 0
    for _ in range(draws):
        product = np.eye(width)
        for _ in range(depth):
            w = sigma * rng.standard_normal((width, width)) + (np.eye(width) if residual else 0)
            mask = rng.random(width) < keep
            product = product @ (mask[:, None] * w.T)
        product = product * feature_sigma * rng.standard_normal(width)
        own = np.abs(np.diag(product))
        dominant += (own > np.abs(product.sum(1) - np.diag(product))).mean()
    return float(dominant / draws)
