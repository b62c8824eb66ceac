"""Where a network's blocks are: its skip layers, and the sums of two branches of one fork."""

import itertools
from dataclasses import dataclass

import keras
from keras.src.ops.numpy import Add as AddOperation  # what `x + f` makes in a graph

from zoo.graph.calls import Graph
from zoo.layers.highway_stack import HighwayDenseStack
from zoo.layers.skip import Skip


@dataclass(frozen=True)
class Block:
    """A block of a graph: y = x + f, or what a skip layer makes of x.

    Attributes:
        name: The skip layer's name, or its sum's.
        stage: Blocks of one stage have outputs of one shape.
        index: Its place among the network's blocks, from 0.
        call: Index of the call that makes y.
        source: Slot of what the block reads.
        x: Slot of what it carries: the source, or the end of the shortcut branch; None where that
            lies inside of a skip layer (or, in a plain one that changes the shape, nowhere).
        f: Slot of the residual branch's end; None inside of a skip layer.
        y: Slot of its output.
        shape: Of y, with the batch.
        layer: The skip layer, or None.
    """

    name: str
    stage: int
    index: int
    call: int
    source: int
    x: int | None
    f: int | None
    y: int
    shape: tuple
    layer: Skip | None

    @property
    def changes_shape(self):
        """Whether what it carries is not what it reads, as where a stage begins."""
        return self.x != self.source


def find_blocks(graph, names=None):
    """The blocks of a graph, in running order, and what looked like one and is none.

    A skip layer is a block, each of its calls one of its own. So is a sum of two branches that come
    from one fork and read nothing else: the branch with fewer layers that have weights, or none,
    is the shortcut, and its end is x; the other's end is f. A sum that scales what another block
    adds to the same x, as `zoo.unroll` makes, is the block in that one's place.

    Args:
        graph: A `zoo.calls.Graph`, or a model of which to make one.
        names: Names of the calls (skip layers, sums) to take; `None`: all that are found.

    Returns:
        A list of `Block`, and a list of pairs: a call's name, and why it is no block.

    Raises:
        ValueError: if none is found, or one of `names` is not; the message says why.

    Example:

    >>> inputs = keras.Input((4,))
    >>> f = keras.layers.Dense(4)(inputs)
    >>> outputs = keras.layers.Add(name="sum")([inputs, f])
    >>> blocks, missing = find_blocks(keras.Model(inputs, outputs))
    >>> [(block.name, block.stage, block.changes_shape) for block in blocks], missing
    ([('sum', 0, False)], [])
    """
    graph = graph if isinstance(graph, Graph) else Graph(graph)
    found, missing = {}, []
    makers = {slot: call for call in graph.calls for slot in call.outputs}
    above = _ancestors(graph)
    for call in graph.calls:
        try:
            facts = _of_skip(call) or _of_sum(call, makers, above)
        except _NoBlockError as reason:
            missing.append((call.name, str(reason)))
            continue
        if facts:
            found[call.name] = {"call": call.index, "y": call.outputs[0], **facts}
            found[call.name]["shape"] = call.shapes[0]
    layers = {name: facts["layer"] for name, facts in found.items()}  # they tell the stages
    if names is None:
        layers |= _drop_outer(graph, found, missing)
    else:
        reasons = dict(missing)
        for name in names:
            if name not in found:
                why = reasons.get(name, f"no block of that name; there are {[*found]}")
                raise ValueError(f"Expected a block. Received: {name!r}: {why}")
        found = {name: facts for name, facts in found.items() if name in names}
    if not found:
        told = "".join(f"\n  {name}: {why}" for name, why in missing)
        raise ValueError(
            f"Found no block in {graph.model.name!r}: no skip layer of the zoo, and no sum of two "
            f"branches of one fork.{told or ' It has no sum at all.'}"
        )
    stages = _stages([facts["shape"] for facts in found.values()], [layers[n] for n in found])
    blocks = [
        Block(name=name, stage=stage, index=index, **facts)
        for index, ((name, facts), stage) in enumerate(zip(found.items(), stages, strict=True))
    ]
    return blocks, missing


