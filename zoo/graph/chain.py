"""A network as a chain of blocks, and plans of the block to run at each position of it."""

import types
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import keras

from zoo.checks import check_choice, require
from zoo.graph.blocks import Grain, Network
from zoo.graph.calls import Apply, Call, Values, calls_before, infer, made, reads, symbolic
from zoo.layers.configured import Configured
from zoo.layers.skip import Skip
from zoo.layers.sub_layer import SubLayer
from zoo.types import Tensor

PARTS = ("shortcut", "carry_gate", "closed")


class Step(NamedTuple):
    """Use of one block, named by its index, at one position of the chain.

    "run": y; "carry": the skip input, without the rest of the block; "close": y with T at 0.
    """

    block: int
    action: str = "run"


Plan: TypeAlias = Sequence[Step]  # one at each block's position


class State(NamedTuple):
    """Input or output of a block, and the tensors beside it by slot; see `Chain.sides`."""

    x: Tensor
    sides: Values


class Chain:
    """A network as a stem, blocks with links between them, and a tail: functions of a `State`.

    The blocks of any graph, in running order; what bypasses one is in the state beside it.
    Arguments and errors are those of `zoo.graph.find_blocks`.

    `plan` is that of the unmodified network, `links[i]` are the calls between block i - 1 and block
    i, and `tail` those after the last block. `sides[i]` are the slots of all other tensors that
    block i or later calls read, without its input if only it reads that, and of all that depend on
    no block, such as masks.
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
        self._parts: dict[tuple[int, str], BlockPart] = {}
        self._inner = self._find_inner()
        inner = {call.index for calls in self._inner for call in calls}
        after = {c.index for block in self.blocks for c in self.graph.after(block.y)}
        others = [call for call in self.graph.calls if call.index not in inner]
        stem = [call for call in others if call.index not in after]
        rest = [call for call in others if call.index in after]
        self._beside: list[set[int]] = []  # slots that a block reads, but for its input
        for block, calls in zip(self.blocks, self._inner, strict=True):
            ends = {block.source if block.x is None else block.x, block.y}
            self._beside.append((reads(calls) | ends) - made(calls) - {block.source})
        read = reads(rest).union(self.graph.outputs, *self._beside)
        fixed = read & {*self.graph.inputs, *made(stem)}
        self.links = [stem]
        for block in self.blocks[1:]:
            self.links.append([call for call in rest if call.index <= block.call])
            rest = rest[len(self.links[-1]) :]
        self.tail = rest
        self.sides: list[list[int]] = []
        later = reads(rest).union(self.graph.outputs) - made(rest)
        for block in reversed(self.blocks):
            later = (later | self._beside[block.index]) - made(self._inner[block.index])
            self.sides.insert(0, sorted(later | fixed))
            link = self.links[block.index]
            later = (later | {block.source} | reads(link)) - made(link)

    def _find_inner(self):
        """Return the calls of each block that nothing outside of it reads, but for its output."""
        owners: dict[int, int] = {}
        for block in self.blocks:
            for call in self.graph.between(block.source, block.y):
                owners.setdefault(call.index, block.index)
        readers: dict[int, set[int | None]] = {slot: {None} for slot in self.graph.outputs}
        inner: list[list[Call]] = [[] for _ in self.blocks]
        for call in reversed(self.graph.calls):
            owner = owners.get(call.index)
            if owner is not None:
                outputs = {*call.outputs} - {self.blocks[owner].y}
                if all(readers.get(slot, {owner}) == {owner} for slot in outputs):
                    inner[owner].insert(0, call)
                else:
                    owner = None
            for slot in call.sources:
                readers.setdefault(slot, set()).add(owner)
        return inner

    def link(self, index: int, x: State | Values, apply: Apply = infer) -> State:
        """Return the input of block `index` from the output of the block before.

        For the first block, that is the inputs by slot.
        """
        values = {**x.sides, self.blocks[index - 1].y: x.x} if isinstance(x, State) else {**x}
        values = self.graph.run(values, apply, self.links[index], keep=True)
        sides = {slot: values[slot] for slot in self.sides[index]}
        return State(values[self.blocks[index].source], sides)

    def do(self, step: Step, state: State, apply: Apply = infer) -> State:
        """Return the output of one `Step`, from the input of its block."""
        block = self.blocks[step.block]
        layer = block.layer
        x = state.x
        if step.action == "run" or layer is None:
            end: Any = block.y if step.action == "run" else block.x  # None in skip layers only
            calls = calls_before(end, self._inner[step.block])
            values = {**state.sides, block.source: x}
            y = self.graph.run(values, apply, calls, keep=True)[end]
            if step.action != "run" and self._drops_mask(block):
                y = self.graph.drop_mask(y)
            return State(y, state.sides)
        if isinstance(layer, SubLayer):
            if step.action == "close" or layer.rule.is_history:
                x = self._part(block, "closed")(x)
            return State(x, state.sides)
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
        values = {**y.sides, self.blocks[-1].y: y.x}
        values = self.graph.run(values, apply, self.tail, keep=True)
        return [values[slot] for slot in self.graph.outputs]

    def carries_input(self, index: int) -> bool:
        """Return True if the step "carry" of a block returns the block's input."""
        block = self.blocks[index]
        layer = block.layer
        is_history = isinstance(layer, SubLayer) and layer.rule.is_history
        finishes = layer is not None and type(layer).finish is not Skip.finish
        return block.x == block.source and not (is_history or finishes or self._drops_mask(block))

    def _drops_mask(self, block):
        """Return True if a block's output has no Keras mask where its skip input has one."""
        layer = self.graph.calls[block.call].layer  # an operation, such as +, supports none
        return self.graph.masked and not getattr(layer, "supports_masking", False)

    def _part(self, block, name):
        """Return a branch of a skip layer as a layer of its own, always the same one."""
        key = id(block.layer), name
        if key not in self._parts:
            new_name = self.graph.new_name(f"{block.name.split('#')[0]}_{name}")
            self._parts[key] = BlockPart(block.layer, name, new_name)
        return self._parts[key]

    def check(self, plan: Plan) -> None:
        """Raise ValueError unless every block of `plan` fits its position and can do its step."""
        for position, step in zip(self.blocks, plan, strict=True):
            block = self.blocks[step.block]
            layer = block.layer
            if block is not position:
                moved = f"{block.name} at the position of {position.name}"
                same = not block.changes_shape and block.shape == position.shape
                require(same, "one that keeps the shape, as does the other, to move", block=moved)
                pair = block, position
                whole = [self._inner[b.index] == self.graph.between(b.source, b.y) for b in pair]
                fits = all(whole) and self._beside[block.index] <= {*self.sides[position.index]}
                expected = "such that both can take each other's position: no tensor that depends "
                require(fits, f"{expected}on a block bypasses one of them", block=moved)
                is_history = isinstance(layer, SubLayer) and layer.rule.is_history
                require(not is_history, "one whose rule has no slots for sub-layers", block=moved)
            without_skip = layer and layer.opens_stage and layer.shortcut is None
            if without_skip and step.action != "run":
                raise ValueError(
                    f"A plain block that changes the shape has no skip input: {block.name} cannot "
                    f"be left out."
                )

    def to_model(self, plan: Plan) -> keras.Model:
        """Return a flat Functional model that runs `plan`, if it passes `check`."""
        self.check(plan)
        inputs: Any = self.graph.new_inputs()
        y = self.run(plan, 0, inputs, symbolic)
        return self.graph.new_model(inputs, self.end(y, symbolic))


