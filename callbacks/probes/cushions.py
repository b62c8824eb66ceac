"""Cushions: how much of a signal, and how little of noise, a layer passes on.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 5; Arora, Ge, Neyshabur, Zhang (2018), arXiv:1802.05296, section 4.
"""

import numpy as np
from keras import layers, ops

from zoo.backend import compiled, gradients_at_marks, jacobian_product
from zoo.callbacks.probes.batching import batches
from zoo.callbacks.probes.probe import norm
from zoo.callbacks.probes.refinement import Scalar
from zoo.callbacks.probes.table import Row, Table
from zoo.graph.chain import Chain
from zoo.layers.residual_block import ResidualBlock
from zoo.layers.simplified import Simplified


class Ratio(Scalar):
    """A probe of ratios of norms: of the examples that have one; `dead`: the share of the others,
    whose signal is zero, as in a network that learned nothing.
    """

    def ratios(self, block):
        """The ratios of a block, one or several an example, and where there is one:
        `(batch, ratios)`.
        """
        raise NotImplementedError(f"{type(self).__name__} must say what it measures.")

    def measure(self, block, stage):
        ratios, alive = self.ratios(block)
        alive = ops.cast(alive, ratios.dtype)
        ratios = ops.where(alive > 0, ratios, 0.0)
        found = {"mean": ratios, "square": ops.square(ratios), "alive": alive}
        return {key: ops.mean(v, axis=1) for key, v in found.items()} | self.more(ratios, alive)

    def more(self, ratios, alive):
        """Further values by key; a ratio that there is not is 0."""
        return {}

    def summarize(self, mean):
        with np.errstate(invalid="ignore"):  # all dead: NaN
            mean = {k: v if k == "alive" else v / mean["alive"] for k, v in mean.items()}
        return {**super().summarize(mean), "dead": 1 - mean["alive"]}


class LayerCushion(Ratio):
    """|A x| / (|A|_F |x|) of a block's convolutions A: large: the layer keeps what it is given,
    and noise of the same size is damped beside it.

    Of a simplified residual block A x is with the identity, which is part of the plain block that
    computes the same, and |A|_F without it. A `ResidualBlock`, residual or plain, has two
    convolutions or three: `layer_cushion` is their mean, `layer_cushion_convolutions` each one's.
    Biases and normalisation left out. `histogram`: the share of examples in each of `bins` equal
    parts of [0, `largest`], the last one with all beyond. `dead`: the share of examples of which
    x is zero; they bound no cushion and are left out. Section 5, Fig. 3.

    Args:
        bins: Of the histogram.
        largest: Its end.
        name: See `Probe`.
    """

    needs = ("h",)

    def __init__(self, bins=80, largest=4.0, name=None):
        super().__init__(name)
        self.bins, self.largest = bins, largest

    def ratios(self, block):
        layer = block.info.layer
        if isinstance(layer, Simplified):
            passed = _rectified(block) - layer.transform.bias
            steps = [(layer.transform.kernel, block["input"], passed)]
        else:
            steps = [
                (conv.kernel, x, y if conv.bias is None else y - conv.bias)
                for conv, x, y in _steps(block, "The layer cushion is of convolutions")
                if isinstance(conv, layers.Conv2D)
            ]
        gains = [_gain(*step) for step in steps]
        return ops.stack(gains, axis=1), ops.stack([norm(x) > 0 for _, x, _ in steps], axis=1)

    def more(self, ratios, alive):
        place = ops.floor(ratios * (self.bins / self.largest))
        place = ops.cast(ops.clip(place, 0, self.bins - 1), "int32")
        shares = ops.one_hot(place, self.bins) * ops.expand_dims(alive, -1)
        found = {"histogram": ops.mean(shares, axis=1)}
        if ratios.shape[1] > 1:
            found |= {"convolutions": ratios, "convolutions_alive": alive}
        return found

    def summarize(self, mean):
        with np.errstate(invalid="ignore"):
            rest = {"histogram": mean["histogram"] / mean["alive"]}
            if "convolutions" in mean:
                rest["convolutions"] = mean["convolutions"] / mean["convolutions_alive"]
        return {**super().summarize(mean), **rest}