class _NoBlockError(Exception):
    """Why a call is no block."""


def _of_skip(call):
    if not isinstance(call.layer, Skip):
        return None
    if isinstance(call.layer, HighwayDenseStack):
        raise _NoBlockError(
            "a scanned stack hides its layers; turn it into single ones with zoo.stacking"
        )
    source = call.inputs[0][1]
    carried = None if call.layer.opens_stage else source
    return {"source": source, "x": carried, "f": None, "layer": call.layer}


def _of_sum(call, makers, above):
    if not isinstance(call.layer, (keras.layers.Add, AddOperation)):
        return None
    slots = [slot for _, slot in call.inputs]
    if len(slots) != 2 or slots[0] == slots[1]:
        what = f"{len(slots)} tensors" if len({*slots}) > 1 else "a tensor to itself"
        raise _NoBlockError(f"it adds {what}, not two branches")
    common = above[slots[0]] & above[slots[1]]
    if not common:
        raise _NoBlockError("its two branches come from no common fork")
    fork = max(common)
    counts = []
    for slot in slots:
        branch = above[slot] - above[fork]
        calls = {makers[s].index: makers[s] for s in branch}
        for inner in calls.values():
            read = {s for _, s in inner.inputs}
            if not read <= branch | {fork}:
                raise _NoBlockError(f"its branch reads more than one fork, at {inner.name}")
        counts.append(sum(bool(getattr(c.layer, "weights", ())) for c in calls.values()))
    if counts[0] == counts[1]:
        raise _NoBlockError(
            f"both its branches have {counts[0]} layers with weights: which is the shortcut?"
        )
    x, f = slots if counts[0] < counts[1] else slots[::-1]
    return {"source": fork, "x": x, "f": f, "layer": None}


def _ancestors(graph):
    """For each slot, the slots that it depends on, and itself."""
    above = {slot: {slot} for slot in graph.inputs}
    for call in graph.calls:
        past = set().union(*(above[slot] for _, slot in call.inputs))
        for slot in call.outputs:
            above[slot] = past | {slot}
    return above


def _drop_outer(graph, found, missing):
    """Of blocks inside of each other, only the innermost stay; or the sum that scales one.

    Returns the layers that such sums scale, by name.
    """
    scaled = {}
    inside = {
        name: {c.name: c for c in graph.between(facts["source"], facts["y"])}
        for name, facts in found.items()
        if facts["layer"] is None
    }
    for name, calls in inside.items():
        inner = [other for other in found if other in calls and other != name]
        if len(inner) == 1 and _scales(found[name], found[inner[0]], calls, inside.get(inner[0])):
            scaled[name] = found.pop(inner[0])["layer"]
        elif inner:
            missing.append((name, f"it holds the blocks {inner}: name those that you mean"))
            del found[name]
    return scaled


def _scales(outer, inner, calls, inner_calls):
    """Whether an outer sum adds what one block inside of it adds, times what has no weights."""
    weighted = {call.index for call in calls.values() if getattr(call.layer, "weights", ())}
    own = {call.index for call in (inner_calls or {}).values()} | {inner["call"]}
    return outer["x"] == outer["source"] == inner["source"] and weighted <= own


def _stages(shapes, layers):
    """Stages as the skip layers tell, or a new one wherever the shape changes."""
    told = [layer.stage if layer else None for layer in layers]
    by_stage = {}
    for stage, shape in zip(told, shapes, strict=True):
        by_stage.setdefault(stage, set()).add(shape)
    if None not in told and all(len(one) == 1 for one in by_stage.values()):
        return told
    groups = itertools.groupby(shapes)
    return [stage for stage, (_, group) in enumerate(groups) for _ in group]
