"""A network as a chain of blocks, and plans of what to run at each position of it."""

import types
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import keras

from zoo.graph.blocks import Block, find_blocks
from zoo.graph.calls import Apply, Call, Graph, Values, calls_before, infer, symbolic
from zoo.layers.skip import Skip
from zoo.types import Shape, Tensor

PARTS = ("shortcut", "carry_gate")


class Step(NamedTuple):
    """Use of one block at one position of the chain.

    Attributes:
        block: Index of the block.
        action: "run": y; "carry": the skip input alone, without the rest of the block; "close": y
            with the gate T at 0; "scale": x + factor f.
        factor: Factor of f.
    """

    block: int
    action: str = "run"
    factor: float = 1.0


Plan: TypeAlias = Sequence[tuple[Step, ...]]  # the steps at each block's position


class Chain:
    """A network as a stem, blocks with links between them, and a tail: functions of one tensor.

    Args:
        model: A Functional or built Sequential `keras.Model` whose blocks follow each other.
        blocks: Names of the blocks to use; `None`: all.

    Attributes:
        graph: Its `zoo.calls.Graph`.
        blocks: Its `zoo.blocks.Block`s.
        plan: The plan of the unmodified network.
        links: The calls before each block, back to the block before it.
        tail: The calls after the last block.

    Raises:
        ValueError: if there is no block, or a call reads a tensor that bypasses a block.
    """

    def __init__(self, model: keras.Model, blocks: Sequence[str] | None = None) -> None:
        self.graph = Graph(model)
        self.blocks, _ = find_blocks(self.graph, blocks)
        self.plan = [(Step(block.index),) for block in self.blocks]
        self._indices = {block.name: block.index for block in self.blocks}
        self._parts: dict[tuple[int, str], BlockPart] = {}
        self._inner = [self._calls_to(block, block.y) for block in self.blocks]
        self.links: list[list[Call]] = []
        done = {call.index for calls in self._inner for call in calls}
        given = {*self.graph.inputs}
        for block in self.blocks:
            rest = [call for call in self.graph.calls if call.index not in done]
            link = calls_before(block.source, rest)
            self._check_closed(link, given, f"before {block.name}")
            self.links.append(link)
            done |= {call.index for call in link}
            given = {block.y}
        self.tail = [call for call in self.graph.calls if call.index not in done]
        self._check_closed(self.tail, given, "after the last block")

    def _calls_to(self, block, slot):
        if block.layer:
            return [self.graph.calls[block.call]]
        return self.graph.between(block.source, slot)

    def _check_closed(self, calls, given, position):
        known = given | {slot for call in calls for slot in call.outputs}
        for call in calls:
            if not {*call.sources} <= known:
                raise ValueError(
                    f"Expected a network whose blocks follow each other. Received: "
                    f"{self.graph.model.name!r}, where {call.name} ({position}) reads a tensor "
                    f"that bypasses a block. Name blocks of one chain."
                )

    def index(self, name: str) -> int:
        """Return the position of the block `name`.

        Raises:
            ValueError: if there is none.
        """
        if name not in self._indices:
            raise ValueError(f"Expected one of the blocks {[*self._indices]}. Received: {name!r}")
        return self._indices[name]

    def source_shape(self, index: int) -> Shape:
        """Return the shape of the input of block `index`, with the batch."""
        slot = self.blocks[index].source
        for call in self.graph.calls:
            if slot in call.outputs:
                return call.shapes[call.outputs.index(slot)]
        return tuple(self.graph.model.inputs[self.graph.inputs.index(slot)].shape)

    def link(self, index: int, x: Tensor | Values, apply: Apply = infer) -> Tensor:
        """Return the input of block `index`.

        Args:
            index: Index of the block.
            x: Output of the block before; for the first block, the inputs by slot.
            apply: As in `Graph.run`.
        """
        values = {**x} if index == 0 else {self.blocks[index - 1].y: x}
        return self.graph.run(values, apply, self.links[index], keep=True)[
            self.blocks[index].source
        ]

    def repeats_link(self, index: int) -> bool:
        """Return True if the link before block `index` belongs before each repetition of it.

        As a ReLU after every sum does, but neither a stem nor what changes the shape.
        """
        same = index > 0 and self.blocks[index - 1].shape == self.blocks[index].shape
        return bool(same and self.links[index])

    def end(self, y: Tensor, apply: Apply = infer) -> list[Tensor]:
        """Return the network's outputs, flattened, from the last block's output."""
        values = self.graph.run({self.blocks[-1].y: y}, apply, self.tail, keep=True)
        return [values[slot] for slot in self.graph.outputs]

    def do(self, step: Step, x: Tensor, apply: Apply = infer) -> Tensor:
        """Return the output of one `Step`, whose block's input is x."""
        block = self.blocks[step.block]
        layer = block.layer
        if step.action in ("run", "scale"):
            y = self._run(block, self._inner[step.block], x, block.y, apply)
            if step.action == "run":
                return y
            return self.graph.keep_mask(x, x + step.factor * (y - x))
        if layer is None:
            return self._run(block, self._calls_to(block, block.x), x, block.x, apply)
        carried = self._part(block, "shortcut")(x) if layer.shortcut else x
        if step.action == "close" and "c" in layer.form.gates:
            recorded = self.graph.calls[block.call].arguments.kwargs
            context = {key: recorded[key] for key in ("use",) if key in recorded}
            gate = self._part(block, "carry_gate")(x, **context)
            carried = self.graph.keep_mask(x, carried * gate)
        return layer.finish(carried)

    def _run(self, block, calls, x, slot, apply):
        return self.graph.run({block.source: x}, apply, calls, keep=True)[slot]

    def _part(self, block, name):
        """Return a branch of a skip layer as a layer of its own, always the same one."""
        key = id(block.layer), name
        if key not in self._parts:
            new_name = self.graph.new_name(f"{block.name.split('#')[0]}_{name}")
            self._parts[key] = BlockPart(block.layer, name, new_name)
        return self._parts[key]

    def check(self, plan: Plan) -> None:
        """Raise an error unless every block of `plan` fits its position and can do its step.

        Raises:
            ValueError: if one does not.
        """
        for position, steps in zip(self.blocks, plan, strict=True):
            for step in steps:
                self._check_step(position, step, repeated=len(steps) > 1)

    def _check_step(self, position: Block, step: Step, repeated: bool):
        block = self.blocks[step.block]
        moved = block.index != position.index or repeated or step.action == "scale"
        if moved and (block.changes_shape or block.shape != position.shape):
            raise ValueError(
                f"A block that changes the shape can be neither moved nor repeated. "
                f"Received: {block.name} at the position of {position.name}."
            )
        layer = block.layer
        without_skip = layer and layer.opens_stage and layer.shortcut is None
        if without_skip and step.action in ("carry", "close"):
            raise ValueError(
                f"A plain block that changes the shape has no skip input: {block.name} cannot be "
                f"left out."
            )

    def to_model(self, plan: Plan, name: str | None = None) -> keras.Model:
        """Return a flat Functional model that runs `plan` with the same layers.

        Args:
            plan: A tuple of `Step`s for each position.
            name: Name of the model; `None`: the old one's.

        Raises:
            ValueError: if a block does not fit its position.
        """
        self.check(plan)
        inputs = self.graph.new_inputs()
        x = inputs
        for index, steps in enumerate(plan):
            x = self.link(index, x, symbolic)
            for repetition, step in enumerate(steps):
                if repetition and self.repeats_link(index):
                    x = self.link(index, x, symbolic)
                x = self.do(step, x, symbolic)
        return self.graph.new_model(inputs, self.end(x, symbolic), name)


