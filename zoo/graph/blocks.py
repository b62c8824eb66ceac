"""Find a network's blocks: skip layers, sums of branches of one fork, or whole layers."""

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import keras

from zoo.backend import keras_private
from zoo.checks import as_names, check_choice, nearest
from zoo.graph.calls import Call, Graph, Weight, auto_named, calls_before, made, reads, unused
from zoo.layers.configured import Scanned
from zoo.layers.skip import DropBlock, Skip
from zoo.types import Shape

Grain: TypeAlias = Literal["sum", "layer"]
GRAINS = {
    "sum": "sum of branches of one fork",
    "layer": "composite layer whose input and output have one shape",
}


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of a graph: y = x + f, or the output of a skip layer or of a composite layer.

    `source`, `x`, `f` and `y` are slots. x, the skip (identity) input, is the source, or the end of
    the shortcut branch; None where that is inside a skip layer, or missing (a plain layer that
    changes the shape). f is the residual branch's end; None where no slot has f = y - x: for a skip
    layer, a composite layer, or a sum of more than two branches. y is the output, that of its
    `DropBlock` where it has one. Blocks of one stage have outputs of one shape.
    """

    name: str  # see `find_blocks`
    call: int  # index of the call that returns y
    source: int  # the block's input
    x: int | None
    y: int
    shape: Shape  # of y, with the batch
    f: int | None = None
    layer: Skip | None = None  # the skip layer, if it is one
    stage: int = -1  # not known
    index: int = 0  # among the network's blocks
    changes_shape: bool = False  # y has another shape than the input, as where a stage begins


def find_blocks(
    graph: Graph | keras.Model, names: Sequence[str] | None = None, grain: Grain = "sum"
) -> tuple[list[Block], list[tuple[str, str]]]:
    """Find the blocks of a graph, in running order.

    A skip layer is a block, once for each of its calls. So is a sum of branches of one fork: the
    branch with the fewest layers that have weights is the shortcut, and its end is x; of two
    branches, the other's end is f. Branches may also read tensors that do not depend on the fork,
    such as masks. Sums of sums, as in x + attention(x) + mlp(x), are one block; a sum of embeddings
    is none. A sum that scales what another block adds to the same x, as in `graph.loop`, is a block
    in place of that one. Sums inside a composite layer, such as a transformer block that is one
    Keras layer, are not in the graph: `graph.inline` opens it, or `grain="layer"` makes it a block.

    A block has the name of its call: that of the sum or layer, after those of enclosing models, and
    "#1" for its second use. In place of a name that Keras made it is
    "<first layer of its branch with weights and a name>_sum", or "sum3" or "block3" by position.

    Args:
        graph: A `zoo.graph.calls.Graph`, or a model.
        names: Names of the blocks to use; `None`: all.
        grain: "sum": skip layers and sums. "layer": skip layers, and composite layers that have an
            input and an output of one shape, which are x and y. Of several such inputs x is the
            one that the fewest layers read; where that is not clear, the layer is no block.

    Returns:
        The blocks; and the name of each call that resembles a block but is not one, with a reason.

    Raises:
        ValueError: if no block is found, `grain` is unknown, or a name is not a block's; the
            message has the reasons.

    Example:
    >>> inputs = keras.Input((4,))
    >>> f = keras.layers.Dense(4)(inputs)
    >>> outputs = keras.layers.Add(name="sum")([inputs, f])
    >>> blocks, rejected = find_blocks(keras.Model(inputs, outputs))
    >>> [(block.name, block.stage, block.changes_shape) for block in blocks], rejected
    ([('sum', 0, False)], [])
    """
    graph = graph if isinstance(graph, Graph) else Graph(graph)
    blocks, rejected = candidates(graph, grain)
    if names is None:
        _drop_outer(graph, blocks, rejected)
    else:
        names = as_names(blocks=names)
        for name in names:
            if name not in blocks:
                unknown = f"no block has that name; they are {[*blocks]}{nearest(name, blocks)}"
                reason = dict(rejected).get(name, unknown)
                raise ValueError(f"Expected a block. Received: {name!r}: {reason}")
        blocks = {name: block for name, block in blocks.items() if name in names}
    if not blocks:
        (other,) = {*GRAINS} - {grain}
        alike = {reason: [n for n, why in rejected if why == reason] for _, reason in rejected}
        lines = [f"\n  {', '.join(names)}: {reason}" for reason, names in alike.items()]
        listing = "".join(lines) or (
            f" No sum in its graph is y = x + f(x), and concatenations are no blocks. Open layers "
            f"with sums inside by zoo.graph.inline(model), add skips by keras.layers.Add, or find "
            f"a {GRAINS[other]}: grain={other!r}."
        )
        raise ValueError(
            f"Expected a skip layer of the zoo, or a {GRAINS[grain]}. Received: "
            f"{graph.model.name!r}, which has no block.{listing}"
        )
    found = [dataclasses.replace(block, index=i) for i, block in enumerate(blocks.values())]
    stages = _stages(graph, found)
    return [dataclasses.replace(block, stage=stages[block.name]) for block in found], rejected


@dataclasses.dataclass(frozen=True)
class Network:
    """A model with its graph and what `find_blocks` returns, which several measurements share."""

    model: keras.Model
    graph: Graph
    blocks: list[Block]
    rejected: list[tuple[str, str]]

    @classmethod
    def of(
        cls,
        model: "keras.Model | Network",
        blocks: Sequence[str] | None = None,
        grain: Grain = "sum",
    ) -> "Network":
        """Return the network of a model; arguments and errors are those of `find_blocks`."""
        if isinstance(model, Network):
            return model
        graph = Graph(model)
        return cls(model, graph, *find_blocks(graph, blocks, grain))


def whole_network(
    model: "keras.Model | Network", blocks: Sequence[str] | None = None, grain: Grain = "sum"
) -> tuple[Network, list[str]]:
    """Return a network with all its blocks, and the names of those that `blocks` selects.

    It has the selected ones only, if some are found by their names alone.
    """
    selected = Network.of(model, blocks, grain)
    names = [block.name for block in selected.blocks]
    if blocks is None or isinstance(model, Network):
        return selected, names
    found = selected
    with contextlib.suppress(ValueError):  # no other block
        found = Network.of(model, None, grain)
    return found if {*names} <= {block.name for block in found.blocks} else selected, names


def block_of(blocks: Sequence[Block], name: str) -> Block:
    """Return the block `name`; raise ValueError if there is none."""
    names = [block.name for block in blocks]
    check_choice(names, block=name)
    return blocks[names.index(name)]


def residual_branch(graph: Graph, block: Block) -> list[Call]:
    """Return the calls of a block's residual branch; none for a skip layer."""
    if block.layer is not None or block.x is None:
        return []
    if block.f is not None:
        return graph.between(block.source, block.f)
    shortcut = {call.index for call in graph.between(block.source, block.x)}
    return [c for c in graph.between(block.source, block.y) if c.index not in shortcut]


