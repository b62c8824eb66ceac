"""Interlayer cushions: how much better than noise a part of a network passes a signal on.

Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
section 5; Arora, Ge, Neyshabur, Zhang (2018), arXiv:1802.05296, section 4.
"""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from zoo.backend import compiled, gradients_at_marks, jacobian_product
from zoo.callbacks.probes.batching import batches, nan_mask
from zoo.callbacks.probes.probe import norm
from zoo.callbacks.probes.table import Row, Table
from zoo.checks import check_integers
from zoo.graph.chain import Chain, State


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
