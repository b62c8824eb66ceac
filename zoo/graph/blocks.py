"""Find a network's blocks: its skip layers, and sums of two branches of one fork."""

import dataclasses
import itertools
from collections.abc import Sequence

import keras

from zoo.graph.calls import Call, Graph
from zoo.layers.highway_stack import HighwayDenseStack
from zoo.layers.skip import Skip
from zoo.types import Shape


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of a graph: y = x + f, or the output of a skip layer.

    Attributes:
        name: Name of the skip layer's call, or of the sum's.
        call: Index of the call that returns y.
        source: Slot of the block's input.
        x: Slot of the skip (identity) input: the source, or the end of the shortcut branch; None
            where that is inside a skip layer, or missing (a plain layer that changes the shape).
        f: Slot of the residual branch's end; None for a skip layer.
        y: Slot of the output.
        shape: Shape of y, with the batch.
        layer: The skip layer, or None.
        stage: Blocks of one stage have outputs of one shape.
        index: Position among the network's blocks, from 0.
    """

    name: str
    call: int
    source: int
    x: int | None
    f: int | None
    y: int
    shape: Shape
    layer: Skip | None
    stage: int = 0
    index: int = 0

    @property
    def changes_shape(self) -> bool:
        """True if the skip input is not the block's input, as where a stage begins."""
        return self.x != self.source


def find_blocks(
    graph: Graph | keras.Model, names: Sequence[str] | None = None
) -> tuple[list[Block], list[tuple[str, str]]]:
    """Find the blocks of a graph, in running order.

    A skip layer is a block, once for each of its calls. So is a sum of two branches that come
    from one fork and read nothing else: the branch with fewer layers that have weights, or none,
    is the shortcut, and its end is x; the other's end is f. A sum that scales what another block
    adds to the same x, as in `zoo.unroll`, is a block in place of that one. A sum of embeddings,
    as of words and positions, is none. Sums inside a composite layer, such as a transformer block
    that is one Keras layer, are not in the graph: such layers are among the rejected calls.

    Args:
        graph: A `zoo.calls.Graph`, or a model.
        names: Names of the calls (skip layers, sums) to use; `None`: all blocks.

    Returns:
        A list of `Block`, and a list of pairs for calls that are similar to a block but none: the
        call's name and the reason.

    Raises:
        ValueError: if there is no block, or one of `names` is none; the message has the reasons.

    Example:
    >>> inputs = keras.Input((4,))
    >>> f = keras.layers.Dense(4)(inputs)
    >>> outputs = keras.layers.Add(name="sum")([inputs, f])
    >>> blocks, rejected = find_blocks(keras.Model(inputs, outputs))
    >>> [(block.name, block.stage, block.changes_shape) for block in blocks], rejected
    ([('sum', 0, False)], [])
    """
    graph = graph if isinstance(graph, Graph) else Graph(graph)
    blocks, rejected = _candidates(graph)
    layers = {name: block.layer for name, block in blocks.items()}  # they know their stage
    if names is None:
        layers |= _drop_outer(graph, blocks, rejected)
    else:
        reasons = dict(rejected)
        for name in names:
            if name not in blocks:
                reason = reasons.get(name, f"no block has that name; the blocks are {[*blocks]}")
                raise ValueError(f"Expected a block. Received: {name!r}: {reason}")
        blocks = {name: block for name, block in blocks.items() if name in names}
    if not blocks:
        listing = "".join(f"\n  {name}: {reason}" for name, reason in rejected)
        raise ValueError(
            f"Expected a skip layer of the zoo, or a sum of two branches of one fork. Received: "
            f"{graph.model.name!r}, which has no block.{listing or ' Its graph has no sum.'}"
        )
    stages = _stages([block.shape for block in blocks.values()], [layers[name] for name in blocks])
    numbered = [
        dataclasses.replace(block, stage=stage, index=index)
        for index, (block, stage) in enumerate(zip(blocks.values(), stages, strict=True))
    ]
    return numbered, rejected


def residual_branch(graph: Graph, block: Block) -> list[Call]:
    """Return the calls of a sum's residual branch; none for a skip layer."""
    return [] if block.f is None else graph.between(block.source, block.f)


class _NoBlockError(Exception):
    """The reason why a call is no block."""


def _candidates(graph):
    """Return all blocks by name, nested ones included, and the rejected calls with reasons."""
    blocks = {}
    rejected = []
    producers = {slot: call for call in graph.calls for slot in call.outputs}
    ancestors = _ancestors(graph)
    shapes = {
        slot: shape for c in graph.calls for slot, shape in zip(c.outputs, c.shapes, strict=True)
    }
    shapes |= {s: tuple(t.shape) for s, t in zip(graph.inputs, graph.model.inputs, strict=True)}
    for call in graph.calls:
        try:
            if isinstance(call.layer, Skip):
                blocks[call.name] = _skip_block(call)
            elif _is_sum(call.layer):
                blocks[call.name] = _sum_block(call, producers, ancestors)
            elif _may_hide_sums(call, shapes):
                raise _NoBlockError(
                    f"a {type(call.layer).__name__} is one layer of the graph, which does not show "
                    f"the sums inside it; to have them found, build the model of their terms"
                )
        except _NoBlockError as reason:
            rejected.append((call.name, str(reason)))
    return blocks, rejected