@keras.saving.register_keras_serializable("zoo")
class BlockPart(keras.layers.Layer):
    """One branch of a skip layer, for a network without the rest of the block.

    In a saved model that holds the block itself, or another part of it, they share weights as
    they did before.

    Args:
        block: The built skip layer, whose branch is shared.
        part: "shortcut" or "carry_gate". A saved model names it, so no other attribute is read.
        name: Name of the layer.
        **kwargs: `dtype`, which is the block's.

    Raises:
        ValueError: if `part` is another name, or `block` is no built skip layer.
    """

    def __init__(self, block: Skip, part: str, name: str | None = None, **kwargs: Any) -> None:
        if part not in PARTS:
            raise ValueError(f"`part` must be one of {PARTS}. Received: part={part!r}")
        if not isinstance(block, Skip) or not block.built:
            raise ValueError(f"`block` must be a built skip layer. Received: block={block!r}")
        super().__init__(name=name, **{**kwargs, "dtype": block.dtype_policy})
        self.part = part
        branch = block.shortcut if part == "shortcut" else block.carry_gate
        if branch is None:
            raise ValueError(f"Expected a block with a {part}. Received: {block.name}.")
        self.branch: keras.layers.Layer = branch
        self.owner = types.SimpleNamespace(block=block)  # hides its other weights from this layer
        self.supports_masking = block.supports_masking
        self.built = True

    def call(self, x: Tensor, **context: Any) -> Tensor:
        """Return the branch's output."""
        return self.branch(x, **context)

    def get_config(self) -> dict[str, Any]:
        """Return the layer's configuration.

        It holds the block itself: Keras serializes it, and notes where a model has it twice.
        """
        return {**super().get_config(), "block": self.owner.block, "part": self.part}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BlockPart":
        """Return a layer with a part of the serialized block, or of a copy of a block."""
        block = config["block"]
        if isinstance(block, Skip):  # the configuration of a layer, not of a file
            block = keras.saving.serialize_keras_object(block)
        return cls(**{**config, "block": keras.saving.deserialize_keras_object(block)})
