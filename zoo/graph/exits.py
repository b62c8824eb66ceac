"""Networks of variable depth: blocks dropped at random in training, and exits before the end."""

import numbers
from collections.abc import Callable, Mapping, Sequence

import keras
from keras import tree

from zoo.graph.blocks import Grain, find_blocks
from zoo.graph.calls import Graph, symbolic
from zoo.layers.drop_block import DropBlock
from zoo.types import Tensor

Rates = float | Mapping[str, float]


def drop_blocks(
    model: keras.Model, rates: Rates = 0.5, seed: int | None = None, grain: Grain = "sum"
) -> keras.Model:
    """Return `model` with stochastic depth: in training, each example passes some blocks by.

    The new model shares `model`'s weights. In inference each block's residual branch is multiplied
    by the probability with which it was there, as in the paper.

    Args:
        model: A Functional or built Sequential `keras.Model`; see `zoo.blocks.find_blocks`.
        rates: Probability of dropping the last of L blocks; the l-th then has l / L of it (the
            paper's linear decay, whose last rate is 0.5). Or probabilities by block name; others
            are not dropped. Blocks without a skip cannot be dropped.
        seed: Random seed; the l-th block's is `seed + l`, so that blocks are dropped independently.
        grain: As in `zoo.blocks.find_blocks`.

    Returns:
        A Functional `keras.Model`, not compiled.

    Raises:
        ValueError: if there is no such block, a rate is out of range, or a named block has no skip
            input, or one inside of a layer.

    Example:
    >>> inputs = keras.Input((4,))
    >>> f = keras.layers.Dense(4)(inputs)
    >>> model = keras.Model(inputs, keras.layers.Add(name="sum")([inputs, f]))
    >>> [layer.name for layer in drop_blocks(model, 0.5).layers][-1]
    'sum_drop'

    Reference: Huang et al. (2016), arXiv:1603.09382, section 3.
    """
    graph = Graph(model)
    blocks, _ = find_blocks(graph, grain=grain)
    decay = {b.name: number / len(blocks) for number, b in enumerate(blocks, 1) if _has_skip(b)}
    by_name = rates if isinstance(rates, Mapping) else dict.fromkeys(decay, rates)
    unknown = [name for name in by_name if name not in decay]
    if unknown or not decay:
        raise ValueError(
            f"Expected names of blocks with a skip, {[*decay]}. Received: {unknown or model.name}"
        )
    if not all(isinstance(r, numbers.Real) and 0 <= r <= 1 for r in by_name.values()):
        raise ValueError(
            f"`rates` must be a number from 0 to 1, or such numbers by block name. Received: "
            f"rates={rates!r}"
        )
    if by_name is not rates:
        by_name = {name: rate * decay[name] for name, rate in by_name.items()}
    by_call = {block.call: block for block in blocks if by_name.get(block.name)}
    inputs = graph.new_inputs()
    values = {**inputs}

    def apply(call, *args, **kwargs):
        block = by_call.get(call.index)
        if block is None:
            return symbolic(call, *args, **kwargs)
        x = values[block.x]  # before it is dropped as read by none
        own_seed = None if seed is None else seed + block.index + 1
        drop = DropBlock(by_name[block.name], own_seed, name=graph.new_name(f"{block.name}_drop"))
        outputs = symbolic(call, *args, **kwargs)
        first, *others = tree.flatten(outputs)  # a whole layer may return more than y
        return tree.pack_sequence_as(outputs, [drop(x, first), *others])

    graph.run(values, apply, keep=True)
    return graph.new_model(inputs, [values[slot] for slot in graph.outputs])


def _has_skip(block):
    plain = block.layer is not None and block.layer.variant == "plain"
    return block.x is not None and not plain


def add_exits(
    model: keras.Model,
    blocks: Sequence[str],
    head: Callable[[str], Callable[[Tensor], Tensor]] | None = None,
    grain: Grain = "sum",
) -> keras.Model:
    """Return `model` with outputs after some of its blocks, too; it shares `model`'s weights.

    `keras.Model(exits.input, exits.output[name])` is the part that stops at an exit: it can be
    exported and takes only the time of the blocks up to there.

    Args:
        model: A Functional or built Sequential `keras.Model` with one output.
        blocks: Names of blocks, in running order.
        head: A function of a block's name that returns a new head: a layer or function from the
            block's output to an output like the model's. `None`: what follows the last block, with
            its weights, applied to the exit's block (an early readout).
        grain: As in `zoo.blocks.find_blocks`.

    Returns:
        A Functional `keras.Model` with a dictionary of outputs: one by each block's name, and
        "last".

    Raises:
        ValueError: if there is no such block, the model has several outputs, or without `head` a
            block's output does not have the shape of the last one's.

    Example:
    >>> x = inputs = keras.Input((4,))
    >>> for name in ("first", "second"):
    ...     x = keras.layers.Add(name=name)([x, keras.layers.Dense(4)(x)])
    >>> model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(x))
    >>> sorted(add_exits(model, ["first"]).output)
    ['first', 'last']

    Reference: Teerapittayanon, McDanel, Kung (2016), "BranchyNet", arXiv:1709.01686, section III.
    """
    graph = Graph(model)
    found = {block.name: block for block in find_blocks(graph, grain=grain)[0]}
    if not {*blocks} <= {*found} or not blocks:
        raise ValueError(f"Expected one or more of the blocks {[*found]}. Received: {[*blocks]}")
    if len(graph.outputs) != 1:
        raise ValueError(f"Expected a model with one output. Received: {len(graph.outputs)}")
    last = [*found.values()][-1]
    for name in blocks if head is None else ():
        if found[name].shape != last.shape:
            raise ValueError(
                f"Without `head`, an exit needs the shape of the last block's output, "
                f"{last.shape}. Received: {name} with {found[name].shape}. Give a head."
            )
    inputs = graph.new_inputs()
    values = graph.run({**inputs}, symbolic, keep=True)
    outputs = {}
    for name in blocks:
        y = values[found[name].y]
        if head is not None:
            outputs[name] = head(name)(y)
        else:
            after = graph.run({**values, last.y: y}, symbolic, graph.after(last.y), keep=True)
            outputs[name] = after[graph.outputs[0]]
    outputs["last"] = values[graph.outputs[0]]
    whole = graph.new_model(inputs, [outputs["last"]])
    return keras.Model(whole.input, outputs, name=f"{model.name}_exits")
