"""Modify a network's blocks: leave out, reorder, fold, drop at random, recompute; leave early."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import keras
import numpy as np
from keras import tree

from zoo.backend import keras_private
from zoo.checks import as_names, check_choice, check_integers, check_model, check_numbers, require
from zoo.graph.blocks import Grain, block_of, find_blocks
from zoo.graph.calls import Graph, rebuild, symbolic
from zoo.graph.chain import Chain, Plan, Step
from zoo.graph.fewer_layers import without_layers
from zoo.graph.saving import make_savable, warn_of_training
from zoo.layers.highway_stack import Scanned
from zoo.layers.simplified import SimplifiedPlain, SimplifiedResidual, plain_kernel
from zoo.layers.skip import DropBlock, Skip
from zoo.types import Tensor

MODES = {"removed": "carry", "closed": "close"}  # modes of `lesion` and their `Step.action`
Rates = float | Mapping[str, float]


def lesion(
    model: keras.Model,
    *names: str | Iterable[str],
    mode: str = "removed",
    blocks: Sequence[str] | None = None,
    grain: Grain = "sum",
) -> keras.Model:
    """Return `model` without the residual part of the named blocks; it shares `model`'s weights.

    Args:
        model: A Functional or built Sequential `keras.Model`.
        *names: Names of blocks, or collections of names; see `zoo.graph.find_blocks`.
        mode: "removed": a block returns its skip input x, or its projection where the shape
            changes. "closed": T is 0 everywhere, so a block returns x C(x). The two differ
            where there is a carry gate C ("full", "c_only").
        blocks: Names of the blocks to look among; `None`: all but those around other blocks.
        grain: As in `zoo.graph.find_blocks`.

    Raises:
        ValueError: if there is no such block or mode.

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, section 4.2 (closed);
    Jastrzebski et al. (2018), arXiv:1710.04773, section 4.2 (removed).
    """
    chain = Chain(model, blocks, grain)
    flat = [name for one in names for name in as_names(names=one)]
    return chain.to_model(lesion_plan(chain, flat, mode))


def shuffle(
    model: keras.Model,
    order: Mapping[str, str],
    blocks: Sequence[str] | None = None,
    grain: Grain = "sum",
) -> keras.Model:
    """Return `model` with blocks at each other's positions; it shares `model`'s weights.

    `order` has the name of the block to run at each position, by the name of the block that is
    there. Blocks that change the shape stay, and so do those that tensors bypass from inside or
    that read what the other position lacks. Other arguments as in `lesion`.

    Raises:
        ValueError: if `order` is no permutation, or a block does not fit its position.

    Reference: Veit, Wilber, Belongie (2016), arXiv:1605.06431, section 4.3.
    """
    chain = Chain(model, blocks, grain)
    return chain.to_model(shuffle_plan(chain, order))


def prune_blocks(
    model: keras.Model,
    names: str | Iterable[str],
    blocks: Sequence[str] | None = None,
    grain: Grain = "sum",
) -> keras.Model:
    """Return a smaller model without the named blocks, with weights of its own.

    Its output is that of `lesion(model, *names)`; blocks that change the shape keep their
    projection. It can be saved, fine-tuned and exported; `zoo.graph.cost` has what it saves. Other
    arguments as in `lesion`.

    With `grain="layer"`, a model of a class that counts its layers in its configuration, as
    backbones and tasks of KerasHub do, stays of its class: a language model generates.

    Raises:
        ValueError: if there is no such block, or `names` is empty.
    """
    names = as_names(names=names)
    chain = Chain(model, blocks, grain)
    lesioned = chain.to_model(lesion_plan(chain, names))
    if grain == "layer":
        removed = [chain.graph.calls[block_of(chain.blocks, name).call].layer for name in names]
        smaller = without_layers(model, removed, lesioned)
        if smaller is not None:
            return smaller
    warn_of_training(model)
    return make_savable(rebuild(lesioned))


def fold_identity(model: keras.Model) -> keras.Model:
    """Return a Functional copy with every `SimplifiedResidual` as a `SimplifiedPlain`.

    The new kernel is one larger at the identity's entries. In exact arithmetic the outputs are
    equal.

    Raises:
        ValueError: if there is no `SimplifiedResidual`.

    Example:
    >>> inputs = keras.Input((4, 4, 2))
    >>> model = keras.Model(inputs, SimplifiedResidual(2, name="block")(inputs))
    >>> [type(layer).__name__ for layer in fold_identity(model).layers[1:]]
    ['SimplifiedPlain']

    Reference: Yu, Tomasi (2019), "Identity Connections in Residual Nets Improve Noise Stability",
    section 3, equation 1.
    """
    blocks, _ = find_blocks(model)
    skips = {id(b.layer): b.layer for b in blocks if isinstance(b.layer, SimplifiedResidual)}
    require(skips, "one with a `SimplifiedResidual`", model=model)
    plain = {}  # a layer may be shared
    for key, layer in skips.items():
        plain[key] = SimplifiedPlain.from_config(layer.get_config())
        plain[key].build(layer.get_build_config()["input_shape"])
        plain[key].set_weights([plain_kernel(layer), *layer.get_weights()[1:]])
    return rebuild(model, lambda call: plain.get(id(call.layer)))


def remat(model: keras.Model) -> keras.Model:
    """Let blocks recompute their activations in the backward pass instead of storing them.

    A block then stores its input only, and a scanned stack each layer's input. A step takes 1.3 to
    2.4 times as long on PyTorch, about as long elsewhere (docs/memory.md). Outputs, gradients,
    moving averages and dropout masks do not change. Nor do weights, names, saved files, probes and
    rewired graphs: the model gets no new layer.

    On JAX's CPU it saves memory in scanned stacks alone: there XLA drops the barriers that
    `jax.checkpoint` sets, and merges duplicate computations.

    `model` is changed in place and returned; so are all models that share its blocks. Call this
    before its first step: compiled functions do not change.

    Raises:
        ValueError: if the model has no skip layer.

    Example:
    >>> from zoo.layers.highway import HighwayDense
    >>> inputs = keras.Input((4,))
    >>> model = remat(keras.Model(inputs, HighwayDense(name="block")(inputs)))

    Reference: Chen, Xu, Zhang, Guestrin (2016), arXiv:1604.06174.
    """
    check_model(model)
    layers = [v for v in keras_private.inner_layers(model) if isinstance(v, Skip | Scanned)]
    expected = "one with skip layers. To recompute others, build it in a `keras.RematScope`"
    require(layers, expected, model=model)
    with keras.RematScope(mode="full"):
        mode = keras.layers.Identity(name="remat")._remat_mode  # its type is not public
    for layer in layers:
        layer._remat_mode = mode
    return model


def drop_blocks(
    model: keras.Model, rates: Rates = 0.5, seed: int | None = None, grain: Grain = "sum"
) -> keras.Model:
    """Return `model` with stochastic depth: in training, each example passes some blocks by.

    The new model shares `model`'s weights. In inference each block's residual branch is multiplied
    by the probability with which it was there, as in the paper.

    Args:
        model: A Functional or built Sequential `keras.Model`.
        rates: Probability of dropping the last of L blocks; the l-th then has l / L of it (the
            paper's linear decay, whose last rate is 0.5). Or probabilities by block name; others
            are not dropped. Blocks without a skip cannot be dropped.
        seed: Random seed; the l-th block's is `seed + l`, so that blocks are dropped independently.
        grain: As in `zoo.graph.find_blocks`.

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
    check_integers(0, seed=seed, optional=True)
    graph = Graph(model)
    blocks, _ = find_blocks(graph, grain=grain)
    skips = [b for b in blocks if b.x is not None and getattr(b.layer, "variant", "") != "plain"]
    decay = {block.name: (block.index + 1) / len(blocks) for block in skips}
    by_name = rates if isinstance(rates, Mapping) else dict.fromkeys(decay, rates)
    unknown = [name for name in by_name if name not in decay]
    require(decay and not unknown, f"of blocks with a skip, {[*decay]}", rates=unknown or model)
    for rate in by_name.values():
        check_numbers(0, 1, rates=rate)
    if by_name is not rates:
        by_name = {name: rate * decay[name] for name, rate in by_name.items()}
    by_end = {block.y: block for block in blocks if by_name.get(block.name)}
    inputs = graph.new_inputs()
    values = {**inputs}

    def apply(call, *args, **kwargs):
        outputs = symbolic(call, *args, **kwargs)
        block = next((by_end[slot] for slot in call.outputs if slot in by_end), None)
        if block is None:
            return outputs
        own_seed = None if seed is None else seed + block.index + 1
        flat = tree.flatten(outputs)  # a whole layer may return more than y
        y = call.outputs.index(block.y)
        keep_mask = keras_private.get_keras_mask(flat[y]) is not None
        options = {"name": graph.new_name(f"{block.name}_drop"), "dtype": flat[y].dtype}
        drop = DropBlock(by_name[block.name], own_seed, keep_mask=keep_mask, **options)
        flat[y] = drop(values[block.x], flat[y])
        return tree.pack_sequence_as(outputs, flat)

    graph.run(values, apply, keep=True)
    return graph.new_model(inputs, [values[slot] for slot in graph.outputs])


def add_exits(
    model: keras.Model,
    blocks: Sequence[str],
    head: Callable[[str], Callable[[Tensor], Tensor]] | None = None,
    grain: Grain = "sum",
) -> keras.Model:
    """Return `model` with outputs after some of its blocks, too; it shares `model`'s weights.

    Its output is a dictionary, with one by each block's name, and "last".
    `keras.Model(exits.input, exits.output[name])` is the part that stops at an exit: it can be
    exported and takes only the time of the blocks up to there.

    Args:
        model: A Functional or built Sequential `keras.Model` with one output.
        blocks: Names of blocks, in running order.
        head: A function of a block's name that returns a new head: a layer or function from the
            block's output to an output like the model's. `None`: what follows the last block, with
            its weights, applied to the exit's block (an early readout).
        grain: As in `zoo.graph.find_blocks`.

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
    blocks = as_names(blocks=blocks)
    graph = Graph(model)
    found = {block.name: block for block in find_blocks(graph, grain=grain)[0]}
    expected = f"some of {[*found]}, none of them called 'last' as the model's own output is"
    require({*blocks} <= {*found} - {"last"}, expected, blocks=blocks)
    names = graph.model.output_names
    require(len(names) == 1, "a single one: keras.Model(model.inputs, output)", outputs=names)
    last = [*found.values()][-1]
    for name in blocks if head is None else ():
        expected = f"{last.shape}, as of the last block, or give a `head`"
        require(found[name].shape == last.shape, expected, **{f"{name}.shape": found[name].shape})
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


def lesion_plan(chain: Chain, names: Sequence[str], mode: str = "removed") -> Plan:
    """Return the plan of `lesion`."""
    check_choice(MODES, mode=mode)
    removed = {block_of(chain.blocks, name).index for name in names}
    return [Step(step.block, MODES[mode]) if step.block in removed else step for step in chain.plan]


def shuffle_plan(chain: Chain, order: Mapping[str, str]) -> Plan:
    """Return the plan of `shuffle`."""
    expected = "a permutation, a dictionary of names by position in which each takes another's"
    valid = isinstance(order, Mapping) and {*order} == {*order.values()}
    require(valid, expected, order=order)
    plan = [*chain.plan]
    for position, name in order.items():
        plan[block_of(chain.blocks, position).index] = Step(block_of(chain.blocks, name).index)
    return plan


def random_order(
    names: Sequence[str], swaps: int, rng: np.random.Generator
) -> tuple[dict[str, str], float]:
    """Return an order for `shuffle` after so many swaps of random pairs, and its Kendall tau.

    `names` are blocks that may take each other's position; tau is from -1 (reverse) to 1.
    """
    order = [*range(len(names))]
    for _ in range(swaps):
        i, j = rng.choice(len(names), 2, replace=False)
        order[i], order[j] = order[j], order[i]
    pairs = [*itertools.combinations(order, 2)]
    tau = sum(1 if a < b else -1 for a, b in pairs) / len(pairs)
    return {names[i]: names[j] for i, j in enumerate(order)}, tau
