"""Modify a network's blocks: reordered, some left out, or rematerialized."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import keras
import numpy as np

from zoo.backend import keras_private
from zoo.graph.blocks import Grain
from zoo.graph.calls import rebuild
from zoo.graph.chain import Chain, Plan, Step
from zoo.layers.skip import Skip

MODES = {"removed": "carry", "closed": "close"}  # modes of `lesion` and their `Step.action`


def lesion(
    model: keras.Model,
    *names: str,
    mode: str = "removed",
    blocks: Sequence[str] | None = None,
    grain: Grain = "sum",
) -> keras.Model:
    """Return `model` without the residual part of the named blocks; it shares `model`'s weights.

    Args:
        model: A Functional or built Sequential `keras.Model` whose blocks follow each other.
        *names: Blocks: names of skip layers or of sums; see `zoo.blocks.find_blocks`.
        mode: "removed": a block returns its skip input x, or its projection where the shape
            changes. "closed": T is 0 everywhere, so a block returns x C(x). The two differ
            where there is a carry gate C ("full", "c_only").
        blocks: Names of the blocks of the chain; `None`: all. A block around other blocks has to
            be named.
        grain: As in `zoo.blocks.find_blocks`: "sum", or "layer" for whole layers.

    Raises:
        ValueError: if there is no such block or mode.

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, section 4.2 (closed);
    Jastrzebski et al. (2018), arXiv:1710.04773, section 4.2 (removed).
    """
    chain = Chain(model, blocks, grain)
    return chain.to_model(lesion_plan(chain, names, mode))


def shuffle(
    model: keras.Model,
    order: Mapping[str, str],
    blocks: Sequence[str] | None = None,
    grain: Grain = "sum",
) -> keras.Model:
    """Return `model` with blocks at each other's positions; it shares `model`'s weights.

    `order` has the name of the block to run at each position, by the name of the block that is
    there. Blocks that change the shape stay. Other arguments as in `lesion`.

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
    projection. It can be saved, fine-tuned and exported; `zoo.cost` has what it saves. Other
    arguments as in `lesion`.

    Raises:
        ValueError: if there is no such block, or `names` is empty.
    """
    names = [names] if isinstance(names, str) else [*names]
    if not names:
        raise ValueError("Expected at least one block to leave out. Received: none.")
    return rebuild(lesion(model, *names, blocks=blocks, grain=grain))


def remat(model: keras.Model) -> keras.Model:
    """Let blocks recompute their activations in the backward pass instead of storing them.

    A block then stores its input only, and a `HighwayDenseStack` each layer's input. A step takes
    about a third more time; outputs, gradients, moving averages and dropout masks do not change.
    Nor do weights, names, saved files, probes and rewired graphs: the model gets no new layer.

    On JAX's CPU it saves memory in a `HighwayDenseStack` alone: there XLA drops the barriers that
    `jax.checkpoint` sets, and merges duplicate computations.

    Args:
        model: A `keras.Model`, changed in place, as are all models that share its blocks. Call
            this before its first step: functions that are already compiled do not change.

    Returns:
        `model`.

    Raises:
        ValueError: if the model has no skip layer.

    Example:
    >>> from zoo.layers.highway import HighwayDense
    >>> inputs = keras.Input((4,))
    >>> model = remat(keras.Model(inputs, HighwayDense(name="block")(inputs)))

    Reference: Chen, Xu, Zhang, Guestrin (2016), arXiv:1604.06174.
    """
    layers = [v for v in keras_private.inner_layers(model) if isinstance(v, Skip)]
    if not layers:
        raise ValueError(
            f"`remat` recomputes skip layers. Received: {model.name!r}, which has none. To "
            f"recompute other layers, build the model in a `keras.RematScope`."
        )
    with keras.RematScope(mode="full"):
        mode = keras.layers.Identity(name="remat")._remat_mode  # its type is not public
    for layer in layers:
        layer._remat_mode = mode
    return model


def lesion_plan(chain: Chain, names: Sequence[str], mode: str = "removed") -> Plan:
    """Return the plan of `lesion`."""
    if mode not in MODES:
        raise ValueError(f"`mode` must be one of {[*MODES]}. Received: mode={mode!r}")
    removed = {chain.index(name) for name in names}
    return [Step(step.block, MODES[mode]) if step.block in removed else step for step in chain.plan]


def shuffle_plan(chain: Chain, order: Mapping[str, str]) -> Plan:
    """Return the plan of `shuffle`."""
    if not isinstance(order, Mapping) or sorted(order) != sorted(order.values()):
        raise ValueError(
            f"`order` must be a permutation, a dictionary of names by position: each block "
            f"that leaves a position takes another's. Received: order={order}"
        )
    plan = [*chain.plan]
    for position, name in order.items():
        plan[chain.index(position)] = Step(chain.index(name))
    return plan


def random_order(
    names: Sequence[str], swaps: int, rng: np.random.Generator
) -> tuple[dict[str, str], float]:
    """Return a random order of blocks and its Kendall tau.

    It exchanges random pairs of `names`, blocks that may take each other's position, `swaps` times.

    Returns:
        A dictionary for `shuffle`, and tau: 1 for the original order, -1 for its reverse.
    """
    order = [*range(len(names))]
    for _ in range(swaps):
        i, j = rng.choice(len(names), 2, replace=False)
        order[i], order[j] = order[j], order[i]
    pairs = [*itertools.combinations(order, 2)]
    tau = sum(1 if a < b else -1 for a, b in pairs) / len(pairs)
    return {names[i]: names[j] for i, j in enumerate(order)}, tau
