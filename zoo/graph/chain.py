"""A network as a chain of blocks, and plans of what each place of it does."""

import re
from collections import namedtuple

import keras

from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Graph, infer

# What happens at one place of the chain: a block's index, what is done with it, and a factor.
#   run: y; carry: what the block carries, as if it were removed; close: its gate T is 0;
#   scale: x + factor f
Step = namedtuple("Step", "block what factor", defaults=("run", 1.0))
MODES = {"removed": "carry", "closed": "close"}


class Chain:
    """A network as stem, blocks with links between them, and tail, each a function of one tensor.

    Args:
        model: A Functional or built Sequential `keras.Model` whose blocks follow each other.
        blocks: Names of the blocks to take; `None`: all that are found.

    Attributes:
        graph: Its `zoo.calls.Graph`.
        blocks: Its `zoo.blocks.Block`s.
        plan: The network as it is: one tuple of `Step`s for each block's place.

    Raises:
        ValueError: if no block is found, or something passes by a block.
    """

    def __init__(self, model, blocks=None):
        self.graph = Graph(model)
        self.blocks, _ = find_blocks(self.graph, blocks)
        self._parts = {}
        self.places = {block.name: block.index for block in self.blocks}
        self.plan = [(Step(block.index),) for block in self.blocks]
        self.inner = [self._inside(block, block.y) for block in self.blocks]
        starts = [block.source for block in self.blocks]
        ends = [block.y for block in self.blocks]
        taken = {call.index for calls in self.inner for call in calls}
        self.links, done = [], [*self.graph.inputs]
        for index, start in enumerate(starts):
            calls = self._until(start, taken)
            self._check_closed(calls, {*done}, f"before {self.blocks[index].name}")
            taken |= {call.index for call in calls}
            self.links.append(calls)
            done = [ends[index]]
        self.tail = [call for call in self.graph.calls if call.index not in taken]
        self._check_closed(self.tail, {*done}, "behind the last block")

    def _inside(self, block, end):
        if block.layer:
            return [self.graph.calls[block.call]]
        return self.graph.between(block.source, end)

    def _until(self, slot, taken):
        wanted, calls = {slot}, []
        for call in reversed(self.graph.calls):
            if call.index not in taken and wanted & {*call.outputs}:
                wanted.update(s for _, s in call.inputs)
                calls.append(call)
        return calls[::-1]

    def _check_closed(self, calls, given, where):
        known = given | {slot for call in calls for slot in call.outputs}
        for call in calls:
            if not {slot for _, slot in call.inputs} <= known:
                raise ValueError(
                    f"Expected a network whose blocks follow each other. Received: "
                    f"{self.graph.model.name!r}, where {call.name} ({where}) reads what passes by "
                    f"a block. Name blocks of one chain."
                )

    def index(self, name):
        """The place of the block `name`.

        Raises:
            ValueError: if there is none.
        """
        if name not in self.places:
            raise ValueError(f"Expected one of the blocks {[*self.places]}. Received: {name!r}")
        return self.places[name]

    def link(self, index, tensors, apply=infer):
        """What block `index` reads: of the inputs by slot for the first, else of the y before."""
        source = self.blocks[index].source
        values = tensors if index == 0 else {self.blocks[index - 1].y: tensors}
        return self.graph.run({**values}, apply, self.links[index], keep=True)[source]

    def links_again(self, index):
        """Whether what lies before block `index` comes before each repetition of it, too.

        As a ReLU behind every sum does, but neither a stem nor what changes the shape.
        """
        same = index > 0 and self.blocks[index - 1].shape == self.blocks[index].shape
        return bool(same and self.links[index])

    def end(self, y, apply=infer):
        """The network's outputs, flattened, of the last block's y."""
        values = self.graph.run({self.blocks[-1].y: y}, apply, self.tail, keep=True)
        return [values[slot] for slot in self.graph.outputs]

    def do(self, step, x, apply=infer):
        """What one `Step` makes of x."""
        block = self.blocks[step.block]
        if step.what == "run":
            return self._run(block, self.inner[step.block], x, block.y, apply)
        if step.what == "scale":
            y = self._run(block, self.inner[step.block], x, block.y, apply)
            return x + step.factor * (y - x)
        if block.layer is None:
            return self._run(block, self._inside(block, block.x), x, block.x, apply)
        layer = block.layer
        if step.what == "close" and "c" in layer.form.gates:
            kept = self.graph.calls[block.call].arguments.kwargs
            context = {key: kept[key] for key in ("use",) if key in kept}
            gate = self.part(block, "carry_gate")(x, **context)
            return layer.finish(self.carried(block, x) * gate)
        return layer.finish(self.carried(block, x))

    def carried(self, block, x):
        """What a skip layer carries of x."""
        return self.part(block, "shortcut")(x) if block.layer.shortcut else x

    def part(self, block, name):
        """A branch of a skip layer as a layer of its own, made once."""
        key = block.name, name
        if key not in self._parts:
            self._parts[key] = BlockPart(block.layer, name, re.sub("[/#]", "_", "_".join(key)))
        return self._parts[key]

    def _run(self, block, calls, x, slot, apply):
        return self.graph.run({block.source: x}, apply, calls, keep=True)[slot]

    def check(self, plan):
        """Raises unless every block of `plan` fits its place and can do what it shall do."""
        for place, steps in zip(self.blocks, plan, strict=True):
            for step in steps:
                block = self.blocks[step.block]
                moved = block.index != place.index or len(steps) > 1 or step.what == "scale"
                if moved and (block.changes_shape or block.shape != place.shape):
                    raise ValueError(
                        f"A block that changes the shape can be neither moved nor repeated. "
                        f"Received: {block.name} at the place of {place.name}."
                    )
                layer = block.layer
                nothing = layer and layer.opens_stage and layer.shortcut is None
                if nothing and step.what in ("carry", "close"):
                    raise ValueError(
                        f"A plain block that changes the shape has nothing to carry: {block.name} "
                        f"can not be left out."
                    )

    def rebuild(self, plan, name=None):
        """A flat Functional model that does `plan` with the same layers.

        Args:
            plan: Tuples of `Step`s, one for each place.
            name: Of the model; `None`: the old one's.

        Raises:
            ValueError: if a block does not fit its place.
        """
        self.check(plan)
        x = inputs = self.graph.new_inputs()
        for index, steps in enumerate(plan):
            x = self.link(index, x, symbolic)
            for repetition, step in enumerate(steps):
                again = repetition and self.links_again(index)
                x = self.link(index, x, symbolic) if again else x
                x = self.do(step, x, symbolic)
        return self.graph.new_model(inputs, self.end(x, symbolic), name)