def candidates(
    graph: Graph, grain: Grain = "sum"
) -> tuple[dict[str, Block], list[tuple[str, str]]]:
    """Return all blocks by name, nested ones included, and the rejected calls with reasons."""
    check_choice(GRAINS, grain=grain)
    sums = _Sums(graph)
    for call in graph.calls:
        try:
            if isinstance(call.layer, Skip | Scanned):
                sums.blocks[call.index] = _skip_block(call)
            elif is_sum(call.layer):
                sums.add(call)
        except _NoBlockError as reason:
            sums.rejected[call.index] = str(reason)
    blocks, rejected = sums.blocks, sums.rejected
    inside = {call.index for block in blocks.values() for call in residual_branch(graph, block)}
    if grain == "layer":
        blocks = {index: block for index, block in blocks.items() if block.layer is not None}
        rejected = {}
    lengths = {
        name: (None, *(size or 128 for size in graph.shapes[slot][1:]))
        for name, slot in zip(graph.input_names, graph.inputs, strict=True)
        if None in graph.shapes[slot][1:]
    }
    advice = f". If code needs lengths, give inline shapes={lengths}" if lengths else ""
    for call in graph.calls:
        if call.index in inside or not _may_hide_sums(graph, call):
            continue
        block = _layer_block(graph, call)
        if block is not None and grain == "layer":
            blocks[call.index] = block
        else:
            whole = ", and grain='layer' makes a block of it" if block else ""
            rejected[call.index] = (
                f"a {type(call.layer).__name__} is one layer of the graph, which does not show the "
                f"sums inside it; zoo.graph.inline(model) opens it if one is a block, or says why "
                f"it cannot{whole}{advice}"
            )
    named = _named(graph, [blocks[index] for index in sorted(blocks)])
    _end_after_drops(graph, named)
    return named, [(graph.calls[index].name, rejected[index]) for index in sorted(rejected)]


