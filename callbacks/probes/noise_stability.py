"""Noise stability, by layer and interlayer cushions, and dominant gradient flow.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 5 and appendix D; Arora, Ge, Neyshabur, Zhang (2018), arXiv:1802.05296, section 4.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from zoo.backend import compiled, gradients_at_marks, jacobian_product
from zoo.backend.layers import Conv2D
from zoo.callbacks.probes.objective import Loss, Objective, batches, nan_mask, norm, zero_masked
from zoo.callbacks.probes.probe import Parts, Ratio, Row, Table
from zoo.checks import check_integers, generator, require
from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Graph, infer
from zoo.graph.chain import Chain, State
from zoo.layers.residual_block import ResidualBlock
from zoo.layers.simplified import Simplified
from zoo.types import Tensor

KINDS = (layers.Conv1D, layers.Conv2D, Conv2D, layers.Conv3D, layers.Dense)  # with one kernel


class LayerCushion(Ratio):
    """Layer cushion |A x| / (|A|_F |x|) of a block's convolutions and dense layers A.

    Large: the layer preserves its input, and noise of the same size is damped in comparison. In a
    simplified residual block A x includes the identity, which is part of the equivalent plain
    block, and |A|_F does not. A `ResidualBlock`, residual or plain, and the residual branch of a
    sum have the mean over their convolutions and dense layers without an activation. Biases and
    normalization are left out. `histogram`: the share of examples in each of `bins` equal parts of
    [0, `largest`], the last one with all beyond. `dead`: the share of examples whose x is zero;
    they are left out. Section 5, Fig. 3.
    """

    needs = ("steps",)

    def __init__(self, bins: int = 80, largest: float = 4.0, name: str | None = None) -> None:
        super().__init__(name)
        self.bins = bins
        self.largest = largest

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each example's mean cushion of its convolutions, and the histogram."""
        mask = block.get("mask")
        cushions = []
        exist = []
        for layer, x, y in _linear_steps(block):
            length = norm(zero_masked(x, mask))
            bias = 0 if layer.bias is None else ops.cast(layer.bias, "float32")
            passed = norm(zero_masked(ops.cast(y, "float32") - bias, mask))
            size = ops.sqrt(ops.sum(ops.square(ops.cast(layer.kernel, "float32"))))
            cushions.append(passed / (size * length))
            exist.append(length != 0)
        if not cushions:
            return {}
        ratios = ops.where(ops.stack(exist, axis=1), ops.stack(cushions, axis=1), 0.0)
        alive = ops.cast(ops.stack(exist, axis=1), ratios.dtype)
        index = ops.floor(ratios * (self.bins / self.largest))
        index = ops.cast(ops.clip(index, 0, self.bins - 1), "int32")
        shares = ops.one_hot(index, self.bins) * ops.expand_dims(alive, -1)
        return {**self.averages(ratios, alive), "histogram": ops.mean(shares, axis=1)}


def _linear_steps(block):
    """Return a block's layers of one kernel and no activation, with their inputs and outputs."""
    layer = block.info.layer
    if isinstance(layer, Simplified):
        z = layer.form.combine(block["h"], block.get("x"), None, None)
        return [(layer.transform, block["input"], z)]
    if isinstance(layer, ResidualBlock):
        steps = layer.transform.steps(block["input"], block.use)
    elif layer is None:
        steps = [(inner, *pair) for inner, pair in zip(block.layers, block["steps"], strict=True)]
    else:
        raise ValueError(
            f"The layer cushion is defined for convolutions of SimplifiedPlain, "
            f"SimplifiedResidual, ResidualBlock and the residual branches of sums. Received: "
            f"{type(layer).__name__} {block.info.name!r}"
        )
    linear = (None, keras.activations.linear)
    found = [step for step in steps if type(step[0]) in KINDS and step[0].activation in linear]
    check_channels_last(inner for inner, *_ in found)
    for inner, *_ in found:
        dtype = keras.backend.standardize_dtype(inner.kernel.dtype)
        expected = f"a float kernel in {inner.name}. Measure the network before `quantize`"
        require(keras.backend.is_float_dtype(dtype), expected, kernel=dtype)
    return found


def check_channels_last(found: Iterable[keras.layers.Layer]) -> None:
    """Raise ValueError for a layer whose channels are not the last axis."""
    for layer in found:
        order = getattr(layer, "data_format", "channels_last")
        require(order == "channels_last", f"channels_last in {layer.name}", data_format=order)


