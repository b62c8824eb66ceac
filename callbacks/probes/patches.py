"""Top patches of a unit and their guided gradients, along the blocks of a stage."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
from keras import ops

from zoo.backend import compiled, gradients_at_marks, guided_relu, keras_private
from zoo.callbacks.charts import save_png
from zoo.callbacks.probes.objective import batches, nan_mask
from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Call, Graph, infer
from zoo.types import PathLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Patch(NamedTuple):
    """A part of an image in which a unit is large.

    Attributes:
        block: Name of the block.
        rank: Rank among the block's patches, from 0.
        example: Index of the image in the data.
        row: Row of the unit's largest value in the block's output.
        column: Column of this value.
        value: The value.
        image: The part of the image that the value depends on.
        gradient: Gradient of the value with respect to this part, by guided backpropagation.
    """

    block: str
    rank: int
    example: int
    row: int
    column: int
    value: float
    image: np.ndarray
    gradient: np.ndarray


def top_patches(
    model: keras.Model,
    data: Any,
    unit: int,
    blocks: Sequence[str] | None = None,
    stage: int | None = None,
    count: int = 9,
    batch_size: int = 32,
) -> list[Patch]:
    """Find the places in `data` where a unit is largest, after each block of a stage.

    If the blocks of a stage refine one representation, a unit means the same after each of them,
    and later blocks select it more purely.

    Args:
        model: A Functional or built Sequential `keras.Model` of images.
        data: Images, preprocessed for the model, or as in `zoo.callbacks.run`.
        unit: Index of the channel.
        blocks: Names of the blocks; `None`: all of the stage.
        stage: A stage; `None`: the first. Ignored if `blocks` are named.
        count: Number of patches of each block; of one image at most one.
        batch_size: Batch size of arrays.

    Returns:
        The patches, by block and rank.

    Raises:
        ValueError: if there is no such stage, block or unit, or the blocks' outputs are no images.

    Reference: Greff, Srivastava, Schmidhuber (2017), arXiv:1612.07771, Fig. 4 (after Chu et al.,
    2017); Springenberg et al. (2015), arXiv:1412.6806.
    """
    graph = Graph(model)
    measured, _ = find_blocks(graph, blocks)
    if blocks is None:
        stages = [*dict.fromkeys(block.stage for block in measured)]
        stage = stages[0] if stage is None else stage
        if stage not in stages:
            raise ValueError(f"`stage` must be one of {stages}. Received: stage={stage!r}")
        measured = [block for block in measured if block.stage == stage]
    for block in measured:
        if len(block.shape) != 4 or not 0 <= unit < block.shape[-1]:
            raise ValueError(
                f"Expected blocks whose outputs are images with a channel {unit}. Received: "
                f"{block.name} with output shape {block.shape}."
            )
        if block.shape[2] is None:
            raise ValueError(
                f"Expected a model of known image size. Received: {graph.model.name!r}"
            )
    maxima = _maxima(graph, measured, data, unit, count, batch_size)
    patches = []
    for block in measured:
        guided, plain = _gradients(graph, block, maxima[block.name], unit)
        for rank, (value, example, row, column, image) in enumerate(maxima[block.name]):
            part = _extent(plain[rank])
            parts = image[part], guided[rank][part]
            patches.append(Patch(block.name, rank, example, row, column, value, *parts))
    return patches


def _maxima(graph, blocks, data, unit, count, batch_size):
    """Return the `count` largest maxima by block: value, example, row, column and image."""

    def largest(values):
        values = graph.run({**values}, keep=True)
        maps = [values[block.y][..., unit] for block in blocks]
        flat = [ops.reshape(v, (ops.shape(v)[0], -1)) for v in maps]
        return [(ops.max(v, axis=1), ops.argmax(v, axis=1)) for v in flat]

    largest = compiled(largest, graph.model)
    maxima = {block.name: [] for block in blocks}
    seen = 0
    for x, _ in batches(data, batch_size):
        if np.isnan(nan_mask(x)).any():
            last = seen + len(x) - 1
            raise ValueError(f"Expected images without NaN. Received: NaN up to image {last}.")
        for block, (values, indices) in zip(blocks, largest(graph.start(x)), strict=True):
            values = ops.convert_to_numpy(values)
            rows, columns = np.divmod(ops.convert_to_numpy(indices), block.shape[2])
            candidates = maxima[block.name] + [
                (float(values[i]), seen + i, int(rows[i]), int(columns[i]), x[i])
                for i in range(len(x))
            ]
            maxima[block.name] = sorted(candidates, key=lambda maximum: -maximum[0])[:count]
        seen += len(x)
    if not seen:
        raise ValueError("Expected at least one image. Received: data without any.")
    return maxima


def _gradients(graph, block, maxima, unit):
    """Return the gradient of the maxima with respect to the images: guided, and plain."""
    images = np.stack([image for *_, image in maxima])
    calls = graph.between(graph.inputs[0], block.y)
    mask = np.zeros((len(maxima), *block.shape[1:3]), "float32")
    for i, (_, _, row, column, _) in enumerate(maxima):
        mask[i, row, column] = 1
    x = graph.start(images)[graph.inputs[0]]
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
def guided_relus(model: keras.Model) -> Iterator[None]:
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


def infer_guided(call: Call, *args: Any, **kwargs: Any) -> Any:
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


def draw_patches(patches: Sequence[Patch], path: PathLike | None = None) -> "Figure":
    """Draw Figure 4 of Greff et al.: each block's patches, and below them their gradients.

    Args:
        patches: The result of `top_patches`.
        path: PNG file to write; `None`: none.

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
        axes[row, patch.rank].imshow(_scaled(patch.image), cmap="gray")
        axes[row + 1, patch.rank].imshow(_scaled(patch.gradient), cmap="gray")
        title = f"{patch.block}\n{patch.value:.3g}" if patch.rank == 0 else f"{patch.value:.3g}"
        axes[row, patch.rank].set_title(title, fontsize=8)
    if path is not None:
        save_png(figure, path)
    return figure


def _scaled(pixels):
    """Return pixels scaled to [0, 1], with one channel or three."""
    low = pixels.min()
    high = pixels.max()
    pixels = (pixels - low) / ((high - low) or 1.0)
    return pixels if pixels.shape[-1] == 3 else pixels.mean(-1)
