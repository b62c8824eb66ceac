"""Greff et al. (2017), Fig. 4: top patches of a unit and their guided gradients, block by block.

After Chu et al. (2017); guided backpropagation: Springenberg et al. (2015), arXiv:1412.6806.
"""

import contextlib

import keras
import numpy as np
from keras import ops

from zoo.backend import compiled, gradients_at_marks, guided_relu, keras_private
from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Graph, infer
from zoo.recipes.experiment import plots


def top_patches(model, batches, unit, count):
    """Find the places where a unit is largest after each block of the first stage.

    If the blocks of a stage refine one representation, a unit means the same after each of them,
    and later blocks select it more purely.

    Args:
        model: A Functional or built Sequential `keras.Model` of images.
        batches: Batches of images, preprocessed for the model, and labels.
        unit: Index of the channel.
        count: Number of patches of each block; of one image at most one.

    Returns:
        By block and rank, dictionaries: `block`; `rank`, from 0; `example`, the image's index;
        `row` and `column` of the largest value in the block's output; `value`; `image`, the part
        of the image that the value depends on; and `gradient`, the value's by this part, by guided
        backpropagation.

    Raises:
        ValueError: if there is no such unit.
    """
    graph = Graph(model)
    blocks, _ = find_blocks(graph)
    blocks = [block for block in blocks if block.stage == blocks[0].stage]
    channels = blocks[0].shape[-1]
    if not 0 <= unit < channels:
        raise ValueError(f"Expected a unit from 0 to {channels - 1}. Received: {unit}")
    found = _maxima(graph, blocks, batches, unit, count)
    patches = []
    for block in blocks:
        maxima = found[block.name]
        guided, plain = _gradients(graph, block, maxima, unit)
        for rank, maximum in enumerate(maxima):
            part = _extent(plain[rank])
            parts = {"image": maximum["image"][part], "gradient": guided[rank][part]}
            patches.append({"block": block.name, "rank": rank, **maximum, **parts})
    return patches


def _maxima(graph, blocks, batches, unit, count):
    """Return the `count` largest maxima by block, dictionaries, each with its whole image."""

    def largest(values):
        values = graph.run({**values}, keep=True)
        maps = [values[block.y][..., unit] for block in blocks]
        flat = [ops.reshape(v, (ops.shape(v)[0], -1)) for v in maps]
        return [(ops.max(v, axis=1), ops.argmax(v, axis=1)) for v in flat]

    largest = compiled(largest, graph.model)
    maxima = {block.name: [] for block in blocks}
    seen = 0
    for x, _ in batches:
        images = np.asarray(x)
        for block, pair in zip(blocks, largest(graph.start(images)), strict=True):
            values, indices = map(ops.convert_to_numpy, pair)
            rows, columns = np.divmod(indices, block.shape[2])
            places = zip(values.tolist(), rows.tolist(), columns.tolist(), images, strict=True)
            candidates = maxima[block.name] + [
                {"example": example, "row": row, "column": column, "value": value, "image": image}
                for example, (value, row, column, image) in enumerate(places, seen)
            ]
            maxima[block.name] = sorted(candidates, key=lambda one: -one["value"])[:count]
        seen += len(images)
    return maxima


def _gradients(graph, block, maxima, unit):
    """Return the gradient of the maxima with respect to the images: guided, and plain."""
    calls = graph.between(graph.inputs[0], block.y)
    mask = np.zeros((len(maxima), *block.shape[1:3]), "float32")
    for i, maximum in enumerate(maxima):
        mask[i, maximum["row"], maximum["column"]] = 1
    x = graph.start(np.stack([maximum["image"] for maximum in maxima]))[graph.inputs[0]]
    mask = ops.convert_to_tensor(mask)

    def gradient(apply):
        def observe(mark, x, mask):
            values = graph.run({graph.inputs[0]: mark("x", x)}, apply, calls, keep=True)
            return ops.sum(values[block.y][..., unit] * mask), None

        run = compiled(lambda x, mask: gradients_at_marks(observe, x, mask)[1]["x"], graph.model)
        return ops.convert_to_numpy(run(x, mask))

    with guided_relus(graph.model):
        guided = gradient(infer_guided)
    return guided, gradient(infer)


@contextlib.contextmanager
def guided_relus(model):
    """Replace the activation `relu` of a model's layers by `guided_relu` while inside."""
    relu = keras.activations.relu
    layers = [
        layer
        for layer in keras_private.inner_layers(model)
        if getattr(layer, "activation", None) is relu
    ]
    for layer in layers:
        layer.activation = guided_relu
    try:
        yield
    finally:
        for layer in layers:
            layer.activation = relu


def infer_guided(call, *args, **kwargs):
    """Run a call in inference mode; a layer or operation that is a ReLU is a `guided_relu`."""
    is_relu = type(call.layer).__name__ in ("ReLU", "Relu")  # a layer; keras.ops and .activations
    options = ("negative_slope", "max_value", "threshold")
    if is_relu and not any(getattr(call.layer, name, None) for name in options):
        return guided_relu(args[0])
    return infer(call, *args, **kwargs)


def _extent(gradient):
    """Return the rows and columns that a value depends on."""
    touched = np.abs(gradient).max(-1) > 0
    if not touched.any():
        return np.s_[:, :]
    rows = np.flatnonzero(touched.any(1))
    columns = np.flatnonzero(touched.any(0))
    return np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def draw(patches):
    """Draw each block's patches, and below them their gradients."""
    blocks = [*dict.fromkeys(patch["block"] for patch in patches)]
    count = 1 + max(patch["rank"] for patch in patches)
    grid = {"nrows": 2 * len(blocks), "ncols": count, "squeeze": False}
    figure, axes = plots.new(1.2 * count + 1, 2.6 * len(blocks), **grid)
    for axis in axes.flat:
        axis.set_axis_off()
    for patch in patches:
        row, rank = 2 * blocks.index(patch["block"]), patch["rank"]
        axes[row, rank].imshow(_scaled(patch["image"]), cmap="gray")
        axes[row + 1, rank].imshow(_scaled(patch["gradient"]), cmap="gray")
        value = f"{patch['value']:.3g}"
        title = f"{patch['block']}\n{value}" if rank == 0 else value
        axes[row, rank].set_title(title, fontsize=8)
    return figure


def _scaled(pixels):
    """Return pixels scaled to [0, 1], with one channel or three."""
    low = pixels.min()
    high = pixels.max()
    pixels = (pixels - low) / ((high - low) or 1.0)
    return pixels if pixels.shape[-1] == 3 else pixels.mean(-1)
