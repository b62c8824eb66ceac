"""Noise stability: layer and interlayer cushions.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 5; Arora, Ge, Neyshabur, Zhang (2018), arXiv:1802.05296, section 4.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from zoo.backend import compiled, gradients_at_marks, jacobian_product
from zoo.backend.layers import Conv2D
from zoo.callbacks.probes.measures import Ratio
from zoo.callbacks.probes.objective import batches, nan_mask
from zoo.callbacks.probes.probe import Parts, Row, Table, norm
from zoo.checks import check_integers
from zoo.graph.chain import Chain, State
from zoo.layers.residual_block import ResidualBlock
from zoo.layers.simplified import Simplified
from zoo.types import Tensor


class LayerCushion(Ratio):
    """Layer cushion |A x| / (|A|_F |x|) of a block's convolutions and dense layers A.

    Large: the layer preserves its input, and noise of the same size is damped in comparison. In a
    simplified residual block A x includes the identity, which is part of the equivalent plain
    block, and |A|_F does not. A `ResidualBlock`, residual or plain, and the residual branch of a
    sum have the mean over their convolutions and dense layers without an activation. Biases and
    normalization are left out. `histogram`: the share of examples in each of `bins` equal parts of
    [0, `largest`], the last one with all beyond. `dead`: the share of examples whose x is zero;
    they are left out. Section 5, Fig. 3.

    Args:
        bins: Number of bins of the histogram.
        largest: End of the histogram.
        name: See `Probe`.
    """

    needs = ("steps",)

    def __init__(self, bins: int = 80, largest: float = 4.0, name: str | None = None) -> None:
        super().__init__(name)
        self.bins = bins
        self.largest = largest

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor]:
        """Return each example's mean cushion of its convolutions, and the histogram."""
        layer = block.info.layer
        if isinstance(layer, Simplified):
            z = layer.form.combine(block["h"], block.get("x"), None, None)
            steps = [(layer.transform, block["input"], z)]
        else:
            steps = [step for step in _branch_steps(block) if _is_linear(step[0])]
        if not steps:
            return {}
        cushions = []
        for layer, x, y in steps:
            passed = norm(y if layer.bias is None else y - layer.bias)
            size = ops.sqrt(ops.sum(ops.square(layer.kernel)))
            cushions.append(passed / (size * norm(x)))
        exist = ops.stack([norm(x) != 0 for _, x, _ in steps], axis=1)
        ratios = ops.where(exist, ops.stack(cushions, axis=1), 0.0)
        alive = ops.cast(exist, ratios.dtype)
        index = ops.floor(ratios * (self.bins / self.largest))
        index = ops.cast(ops.clip(index, 0, self.bins - 1), "int32")
        shares = ops.one_hot(index, self.bins) * ops.expand_dims(alive, -1)
        return {**self.averages(ratios, alive), "histogram": ops.mean(shares, axis=1)}

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return the base's numbers and the histogram."""
        with np.errstate(invalid="ignore"):
            histogram = mean["histogram"] / mean["alive"]
        return {**super().summarize(mean), "histogram": histogram}


def _is_linear(layer):
    """Return True for a convolution or dense layer, each with one kernel, and no activation."""
    kinds = (layers.Conv1D, layers.Conv2D, Conv2D, layers.Conv3D, layers.Dense)
    return type(layer) in kinds and layer.activation in (None, keras.activations.linear)


def _branch_steps(block):
    """Return the layers of the residual branch with their inputs and outputs."""
    layer = block.info.layer
    if isinstance(layer, ResidualBlock):
        return [*layer.transform.steps(block["input"], block.use)]
    if layer is None:
        pairs = zip(block.layers, block["steps"], strict=True)
        return [(inner, x, y) for inner, (x, y) in pairs]
    raise ValueError(
        f"The layer cushion is defined for convolutions of SimplifiedPlain, SimplifiedResidual, "
        f"ResidualBlock and the residual branches of sums. Received: {type(layer).__name__} "
        f"{block.info.name!r}"
    )


def interlayer_cushions(
    model: keras.Model, data: Any, projections: int = 16, seed: int = 0, batch_size: int = 64
) -> Table:
    """Measure sqrt(n1 n2) |J x| / (|J|_F |x|), J the Jacobian of a block's output by its input x.

    It says how much better J passes the signal x than noise, whose every direction it passes
    alike. |J|_F^2 is the mean of |J' r|^2 over `projections` random normal r; its 95 % interval is
    part of the result. n1 x n2 is the size of the image x. The mean and deviation over examples are
    given, and the smallest: the cushion itself.

    Args:
        model: A Functional or built Sequential `keras.Model` whose blocks follow each other.
        data: Inputs, or as in `zoo.callbacks.run`.
        projections: Number of random vectors.
        seed: Random seed of these.
        batch_size: Batch size of arrays.

    Returns:
        A `Table`: `interlayer_cushion`; `_std` over examples, without the estimates' own variance;
        `_min`, the smallest estimate; `_error`, the half-width of the mean's interval, relative;
        `_dead`, the share of examples whose x or J is zero, which are left out.

    Raises:
        ValueError: if the blocks do not follow each other.

    Reference: Yu & Tomasi (2019), section 5; Arora et al. (2018), definition 4, for convolutions
    definition 9.
    """
    check_integers(2, projections=projections)
    chain = Chain(model)

    def inputs_of_blocks(values):
        inputs = []
        x = values
        for index, step in enumerate(chain.plan):
            x = chain.link(index, x)
            inputs.append(x)
            x = chain.do(step, x)
        return inputs

    inputs_of_blocks = compiled(inputs_of_blocks, chain.graph.model)
    products = [
        [compiled(function, chain.graph.model) for function in _products(chain, block.index)]
        for block in chain.blocks
    ]
    rng = np.random.default_rng(seed)
    measured: list[list[np.ndarray]] = [[] for _ in chain.blocks]
    for x, _ in batches(data, batch_size):
        mask = ops.convert_to_tensor(nan_mask(x))
        inputs = inputs_of_blocks(chain.graph.start(x))
        for block, state, (signal, noise) in zip(chain.blocks, inputs, products, strict=True):
            numbers = [signal(state) * mask]
            for _ in range(projections):
                r = rng.standard_normal((len(state.x), *block.shape[1:]), dtype="float32")
                numbers.append(noise(state, ops.convert_to_tensor(r)))
            measured[block.index].append(np.stack([ops.convert_to_numpy(v) for v in numbers]))
    rows = []
    for block in chain.blocks:
        ratio, *squares = np.concatenate(measured[block.index], axis=1).astype("float64")
        pixels = np.prod(chain.source_shape(block.index)[1:-1])
        for key, number in _summary(np.sqrt(pixels) * ratio, np.stack(squares)).items():
            probe = f"interlayer_cushion{key}"
            rows.append(Row(probe, block.name, block.stage, None, None, float(number)))
    return Table(rows)


def _products(chain, index):
    """Return functions of x, and of x and r: |J x| / |x| (inf at 0), and |J' r|^2, by example."""

    def forward(x, sides):
        return chain.do(chain.plan[index], State(x, sides)).x

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
