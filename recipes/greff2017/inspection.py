"""Greff et al. (2017), Figs 3 and 4, equation 9: estimates and residuals of a trained network.

`inspect` measures a network; `fig3`, `fig4` and `section3_2` draw what it returned. Patches are
found as by Chu et al. (2017); guided backpropagation: Springenberg et al. (2015), arXiv:1412.6806.
"""

import contextlib

import keras
import numpy as np
from keras import ops

from zoo import callbacks
from zoo.backend import compiled, gradients_at_marks, guided_relu, keras_private
from zoo.graph.blocks import find_blocks
from zoo.graph.calls import Graph, infer
from zoo.recipes.experiment import plots
from zoo.recipes.jastrzebski2018.training import of_blocks

NUM_PATCHES = 9  # Fig. 4, of each block
HALF_OF_RANDOM = 0.28  # of 1 / sqrt(pi), |E[F]| / rms of random weights after a ReLU; ours


def inspect(model, label, batches, indices, pictured, run):
    """Return estimation errors and means of the residual functions by block, and patches.

    `batches` have images and labels, `indices` are the images' places in the validation set.
    Patches, found if `pictured`, are of the channel of the largest rectified mean after stage 1.
    """
    probes = [
        callbacks.EstimationError(rectified=True),  # after the ReLU that ends a block
        callbacks.BlockOutputs(rectified=True, name="strength"),
        callbacks.ResidualMean(),
    ]
    progress = run.progress(f"probes of {label}", len(indices))
    table = callbacks.run(probes, model, batches, progress=progress)
    rows = table.of_probe("estimation_error")
    stages = 1 + np.unique([row.stage for row in rows], return_inverse=True)[1]
    last = int(np.sum(stages == 1)) - 1  # block of stage 1
    unit = int(np.nanargmax(table.array("strength_units")[last]))  # NaN: of wider blocks
    patches = {}
    if pictured:
        print(f"top patches of unit {unit} of {label}", flush=True)
        for index, patch in enumerate(top_patches(model, batches, unit, NUM_PATCHES)):
            patches[f"{index:03d}"] = patch | {"example": int(indices[patch["example"]])}
    return {
        "blocks": [row.block for row in rows],
        "stage": stages,
        "estimation_error": of_blocks(table, "estimation_error"),
        "estimation_error_std": of_blocks(table, "estimation_error_std"),
        "residual_mean": of_blocks(table, "residual_mean"),
        "relative_residual_mean": of_blocks(table, "residual_mean_relative"),
        "unit": unit,
        "patches": patches,
    }


def top_patches(model, batches, unit, count):
    """Find the places where a unit is largest after each block of the first stage.

    Returns dictionaries by block and rank, `count` of each block, of one image at most one:
    `block`; `rank`, from 0; `example`, the image's index; `row` and `column` of the largest value
    in the block's output; `value`; `image`, the part of the image that the value depends on; and
    `gradient`, the value's by this part, by guided backpropagation.
    """
    graph = Graph(model)
    blocks, _ = find_blocks(graph)
    blocks = [block for block in blocks if block.stage == blocks[0].stage]
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

    def maps_of(values):
        values = graph.run({**values}, keep=True)
        return [values[block.y][..., unit] for block in blocks]

    maps_of = compiled(maps_of, graph.model)
    maxima = {block.name: [] for block in blocks}
    seen = 0
    for x, _ in batches:
        images = np.asarray(x)
        for block, values in zip(blocks, maps_of(graph.start(images)), strict=True):
            values = ops.convert_to_numpy(values).reshape(len(images), -1)
            rows, columns = (v.tolist() for v in np.divmod(values.argmax(1), block.shape[2]))
            places = zip(values.max(1).tolist(), rows, columns, images, strict=True)
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
    with contextlib.ExitStack() as stack:
        for layer in keras_private.inner_layers(model):
            if getattr(layer, "activation", None) is relu:
                layer.activation = guided_relu
                stack.callback(setattr, layer, "activation", relu)
        yield