class _NoBlockError(Exception):
    """The reason why a call is no block."""


class _Sums:
    """Sums that are blocks, and reasons why others are none, by the index of their call."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.blocks: dict[int, Block] = {}
        self.rejected: dict[int, str] = {}
        self._producers = {slot: call for call in graph.calls for slot in call.outputs}
        self._ancestors = _ancestors(graph)
        self._reads = collections.Counter(slot for call in graph.calls for slot in call.sources)
        self._reads.update(graph.outputs)

    def add(self, call: Call) -> None:
        """Add a sum to the blocks, in place of the sums that are its terms."""
        inner: list[int] = []
        terms = self._terms(call, inner)
        block = None
        with contextlib.suppress(_NoBlockError):
            block = self._block(call, terms) if inner else None
        if block is None or any(self._is_before(index, block) for index in inner):
            inner = []
            block = self._block(call, call.sources)
        for index in inner:
            self.blocks.pop(index, None)
            self.rejected.pop(index, None)
        if block is not None:
            self.blocks[call.index] = block

    def _terms(self, call, inner):
        """Return the slots of a sum's terms, those of sums that only it reads included."""
        terms = []
        for slot in call.sources:
            producer = self._producers.get(slot)
            if producer is not None and self._reads[slot] == 1 and is_sum(producer.layer):
                inner.append(producer.index)
                terms += self._terms(producer, inner)
            else:
                terms.append(slot)
        return terms

    def _is_before(self, index, outer):
        """True if a term is a block after others, as where a sum adds the network's stem."""
        block = self.blocks.get(index)
        return block is not None and block.x == block.source != outer.source

    def _block(self, call, terms):
        """Return a sum's block, or None for a sum that is not similar to one."""
        if len(terms) < 2:
            return None
        if len({*terms}) == 1:
            raise _NoBlockError("it adds a tensor to itself")
        common = set.intersection(*(self._ancestors[slot] for slot in terms))
        if not common:
            if any(self._weighted(self.graph.calls, slot) for slot in terms):
                raise _NoBlockError("its branches come from no common fork")
            return None
        forks = sorted(common, reverse=True)
        # A condition that both branches read, such as one for a scale, is common to them, too, but
        # as a fork it would leave a shortcut that reads something else.
        fork = next((slot for slot in forks if self._closed(slot, terms)), forks[0])
        after = self.graph.after(fork)
        branches = [self._weighted(after, slot, fork in terms) for slot in terms]
        counts = [*map(len, branches)]
        if not any(counts):
            return None
        least = min(counts)
        if counts.count(least) > 1:
            raise _NoBlockError(
                f"{counts.count(least)} of its branches have {least} layers with weights: which is "
                f"the shortcut?"
            )
        x = terms[counts.index(least)]
        others = [slot for slot in terms if slot != x]
        if self._is_other(call, fork, x, others):
            return None
        own = [c for slot, calls in zip(terms, branches, strict=True) if slot != x for c in calls]
        if all("Embedding" in type(c.layer).__name__ for c in own):
            raise _NoBlockError("it adds embeddings, which do not depend on each other's values")
        shapes = [self.graph.shapes[slot] for slot in terms]
        if any(_is_broadcast(shape, call.shapes[0]) for shape in shapes):
            raise _NoBlockError(f"it broadcasts a tensor: its terms have the shapes {shapes}")
        f = others[0] if len(others) == 1 else None
        return _block(call, fork, x, f=f, changes_shape=self.graph.shapes[fork] != call.shapes[0])

    def _is_other(self, call, fork, x, others):
        """Return True for a sum of outputs of one call, or of scores and a bias.

        Raises:
            _NoBlockError: if branches share layers, as those of a gated sum.
        """
        after = self.graph.after(fork)
        shortcut = {c.index for c in calls_before(x, after)}
        shared = any(c.index in shortcut for slot in others for c in calls_before(slot, after))
        shape = self.graph.shapes[fork]
        if shared and shape == call.shapes[0]:
            ends = {self._producers[slot].index for slot in (x, *others)}
            if len(ends) > len(others) and ends.isdisjoint(shortcut - {max(shortcut)}):
                raise _NoBlockError(
                    "its branches share layers, as t h + (1 - t) x: write x + t (h - x)"
                )
        return shared or len(shape) != len(call.shapes[0])

    def _closed(self, fork, terms):
        """True if the shortest branch from a fork reads nothing else."""
        after = self.graph.after(fork)
        calls = min((calls_before(slot, after) for slot in terms), key=len)
        return reads(calls) <= made(calls) | {fork}

    def _weighted(self, calls, slot, mixes=False):
        """Return a branch's calls with weights; and FNet's Fourier transforms, where it `mixes`."""
        found = calls_before(slot, calls)
        return [c for c in found if _has_weights(c) or mixes and "FFT" in type(c.layer).__name__]


