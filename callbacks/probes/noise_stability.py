"""Noise stability: layer and interlayer cushions, contraction, and noise on the weights.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 5; Arora, Ge, Neyshabur, Zhang (2018), arXiv:1802.05296, section 4.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from zoo.backend import compiled, gradients_at_marks, jacobian_product
from zoo.backend.layers import Conv2D
from zoo.callbacks.probes.objective import Loss, Objective, batches, nan_mask
from zoo.callbacks.probes.probe import Parts, Row, Table, is_relu, norm
from zoo.callbacks.probes.refinement import Ratio
from zoo.checks import check_integers
from zoo.graph.calls import Graph
from zoo.graph.chain import Chain, State
from zoo.layers.residual_block import ResidualBlock
from zoo.layers.simplified import Simplified, SimplifiedResidual, plain_kernel
from zoo.types import Tensor


class LayerCushion(Ratio):
    """Layer cushion |A x| / (|A|_F |x|) of a block's convolutions and dense layers A.

    Large: the layer preserves its input, and noise of the same size is damped in comparison. In a
    simplified residual block A x includes the identity, which is part of the equivalent plain
    block, and |A|_F does not. A `ResidualBlock`, residual or plain, has two convolutions or three:
    `layer_cushion` is their mean, `layer_cushion_convolutions` each one's. So it is for the
    residual branch of a sum, of which layers with an activation are left out. Biases and
    normalization are left out. `histogram`: the share of examples in each of `bins` equal parts of
    [0, `largest`], the last one with all beyond. `dead`: the share of examples whose x is zero;
    they bound no cushion and are left out. `min`: the smallest of all examples and convolutions,
    the cushion as Arora et al. (2018) define it. Section 5, Fig. 3.

    Args:
        bins: Number of bins of the histogram.
        largest: End of the histogram.
        name: See `Probe`.
    """

    needs = ("steps",)
    bound = "min"

    def __init__(self, bins: int = 80, largest: float = 4.0, name: str | None = None) -> None:
        super().__init__(name)
        self.bins = bins
        self.largest = largest

    def ratios(self, block: Parts) -> tuple[Tensor, Tensor]:
        """Return the cushion of each convolution."""
        layer = block.info.layer
        if isinstance(layer, Simplified):
            output = _preactivation(block) - layer.transform.bias
            steps = [(layer.transform.kernel, block["input"], output)]
        else:
            steps = [
                (layer.kernel, x, y if layer.bias is None else y - layer.bias)
                for layer, x, y in _steps(block, "The layer cushion is defined for convolutions")
                if _is_linear(layer)
            ]
        cushions = [
            norm(y) / (ops.sqrt(ops.sum(ops.square(kernel))) * norm(x)) for kernel, x, y in steps
        ]
        alive = [norm(x) != 0 for _, x, _ in steps]
        return _stack(cushions), _stack(alive)

    def more(self, ratios: Tensor, alive: Tensor) -> dict[str, Tensor]:
        """Return the histogram, and the cushions of several convolutions."""
        index = ops.floor(ratios * (self.bins / self.largest))
        index = ops.cast(ops.clip(index, 0, self.bins - 1), "int32")
        shares = ops.one_hot(index, self.bins) * ops.expand_dims(alive, -1)
        values = {"histogram": ops.mean(shares, axis=1)}
        if ratios.shape[1] > 1:
            values["convolutions"] = ratios
            values["convolutions_alive"] = alive
        return values

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return the base's numbers, the histogram and the convolutions' means."""
        numbers = super().summarize(mean)
        with np.errstate(invalid="ignore"):
            numbers["histogram"] = mean["histogram"] / mean["alive"]
            if "convolutions" in mean:
                numbers["convolutions"] = mean["convolutions"] / mean["convolutions_alive"]
        return numbers