def _is_sum(layer):
    # The operation of `x + f` is a class that Keras does not export.
    return isinstance(layer, keras.layers.Add) or type(layer).__name__ == "Add"


def _block(call: Call, **attributes):
    return Block(
        name=call.name, call=call.index, y=call.outputs[0], shape=call.shapes[0], **attributes
    )


def _skip_block(call):
    if isinstance(call.layer, HighwayDenseStack):
        raise _NoBlockError(
            "a scanned stack hides its layers; convert it to single ones with zoo.stacking"
        )
    source = call.sources[0]
    x = None if call.layer.opens_stage else source
    return _block(call, source=source, x=x, f=None, layer=call.layer)


def _sum_block(call, producers, ancestors):
    slots = call.sources
    if len(slots) != 2 or slots[0] == slots[1]:
        terms = f"{len(slots)} tensors" if len({*slots}) > 1 else "a tensor to itself"
        raise _NoBlockError(f"it adds {terms}, not two branches")
    common = ancestors[slots[0]] & ancestors[slots[1]]
    if not common:
        raise _NoBlockError("its two branches come from no common fork")
    fork = max(common)
    counts = []  # layers with weights in each branch
    for slot in slots:
        branch = ancestors[slot] - ancestors[fork]
        calls = {producers[s].index: producers[s] for s in branch}
        for inner in calls.values():
            if not {*inner.sources} <= branch | {fork}:
                raise _NoBlockError(f"its branch reads more than one fork, at {inner.name}")
        counts.append(sum(_has_weights(inner) for inner in calls.values()))
    if counts[0] == counts[1]:
        raise _NoBlockError(
            f"both its branches have {counts[0]} layers with weights: which is the shortcut?"
        )
    x, f = slots if counts[0] < counts[1] else slots[::-1]
    layers = {producers[s].layer for s in ancestors[f] - ancestors[fork]}
    if all("Embedding" in type(v).__name__ for v in layers if getattr(v, "weights", ())):
        raise _NoBlockError("it adds embeddings, which do not depend on each other's values")
    return _block(call, source=fork, x=x, f=f, layer=None)


def _may_hide_sums(call, shapes):
    """True for layers that are neither Keras's nor ours, keep the shape and could hold a sum."""
    layer = call.layer
    foreign = not type(layer).__module__.startswith(("keras.src.layers", "keras.src.ops", "zoo."))
    kept = [slot for slot in call.sources if shapes[slot] == call.shapes[0]]
    if not (foreign and kept and isinstance(layer, keras.layers.Layer)):
        return False
    inner = [v for v in layer._flatten_layers(include_self=False) if v.weights]
    return len(inner) > 1 or len(kept) > 1


def _has_weights(call):
    return bool(getattr(call.layer, "weights", ()))


def _ancestors(graph):
    """Return, for each slot, the set of slots that it depends on, itself included."""
    ancestors = {slot: {slot} for slot in graph.inputs}
    for call in graph.calls:
        above = set().union(*(ancestors[slot] for slot in call.sources))
        for slot in call.outputs:
            ancestors[slot] = above | {slot}
    return ancestors


def _drop_outer(graph, blocks, rejected):
    """Remove sums around other blocks; or, where a sum scales one block, that block.

    Returns the layers of the scaled blocks by the name of the sum that replaces them.
    """
    scaled = {}
    inside = {
        name: {call.name: call for call in graph.between(block.source, block.y)}
        for name, block in blocks.items()
        if block.layer is None
    }
    for name, calls in inside.items():
        inner = [other for other in blocks if other in calls and other != name]
        if len(inner) == 1 and _scales(blocks[name], blocks[inner[0]], calls, inside):
            scaled[name] = blocks.pop(inner[0]).layer
        elif inner:
            rejected.append((name, f"it contains the blocks {inner}: name those to use"))
            del blocks[name]
    return scaled


def _scales(outer, inner, calls, inside):
    """True if a sum adds what the block inside it adds, times something without weights."""
    weighted = {call.index for call in calls.values() if _has_weights(call)}
    own = {call.index for call in inside.get(inner.name, {}).values()} | {inner.call}
    return outer.x == outer.source == inner.source and weighted <= own


def _stages(shapes, layers):
    """Return the skip layers' stages, or a new stage wherever the shape changes."""
    stages = [layer.stage if layer else None for layer in layers]
    shapes_by_stage = {}
    for stage, shape in zip(stages, shapes, strict=True):
        shapes_by_stage.setdefault(stage, set()).add(shape)
    if None not in stages and all(len(same) == 1 for same in shapes_by_stage.values()):
        return stages
    groups = itertools.groupby(shapes)
    return [stage for stage, (_, group) in enumerate(groups) for _ in group]
