"""A network as a chain of blocks, and plans of the block to run at each position of it."""

import types
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import keras

from zoo.graph.blocks import Grain, Network
from zoo.graph.calls import Apply, Call, Values, calls_before, infer, symbolic
from zoo.layers.skip import Skip
from zoo.types import Shape, Tensor

PARTS = ("shortcut", "carry_gate")


class Step(NamedTuple):
    """Use of one block, named by its index, at one position of the chain.

    "run": y; "carry": the skip input, without the rest of the block; "close": y with T at 0.
    """

    block: int
    action: str = "run"


Plan: TypeAlias = Sequence[Step]  # one at each block's position


class State(NamedTuple):
    """Input or output of a block, and the tensors that pass by the blocks; see `Chain.sides`."""

    x: Tensor
    sides: tuple[Tensor, ...]


class Chain:
    """A network as a stem, blocks with links between them, and a tail: functions of a `State`.

    Arguments are those of `zoo.graph.find_blocks`, for a model whose blocks follow each other.

    Attributes:
        graph: Its `zoo.graph.calls.Graph`.
        blocks: Its `zoo.graph.blocks.Block`s.
        plan: The plan of the unmodified network.
        links: The calls before each block, back to the block before it.
        tail: The calls after the last block.
        sides: Slots of the tensors, such as masks, that are read after the first block's input and
            depend on no block.

    Raises:
        ValueError: if there is no block, or a call reads a tensor that depends on a block and
            bypasses another.
    """

    def __init__(
        self,
        model: keras.Model | Network,
        blocks: Sequence[str] | None = None,
        grain: Grain = "sum",
    ) -> None:
        network = Network.of(model, blocks, grain)
        self.graph = network.graph
        self.blocks = network.blocks
        self.plan = tuple(Step(block.index) for block in self.blocks)
        self._indices = {block.name: block.index for block in self.blocks}
        self._parts: dict[tuple[int, str], BlockPart] = {}
        self._inner = [self.graph.between(b.source, b.y) for b in self.blocks]
        after_blocks = {c.index for block in self.blocks for c in self.graph.after(block.y)}
        dependent = [call for call in self.graph.calls if call.index in after_blocks]
        self._dependent = {slot for call in dependent for slot in call.outputs}
        self._dependent |= {block.y for block in self.blocks}
        self.sides: list[int] = []
        self.links: list[list[Call]] = []
        done = {call.index for calls in self._inner for call in calls}
        given = None
        for block, inner in zip(self.blocks, self._inner, strict=True):
            rest = [call for call in dependent if call.index not in done]
            link = calls_before(block.source, rest)
            if given is not None:
                self._add_sides(link, given, f"before {block.name}")
                if block.source not in (given, *(slot for call in link for slot in call.outputs)):
                    self._refuse(f"{block.name} does not depend on the block before it")
            self._add_sides(inner, block.source, f"in {block.name}")
            self.links.append(link)
            done |= {call.index for call in link}
            given = block.y
        self.tail = [call for call in dependent if call.index not in done]
        self._add_sides(self.tail, given, "after the last block", self.graph.outputs)
        needed = {self.blocks[0].source, *self.sides}
        stem = {c.index for slot in needed for c in calls_before(slot, self.graph.calls)}
        self.links[0] = [self.graph.calls[index] for index in sorted(stem)]

    def _add_sides(self, calls, given, position, results=()):
        """Add what calls, and the network's results, read from elsewhere to the sides."""
        known = {given, *(slot for call in calls for slot in call.outputs)}
        reads = [(slot, call.name) for call in calls for slot in call.sources]
        for slot, reader in [*reads, *((slot, "an output") for slot in results)]:
            if slot in known or slot in self.sides:
                continue
            if slot in self._dependent:
                self._refuse(f"{reader} ({position}) reads a tensor that bypasses a block")
            self.sides.append(slot)

    def _refuse(self, reason):
        raise ValueError(
            f"Expected a network whose blocks follow each other. Received: "
            f"{self.graph.model.name!r}, where {reason}. Name blocks of one chain."
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
        return self.graph.shapes[self.blocks[index].source]

    def link(self, index: int, x: State | Values, apply: Apply = infer) -> State:
        """Return the input of block `index` from the output of the block before.

        For the first block, that is the inputs by slot.
        """
        source = self.blocks[index].source
        if isinstance(x, State):
            calls = self.links[index]
            return State(self._run(calls, self.blocks[index - 1].y, x, apply)[source], x.sides)
        values = self.graph.run({**x}, apply, self.links[0], keep=True)
        return State(values[source], tuple(values[slot] for slot in self.sides))

    def do(self, step: Step, state: State, apply: Apply = infer) -> State:
        """Return the output of one `Step`, from the input of its block."""
        block = self.blocks[step.block]
        layer = block.layer
        x = state.x
        if step.action == "run":
            values = self._run(self._inner[step.block], block.source, state, apply)
            return State(values[block.y], state.sides)
        if layer is None:
            end: Any = block.x  # None in skip layers only
            calls = self.graph.between(block.source, end)
            return State(self._run(calls, block.source, state, apply)[end], state.sides)
        carried = self._part(block, "shortcut")(x) if layer.shortcut else x
        if step.action == "close" and "c" in layer.form.gates:
            recorded = self.graph.calls[block.call].arguments.kwargs
            context = {key: recorded[key] for key in ("use",) if key in recorded}
            gate = self._part(block, "carry_gate")(x, **context)
            carried = self.graph.keep_mask(x, carried * gate)
        return State(layer.finish(carried), state.sides)

    def run(self, steps: Plan, first: int, x: State, apply: Apply = infer) -> State:
        """Return the output of steps at the positions from `first` on, with the links before."""
        for index, step in enumerate(steps, first):
            x = self.do(step, self.link(index, x, apply), apply)
        return x

    def end(self, y: State, apply: Apply = infer) -> list[Tensor]:
        """Return the network's outputs, flattened, from the last block's output."""
        values = self._run(self.tail, self.blocks[-1].y, y, apply)
        return [values[slot] for slot in self.graph.outputs]

    def carries_input(self, index: int) -> bool:
        """Return True if the step "carry" of a block returns the block's input."""
        block = self.blocks[index]
        finishes = block.layer is not None and type(block.layer).finish is not Skip.finish
        return not block.changes_shape and not finishes

    def _run(self, calls, slot, state, apply):
        """Return the values of slots after calls; the state holds that of `slot`."""
        values = {**dict(zip(self.sides, state.sides, strict=True)), slot: state.x}
        return self.graph.run(values, apply, calls, keep=True)

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
        for position, step in zip(self.blocks, plan, strict=True):
            block = self.blocks[step.block]
            moved = block.index != position.index
            if moved and (block.changes_shape or block.shape != position.shape):
                raise ValueError(
                    f"A block that changes the shape cannot be moved. Received: {block.name} at "
                    f"the position of {position.name}."
                )
            layer = block.layer
            without_skip = layer and layer.opens_stage and layer.shortcut is None
            if without_skip and step.action != "run":
                raise ValueError(
                    f"A plain block that changes the shape has no skip input: {block.name} cannot "
                    f"be left out."
                )

    def to_model(self, plan: Plan) -> keras.Model:
        """Return a flat Functional model that runs `plan` with the same layers.

        Raises:
            ValueError: if a block does not fit its position.
        """
        self.check(plan)
        inputs: Any = self.graph.new_inputs()
        y = self.run(plan, 0, inputs, symbolic)
        return self.graph.new_model(inputs, self.end(y, symbolic))


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
        """Return the configuration with the block: Keras notes where a model has it twice."""
        return {**super().get_config(), "block": self.owner.block, "part": self.part}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BlockPart":
        """Return a layer with a part of the serialized block, or of a copy of a block."""
        block = config["block"]
        if isinstance(block, Skip):  # the configuration of a layer, not of a file
            block = keras.saving.serialize_keras_object(block)
        return cls(**{**config, "block": keras.saving.deserialize_keras_object(block)})