class ActivationContraction(Ratio):
    """Activation contraction |z| / |ReLU(z)| of the input z of a block's ReLU.

    1: nothing is cut off; near sqrt(2) for signs that are even. Arora et al. (2018), definition 6,
    whose c is the largest over examples: `max`. For a simplified block z is its sum; for
    a `ResidualBlock` or a sum it is the mean over the ReLUs of the residual branch that are layers
    or operations of their own. `dead`: the share of examples with ReLU(z) = 0;
    they are left out.
    """

    needs = ("steps", "y")
    bound = "max"

    def ratios(self, block: Parts) -> tuple[Tensor, Tensor]:
        """Return the contraction of each ReLU."""
        if isinstance(block.info.layer, Simplified):
            pairs = [(_preactivation(block), block["y"])]
        else:
            steps = _steps(block, "Activation contraction is defined for ReLUs")
            pairs = [(z, y) for layer, z, y in steps if is_relu(layer)]
        contractions = [norm(z) / norm(y) for z, y in pairs]
        alive = [norm(y) != 0 for _, y in pairs]
        return _stack(contractions), _stack(alive)


def _preactivation(block):
    """Return the input of a simplified block's ReLU, in a residual one with the identity."""
    return block.info.layer.form.combine(block["h"], block.get("x"), None, None)


def _stack(values):
    return ops.stack(values, axis=1) if values else ops.zeros((1, 0))


def _is_linear(layer):
    """Return True for a convolution or dense layer, each with one kernel, and no activation."""
    kinds = (layers.Conv1D, layers.Conv2D, Conv2D, layers.Conv3D, layers.Dense)
    return type(layer) in kinds and layer.activation in (None, keras.activations.linear)


def _steps(block: Parts, definition: str) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Yield the layers of the residual branch with their inputs and outputs."""
    layer = block.info.layer
    if isinstance(layer, ResidualBlock):
        yield from layer.transform.steps(block["input"], block.use)
    elif layer is None:
        for inner, (x, y) in zip(block.layers, block["steps"], strict=True):
            yield inner, x, y
    else:
        raise ValueError(
            f"{definition} of SimplifiedPlain, SimplifiedResidual, ResidualBlock and the residual "
            f"branches of sums. Received: {type(layer).__name__} {block.info.name!r}"
        )


def interlayer_cushions(
    model: keras.Model,
    data: Any,
    pairs: Iterable[tuple[str, str]] | None = None,
    projections: int = 16,
    seed: int = 0,
    batch_size: int = 64,
) -> Table:
    """Measure sqrt(n1 n2) |J x| / (|J|_F |x|), J the Jacobian from one block to a later one.

    It says how much better J passes the signal x than noise, whose every direction it passes
    alike. |J|_F^2 is the mean of |J' r|^2 over `projections` random normal r; its 95 % interval is
    part of the result. n1 x n2 is the size of the image that is the first block's input. The mean
    and deviation over examples are given, and the smallest: the cushion itself.

    Args:
        model: A Functional or built Sequential `keras.Model` whose blocks follow each other.
        data: Inputs, or as in `zoo.callbacks.run`.
        pairs: Pairs of block names: from the first one's input to the second one's output; `None`:
            each block by itself.
        projections: Number of random vectors.
        seed: Random seed of these.
        batch_size: Batch size of arrays.

    Returns:
        A `Table`: `interlayer_cushion`; `_std` over examples, without the estimates' own variance;
        `_min`, the smallest estimate; `_error`, the half-width of the mean's interval, relative;
        `_dead`, the share of examples whose x or J is zero, which are left out. `block` is the
        pair, joined by ">".

    Raises:
        ValueError: if there is no such block, or the blocks do not follow each other.

    Reference: Yu & Tomasi (2019), section 5; Arora et al. (2018), definition 4, for convolutions
    definition 9.
    """
    chain = Chain(model)
    if pairs is None:
        pairs = [(block.name, block.name) for block in chain.blocks]
    ranges = {tuple(pair): tuple(chain.index(name) for name in pair) for pair in pairs}
    if any(first > last for first, last in ranges.values()):
        raise ValueError(f"A pair names the earlier block first. Received: pairs={[*ranges]}")
    check_integers(2, projections=projections)
    measured = _measure(chain, ranges, data, projections, seed, batch_size)
    rows = []
    for names, (first, _) in ranges.items():
        ratio, *squares = np.concatenate(measured[names], axis=1).astype("float64")
        pixels = np.prod(chain.source_shape(first)[1:-1])
        numbers = _summary(np.sqrt(pixels) * ratio, np.stack(squares))
        for key, number in numbers.items():
            probe = f"interlayer_cushion{key}"
            stage = chain.blocks[first].stage
            rows.append(
                Row(probe, ">".join(dict.fromkeys(names)), stage, None, None, float(number))
            )
    return Table(rows)


def _measure(chain, ranges, data, projections, seed, batch_size):
    """Return arrays of |J x| / |x| and of each |J' r|^2, batch by batch, by pair of names."""
    firsts = {first for first, _ in ranges.values()}

    def run_to_firsts(values):
        inputs = {}
        x = values
        for index, step in enumerate(chain.plan):
            x = chain.link(index, x)
            if index in firsts:
                inputs[str(index)] = x
            x = chain.do(step, x)
        return inputs

    model = chain.graph.model
    run_to_firsts = compiled(run_to_firsts, model)
    compiled_products = {
        (first, last): [compiled(function, model) for function in _products(chain, first, last)]
        for first, last in ranges.values()
    }
    rng = np.random.default_rng(seed)
    measured = {names: [] for names in ranges}
    for x, _ in batches(data, batch_size):
        mask = nan_mask(x)
        inputs = run_to_firsts(chain.graph.start(x))
        for names, (first, last) in ranges.items():
            signal, noise = compiled_products[first, last]
            state = inputs[str(first)]
            shape = (len(state.x), *chain.blocks[last].shape[1:])
            numbers = [signal(state) * ops.convert_to_tensor(mask)]
            for _ in range(projections):
                r = rng.standard_normal(shape, dtype="float32")
                numbers.append(noise(state, ops.convert_to_tensor(r)))
            measured[names].append(np.stack([ops.convert_to_numpy(v) for v in numbers]))
    return measured