class ActivationContraction(Ratio):
    """|z| / |ReLU(z)| of what a block rectifies: 1: nothing is cut off; near sqrt(2) for signs
    that are even. Arora et al. (2018), definition 6, whose c is the largest over examples.

    A simplified block rectifies its sum; of a `ResidualBlock` it is the mean over H's ReLUs.
    `dead`: the share of examples of which nothing passes; they are left out.
    """

    needs = ("h", "y")

    def ratios(self, block):
        if isinstance(block.info.layer, Simplified):
            pairs = [(_rectified(block), block["y"])]
        else:
            steps = _steps(block, "Activation contraction is of ReLUs")
            pairs = [(z, y) for relu, z, y in steps if isinstance(relu, layers.Activation)]
        found = [(norm(z) / norm(y), norm(y) > 0) for z, y in pairs]
        return tuple(ops.stack(values, axis=1) for values in zip(*found, strict=True))


def _rectified(block):
    """What a simplified block rectifies: of a residual one with the identity."""
    return block.info.layer.form.combine(block["h"], block.get("x"), None, None)


def _gain(kernel, x, y):
    return norm(y) / (ops.sqrt(ops.sum(ops.square(kernel))) * norm(x))


def _steps(block, what):
    """H's layers, what each reads and makes."""
    if not isinstance(block.info.layer, ResidualBlock):
        raise ValueError(
            f"{what} of SimplifiedPlain, SimplifiedResidual and ResidualBlock. "
            f"Received: {type(block.info.layer).__name__} {block.info.name!r}"
        )
    return block.info.layer.transform.steps(block["input"], block.use)


def interlayer_cushions(model, data, pairs=None, projections=16, seed=0, batch_size=64):
    """sqrt(n1 n2) |J x| / (|J|_F |x|): how much better J, from one place of the network to a later
    one, passes the signal x than noise, whose every direction it passes alike.

    |J|_F^2 is the mean of |J' r|^2 over `projections` random normal r; its 95 % interval is part of
    the result. n1 x n2 is the size of the image that the first block reads. The mean and deviation
    over examples are given, and the smallest: the cushion itself.

    Args:
        model: A Functional or built Sequential `keras.Model` whose blocks follow each other.
        data: Inputs, or as in `zoo.callbacks.run`.
        pairs: Pairs of block names: from what the first reads to what the second returns; `None`:
            each block by itself.
        projections: Random vectors.
        seed: Of these.
        batch_size: Of arrays.

    Returns:
        A `Table`: `interlayer_cushion`; `_std` over examples, the estimates' own variance taken
        off; `_min`, the smallest estimate; `_error`, the half-width of the mean's interval,
        relative; `_dead`, the share of examples whose x or J is zero, which are left out. `block`
        is the pair, joined by ">".

    Raises:
        ValueError: if there is no such block, or the blocks do not follow each other.

    Reference: Yu & Tomasi (2019), section 5; Arora et al. (2018), definition 4, for convolutions
    definition 9.
    """
    chain = Chain(model)
    pairs = [(block.name, block.name) for block in chain.blocks] if pairs is None else [*pairs]
    places = [tuple(chain.index(name) for name in pair) for pair in pairs]
    if any(first > last for first, last in places):
        raise ValueError(f"A pair names the earlier block first. Received: pairs={pairs}")
    if not isinstance(projections, int) or projections < 2:
        raise ValueError(f"`projections` must be 2 or more. Received: {projections!r}")
    wanted = {first for first, _ in places}

    def reach(values):
        found, x = {}, values
        for index, steps in enumerate(chain.plan):
            x = chain.link(index, x)
            if index in wanted:
                found[str(index)] = x
            x = chain.do(steps[0], x)
        return found

    reach = compiled(reach, model)
    measures = {pair: compiled(_measure(chain, *pair), model) for pair in places}
    rng, found = np.random.default_rng(seed), {pair: [] for pair in places}
    for x, _ in batches(data, batch_size):
        reached = reach(chain.graph.start(x))
        for pair in places:
            state = reached[str(pair[0])]
            shape = (len(state), *chain.blocks[pair[1]].shape[1:])
            signal, squares = None, []
            for _ in range(projections):
                r = ops.convert_to_tensor(rng.standard_normal(shape, dtype="float32"))
                ratio, square = measures[pair](state, r)
                signal = ops.convert_to_numpy(ratio)
                squares.append(ops.convert_to_numpy(square))
            found[pair].append(np.stack([signal, *squares]))
    rows = []
    for names, pair in zip(pairs, places, strict=True):
        ratio, *squares = np.concatenate(found[pair], axis=1).astype("float64")
        pixels = np.prod(_source_shape(chain, pair[0])[1:-1])
        numbers = _summary(np.sqrt(pixels) * ratio, np.stack(squares))
        stage, block = chain.blocks[pair[0]].stage, ">".join(dict.fromkeys(names))
        rows += (
            Row(f"interlayer_cushion{key}", block, stage, None, None, float(number))
            for key, number in numbers.items()
        )
    return Table(rows)


