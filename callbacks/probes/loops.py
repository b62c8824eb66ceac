"""Networks that repeat a run of blocks: measurements by number of loops, and the fixed point.

Reference: Greff, Srivastava, Schmidhuber (2017), arXiv:1612.07771 (a block's repeated use as
iterative estimation); Jastrzebski et al. (2018), arXiv:1710.04773, section 4.4; Bai, Kolter, Koltun
(2019), "Deep Equilibrium Models", arXiv:1909.01377, section 3 (the fixed point).
"""

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from zoo.backend import compiled, gradients_at_marks
from zoo.callbacks.probes.objective import (
    Loss,
    Objective,
    average,
    divergence,
    padded_batches,
    to_tensors,
)
from zoo.callbacks.probes.probe import Row, Table, dot, norm
from zoo.graph.blocks import Grain
from zoo.graph.loop import Region

SMALLEST = 1e-30  # added to a norm before a division


def loops(  # noqa: PLR0913 (choices of the run, by keyword)
    model: keras.Model,
    data: Any,
    times: Sequence[int] = range(1, 25),
    first: str | None = None,
    last: str | None = None,
    scale: float = 1.0,
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
        first: As in `zoo.loop`, as are `last` and `scale`.
        last: Name of the last block.
        scale: Factor of what a repetition of the run adds.
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
    uses = _Uses(Region(model, first, last, scale, grain=grain), model)
    objective = Objective(uses.region.graph, model, loss)
    collected: dict[tuple[str, int], list[np.ndarray]] = {}
    for inputs, y, mask in padded_batches(
        data, **{"batch_size": 128, **options}, check=objective.check
    ):
        labels = None if y is None else to_tensors(y)
        kept = np.flatnonzero(mask)
        for name, number, values in _measure(uses, objective, inputs, labels, times):
            collected.setdefault((name, number), []).append(_array(values)[kept] * mask[kept])
    return uses.table("loop", collected)


def _measure(uses, objective, inputs, labels, times):
    """Yield names, numbers of uses and values of each example of a batch, for `loops`."""

    def readout(x, values):
        return objective.logits(uses.region.end(x, values, objective.apply)[0])

    def score(labels, logits):
        return objective.losses(labels, logits), objective.hits(labels, logits)

    def compare(logits, others):
        p, q = map(objective.log_probabilities, (logits, others))
        return average(divergence(p, q), objective.weights(None, logits))

    x, values = uses.start(inputs)
    step, last, before = None, None, None  # the last number that was read out, and its logits
    for number in range(1, times[-1] + 1):
        previous, x = x, uses.step(number - 1, x, values)
        step_before, step = step, x - previous
        if number not in times:
            continue
        yield "step_norm", number, norm(step) / (norm(previous) + SMALLEST)
        if step_before is not None:
            yield "angle", number, _angle(step, step_before)
        logits = uses.compiled(readout, x, values)
        if labels is not None:
            loss, hits = uses.compiled(score, labels, logits)
            yield "loss", number, loss
            if objective.classifies:
                yield "accuracy", number, hits
        if objective.classifies and before is not None:
            yield "kl", last, uses.compiled(compare, before, logits)
        before, last = logits, number


def fixed_point(
    model: keras.Model,
    data: Any,
    first: str | None = None,
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
        first: As in `zoo.loop`, as is `last`.
        last: Name of the last block.
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
    uses = _Uses(Region(model, first, last, grain=grain), model)

    def multiply(x, values, v):  # by the Jacobian's transpose, which has the same eigenvalues
        def observe(mark, x):
            y = uses.region.once(mark("x", x), values, 1)
            return ops.sum(y * ops.cast(v, y.dtype)), None

        return gradients_at_marks(observe, x)[1]["x"]

    rng = np.random.default_rng(0)  # the start of the power iteration
    collected: dict[tuple[str, int | None], list[np.ndarray]] = {}
    for inputs, _, mask in padded_batches(data, **{"batch_size": 128, **options}):
        kept = np.flatnonzero(mask)
        x, values = uses.start(inputs)
        states = [x]
        for _ in range(times):
            states.append(uses.step(1, states[-1], values))
        end = states[-1]
        for t, state in enumerate(states[:-1]):
            distance = _array(norm(state - end) / (norm(end) + SMALLEST))
            collected.setdefault(("distance", t), []).append(distance[kept])
        steps = [_array(norm(b - a)) for a, b in itertools.pairwise(states)]
        collected.setdefault(("contraction", None), []).append(_growth(steps)[kept])
        v = ops.convert_to_tensor(rng.standard_normal(x.shape, "float32"))
        growths = []
        for _ in range(powers):
            v = v / ops.reshape(norm(v) + SMALLEST, (-1, *[1] * (len(x.shape) - 1)))
            v = uses.compiled(multiply, end, values, v)
            growths.append(_array(norm(v)))
        logs = np.log(np.add(growths[powers // 2 :], SMALLEST))
        collected.setdefault(("eigenvalue", None), []).append(np.exp(logs.mean(axis=0))[kept])
    return uses.table("fixed_point", collected)


class _Uses:
    """Compiled functions of a region, and a table of what they measure."""

    def __init__(self, region: Region, model: keras.Model) -> None:
        self.region = region
        self._model = model
        self._compiled: dict[Any, Any] = {}

    def compiled(self, function, *arguments, key=None):
        """Call a function, compiled if the model has no masks: compiled, it would drop them."""
        key = key or function.__name__
        if key not in self._compiled:
            masked = self.region.graph.masked
            self._compiled[key] = function if masked else compiled(function, self._model)
        return self._compiled[key](*arguments)

    def start(self, inputs):
        """Return the run's input, and the values beside it; see `Region.start`."""
        return self.compiled(self.region.start, self.region.graph.start(inputs))

    def step(self, use, x, values):
        """Return the output of the use with this index; see `Region.once`."""
        kind = self.region.kind(use)
        once = lambda x, values: self.region.once(x, values, kind)  # noqa: E731
        return self.compiled(once, x, values, key=("once", kind))

    def table(self, prefix, collected):
        """Return the means of values of each example, by name and number of uses."""
        means = {key: np.concatenate(parts).mean() for key, parts in sorted(collected.items())}
        count = sum(map(len, next(iter(collected.values()))))
        rows = [
            Row(f"{prefix}_{name}", self.region.name, self.region.stage, number, None, float(mean))
            for (name, number), mean in means.items()
        ]
        return Table(rows, title=f"{self._model.name} on {count} examples")


def _angle(a, b):
    """Return the angles between the tensors of each example, in degrees."""
    cosine = dot(a, b) / (norm(a) * norm(b) + SMALLEST)
    return ops.arccos(ops.clip(cosine, -1.0, 1.0)) * (180 / np.pi)


def _array(tensor):
    return ops.convert_to_numpy(tensor).astype("float64")


def _growth(steps):
    """Return the geometric mean growth of T step norms over their second half."""
    middle = len(steps) // 2
    span = max(1, len(steps) - 1 - middle)
    return ((steps[-1] + SMALLEST) / (steps[-1 - span] + SMALLEST)) ** (1 / span)
