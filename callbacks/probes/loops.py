"""Networks that repeat a run of blocks: measurements by number of loops, and the fixed point.

Reference: Greff, Srivastava, Schmidhuber (2017), arXiv:1612.07771 (a block's repeated use as
iterative estimation); Jastrzebski et al. (2018), arXiv:1710.04773, section 4.4; Bai, Kolter, Koltun
(2019), "Deep Equilibrium Models", arXiv:1909.01377, section 3 (the fixed point).
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from zoo.backend import compiled, gradients_at_marks
from zoo.callbacks.probes.batching import padded_batches, to_tensors
from zoo.callbacks.probes.objective import Loss, Objective, average, divergence
from zoo.callbacks.probes.probe import dot, norm
from zoo.callbacks.probes.table import Row, Table
from zoo.graph.blocks import Grain
from zoo.graph.loop import Region

SMALLEST = 1e-30  # added to a norm before a division


def loops(
    model: keras.Model,
    data: Any,
    times: Sequence[int] = range(1, 25),
    first: str | None = None,
    last: str | None = None,
    loss: Loss = None,
    grain: Grain = "sum",
    **options: Any,
) -> Table:
    """Measure a network that uses a run of its blocks 1, 2, 3 ... times.

    One pass over the data takes max(times) uses of the run, and an early readout for each of
    `times`.

    Args:
        model: A Functional or built Sequential `keras.Model`.
        data: As in `zoo.callbacks.run`; labels are needed for accuracy and loss only.
        times: Numbers of uses to measure, ascending.
        first: Name of the first block, or of a `zoo.Loop`; `None`: as in `zoo.loop`.
        last: Name of the last block; `None`: as in `zoo.loop`.
        loss: As in `zoo.callbacks.run`.
        grain: As in `zoo.blocks.find_blocks`.
        **options: `batch_size` and `progress`, as in `zoo.callbacks.run`.

    Returns:
        A `Table`, `unit` the number of uses. With labels `loop_accuracy` and `loop_loss`, those of
        the rest of the network applied to the run's output; of classifiers `loop_kl`, the
        Kullback-Leibler divergence of the next number's output from this one's, in nats. Of the
        run's own output `loop_step_norm`, |x_t - x_(t-1)| / |x_(t-1)|, and `loop_angle`, between
        the last two steps, in degrees, 180 if the run undoes its step. All are means over examples.

    Raises:
        ValueError: if `times` are not ascending positive integers; otherwise as `zoo.loop`.

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 4.4; Geiping et al. (2025),
    arXiv:2502.05171, Fig. 1.
    """
    times = [*times]
    if not times or times != sorted({*times}) or times[0] < 1:
        raise ValueError(f"`times` must be ascending positive integers. Received: {times}")
    region = Region(model, first, last, grain=grain)
    measure = _Measure(region, Objective(region.graph, model, loss), model)
    sums: dict[tuple[str, int], float] = {}
    count = 0
    for x, y, mask in _batches(data, measure.objective.check, **options):
        labels = None if y is None else to_tensors(y)
        kept = np.flatnonzero(mask)
        for key, value in measure.batch(x, labels, times).items():
            sums[key] = sums.get(key, 0.0) + float(np.sum(_array(value)[kept] * mask[kept]))
        count += len(kept)
    rows = [
        Row(f"loop_{name}", region.name, region.stage, number, None, total / count)
        for (name, number), total in sorted(sums.items())
    ]
    return Table(rows, title=f"{model.name} on {count} examples")


class _Measure:
    """Measurements of each example of a batch, for `loops`."""

    def __init__(self, region: Region, objective: Objective, model: keras.Model) -> None:
        self.objective = objective
        self.region = region
        self.model = model
        self._steps: dict[int, Any] = {}
        self._start = _compiled(region, region.start, model)
        self._readout = _compiled(
            region,
            lambda x, values: objective.logits(region.end(x, values, objective.apply)[0]),
            model,
        )
        self._score = compiled(self._scored, model)
        self._compare = compiled(self._divergence, model)

    def step(self, use):
        """Return the compiled function of the use with this index; see `Region.once`."""
        key = self.region.kind(use)
        if key not in self._steps:
            self._steps[key] = _compiled(
                self.region, lambda x, values: self.region.once(x, values, key), self.model
            )
        return self._steps[key]

    def batch(self, inputs, labels, times):
        """Return values of each example by name and number of uses."""
        x, values = self._start(self.region.graph.start(inputs))
        measured = {}
        step, before, last = None, None, None
        for number in range(1, times[-1] + 1):
            previous, x = x, self.step(number - 1)(x, values)
            step_before, step = step, x - previous
            if number not in times:
                continue
            measured["step_norm", number] = norm(step) / (norm(previous) + SMALLEST)
            if step_before is not None:
                measured["angle", number] = _angle(step, step_before)
            logits = self._readout(x, values)
            if labels is not None:
                loss, hits = self._score(labels, logits)
                measured["loss", number] = loss
                if self.objective.classifies:
                    measured["accuracy", number] = hits
            if self.objective.classifies and before is not None:
                measured["kl", last] = self._compare(before, logits)
            before, last = logits, number
        return measured

    def _scored(self, labels, logits):
        return self.objective.losses(labels, logits), self.objective.hits(labels, logits)

    def _divergence(self, logits, others):
        p, q = map(self.objective.log_probabilities, (logits, others))
        return average(divergence(p, q), self.objective.weights(None, logits))


def _compiled(region, function, model):
    """Return `function`, compiled if the model has no masks: compiled, it would drop them."""
    return function if region.graph.masked else compiled(function, model)


def _batches(data, check=None, batch_size=128, progress=None):
    return padded_batches(data, batch_size, progress, check=check)


def _angle(a, b):
    """Return the angles between the tensors of each example, in degrees."""
    cosine = dot(a, b) / (norm(a) * norm(b) + SMALLEST)
    return ops.arccos(ops.clip(cosine, -1.0, 1.0)) * (180 / np.pi)


def fixed_point(
    model: keras.Model,
    data: Any,
    block: str | None = None,
    last: str | None = None,
    times: int = 50,
    powers: int = 20,
    grain: Grain = "sum",
    **options: Any,
) -> Table:
    """Measure where a run of blocks leads if it is repeated: its fixed point, if it has one.

    Args:
        model: A Functional or built Sequential `keras.Model`.
        data: Inputs, or as in `zoo.callbacks.run`.
        block: Name of the first block, or of a `zoo.Loop`; `None`: as in `zoo.loop`.
        last: Name of the last block; `None`: as in `zoo.loop`.
        times: Number of uses T.
        powers: Number of power iterations, even.
        grain: As in `zoo.blocks.find_blocks`.
        **options: `batch_size` and `progress`, as in `zoo.callbacks.run`.

    Returns:
        A `Table` of means over examples. `fixed_point_distance`, |x_t - x_T| / |x_T|, `unit` the
        number t of uses from 0 to T - 1; the last is the relative residual at x_T.
        `fixed_point_contraction`, the geometric mean of |x_(t+1) - x_t| / |x_t - x_(t-1)| over the
        second half of the uses: below 1 the iteration contracts. `fixed_point_eigenvalue`, the
        largest |eigenvalue| of the run's Jacobian at x_T: the geometric mean growth of a random
        vector in the second half of the power iterations, so that complex pairs count, too.

    Raises:
        ValueError: if `times` or `powers` is below 2; otherwise as `zoo.loop`.

    Reference: Bai, Kolter, Koltun (2019), arXiv:1909.01377, section 3; power iteration on
    products with the Jacobian: Bai, Koltun, Kolter (2021), arXiv:2106.14342, section 3.
    """
    if min(times, powers) < 2:
        raise ValueError(f"Expected `times` and `powers` of 2 or more. Received: {times}, {powers}")
    region = Region(model, block, last, grain=grain)
    start = _compiled(region, region.start, model)
    kind = region.kind(1)
    step = _compiled(region, lambda x, values: region.once(x, values, kind), model)

    def multiply(x, values, v):  # by the Jacobian's transpose, which has the same eigenvalues
        def observe(mark, x):
            y = region.once(mark("x", x), values, kind)
            return ops.sum(y * ops.cast(v, y.dtype)), None

        return gradients_at_marks(observe, x)[1]["x"]

    multiply = _compiled(region, multiply, model)
    rng = np.random.default_rng(0)  # the start of the power iteration
    collected: dict[str, list[np.ndarray]] = {"distance": [], "contraction": [], "eigenvalue": []}
    for inputs, _, mask in _batches(data, **options):
        x, values = start(region.graph.start(inputs))
        states = [x]
        for _ in range(times):
            states.append(step(states[-1], values))
        kept = np.flatnonzero(mask)
        size = norm(states[-1]) + SMALLEST
        distances = [_array(norm(state - states[-1]) / size) for state in states[:-1]]
        collected["distance"].append(np.stack(distances, axis=1)[kept])
        steps = [_array(norm(b - a)) for a, b in zip(states, states[1:], strict=False)]
        collected["contraction"].append(_growth(np.stack(steps, axis=1))[kept])
        v = ops.convert_to_tensor(rng.standard_normal(x.shape, "float32"))
        growths = []
        for _ in range(powers):
            v = v / ops.reshape(norm(v) + SMALLEST, (-1, *[1] * (len(x.shape) - 1)))
            v = multiply(states[-1], values, v)
            growths.append(_array(norm(v)))
        half = np.stack(growths[powers // 2 :], axis=1)
        collected["eigenvalue"].append(np.exp(np.mean(np.log(half + SMALLEST), axis=1))[kept])
    count = sum(len(part) for part in collected["eigenvalue"])
    means = {name: np.concatenate(parts).mean(axis=0) for name, parts in collected.items()}
    rows = [
        Row("fixed_point_distance", region.name, region.stage, t, None, float(value))
        for t, value in enumerate(means["distance"])
    ]
    for name in ("contraction", "eigenvalue"):
        value = float(means[name])
        rows.append(Row(f"fixed_point_{name}", region.name, region.stage, None, None, value))
    return Table(rows, title=f"{model.name} on {count} examples")


def _array(tensor):
    return ops.convert_to_numpy(tensor).astype("float64")


def _growth(steps):
    """Return the geometric mean growth of step norms `(examples, T)` over their second half."""
    middle = steps.shape[1] // 2
    span = max(1, steps.shape[1] - 1 - middle)
    ratio = (steps[:, -1] + SMALLEST) / (steps[:, -1 - span] + SMALLEST)
    return ratio ** (1 / span)