def _summary(signal, squares):
    """The cushion over examples, of each its signal and the squares that estimate |J|_F^2."""
    projections, alive = len(squares), np.isfinite(signal) & (squares.mean(0) > 0)
    if not alive.any():
        return {**dict.fromkeys(("", "_std", "_min", "_error"), np.nan), "_dead": 1.0}
    signal, squares = signal[alive], squares[:, alive]
    spread = squares.std(0, ddof=1) / np.sqrt(projections) / squares.mean(0)
    value = signal / np.sqrt(squares.mean(0))
    value /= 1 + 3 / 8 * spread**2  # 1/sqrt of a noisy mean is too large, to second order
    noise = (value * spread / 2) ** 2  # variance of each estimate: of a square root, half
    error = 1.96 * np.sqrt(np.mean(noise) / len(value)) / value.mean()
    deviation = np.sqrt(max(value.var() - np.mean(noise), 0.0))
    numbers = {"": value.mean(), "_std": deviation, "_min": value.min(), "_error": error}
    return {**numbers, "_dead": 1 - alive.mean()}


def _source_shape(chain, index):
    slot = chain.blocks[index].source
    for call in chain.graph.calls:
        if slot in call.outputs:
            return call.shapes[call.outputs.index(slot)]
    return tuple(chain.graph.model.inputs[chain.graph.inputs.index(slot)].shape)


def _measure(chain, first, last):
    def along(x):
        for index in range(first, last + 1):
            x = chain.link(index, x) if index > first else x
            x = chain.do(chain.plan[index][0], x)
        return x

    def measure(x, r):
        _, product = jacobian_product(along, x, x)

        def observe(mark, x):
            y = along(mark("x", x))
            return ops.sum(y * ops.cast(r, y.dtype)), None

        back = gradients_at_marks(observe, x)[1]["x"]
        product, x, back = (ops.cast(v, "float32") for v in (product, x, back))
        return norm(product) / norm(x), ops.square(norm(back))

    return measure


def minimal_interlayer_cushions(model, data, projections=16, seed=0, batch_size=64):
    """The smallest cushion from each block to any later one: min(1/sqrt(c), min over j of mu_ij).

    mu_ij is the smallest `interlayer_cushion` over examples, and c the channels that block i reads:
    1/sqrt(c) is the cushion of the identity. All pairs of blocks are measured, so it takes as the
    square of the depth.

    Args:
        model, data, projections, seed, batch_size: As in `interlayer_cushions`.

    Returns:
        A `Table` of `minimal_interlayer_cushion` by block.

    Raises:
        ValueError: as `interlayer_cushions`.

    Reference: Arora et al. (2018), definition 5; Yu & Tomasi (2019), section 5.
    """
    chain = Chain(model)
    names = [block.name for block in chain.blocks]
    pairs = [(first, last) for i, first in enumerate(names) for last in names[i:]]
    found = interlayer_cushions(model, data, pairs, projections, seed, batch_size)
    smallest = found.values("interlayer_cushion_min")
    rows = []
    for index, block in enumerate(chain.blocks):
        mine = (smallest[">".join(dict.fromkeys((block.name, last)))] for last in names[index:])
        bound = 1 / np.sqrt(_source_shape(chain, index)[-1])
        value = float(min(bound, *mine))
        rows.append(Row("minimal_interlayer_cushion", block.name, block.stage, None, None, value))
    return Table(rows)