@keras.saving.register_keras_serializable("zoo")
class BlockPart(keras.layers.Layer):
    """One branch of a skip layer, where a network without the rest of the block needs it.

    Args:
        block: The skip layer, whose branch it shares, or its serialized form, to make one of.
        part: "shortcut" or "carry_gate".
        name: Of the layer.
        **kwargs: `dtype`.
    """

    def __init__(self, block, part, name=None, **kwargs):
        shared = isinstance(block, keras.layers.Layer)
        if shared:
            kwargs["dtype"] = block.dtype_policy
        super().__init__(name=name, **kwargs)
        self.config = keras.saving.serialize_keras_object(block) if shared else block
        self.part, self.branch = part, getattr(block, part) if shared else None
        self.built = shared

    def build(self, input_shape):
        block = keras.saving.deserialize_keras_object(self.config)
        if not block.built:  # Keras builds what it knows the input's shape of
            block.build(input_shape)
        self.branch = getattr(block, self.part)

    def call(self, x, **context):
        return self.branch(x, **context)

    def get_config(self):
        return {**super().get_config(), "block": self.config, "part": self.part}


def symbolic(call, *args, **kwargs):
    """What a call returns in a new graph: the `apply` of symbolic values."""
    return call.layer(*args, **kwargs)


def lesion_plan(chain, names, mode="removed"):
    """The plan of `lesion`."""
    if mode not in MODES:
        raise ValueError(f"`mode` must be one of {[*MODES]}. Received: mode={mode!r}")
    out = {chain.index(name) for name in names}
    what = MODES[mode]
    return [(Step(i, what),) if i in out else steps for i, steps in enumerate(chain.plan)]


def shuffle_plan(chain, order):
    """The plan of `shuffle`."""
    plan = [*chain.plan]
    for place, name in order.items():
        plan[chain.index(place)] = (Step(chain.index(name)),)
    if sorted(order) != sorted(order.values()):
        raise ValueError(
            f"`order` must be a permutation: each block that leaves a place takes another's. "
            f"Received: order={order}"
        )
    return plan


def exit_plan(chain, name):
    """The plan of `early_exit`."""
    first = chain.index(name) + 1
    return [
        steps if i < first else (Step(i, "carry"),) if not chain.blocks[i].changes_shape else steps
        for i, steps in enumerate(chain.plan)
    ]


def unroll_plan(chain, times, scale=1.0):
    """The plan of `unroll`."""
    if not isinstance(times, int) or times < 0:
        raise ValueError(f"`times` must be a non-negative integer. Received: times={times!r}")
    last = len(chain.blocks) - 1
    return [*chain.plan[:-1], (Step(last), *[Step(last, "scale", scale)] * times)]
