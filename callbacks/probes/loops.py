"""Networks that repeat a run of blocks, measured by number of uses.

Reference: Greff, Srivastava, Schmidhuber (2017), arXiv:1612.07771 (a block's repeated use as
iterative estimation); Jastrzebski et al. (2018), arXiv:1710.04773, section 4.4.
"""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from zoo.backend import compiled
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
    region = Region(model, first, last, scale, grain=grain)
    objective = Objective(region.graph, model, loss)
    functions = _functions(region, objective, model)
    collected: dict[tuple[str, int], list[np.ndarray]] = {}
    options = {"batch_size": 128, **options}
    for inputs, y, mask in padded_batches(data, **options, check=objective.check):
        values = region.graph.start(inputs)
        labels = None if y is None else to_tensors(y)
        kept = np.flatnonzero(mask)
        for key, numbers in _measure(region, objective, functions, values, labels, times):
            array = ops.convert_to_numpy(numbers).astype("float64")
            collected.setdefault(key, []).append(array[kept] * mask[kept])
    means = {key: np.concatenate(parts).mean() for key, parts in sorted(collected.items())}
    count = sum(map(len, next(iter(collected.values()))))
    rows = [
        Row(f"loop_{name}", region.name, region.stage, number, None, float(mean))
        for (name, number), mean in means.items()
    ]
    return Table(rows, title=f"{model.name} on {count} examples")


def _functions(region, objective, model):
    """Return functions of tensors, compiled if the model has no masks: compiled, it drops them."""

    def readout(x, values):
        return objective.logits(region.end(x, values, objective.apply)[0])

    def score(labels, logits):
        return objective.losses(labels, logits), objective.hits(labels, logits)

    def compare(logits, others):
        p, q = map(objective.log_probabilities, (logits, others))
        return average(divergence(p, q), objective.weights(None, logits))

    def once(kind):
        return build(lambda x, values: region.once(x, values, kind))

    def build(function):
        return function if region.graph.masked else compiled(function, model)

    functions = {"start": region.start, "readout": readout, "score": score, "compare": compare}
    built = {name: build(function) for name, function in functions.items()}
    return {**built, "once": functools.cache(once)}


def _measure(region, objective, functions, values, labels, times):
    """Yield pairs of a name and a number of uses, and the values of each example of a batch."""
    x, values = functions["start"](values)
    step, last, before = None, None, None  # the last number that was read out, and its logits
    for number in range(1, times[-1] + 1):
        previous = x
        x = functions["once"](region.kind(number - 1))(x, values)
        step_before, step = step, x - previous
        if number not in times:
            continue
        yield ("step_norm", number), norm(step) / (norm(previous) + SMALLEST)
        if step_before is not None:
            yield ("angle", number), _angle(step, step_before)
        logits = functions["readout"](x, values)
        if labels is not None:
            loss, hits = functions["score"](labels, logits)
            yield ("loss", number), loss
            if objective.classifies:
                yield ("accuracy", number), hits
        if objective.classifies and before is not None:
            yield ("kl", last), functions["compare"](before, logits)
        before, last = logits, number


def _angle(a, b):
    """Return the angles between the tensors of each example, in degrees."""
    cosine = dot(a, b) / (norm(a) * norm(b) + SMALLEST)
    return ops.arccos(ops.clip(cosine, -1.0, 1.0)) * (180 / np.pi)
