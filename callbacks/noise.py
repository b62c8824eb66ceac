"""Noise stability: how much of a signal, and how little of noise, a layer passes on.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 5; Arora, Ge, Neyshabur, Zhang (2018), arXiv:1802.05296, section 4.
"""

import numpy as np
from keras import layers, ops

from zoo.backend import compiled, gradients_at_marks, jacobian_product
from zoo.callbacks.feed import batches, example_loss, normalizes
from zoo.callbacks.probe import norm
from zoo.callbacks.refinement import Scalar
from zoo.callbacks.table import Row, Table
from zoo.calls import Graph
from zoo.chain import Chain
from zoo.layers.residual_block import ResidualBlock
from zoo.layers.simplified import Simplified


class LayerCushion(Scalar):
    """|A x| / (|A|_F |x|) of a block's convolutions A: large: the layer keeps what it is given,
    and noise of the same size is damped beside it.

    Of a simplified residual block A x is with the identity, which is part of the plain block that
    computes the same, and |A|_F without it. A `ResidualBlock`, residual or plain, has two
    convolutions or three: `layer_cushion` is their mean, `layer_cushion_convolutions` each one's.
    Biases and normalisation left out. `histogram`: the share of examples in each of `bins` equal
    parts of [0, `largest`], the last one with all beyond. Section 5, Fig. 3.

    Args:
        bins: Of the histogram.
        largest: Its end.
        name: See `Probe`.
    """

    needs = ("h",)

    def __init__(self, bins=50, largest=1.0, name=None):
        super().__init__(name)
        self.bins, self.largest = bins, largest

    def measure(self, block, stage):
        layer = block.info.layer
        if isinstance(layer, Simplified):
            passed = _rectified(block) - layer.transform.bias
            values = [_gain(layer.transform.kernel, block["input"], passed)]
        else:
            steps = _steps(block, "The layer cushion is of convolutions")
            values = [
                _gain(conv.kernel, x, y if conv.bias is None else y - conv.bias)
                for conv, x, y in steps
                if isinstance(conv, layers.Conv2D)
            ]
        cushions = ops.stack(values, axis=1)
        place = ops.floor(cushions * (self.bins / self.largest))
        place = ops.cast(ops.clip(place, 0, self.bins - 1), "int32")
        found = {"histogram": ops.mean(ops.one_hot(place, self.bins), axis=1)}
        if len(values) > 1:
            found["convolutions"] = cushions
        mean, square = ops.mean(cushions, axis=1), ops.mean(ops.square(cushions), axis=1)
        return {"mean": mean, "square": square, **found}

    def summarize(self, mean):
        rest = {key: mean[key] for key in ("histogram", "convolutions") if key in mean}
        return {**super().summarize(mean), **rest}


class ActivationContraction(Scalar):
    """|z| / |ReLU(z)| of what a block rectifies: 1: nothing is cut off; near sqrt(2) for signs
    that are even. Arora et al. (2018), definition 6, whose c is the largest over examples.

    A simplified block rectifies its sum; of a `ResidualBlock` it is the mean over H's ReLUs.
    """

    needs = ("h", "y")

    def value(self, block, stage):
        if isinstance(block.info.layer, Simplified):
            return norm(_rectified(block)) / norm(block["y"])
        steps = _steps(block, "Activation contraction is of ReLUs")
        ratios = [norm(z) / norm(y) for relu, z, y in steps if isinstance(relu, layers.Activation)]
        return ops.mean(ops.stack(ratios), axis=0)


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
        A `Table`: `interlayer_cushion`, `_std`, `_min` and `_error`, the half-width of the mean's
        interval, relative; `block` is the pair, joined by ">".

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
        squares = np.stack(squares)
        pixels = np.prod(_source_shape(chain, pair[0])[1:-1])
        value = np.sqrt(pixels) * ratio / np.sqrt(squares.mean(0))
        spread = squares.std(0, ddof=1) / np.sqrt(projections) / squares.mean(0)
        error = 1.96 / 2 * np.sqrt(np.mean(spread**2) / len(value))  # of a square root: half
        stage = chain.blocks[pair[0]].stage
        numbers = {"": value.mean(), "_std": value.std(), "_min": value.min(), "_error": error}
        block = ">".join(dict.fromkeys(names))
        rows += (
            Row(f"interlayer_cushion{key}", block, stage, None, None, float(number))
            for key, number in numbers.items()
        )
    return Table(rows)


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
            return ops.sum(along(mark("x", x)) * r), None

        back = gradients_at_marks(observe, x)[1]["x"]
        return norm(product) / norm(x), ops.square(norm(back))

    return measure


def noise_sensitivity(
    model, data, sizes=(0.01, 0.03, 0.1), repeats=3, seed=0, loss=None, batch_size=128
):
    """Accuracy, loss and relative change of the output under normal noise on all kernels at once.

    Args:
        model: A Functional or built Sequential `keras.Model`; its weights are restored.
        data: As in `zoo.callbacks.run`, with labels.
        sizes: Norms of the noise, relative to each kernel's norm.
        repeats: Draws of each size.
        seed: Of the draws.
        loss: As in `zoo.callbacks.run`.
        batch_size: Of arrays.

    Returns:
        A `Table`: `noise_accuracy`, `noise_loss` and `noise_change`, |y' - y| / |y|; means over
        draws and examples; `unit` is the index of the size, and None without noise.

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
                    noise *= size * np.linalg.norm(weights[i]) / np.linalg.norm(noise)
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