@keras.saving.register_keras_serializable("zoo")
class BlockPart(Configured):
    """One branch of a skip layer, or a closed sub-layer, for a network without the rest of it.

    In a saved model that holds the block itself, or another part of it, they share weights as
    they did before. `block` is the built skip layer, and `part` "shortcut", "carry_gate" or, of a
    `zoo.SubLayer`, "closed": a saved model names it, so no other attribute is read.

    Raises:
        ValueError: if `part` is another name, or `block` is no built skip layer.
    """

    def __init__(self, block: Skip, part: str, name: str | None = None, **kwargs: Any) -> None:
        check_choice(PARTS, part=part)
        require(isinstance(block, Skip) and block.built, "a built skip layer", block=block)
        super().__init__(name=name, **{**kwargs, "dtype": block.dtype_policy})
        self.part = part
        branch = block.shortcut if part == "shortcut" else block.carry_gate
        if part == "closed":
            branch = block.rule if isinstance(block, SubLayer) else None
        if branch is None:
            raise ValueError(f"Expected a block with a {part}. Received: {block.name}.")
        self.branch: keras.layers.Layer = branch
        self.others = block.closing_layers() if isinstance(block, SubLayer) else []
        self.owner = types.SimpleNamespace(block=block)  # hides its other weights from this layer
        self.supports_masking = block.supports_masking
        self.built = True

    def call(self, x: Tensor, **context: Any) -> Tensor:
        """Return the branch's output."""
        return self.owner.block.closed(x) if self.part == "closed" else self.branch(x, **context)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration with the block: Keras notes where a model has it twice."""
        return {**super().get_config(), "block": self.owner.block}
