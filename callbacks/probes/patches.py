"""What a unit looks for along the blocks of a stage: top patches and guided backpropagation."""

import collections
import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from zoo.backend import compiled, gradients_at_marks, guided_relu
from zoo.callbacks.probes.batching import batches
from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Call, Graph, infer
from zoo.io import replace

Patch = collections.namedtuple("Patch", "block rank example row column value image gradient")


def top_patches(model, data, unit, blocks=None, stage=None, count=9, batch_size=32):
    """The places in `data` where a unit is largest, behind each block of a stage.

    If the blocks of a stage refine one representation, a unit means the same behind each of them,
    and later blocks choose it more purely.

    Args:
        model: A Functional or built Sequential `keras.Model` that reads images.
        data: Images, as the model takes them, or as in `zoo.callbacks.run`.
        unit: The channel, from 0.
        blocks: Names of the blocks; `None`: all of the stage.
        stage: A stage; `None`: the first. Ignored if `blocks` are named.
        count: Patches of each block; of one image at most one.
        batch_size: Of arrays.

    Returns:
        A list of `Patch`: `block`; `rank`, from 0; `example`, the image's place in the data;
        `row`, `column` and `value` of the unit behind the block; `image`, the part of the image
        that the value depends on; `gradient`, by guided backpropagation, of the same part.

    Raises:
        ValueError: if there is no such stage, block or unit, or the blocks make no images.

    Reference: Greff, Srivastava, Schmidhuber (2017), arXiv:1612.07771, Fig. 4 (after Chu et al.,
    2017); Springenberg et al. (2015), arXiv:1412.6806.
    """
    graph = Graph(model)
    found, _ = find_blocks(graph, blocks)
    stages = [*dict.fromkeys(block.stage for block in found)]
    if blocks is None:
        wanted = stages[0] if stage is None else stage
        if wanted not in stages:
            raise ValueError(f"`stage` must be one of {stages}. Received: stage={stage!r}")
        found = [block for block in found if block.stage == wanted]
    for block in found:
        if len(block.shape) != 4 or not 0 <= unit < block.shape[-1]:
            raise ValueError(
                f"Expected blocks that make images with a channel {unit}. Received: {block.name} "
                f"with output shape {block.shape}."
            )
    best = _best(graph, model, found, data, unit, count, batch_size)
    patches = []
    for block in found:
        chosen = best[block.name]
        images = np.stack([image for *_, image in chosen])
        places = np.array([place for _, _, place, _ in chosen])
        guided, plain = _gradients(graph, model, block, images, places, unit)
        for rank, (value, example, (row, column), image) in enumerate(chosen):
            part = _extent(plain[rank])
            patch = Patch(block.name, rank, example, row, column, value, image[part], None)
            patches.append(patch._replace(gradient=guided[rank][part]))
    return patches


def _best(graph, model, blocks, data, unit, count, batch_size):
    """Of each block the `count` largest: (value, example, (row, column), image), falling."""
    slots = {block.name: block.y for block in blocks}

    def largest(values):
        values = graph.run({**values}, keep=True)
        maps = {name: values[slot][..., unit] for name, slot in slots.items()}
        flat = {name: ops.reshape(v, (ops.shape(v)[0], -1)) for name, v in maps.items()}
        return {name: (ops.max(v, axis=1), ops.argmax(v, axis=1)) for name, v in flat.items()}

    largest, seen = compiled(largest, model), 0
    best = {name: [] for name in slots}
    shapes = {block.name: block.shape for block in blocks}
    for x, _ in batches(data, batch_size):
        for name, pair in largest(graph.start(x)).items():
            value, place = map(ops.convert_to_numpy, pair)
            width = _width(shapes[name], graph, x)
            best[name] += (
                (float(v), seen + i, divmod(int(p), width), x[i])
                for i, (v, p) in enumerate(zip(value, place, strict=True))
            )
            best[name] = sorted(best[name], key=lambda one: -one[0])[:count]
        seen += len(x)
    if not seen:
        raise ValueError("Expected at least one image. Received: data without any.")
    return best


