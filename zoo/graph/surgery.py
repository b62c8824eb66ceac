"""Operating on a network's blocks: the same layers in another order, some left out or repeated."""

import itertools

import keras

from zoo.graph.calls import Graph
from zoo.graph.chain import Chain, exit_plan, lesion_plan, shuffle_plan, unroll_plan


def lesion(model, *names, mode="removed", blocks=None):
    """`model` without what the named blocks do; a new model that shares its weights.

    Args:
        model: A Functional or built Sequential `keras.Model` whose blocks follow each other.
        *names: Blocks: names of skip layers or of sums; see `zoo.blocks.find_blocks`.
        mode: "removed": a block returns what it carries, x, or its projection where the shape
            changes. "closed": T is 0 everywhere, so a block returns x C(x). The two differ
            where there is a carry gate C ("full", "c_only").
        blocks: Names of the blocks to take at all; `None`: those that are found. A block around
            other blocks has to be named.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: if there is no such block or mode.

    Reference: Srivastava, Greff, Schmidhuber (2015), arXiv:1507.06228, section 4.3 (closed);
    Jastrzebski et al. (2018), arXiv:1710.04773, section 4.3 (removed).
    """
    chain = Chain(model, blocks)
    return chain.rebuild(lesion_plan(chain, names, mode))


def shuffle(model, order, blocks=None):
    """`model` with blocks at each other's places; a new model that shares its weights.

    Args:
        model: As in `lesion`.
        order: A dictionary: at the place of each key works the block that is its value. Blocks
            that change the shape stay where they are.
        blocks: As in `lesion`.

    Raises:
        ValueError: if `order` is no permutation, or a block does not fit its place.

    Reference: Veit, Wilber, Belongie (2016), arXiv:1605.06431, section 4.3.
    """
    chain = Chain(model, blocks)
    return chain.rebuild(shuffle_plan(chain, order))


def early_exit(model, name, blocks=None):
    """`model` that stops refining behind the block `name`: later ones return what they carry.

    Later blocks that change the shape still work, as the classifier needs it.

    Args:
        model: As in `lesion`.
        name: A block.
        blocks: As in `lesion`.

    Raises:
        ValueError: if there is no such block.

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 4.4.
    """
    chain = Chain(model, blocks)
    return chain.rebuild(exit_plan(chain, name))


def unroll(model, times, scale=1.0, blocks=None):
    """`model` that applies its last block `times` times more: h <- h + scale f(h).

    Args:
        model: As in `lesion`.
        times: How often.
        scale: Factor of f in the repetitions.
        blocks: As in `lesion`.

    Raises:
        ValueError: if the last block changes the shape.

    Reference: Jastrzebski et al. (2018), arXiv:1710.04773, section 4.5, Figs 7 and 20.
    """
    chain = Chain(model, blocks)
    return chain.rebuild(unroll_plan(chain, times, scale))


def prune_blocks(model, blocks):
    """A smaller model without these blocks, with weights of its own.

    Its output is that of `lesion(model, *blocks)`. It can be saved, fine-tuned and exported.

    Args:
        model: As in `lesion`.
        blocks: Names of blocks; those that change the shape keep their projection.

    Returns:
        A `keras.Model`; `cost` tells what it saves.

    Raises:
        ValueError: if there is no such block, or nothing would be left out.
    """
    blocks = [blocks] if isinstance(blocks, str) else [*blocks]
    if not blocks:
        raise ValueError("Expected at least one block to leave out. Received: none.")
    return copied(lesion(model, *blocks))


def copied(model):
    """A model of the same layers with weights of its own."""
    copy = keras.models.clone_model(model)
    for old, new in zip(model.variables, copy.variables, strict=True):
        new.assign(keras.ops.convert_to_numpy(old))  # a copy: `fit` on JAX consumes buffers
    return copy


def cost(model):
    """What a model costs: `{"parameters": ..., "operations": ...}`.

    Operations are the multiply-adds of an example's products and convolutions: of each layer,
    the elements of its kernels times the positions of its output.

    Args:
        model: A Functional or built Sequential `keras.Model` of known image size.

    Raises:
        ValueError: if a layer's output has an unknown number of positions.

    Example:

    >>> inputs = keras.Input((4, 4, 3))
    >>> cost(keras.Model(inputs, keras.layers.Conv2D(2, 3, padding="same")(inputs)))
    {'parameters': 56, 'operations': 864}
    """
    operations = 0
    for call in Graph(model).calls:
        weights = getattr(call.layer, "weights", ())
        kernels = [w for w in weights if "kernel" in w.path.split("/")[-1]]
        if not kernels:
            continue
        sides = call.shapes[0][1:-1]
        if None in sides:
            raise ValueError(
                f"Operations depend on the input's size. Received: {call.name} with output shape "
                f"{call.shapes[0]}. Build the model with a fixed size."
            )
        positions = 1
        for side in sides:
            positions *= side
        operations += positions * sum(keras.ops.size(w) for w in kernels)
    return {"parameters": model.count_params(), "operations": int(operations)}


def orders(names, swaps, rng):
    """A random order of `names` after so many swaps of two, and its Kendall tau.

    Args:
        names: Blocks that may take each other's place.
        swaps: How many pairs are swapped, one after the other.
        rng: A `numpy.random.Generator`.

    Returns:
        A dictionary as `shuffle` takes it, and tau: 1 for the old order, -1 for its reverse.
    """
    order = [*range(len(names))]
    for _ in range(swaps):
        i, j = rng.choice(len(names), 2, replace=False)
        order[i], order[j] = order[j], order[i]
    pairs = [*itertools.combinations(order, 2)]
    tau = sum(1 if a < b else -1 for a, b in pairs) / len(pairs)
    return {names[i]: names[j] for i, j in enumerate(order)}, tau
