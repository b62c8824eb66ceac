"""Accuracy and loss of a network whose blocks are modified, and how far its output then changes.

The sweeps return a `Table`. With labels it has rows `..._accuracy` (a fraction; a regression
of one output has none) and `..._loss`. Compared with the unmodified network, also without labels:
where the output is a distribution over classes `..._kl`, the KL divergence of the unmodified
network's distribution from the modified one's in nats, `..._variation`, the total variation, half
the sum of |p - q|, and `..._agreement`, the share of positions with the same most probable class;
of other outputs `..._change`, the norm of their change over that of the unmodified network's
outputs, of all of them if there are several, 0 where that is 0. All are means over examples, an
example's over its positions as in `zoo.callbacks.run`. The unmodified network's are under block
None.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from absl import logging
from keras import ops

from zoo.backend import compiled, keras_private
from zoo.callbacks.probes.objective import (
    MEASURES,
    Loss,
    Objective,
    Progress,
    masked_sum,
    norm,
    padded_batches,
    repeatable,
    sample,
    to_arrays,
    zero_masked_by_keras,
)
from zoo.callbacks.probes.probe import Row, Table, titled
from zoo.callbacks.training import PassProgress
from zoo.checks import as_integers, check_choice, check_integers, check_numbers, generator, require
from zoo.graph.blocks import Grain, Network, whole_network
from zoo.graph.chain import Chain, Plan
from zoo.graph.loop import Region
from zoo.graph.surgery import lesion_plan, random_order, shuffle_plan
from zoo.layers.batch_norm import normalized_by_batches

Label: TypeAlias = tuple[str | None, int | None, int | None]  # block, stage and unit of a `Row`
SPAN = 9  # ours: unmodified blocks in one function, as a call costs TensorFlow up to 1 ms
EPSILON = {"float16": 2**-10, "bfloat16": 2**-7}  # of others 2**-23
FEW_EXAMPLES = 32  # ours: examples whose statistics normalize features
SCORES = ("lesion_variation", "lesion_kl", "lesion_change", "lesion_loss")  # of `depth_plan`


class Trials:
    """Evaluate many plans of one chain in one pass over data.

    Plans that begin alike are evaluated together up to the first difference, the unmodified network
    first, so that the input of every block of one batch is in memory: the 54 lesions of a network
    of 54 blocks take 0.4 of the time of 54 compiled forward passes. Arguments are those of
    `lesions`.

    Raises:
        ValueError: if there is no block.
    """

    def __init__(
        self,
        model: keras.Model | Network,
        loss: Loss = None,
        blocks: Sequence[str] | None = None,
        grain: Grain = "sum",
        batch_size: int = 128,
        progress: Progress | None = None,
    ) -> None:
        network = Network.of(model, blocks, grain)
        self.model = network.model
        self.chain = Chain(network)
        self.objective = Objective(self.chain.graph, self.model, loss)
        self.objective.check_blocks(network.blocks)
        self.batch_size = batch_size
        self.progress = progress
        self.whole_batches = False  # leave out batches that are shorter than one before
        self.count = 0  # examples of the last run
        self._compiled: dict[Any, Any] = {}

    def run(self, plans: Sequence[Plan], data: Any) -> dict[str, np.ndarray]:
        """Return the numbers of the unmodified network and of each plan, by name: see this module.

        Arrays `(1 + plans,)`, the unmodified network's number first; means over examples. A block
        that does not fit its position is a ValueError. For plans see `zoo.graph.chain.Chain`.
        """
        plans = [self.chain.plan, *map(tuple, plans)]
        for plan in plans:
            self.chain.check(plan)
        sums: dict[str, np.ndarray] = {}
        self.count = 0
        check = self.objective.check
        for x, labels, mask in padded_batches(data, self.batch_size, self.progress, check):
            examples = int(np.count_nonzero(mask))
            if self.whole_batches and examples < len(keras.tree.flatten(x)[0]):  # padded
                continue
            mask_tensor = ops.convert_to_tensor(mask)
            intact = None  # the unmodified network's outputs, which are the first
            for numbers, state in self._outputs(plans, self.chain.graph.start(x)):
                intact = intact or self._call("end", self._end, state)
                scores = self._call("score", self._score, state, intact, labels, mask_tensor)
                for name, value in to_arrays(scores, mask).items():
                    sums.setdefault(name, np.zeros(len(plans)))[numbers] += value
            self.count += examples
        hidden = self.chain.graph.masked and np.isnan(sums.get("kl", [0.0])[0])
        expected = "finite without a modification, at a position of each example that no mask hides"
        require(not hidden, f"{expected}. Leave out examples of padding alone", outputs=np.nan)
        return {name: sums[name] / self.count for name in MEASURES if name in sums}

    def _outputs(self, plans, start):
        """Run the plans, of which number 0 is the unmodified network's, to their ends.

        Yields pairs: numbers of plans that are alike, and the output of their last block; the
        unmodified network's first.
        """
        chain = self.chain
        pending = [([*range(len(plans))], 0, start)]  # plans, position, x
        while pending:
            numbers, position, x = pending.pop()
            if position == len(chain.plan):
                yield numbers, x
                continue
            end = min(position + SPAN, len(chain.plan))
            intact = chain.plan[position:end]
            if position % SPAN == 0 and len(intact) > 1:
                if all(plans[number][position:end] == intact for number in numbers):
                    span = functools.partial(chain.run, intact, position)
                    pending.append((numbers, end, self._call(("span", position), span, x)))
                    continue
            groups = {}
            for number in numbers:
                groups.setdefault(plans[number][position], []).append(number)
            if len(groups) > 1:
                pending += [(group, position, x) for group in reversed(groups.values())]
                continue
            (step,) = groups
            link = functools.partial(chain.link, position)
            x = self._call(("link", position), link, x) if chain.links[position] else link(x)
            if step.action != "carry" or not chain.carries_input(step.block):
                x = self._call(step, functools.partial(chain.do, step), x)
            pending.append((numbers, position + 1, x))

    def _end(self, y):
        """Return the network's outputs, the first one as logits, from the last block's output."""
        outputs = self.chain.end(y, self.objective.apply)
        return [self.objective.logits(outputs[0]), *outputs[1:]]

    def _score(self, y, intact, labels, mask):
        scores = self.objective.scores(self._end(y), intact, *labels)
        return {name: masked_sum(values, mask) for name, values in scores.items()}

    def _call(self, key, function, *arguments):
        if key not in self._compiled:
            masked = self.chain.graph.masked
            self._compiled[key] = compiled(function, self.model, eager=masked)
        return self._compiled[key](*arguments)

    def table(
        self, name: str, plans: Sequence[Plan], data: Any, labels: Sequence[Label] | None = None
    ) -> Table:
        """Return the numbers of `run` as a table whose values' names begin with `name`.

        `labels` are the plans' block, stage and unit; `None`: plan i is that of block i.
        """
        numbers = self.run(plans, data)
        if labels is None:
            labels = [(block.name, block.stage, None) for block in self.chain.blocks]
        rows = [
            Row(f"{name}_{metric}", *label, None, float(value))
            for metric, column in numbers.items()
            for label, value in zip([(None, None, None), *labels], column, strict=True)
        ]
        return Table(rows, self.notes(numbers), titled(self.model, self.count))

    def notes(self, numbers: dict[str, np.ndarray]) -> list[str]:
        """Return a sentence if no plan changes the outputs by more than rounding may."""
        name = "kl" if "kl" in numbers else "change"
        largest = max(numbers[name][1:], default=math.inf)
        dtypes = [getattr(call.layer, "compute_dtype", "") for call in self.chain.graph.calls]
        limit = 8 * max(EPSILON.get(dtype, 2**-23) for dtype in dtypes)  # ours: a few roundings
        if not largest < (limit**2 / 2 if name == "kl" else limit):  # NaN too
            return []
        return [
            f"No modification changes the outputs by more than rounding may ({name} {largest:.1g} "
            f"at most): the network may be untrained, and the order of such numbers is arbitrary."
        ]


def lesions(
    model: keras.Model | Network,
    data: Any,
    loss: Loss = None,
    mode: str = "removed",
    blocks: Sequence[str] | None = None,
    grain: Grain = "sum",
    batch_size: int = 128,
    progress: Progress | None = None,
) -> Table:
    """Leave out each block, one at a time. A redundant block barely changes the output.

    `mode` is "removed" or "closed", as in `zoo.graph.lesion`; the other arguments are those of
    `zoo.callbacks.run`, with or without labels.

    Returns:
        A `Table` with `lesion_accuracy` and `lesion_loss`, if there are labels, `lesion_kl`,
        `lesion_variation` and `lesion_agreement`, or `lesion_change`: see this module.

    Reference: Srivastava et al. (2015), section 4.2, Fig. 4; Jastrzebski et al. (2018), section
    4.2, Fig. 3.
    """
    trials = Trials(model, loss, blocks, grain, batch_size, progress)
    plans = [lesion_plan(trials.chain, [block.name], mode) for block in trials.chain.blocks]
    return trials.table("lesion", plans, data)


def shuffles(  # noqa: PLR0913 (choices of the sample, by keyword)
    model: keras.Model,
    data: Any,
    swaps: int | Sequence[int] = (1, 2, 4, 8),
    repeats: int = 5,
    seed: int = 0,
    **options: Any,
) -> Table:
    """Run the blocks of each stage in a random order, against the order's Kendall tau.

    Blocks that change the shape stay. A network of blocks that refine the same representation
    degrades smoothly as tau falls. `swaps` are numbers of random swaps of two blocks in every
    stage, `repeats` the random orders for each, and `seed` their random seed. `options` are further
    arguments of `lesions`, except `mode`.

    Returns:
        A `Table` with `shuffle_loss` and the others of `lesions`, and `shuffle_tau`, the mean over
        the stages; `block` numbers the orders, `unit` is the number of swaps.

    Raises:
        ValueError: if no stage has two blocks of one shape.

    Reference: Veit, Wilber, Belongie (2016), arXiv:1605.06431, section 4.3.
    """
    swaps = as_integers(0, swaps=swaps)
    check_integers(1, repeats=repeats)
    trials = Trials(model, **options)
    rng = generator(seed)
    by_stage: dict[int, list[str]] = {}
    for block in trials.chain.blocks:
        if not block.changes_shape:
            by_stage.setdefault(block.stage, []).append(block.name)
    stages = [names for names in by_stage.values() if len(names) > 1]
    expected = "one with two blocks in a stage that can be exchanged, of one shape"
    require(stages, expected, model=trials.model.name)
    plans: list[Plan] = []
    labels: list[Label] = []
    rows = []
    for num_swaps in np.repeat(swaps, repeats).tolist():
        orders, taus = zip(*(random_order(names, num_swaps, rng) for names in stages), strict=True)
        labels.append((f"order{len(plans)}", None, num_swaps))
        rows.append(Row("shuffle_tau", *labels[-1], None, float(np.mean(taus))))
        order = {position: name for part in orders for position, name in part.items()}
        plans.append(shuffle_plan(trials.chain, order))
    return trials.table("shuffle", plans, data, labels) + Table(rows)


def early_exits(model: keras.Model, data: Any, **options: Any) -> Table:
    """Stop the network after each block: later ones that keep the shape return their skip input.

    `options` are further arguments of `lesions`, except `mode`.

    Returns:
        A `Table` with `exit_loss` and the others of `lesions`.

    Reference: Jastrzebski et al. (2018), section 4.2, Fig. 5.
    """
    given = {key: options.pop(key) for key in ("blocks", "grain") if key in options}
    network, names = whole_network(model, **given)
    trials = Trials(network, **options)
    same = [block for block in trials.chain.blocks if not block.changes_shape]
    exits = [block for block in trials.chain.blocks if block.name in names]
    plans = [
        lesion_plan(trials.chain, [later.name for later in same if later.index > block.index])
        for block in exits
    ]
    labels = [(block.name, block.stage, None) for block in exits]
    return trials.table("exit", plans, data, labels)


def depth_plan(
    model: keras.Model,
    data: Any,
    keep: float = 0.75,
    score: str | None = None,
    loss: Loss = None,
    batch_size: int = 128,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, float]:
    """Choose blocks to remove, those with the lowest score first.

    Blocks that change the shape stay. Remove the chosen ones with `zoo.graph.prune_blocks`, and
    heal the smaller network by training it.

    `keep` is the share of the blocks that stay, rounded so that no fewer do. `score` is
    "lesion_variation", "lesion_kl", "lesion_change" (of outputs that are no distribution) or
    "lesion_loss" (which needs labels), of the network without the block and the ones before: the
    search is greedy, and blocks are scored again after each removal. `None` is the first that is
    defined. Batch normalizations take the statistics of each batch, because healing adapts their
    moving averages: give a network with some examples in random order and batches of 32 or more;
    a short last one is left out. Other arguments, and `options` (`blocks` and `grain`), are those
    of `zoo.callbacks.run`.

    Returns:
        The blocks' scores when they were chosen, by name in the order of removal.

    Raises:
        ValueError: before any work, if `keep` or `score` has another value, or too few blocks can
            be removed; or the score is not defined for the network or the data, or NaN.

    Reference: Gromov et al. (2024), arXiv:2403.17887 (healing).

    Example:
    >>> x = inputs = keras.Input((4,))
    >>> for i in range(4):
    ...     f = keras.layers.Dense(4, kernel_initializer=keras.initializers.Constant(0.1 * i))
    ...     x = keras.layers.Add(name=f"sum{i}")([x, f(x)])
    >>> depth_plan(keras.Model(inputs, x), keras.ops.ones((8, 4)))
    {'sum0': 0.0}
    """
    check_choice((None, *SCORES), score=score)
    check_numbers(0, 1, keep=keep)
    network = Network.of(model, **options)
    names = [block.name for block in network.blocks if not block.changes_shape]
    count = int((1 - keep) * len(network.blocks) + 1e-9)
    expected = f"a share that removes 1 to {len(names)} of {len(network.blocks)} blocks, not"
    expected = f"{expected} {count}: those that change the shape stay"
    require(0 < count <= len(names), expected, keep=keep)
    data = repeatable(data)
    progress = progress or PassProgress("depth_plan", count * sample(data, 1)[1])
    trials = Trials(network, loss, batch_size=batch_size, progress=progress)
    trials.whole_batches = bool(keras_private.batch_normalizations(trials.model))
    if trials.whole_batches and min(batch_size, sample(data, 1)[1]) < FEW_EXAMPLES:
        logging.warning("zoo.callbacks.depth_plan: scores of fewer than %d examples", FEW_EXAMPLES)
    removed: dict[str, float] = {}
    while len(removed) < count:
        rest = [name for name in names if name not in removed]
        plans = [lesion_plan(trials.chain, [*removed, name]) for name in rest]
        with normalized_by_batches(trials.model):
            measured = trials.run(plans, data)
        known = [f"lesion_{name}" for name in measured]
        score = score or next(name for name in SCORES if name in known)
        expected = f"one of {known}: 'lesion_loss' needs labels, 'lesion_variation' and "
        expected += "'lesion_kl' outputs that are a distribution; others have 'lesion_change'"
        require(score in known, expected, score=score)
        scores = measured[score.removeprefix("lesion_")][1:]  # without the intact network's
        if np.isnan(scores).all():
            raise ValueError(
                f"Expected scores that are numbers. Received: NaN for {rest}. Look for NaN in the "
                f"data, and with `zoo.callbacks.diagnose` in the network's blocks."
            )
        for note in [] if removed else trials.notes(measured):
            logging.warning("zoo.callbacks.depth_plan: %s", note)
        lowest = int(np.nanargmin(scores))
        removed[rest[lowest]] = float(scores[lowest])
    return removed


def loops(  # noqa: PLR0913 (choices of the run, by keyword)
    model: keras.Model,
    data: Any,
    times: int | Sequence[int] = range(1, 25),
    first: str | None = None,
    last: str | None = None,
    scale: float = 1.0,
    loss: Loss = None,
    grain: Grain = "sum",
    **options: Any,
) -> Table:
    """Measure a network that uses a run of its blocks 1, 2, 3 ... times.

    `times` are the numbers of uses to measure, ascending; `first`, `last` and `scale` are those of
    `zoo.graph.loop`. Other arguments, and `options` (`batch_size` and `progress`), are those of
    `zoo.callbacks.run`; labels are needed for accuracy and loss only.

    Returns:
        A `Table`, `unit` the number of uses. With labels, `loop_accuracy` and `loop_loss` of the
        network with that many uses; for classifiers `loop_kl`, the KL divergence of this number's
        output from the next one's, in nats; `loop_step_norm`: the relative change of the run's
        output by the last use, |x_t - x_(t-1)| / |x_(t-1)|. All are means over examples.

    Raises:
        ValueError: if `times` are not ascending positive integers; otherwise as `zoo.graph.loop`.

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 4.4; Geiping et al. (2025),
    arXiv:2502.05171, Fig. 1.
    """
    times = as_integers(1, times=times)
    require(times == sorted({*times}), "ascending", times=times)
    region = Region(model, first, last, scale, grain=grain)
    objective = Objective(region.graph, model, loss)
    build = functools.partial(compiled, model=model, eager=region.graph.masked)

    @build
    def measure(x, previous, values, labels, before):
        """Return each example's numbers by name, and the logits."""
        logits = objective.logits(region.end(x, values, objective.apply)[0])
        numbers = objective.measured(*labels, logits) if labels else {}
        x, previous = map(zero_masked_by_keras, (x, previous))
        step = norm(x - previous)
        numbers["step_norm"] = ops.where(step == 0, 0.0, step / norm(previous))
        if before:
            pair = (objective.log_probabilities(v, *labels) for v in (*before, logits))
            weights = objective.weights(labels[0] if labels else None, before[0])
            numbers["kl"] = objective.compare(*pair, weights)["kl"]
        return numbers, logits

    start = build(region.start)
    once = functools.cache(lambda kind: build(lambda x, values: region.once(x, values, kind)))
    collected: dict[tuple[str, int], list[np.ndarray]] = {}
    options = {"batch_size": 128, **options}
    for inputs, labels, mask in padded_batches(data, **options, check=objective.check):
        x, values = start(region.graph.start(inputs))
        kept = np.flatnonzero(mask)
        before: tuple[Any, ...] = ()  # the logits of the last number that was measured
        for number in range(1, times[-1] + 1):
            previous = x
            x = once(region.kind(number - 1))(x, values)
            if number not in times:
                continue
            numbers, logits = measure(x, previous, values, labels, before)
            for name, value in numbers.items():
                key = name, times[times.index(number) - 1] if name == "kl" else number
                array = ops.convert_to_numpy(value).astype("float64")
                collected.setdefault(key, []).append(array[kept] * mask[kept])
            before = (logits,) if objective.classifies(*labels) else ()
    means = {key: np.concatenate(parts).mean() for key, parts in sorted(collected.items())}
    count = sum(map(len, next(iter(collected.values()))))
    rows = [
        Row(f"loop_{name}", region.name, region.stage, number, None, float(mean))
        for (name, number), mean in means.items()
    ]
    return Table(rows, title=titled(model, count))