def _width(shape, graph, x):
    if shape[2] is None:
        raise ValueError(f"Expected a model of known image size. Received: {graph.model.name!r}")
    return shape[2]


def _gradients(graph, model, block, images, places, unit):
    """Return the gradient of a unit's values with respect to the images: guided, and plain."""
    calls = graph.between(graph.inputs[0], block.y)
    mask = np.zeros((len(images), *block.shape[1:3]), "float32")
    mask[np.arange(len(images)), places[:, 0], places[:, 1]] = 1
    x = graph.start(images)[graph.inputs[0]]
    mask = ops.convert_to_tensor(mask)

    def gradient(apply):
        def observe(mark, x, mask):
            values = graph.run({graph.inputs[0]: mark("x", x)}, apply, calls, keep=True)
            return ops.sum(values[block.y][..., unit] * mask), None

        run = compiled(lambda x, mask: gradients_at_marks(observe, x, mask)[1]["x"], model)
        return ops.convert_to_numpy(run(x, mask))

    with guided_relus(model):
        guided = gradient(infer_guided)
    return guided, gradient(infer)


@contextlib.contextmanager
def guided_relus(model: keras.Model) -> Iterator[None]:
    """Replace the activation `relu` of a model's layers by `guided_relu` while inside."""
    relu = keras.activations.relu
    layers = [
        layer for layer in model._flatten_layers() if getattr(layer, "activation", None) is relu
    ]
    for layer in layers:
        layer.activation = guided_relu
    try:
        yield
    finally:
        for layer in layers:
            layer.activation = relu


def infer_guided(call: Call, *args: Any, **kwargs: Any) -> Any:
    """Run a call in inference mode; a layer or operation that is a ReLU is a `guided_relu`."""
    is_relu = type(call.layer).__name__ in ("ReLU", "Relu")  # a layer; keras.ops and .activations
    options = ("negative_slope", "max_value", "threshold")
    if is_relu and not any(getattr(call.layer, name, None) for name in options):
        return guided_relu(args[0])
    return infer(call, *args, **kwargs)


def _extent(gradient):
    """The rows and columns that a value depends on."""
    touched = np.abs(gradient).max(-1) > 0
    if not touched.any():
        return np.s_[:, :]
    sides = (np.flatnonzero(touched.any(axis)) for axis in (1, 0))
    return tuple(slice(found[0], found[-1] + 1) for found in sides)


def draw_patches(patches, path=None):
    """Figure 4 of Greff et al.: of each block the patches, and under them their gradients.

    Args:
        patches: What `top_patches` returned.
        path: Where to write it as PNG; `None`: nowhere.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    from matplotlib.figure import Figure

    blocks = [*dict.fromkeys(patch.block for patch in patches)]
    count = 1 + max(patch.rank for patch in patches)
    size = (1.2 * count + 1, 2.6 * len(blocks))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(2 * len(blocks), count, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for patch in patches:
        row = 2 * blocks.index(patch.block)
        for offset, pixels in enumerate((patch.image, patch.gradient)):
            axis = axes[row + offset, patch.rank]
            axis.imshow(_visible(pixels), cmap="gray")
        axes[row, patch.rank].set_title(f"{patch.value:.3g}", fontsize=8)
        if patch.rank == 0:
            axes[row, 0].set_title(f"{patch.block}\n{patch.value:.3g}", fontsize=8)
    if path is not None:
        replace(pathlib.Path(path), lambda new: figure.savefig(new, format="png", dpi=120))
    return figure


def _visible(pixels):
    """Scaled to [0, 1]; one channel or three."""
    low, high = pixels.min(), pixels.max()
    pixels = (pixels - low) / ((high - low) or 1.0)
    return pixels if pixels.shape[-1] == 3 else pixels.mean(-1)
