"""The base class of probes: per-example values of a block, and what to make of their averages."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from zoo.callbacks.probes.objective import average
from zoo.graph.blocks import Block
from zoo.types import Tensor


class Parts(dict):
    """A block's tensors by key; see `Probe.needs`.

    Args:
        info: The `zoo.blocks.Block`.
        parts: Tensors by key.
        use: Index of the use of a shared layer, from 0.

    Attributes:
        layers: The layers whose inputs and outputs are `steps`.
    """

    layers: Sequence[Any] = ()

    def __init__(self, info: Block, parts: Mapping[str, Tensor], use: int = 0) -> None:
        super().__init__(parts)
        self.info = info
        self.use = use

    def average(self, v: Tensor) -> Tensor:
        """Return the mean over an example's positions, `(batch, ...)` to `(batch,)`."""
        return average(v, self.get("weights"))


class Probe:
    """Base of measurements of every block.

    A subclass writes `measure`, which returns per-example values; the engine (`zoo.callbacks.run`)
    only sums them over examples and replicas; `summarize` turns the averages into numbers. So no
    value depends on the batch size. Like a `keras.metrics.Metric` it has a `name`,
    `update_state`, `result` and `reset_state`.

    Class attributes:
        needs: Keys that a block must have to be measured. Always there: `y`, the output. `x`, the
            skip input (the shortcut's end where the shape changes), and `f = y - x`, except in a
            plain block that changes the shape. `h`, `t`, `c` in the zoo's layers that have them.
            `input`, the block's input. With labels also `dx` and `dinput`, the gradients of an
            example's loss at `x` and `input`; `labels`; and in the last stage the early readout:
            `probabilities` and `loss` of the classifier applied to `y` (`probabilities_before`,
            `loss_before`: to `x`), and `dx_classifier`, the gradient of `loss_before` at `x`. Of
            outputs such as `(batch, steps, classes)` these have a value for each position, of
            which `block.average` is an example's. `network`: logarithms of the network's own
            probabilities. `steps`: of a sum's residual branch, pairs of the input and the output of
            each of `block.layers`, those that have one of each.
        gradient: True if it needs a backward pass.
        reads_labels: True if it uses labels where there are some, but does not need them.
        extremes: "min" or "max" by the key of a value of `measure` whose smallest or largest number
            over the examples is needed and not its average.

    Args:
        name: Name of its values; `None`: the class's name in snake case.

    Example:
    >>> class Sparsity(Probe):
    ...     def measure(self, block, stage):
    ...         return {"sparsity": ops.mean(flat(block["y"]) == 0, axis=1)}
    """

    needs: tuple[str, ...] = ()
    gradient = False
    reads_labels = False
    extremes: Mapping[str, str] = {}
    blocks: Sequence[Block] = ()  # of the network, set when a pass begins

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.default_name()
        self.reset_state()

    @classmethod
    def default_name(cls) -> str:
        """Return the class's name in snake case."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    @property
    def labels(self) -> bool:
        """True if the probe needs labels."""
        of_labels = {"dx", "dinput", "dx_classifier", "labels", "loss", "loss_before"}
        return self.gradient or bool(of_labels & {*self.needs})

    @property
    def inspects(self) -> bool:
        """True if the probe reads weights instead of data."""
        return type(self).inspect is not Probe.inspect

    def notes(self) -> list[str]:
        """Return sentences about what was not measured."""
        return []

    def measure(self, block: Parts, stage: Sequence[Parts]) -> dict[str, Tensor] | Tensor:
        """Return per-example values of one block, of shape `(batch, ...)`, by key.

        One number for each example, `(batch,)`, may be returned as it is; the results are its mean
        and its standard deviation, `std`.

        Args:
            block: Tensors by key, see `needs`; `block.info` is its `zoo.blocks.Block`, `block.use`
                which use of a shared layer it is.
            stage: The blocks of its stage, in order, including itself.
        """
        if self.inspects:
            return {}
        raise NotImplementedError(f"{type(self).__name__} must define `measure`.")

    def inspect(self, info: Block, weights: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return numbers about a block's weights, once a pass; for probes that read no data.

        Args:
            info: The `zoo.blocks.Block`.
            weights: Arrays by path.
        """
        return {}

    def summarize(self, mean: dict[str, Any]) -> dict[str, Any]:
        """Return numbers, or arrays with a number for each unit, from averages (and extremes)."""
        if {*mean} == {"mean", "square"}:
            return {self.name: mean["mean"], "std": deviation(mean["mean"], mean["square"])}
        return mean

    def overall(self, values: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
        """Return numbers about the whole network, from pairs of a block and its numbers."""
        return {}

    def update_state(self, sums: Mapping[str, Mapping[str, Any]], count: int) -> None:
        """Add sums over `count` examples, and extremes of each replica: arrays by key, by block."""
        self.count += count
        for block, members in sums.items():
            totals = self.sums.setdefault(block, {})
            for key, value in members.items():
                number: Any = np.asarray(value, "float64")
                if key in self.extremes:
                    extreme = np.minimum if self.extremes[key] == "min" else np.maximum
                    number = extreme.reduce(number, axis=0)
                    totals[key] = extreme(totals.get(key, number), number)
                else:
                    totals[key] = totals.get(key, 0.0) + number

    def result(self) -> dict[str | None, dict[str, Any]]:
        """Return numbers by key, by block; None is the key of those about the whole network."""
        values = [*self.inspected.items()]
        for block, members in self.sums.items():
            means = {k: v if k in self.extremes else v / self.count for k, v in members.items()}
            values.append((block, self.summarize(means)))
        result: dict[str | None, dict[str, Any]] = {**dict(values)}
        whole = self.overall(values) if values else {}
        if whole:
            result[None] = whole
        return result

    def summary(self) -> float:
        """Return one number for the network: the mean over blocks of the first one of `result`."""
        firsts = [
            np.mean(next(iter(numbers.values())))
            for block, numbers in self.result().items()
            if block is not None and numbers
        ]
        return float(np.mean(firsts))

    def reset_state(self) -> None:
        """Forget all sums."""
        self.count = 0
        self.sums: dict[str, dict[str, Any]] = {}
        self.inspected: dict[str, dict[str, Any]] = {}  # numbers about weights, by block


def deviation(mean: Any, square: Any) -> Any:
    """Return the standard deviation that follows from a mean and a mean square."""
    return np.sqrt(np.maximum(square - np.square(mean), 0.0))


def flat(v: Tensor) -> Tensor:
    """Return `(batch, ...)` as `(batch, features)`, float32: squares of float16 overflow."""
    return ops.cast(ops.reshape(v, (ops.shape(v)[0], -1)), "float32")


def norm(v: Tensor) -> Tensor:
    """Return the Euclidean norm of each example, `(batch,)`."""
    return ops.norm(flat(v), axis=1)


def by_unit(v: Tensor) -> Tensor:
    """Return the mean over positions: `(batch, ..., units)` to `(batch, units)`, float32."""
    v = ops.cast(v, "float32")
    return ops.mean(ops.reshape(v, (ops.shape(v)[0], -1, v.shape[-1])), axis=1)


def dot(u: Tensor, v: Tensor) -> Tensor:
    """Return the inner product of each example, `(batch,)`."""
    return ops.sum(flat(u) * flat(v), axis=1)


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """Return the cosine of each example, `(batch,)`; 0 where one of the two is zero."""
    lengths = norm(u) * norm(v)
    return ops.where(lengths == 0, 0.0, dot(u, v) / ops.where(lengths == 0, 1.0, lengths))


def is_relu(layer: Any) -> bool:
    """Return True for a layer or operation that is a ReLU."""
    if isinstance(layer, keras.layers.Activation):
        return layer.activation is keras.activations.relu
    return type(layer).__name__ in ("ReLU", "Relu")  # a layer; keras.ops and .activations