def interlayer_cushions(
    model: keras.Model, data: Any, projections: int = 16, seed: int = 0, batch_size: int = 64
) -> Table:
    """Measure sqrt(n1 n2) |J x| / (|J|_F |x|), J the Jacobian of a block's output by its input x.

    It says how much better J passes the signal x than noise, whose every direction it passes
    alike. |J|_F^2 is the mean of |J' r|^2 over `projections` random normal r. n1 x n2 is the size
    of the image x, channels last. The mean over examples is given, without those whose x or J is
    zero.

    `data` are inputs, or as in `zoo.callbacks.run`; `batch_size` is that of arrays, and `seed` that
    of the random vectors. The table has `interlayer_cushion`.

    Raises:
        ValueError: if there is no block or no example, or channels are not last.

    Reference: Yu & Tomasi (2019), section 5; Arora et al. (2018), definition 4, for convolutions
    definition 9.
    """
    check_integers(2, projections=projections)
    chain = Chain(model)
    check_channels_last(call.layer for call in chain.graph.calls)

    def ends_of_blocks(x):
        """Return each block's input and output, states."""
        pairs = []
        for index, step in enumerate(chain.plan):
            x = chain.link(index, x)
            pairs.append((x, chain.do(step, x)))
            x = pairs[-1][1]
        return pairs

    ends_of_blocks = compiled(ends_of_blocks, chain.graph.model)
    products = [_products(chain, block.index) for block in chain.blocks]
    rng = generator(seed)
    measured: list[list[np.ndarray]] = [[] for _ in chain.blocks]
    for x, _ in batches(data, batch_size):
        mask = ops.convert_to_tensor(nan_mask(x))
        pairs = ends_of_blocks(chain.graph.start(x))
        for block, pair, (signal, noise) in zip(chain.blocks, pairs, products, strict=True):
            state, y = pair
            pixels = math.prod(state.x.shape[1:-1])
            numbers = [signal(state) * mask * math.sqrt(pixels)]
            for _ in range(projections):
                r = rng.standard_normal(tuple(y.x.shape), dtype="float32")
                numbers.append(noise(state, ops.convert_to_tensor(r)))
            measured[block.index].append(np.stack([ops.convert_to_numpy(v) for v in numbers]))
    rows = []
    for block in chain.blocks:
        ratio, *squares = np.concatenate(measured[block.index], axis=1).astype("float64")
        cushion = _mean_cushion(ratio, np.stack(squares))
        rows.append(Row("interlayer_cushion", block.name, block.stage, None, None, cushion))
    return Table(rows)


def _products(chain, index):
    """Return functions of x, and of x and r: |J x| / |x| (inf at 0), and |J' r|^2, by example."""
    model = chain.graph.model

    def forward(x, sides):
        return chain.do(chain.plan[index], State(x, sides)).x

    def signal(state):
        product = jacobian_product(lambda x: forward(x, state.sides), state.x, state.x)
        length = norm(state.x)
        return ops.where(length == 0, np.inf, norm(product) / length)

    def noise(state, r):
        def observe(mark, x):
            y = forward(mark("x", x), state.sides)
            return ops.sum(y * ops.cast(r, y.dtype)), None

        return ops.square(norm(gradients_at_marks(observe, state.x)[1]["x"]))

    return compiled(signal, model), compiled(noise, model)


def _mean_cushion(signal, squares):
    """Return the cushion, of each example's scaled |J x| / |x| and estimates of its |J|_F^2."""
    alive = ~np.isinf(signal) & (squares.mean(0) != 0)
    if not alive.any():
        return np.nan
    squares = squares[:, alive]
    spread = squares.std(0, ddof=1) / np.sqrt(len(squares)) / squares.mean(0)
    value = signal[alive] / np.sqrt(squares.mean(0))
    value /= 1 + 3 / 8 * spread**2  # 1/sqrt of a noisy mean is too large, to second order
    return float(value.mean())


