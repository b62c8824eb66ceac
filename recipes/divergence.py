"""Yu & Tomasi (2019), Fig. 6: how equivalent networks part in training, step by step, in float32.

plain_vs_residual.py imports it from beside itself.
"""

import figures  # beside this script
import image_data
import numpy as np
import plain_nets
from absl import flags

FLAGS = flags.FLAGS


def define_flags():
    told = "Steps of Fig. 6; 0 leaves it out."
    flags.DEFINE_integer("divergence_steps", 200, told, lower_bound=0)


def diverge(depth):
    """Fig. 6: the largest difference of a weight, step by step, of a residual network and its
    plain equal on the same batches; from Hardt and Ma's start and from Kaiming's.
    """
    import zoo
    from zoo.mapping import to_plain, to_residual
    from zoo.penalty import penalize

    study = plain_nets.study("residual")
    images, _, batches, *_ = image_data.arrays(study, "cifar10")
    shape = images.x_train.shape[1:], images.classes
    found = {}
    for start in ("Hardt and Ma", "Kaiming"):
        zoo.seed_everything(FLAGS.seed)
        model = plain_nets.build("residual" if start == "Hardt and Ma" else "plain", depth, *shape)
        other = to_plain(model) if start == "Hardt and Ma" else to_residual(model)
        pair = [model, penalize(other, transferred=True)]
        found[start] = gaps(pair if start == "Hardt and Ma" else pair[::-1], batches)
    return found


def gaps(pair, batches):
    """The largest difference after each step; the residual network comes first."""
    found = []
    for model in pair:
        steps = plain_nets.EPOCHS * len(batches)  # the paper's: the rate stays
        model.compile(plain_nets.optimizer(steps), "sparse_categorical_crossentropy")
    for step in range(FLAGS.divergence_steps):
        epoch, place = divmod(step, len(batches))
        if place == 0:
            batches.set_epoch(epoch)
        x, y = batches[place]
        for model in pair:
            model.train_on_batch(x, y)
        found.append(distance(*pair))
    return found


def distance(residual, plain):
    """The largest difference of a weight, of the residual network's as its plain equal's."""
    import keras

    from zoo.layers.simplified import SimplifiedResidual
    from zoo.mapping import plain_kernel

    blocks = [layer for layer in residual.layers if isinstance(layer, SimplifiedResidual)]
    mapped, gaps = {id(block.transform.kernel): plain_kernel(block) for block in blocks}, []
    for ours, theirs in zip(residual.weights, plain.weights, strict=True):
        ours = mapped.get(id(ours), ours)
        ours, theirs = map(keras.ops.convert_to_numpy, (ours, theirs))
        gaps.append(float(np.abs(ours - theirs).max()))
    return max(gaps)


def draw(path, found):
    """Of each depth, both starts."""
    figure, axis = figures.new()
    lines = {(depth, start): v for depth, both in found.items() for start, v in both.items()}
    for ((depth, start), values), style in zip(lines.items(), figures.styles(), strict=False):
        axis.plot(range(1, 1 + len(values)), values, label=f"{depth}, {start}", **style)
    axis.set(xlabel="step", ylabel="largest difference of a weight", yscale="log")
    axis.legend(fontsize=7)
    rows = [
        {"depth": depth, "start": start, "step": step, "largest_difference": value}
        for (depth, start), values in lines.items()
        for step, value in enumerate(values, 1)
    ]
    figures.save(path, figure, rows)