def _is_broadcast(shape, whole):
    other = len(shape) != len(whole)
    return other or any(a == 1 != b for a, b in zip(shape, whole, strict=True))


def is_sum(layer: Any) -> bool:
    """Return True for a layer or an operation that adds tensors."""
    # The operation of `x + f` is a class that Keras does not export.
    return isinstance(layer, keras.layers.Add) or type(layer).__name__ == "Add"


def foreign(layer: Any) -> bool:
    """Return True for layers, not operations, that are neither Keras's nor the zoo's."""
    ours = type(layer).__module__.startswith(("keras.src.layers", "keras.src.models", "zoo."))
    return isinstance(layer, keras.layers.Layer) and not isinstance(layer, Skip) and not ours


def composite(layer: keras.layers.Layer) -> bool:
    """Return True for a layer with sub-layers that have weights."""
    return any(inner.weights for inner in keras_private.inner_layers(layer, include_self=False))


def _block(call, source, x, output=0, **more):
    y = call.outputs[output]
    return Block(call.name, call.index, source, x, y, call.shapes[output], **more)


def _skip_block(call):
    if isinstance(call.layer, Scanned):
        raise _NoBlockError(
            "a scanned stack hides its layers; zoo.graph.rewire can put its to_layers() there"
        )
    x = None if call.layer.opens_stage else call.sources[0]
    more = {"stage": call.layer.stage, "changes_shape": call.layer.opens_stage}
    return _block(call, call.sources[0], x, layer=call.layer, **more)


def _layer_block(graph, call):
    """Return the block of a layer whose x is the input that fewest layers read, or None."""
    shapes = [graph.shapes[slot] for slot in call.sources if composite(call.layer)]
    shape = next((shape for shape in call.shapes if shape in shapes), None)
    slots = [slot for slot in call.sources if graph.shapes[slot] == shape]
    readers = collections.Counter(s for c in graph.calls if foreign(c.layer) for s in {*c.sources})
    found = [slot for slot in slots if readers[slot] == min(readers[s] for s in slots)]
    clear = len({*found}) == 1 or call.shapes.count(shape) > 1
    return _block(call, found[0], found[0], call.shapes.index(shape)) if found and clear else None


def _may_hide_sums(graph, call):
    """True for foreign layers that could hold a sum, as their inputs have the output's rank."""
    shapes = [graph.shapes[slot] for slot in call.sources if foreign(call.layer)]
    alike = any(len(shape) == len(call.shapes[0]) for shape in shapes) and composite(call.layer)
    return alike or shapes.count(call.shapes[0]) > 1


