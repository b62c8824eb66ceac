"""Repeat a run of a network's blocks."""

import keras

from zoo.checks import check_integers, check_numbers, require
from zoo.graph.blocks import Grain, block_of, find_blocks
from zoo.graph.calls import Apply, Call, Graph, Values, calls_before, infer, made, reads, symbolic
from zoo.types import Tensor


class Region:
    """A run of blocks from a tensor to another of its shape, and what is around it.

    If the next block's input has that shape, the run ends there, so that a normalization or ReLU
    after each block is repeated, too. Arguments and errors are those of `loop`; `name` has the
    names of the first and last block, and `stage` is that of the first one.
    """

    def __init__(
        self,
        model: keras.Model,
        first: str | None = None,
        last: str | None = None,
        scale: float = 1.0,
        grain: Grain = "sum",
    ) -> None:
        check_numbers(scale=scale)
        self.graph = Graph(model)
        self._scale = scale
        self._wrap: list[Call] = []  # from a block's output `_back` to the run's start
        self._find(find_blocks(self.graph, grain=grain)[0], first, last)
        after = self.graph.after(self._start)
        self._inner = calls_before(self._end, after)
        self._before = [call for call in self.graph.calls if call not in after]
        self._after = [call for call in after if call not in self._inner]
        hidden = {self._start, *made(self._inner)} - {self._end}
        readers = [(call.name, call.sources) for call in self._after]
        for reader, slots in [*readers, ("an output", self.graph.outputs)]:
            expected = f"a run that nothing bypasses: {reader} reads a tensor from before its end. "
            require(hidden.isdisjoint(slots), f"{expected}Name other blocks", blocks=self.name)

    def _find(self, blocks, first, last):
        start = first or blocks[0].name
        end = last or first or blocks[-1].name
        i, j = (block_of(blocks, name).index for name in (start, end))
        require(i <= j, f"{end!r} or a block before it", first=start)
        self.name = start if i == j else f"{start}>{end}"
        self.stage = blocks[i].stage
        self._start, self._end = blocks[i].source, blocks[j].y
        shapes = self.graph.shapes
        sources = [b.source for b in blocks[j + 1 :] if self._joined(blocks, self._end, b.source)]
        if sources and shapes[sources[0]] == shapes[self._start]:
            self._end = sources[0]
        ends = [b.y for b in blocks[:i] if self._joined(blocks, b.y, self._start)]
        if self._end == blocks[j].y and ends and shapes[ends[-1]] == blocks[i].shape:
            self._back = ends[-1]
            self._wrap = self.graph.between(self._back, self._start)
        first, last = shapes[self._start], shapes[self._end]
        expected = f"a run within one stage, which keeps the shape, and not from {first} to {last}"
        require(first == last, expected, blocks=self.name)

    def _joined(self, blocks, y, source):
        """Return True if a block's input depends on another's output, and on no block between."""
        calls = {call.index for call in self.graph.between(y, source)}
        return y == source or bool(calls) and calls.isdisjoint(block.call for block in blocks)

    def start(self, values: Values, apply: Apply = infer) -> tuple[Tensor, Values]:
        """Return the run's input, and by slot what does not depend on it."""
        values = self.graph.run({**values}, apply, self._before, keep=True)
        read = reads([*self._inner, *self._after, *self._wrap]).union(self.graph.outputs)
        rest = {slot: value for slot, value in values.items() if slot in read}
        return rest.pop(self._start), rest

    def once(self, x: Tensor, values: Values, use: int, apply: Apply = infer) -> Tensor:
        """Return the output of the `use`-th use of the run, from 0; `values` are from `start`."""
        if use and self._wrap:
            before = {**values, self._back: x}
            x = self.graph.run(before, apply, self._wrap, keep=True)[self._start]
        y = self.graph.run({**values, self._start: x}, apply, self._inner, keep=True)[self._end]
        if use == 0 or self._scale == 1:
            return y
        return self.graph.keep_mask(x, x + self._scale * (y - x))

    def kind(self, use: int) -> int:
        """Return the index of the first use that is computed like this one."""
        return min(use, 1) if self._wrap or self._scale != 1 else 0

    def end(self, x: Tensor, values: Values, apply: Apply = infer) -> list[Tensor]:
        """Return the network's outputs, flattened, from the run's output and `start`'s `values`."""
        values = self.graph.run({**values, self._end: x}, apply, self._after, keep=True)
        return [values[slot] for slot in self.graph.outputs]


def loop(
    model: keras.Model,
    first: str | None = None,
    last: str | None = None,
    times: int = 2,
    scale: float = 1.0,
    grain: Grain = "sum",
) -> keras.Model:
    """Return `model` with a run of its blocks repeated; it shares `model`'s weights.

    Args:
        model: A Functional or built Sequential `keras.Model`; see `zoo.graph.find_blocks`.
        first: Name of the first block; `None`: the model's first one.
        last: Name of the last block; `None`: `first`, and without that the last block.
        times: Number of times the run occurs in the new model; 0 leaves it out.
        scale: Factor of what the run adds to its input when it is repeated, h + scale (run(h) - h).
        grain: As in `zoo.graph.find_blocks`.

    Raises:
        ValueError: if there is no such block, `times` is negative, the run changes the shape, or
            tensors bypass a part of it.

    Example:
    >>> inputs = keras.Input((4,))
    >>> f = keras.layers.Dense(4, name="branch")(inputs)
    >>> model = keras.Model(inputs, keras.layers.Add(name="sum")([inputs, f]))
    >>> [call.name for call in Graph(loop(model, times=3)).calls]
    ['branch', 'sum', 'branch#1', 'sum#1', 'branch#2', 'sum#2']

    Reference: Sun et al. (2024), "Transformer Layers as Painters", arXiv:2407.09298, section 3.6
    (looping a run of layers); Jastrzebski et al. (2018), arXiv:1710.04773, section 4.4, Figs 7 and
    20 (unrolling the last block, scaled).
    """
    check_integers(0, times=times)
    region = Region(model, first, last, scale, grain)
    inputs = region.graph.new_inputs()
    x, values = region.start(inputs, symbolic)
    for use in range(times):
        x = region.once(x, values, use, symbolic)
    return region.graph.new_model(inputs, region.end(x, values, symbolic))