def dominant_flow(model: keras.Model, data: Any, loss: Loss = None, batch_size: int = 8) -> Table:
    """Measure how many channels get most of their gradient through the feature of their index.

    g_ji, the gradient at channel i of a block's output that the final feature j mediates, is
    dL/df_j df_j/da_i; a is the output after its ReLU, be that inside the block or the only layer
    that reads its sum. r_i is the mean over the map's entries of |g_ii| / |sum over j != i of g_ji|
    (equations 5 and 6; the sum is our reading of appendix D.4), and the measure d of a layer is the
    share of its channels with r_i > 1 (equation 13), averaged over examples. Final features are the
    input of the last `Dense`; if there are fewer of these than channels in a layer, the rest of its
    channels is left out. So are blocks after which channels are only pooled: there d is 1 in any
    network.

    `model` ends in a `Dense` classifier. `data`, with labels, and `loss` are as in
    `zoo.callbacks.run`. A pass has `batch_size` times the number of features examples. The table
    has `dominant_flow`, d by block. Without dominance, with 64 features and independent normal
    g_ji, d is 0.080, (2 / pi) arctan(1 / sqrt(63)), if the map has one entry, and more if it is
    larger: 0.14 with 8 x 8, 0.21 with 32 x 32.

    Raises:
        ValueError: if the network does not end in a `Dense`, channels are not last or do not mix
            after any block, or labels are missing.
    """
    graph = Graph(model)
    check_channels_last(call.layer for call in graph.calls)
    last = [call for call in graph.calls if graph.outputs[0] in call.outputs]
    expected = "one whose first output is that of a Dense, whose input are the final features"
    require(last and isinstance(last[0].layer, layers.Dense), expected, model=model)
    (classifier,) = last
    features = classifier.inputs[0][1]
    measured = []
    for block in find_blocks(graph)[0]:
        later = [getattr(call.layer, "weights", ()) for call in graph.between(block.y, features)]
        paths = [weight.path for weights in later for weight in weights]
        if any("kernel" in path.split("/")[-1] for path in paths):  # which mixes channels
            measured.append(block)
    expected = "one with a block whose channels reach several features, not by pooling alone"
    require(measured, expected, model=model)
    objective = Objective(graph, model, loss)
    flow = compiled(_flow(graph, measured, classifier, objective), model)
    sums = dict.fromkeys((block.name for block in measured), 0.0)
    count = 0
    for x, y in batches(data, batch_size, objective.check):
        require(y is not None, "given, as data without labels have no loss", labels=y)
        for name, shares in flow(graph.start(x), ops.convert_to_tensor(y)).items():
            shares = ops.convert_to_numpy(shares).astype("float64")
            sums[name] += (shares * nan_mask(x)).sum()
        count += len(y)
    return Table(
        Row("dominant_flow", block.name, block.stage, None, None, sums[block.name] / count)
        for block in measured
    )


def _activation(graph, block):
    """Return the slot of the ReLU that alone reads a block's output, or of that output."""
    readers = [call for call in graph.calls if block.y in call.sources]
    layer = readers[0].layer if len(readers) == 1 else None
    is_relu = type(layer).__name__ in ("ReLU", "Relu")  # a layer; keras.ops and .activations
    if isinstance(layer, keras.layers.Activation):
        is_relu = layer.activation is keras.activations.relu
    return readers[0].outputs[0] if is_relu else block.y


def _flow(graph, blocks, classifier, objective):
    """Return a function of inputs and labels that computes `_shares` by block."""
    names = {_activation(graph, block): block.name for block in blocks}
    features = classifier.inputs[0][1]
    num_features = classifier.layer.kernel.shape[0]
    below = graph.calls[: classifier.index]

    def weighted_features(mark, values, weights):
        """Return the sum of the features, each example's weighted by its row of `weights`."""

        def apply(call, *args, **kwargs):
            y = infer(call, *args, **kwargs)
            slot = call.outputs[0]
            return mark(names[slot], y) if slot in names else y

        values = graph.run({**values}, apply, below, keep=True)
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
        repeated = {slot: ops.concatenate([v] * num_features) for slot, v in values.items()}
        alone = gradients_at_marks(weighted_features, repeated, single)[1]
        return {name: _shares(alone[name], whole[name], batch, num_features) for name in alone}

    return flow


def _shares(alone, whole, batch, num_features):
    """Return the share of channels with r > 1 of each example."""
    channels = whole.shape[-1]
    common = min(channels, num_features)
    # float32: sums of half precision cancel
    alone = ops.reshape(ops.cast(alone, "float32"), (num_features, batch, -1, channels))
    whole = ops.reshape(ops.cast(whole, "float32"), (batch, -1, channels))[..., :common]
    own = ops.stack([alone[i, :, :, i] for i in range(common)], axis=-1)  # (batch, places, common)
    size = ops.abs(own)
    # 0 / 0, a dead entry, is no dominance
    ratio = ops.where(size == 0, 0.0, size / ops.maximum(ops.abs(whole - own), 1e-30))
    r = ops.mean(ratio, axis=1)  # (batch, common)
    return ops.mean(ops.where(r == r, ops.cast(r > 1, r.dtype), r), axis=1)  # NaN stays