def _products(chain, first, last):
    """Return functions of x, and of x and r: |J x| / |x| (inf at 0), and |J' r|^2, by example."""

    def forward(x, sides):
        state = State(x, sides)
        for index in range(first, last + 1):
            state = chain.link(index, state) if index > first else state
            state = chain.do(chain.plan[index], state)
        return state.x

    def signal(state):
        x = state.x
        _, product = jacobian_product(lambda x: forward(x, state.sides), x, x)
        length = norm(x)
        return ops.where(length == 0, np.inf, norm(product) / length)

    def noise(state, r):
        def observe(mark, x):
            y = forward(mark("x", x), state.sides)
            return ops.sum(y * ops.cast(r, y.dtype)), None

        return ops.square(norm(gradients_at_marks(observe, state.x)[1]["x"]))

    return signal, noise


def _summary(signal, squares):
    """Return the cushion over examples.

    `signal` is each example's |J x| / |x|, scaled; inf where x is zero. `squares` are estimates of
    its |J|_F^2, `(projections, examples)`.
    """
    alive = ~np.isinf(signal) & (squares.mean(0) != 0)
    if not alive.any():
        return {"": np.nan, "_std": np.nan, "_min": np.nan, "_error": np.nan, "_dead": 1.0}
    signal = signal[alive]
    squares = squares[:, alive]
    spread = squares.std(0, ddof=1) / np.sqrt(len(squares)) / squares.mean(0)
    value = signal / np.sqrt(squares.mean(0))
    value /= 1 + 3 / 8 * spread**2  # 1/sqrt of a noisy mean is too large, to second order
    noise = (value * spread / 2) ** 2  # variance of each estimate: of a square root, half
    return {
        "": value.mean(),
        "_std": np.sqrt(max(value.var() - np.mean(noise), 0.0)),
        "_min": value.min(),
        "_error": 1.96 * np.sqrt(np.mean(noise) / len(value)) / value.mean(),
        "_dead": 1 - alive.mean(),
    }


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
                for i, length in norms.items():
                    noise = rng.standard_normal(weights[i].shape)
                    noise *= size * length / np.linalg.norm(noise)
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