def infer_guided(call, *args, **kwargs):
    """Run a call in inference mode; a layer `ReLU` is a `guided_relu`."""
    if isinstance(call.layer, keras.layers.ReLU):
        return guided_relu(args[0])
    return infer(call, *args, **kwargs)


def _extent(gradient):
    """Return the rows and columns that a value depends on."""
    touched = np.argwhere(gradient.any(-1))
    if not len(touched):
        return np.s_[:, :]
    (top, left), (bottom, right) = touched.min(0), touched.max(0)
    return np.s_[top : bottom + 1, left : right + 1]


def by_stage(facts):
    """Return mean and deviation of the estimation errors, an array (blocks, 2) a stage."""
    values = np.stack([facts["estimation_error"], facts["estimation_error_std"]], axis=1)
    return [values[facts["stage"] == stage] for stage in np.unique(facts["stage"])]


def fig3(seeds):
    """Draw the estimation error: networks down, stages across, mean and deviation of blocks.

    Of several seeds each block's two values are averaged.
    """
    networks = seeds[0]["inspected"]
    rows, columns = len(networks), len({*networks[[*networks][0]]["stage"].tolist()})
    size = {"nrows": rows, "ncols": columns, "squeeze": False}
    figure, axes = plots.new(2.5 * columns, 2.5 * rows, **size)
    style = {"color": plots.COLORS[0], "marker": "o", "markersize": 4, "capsize": 3}
    for line, name in zip(axes, networks, strict=True):
        line[0].set_ylabel(f"{name}\nestimation error (activation)", fontsize=8)
        stages = zip(*(by_stage(one["inspected"][name]) for one in seeds), strict=True)
        for number, (axis, same) in enumerate(zip(line, stages, strict=True), 1):
            mean, deviation = np.mean(same, axis=0).T
            blocks = np.arange(1, 1 + len(mean))
            axis.axhline(0, color="0.75", linewidth=0.8)
            axis.errorbar(blocks, mean, deviation, **style)
            axis.set(title=f"stage {number}", xlabel="block", xticks=blocks)
    return figure


def fig4(seeds):
    """Draw patches of a unit by block, and below them their gradients, of the first seed."""
    networks = seeds[0]["inspected"]
    network = next(name for name, facts in networks.items() if facts["patches"])
    patches = [*networks[network]["patches"].values()]
    blocks = [*dict.fromkeys(patch["block"] for patch in patches)]
    count = 1 + max(patch["rank"] for patch in patches)
    grid = {"nrows": 2 * len(blocks), "ncols": count, "squeeze": False}
    figure, axes = plots.new(1.2 * count + 1, 2.6 * len(blocks), **grid)
    for axis in axes.flat:
        axis.set_axis_off()
    for patch in patches:
        row, rank = 2 * blocks.index(patch["block"]), patch["rank"]
        axes[row, rank].imshow(_scaled(patch["image"]))
        axes[row + 1, rank].imshow(_scaled(patch["gradient"]))
        name = f"{patch['block']}\n" if rank == 0 else ""
        axes[row, rank].set_title(f"{name}{patch['value']:.3g}", fontsize=8)
    unit = networks[network]["unit"]
    figure.suptitle(f"{network}, unit {unit}: values, patches, guided backpropagation", fontsize=9)
    return figure


def section3_2(seeds):
    """Draw the relative mean of each block's residual function; of equation 9 it is 0."""

    def rows_of(one):
        for name, facts in one["inspected"].items():
            columns = {"mean": facts["relative_residual_mean"]}
            yield from plots.numbered("block", columns, network=name)

    rows = plots.with_seeds(seeds, rows_of)
    labels = {"mean": "norm of E[F] / root mean square of F"}
    return plots.lines(rows, x="block", y="mean", by="network", labels=labels)


def _scaled(pixels):
    return (pixels - pixels.min()) / (np.ptp(pixels) or 1.0)