def _named(graph, blocks):
    """Return blocks by name, none of which depends on other models in the process."""
    named = {}
    last = {slot: call.index for call in graph.calls for slot in call.sources}  # readers
    for block in blocks:
        call = graph.calls[block.call]
        name = call.name
        if auto_named(call.layer):
            name = f"sum{len(named)}" if is_sum(call.layer) else f"block{len(named)}"
            own = filter(_has_weights, residual_branch(graph, block))  # and read by no later block
            own = [c for c in own if all(last.get(slot, 0) <= block.call for slot in c.outputs)]
            given = [c.name for c in own if not auto_named(c.layer)]
            if given:
                base, hash_sign, use = given[0].partition("#")
                name = f"{base}_sum{hash_sign}{use}"
        name = unused(name, {*named})
        named[name] = dataclasses.replace(block, name=name)
    return named


def _end_after_drops(graph, named):
    for call in graph.calls:
        if isinstance(call.layer, DropBlock):
            for name, block in named.items():
                if (block.x, block.y) == call.sources:
                    named[name] = dataclasses.replace(block, y=call.outputs[0])


def _has_weights(call):
    return bool(getattr(call.layer, "weights", ())) and not isinstance(call.layer, Weight)


def _ancestors(graph):
    ancestors = {slot: {slot} for slot in graph.inputs}
    for call in graph.calls:
        above = set().union(*(ancestors[slot] for slot in call.sources))
        ancestors |= {slot: above | {slot} for slot in call.outputs}
    return ancestors


def _drop_outer(graph, blocks, rejected):
    """Remove sums around other blocks; or, where a sum scales one block, that block."""
    inside = {
        name: {call.index: call for call in graph.between(block.source, block.y)}
        for name, block in blocks.items()
        if block.layer is None
    }
    for name, calls in inside.items():
        inner = [other for other, b in blocks.items() if b.call in calls and other != name]
        if len(inner) == 1 and _scales(blocks[name], blocks[inner[0]], calls, inside):
            blocks[name] = dataclasses.replace(blocks[name], stage=blocks.pop(inner[0]).stage)
        elif inner:
            rejected.append((name, f"it contains the blocks {inner}: name those to use"))
            del blocks[name]


def _scales(outer, inner, calls, inside):
    """True if a sum adds what the block inside it adds, times something without weights."""
    weighted = {call.index for call in calls.values() if _has_weights(call)}
    own = {*inside.get(inner.name, {}), inner.call}
    return outer.x == outer.source == inner.source and weighted <= own


def _stages(graph, blocks):
    """Return stages by name: the skip layers', or a new one wherever the shape changes.

    A block that depends on no other opens one, too, as a decoder's first beside an encoder. One
    that only halves the image before one that only adds channels, as in ResNet V2, ends its stage.
    """
    stages = [block.stage for block in blocks]
    if -1 not in stages and len({*stages}) == len({(b.stage, b.shape) for b in blocks}):
        return {block.name: block.stage for block in blocks}
    ancestors = _ancestors(graph)
    towers: dict[str, int] = {}  # by block
    for i, block in enumerate(blocks):
        before = [towers[b.name] for b in blocks[:i] if b.y in ancestors[block.source]]
        towers[block.name] = before[-1] if before else i
    ordered = sorted(blocks, key=lambda block: towers[block.name])
    runs = itertools.groupby(ordered, lambda block: (towers[block.name], block.shape))
    groups = [[*run] for _, run in runs]
    shapes = [group[0].shape for group in groups]
    stages = []
    for index, group in enumerate(groups):
        opened = index > 0
        if 0 < index < len(groups) - 1 and len(group) == 1 and group[0].changes_shape:
            before = _changed(shapes[index - 1], shapes[index])
            opened = bool(before & _changed(shapes[index], shapes[index + 1]))
        stages += [(stages[-1] if stages else 0) + opened] * len(group)
    return {block.name: stage for block, stage in zip(ordered, stages, strict=True)}


def _changed(shape, other):
    pairs = itertools.zip_longest(shape, other, fillvalue=-1)
    return {axis for axis, (size, changed) in enumerate(pairs) if size != changed}
