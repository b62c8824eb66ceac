"""A miniature of ResNet-110, which the experiments on lesions and on iterative inference share.

18 residual blocks (or the same layers without skips) on 5,000 images of MNIST averaged to 16 x 16
pixels, 208,170 parameters, 16 epochs to the end of the schedule: its training loss is then near the
paper's 0.0012, and its late blocks are redundant. Nine blocks a stage are needed: three refine
nothing.
"""

import dataclasses
import functools

import keras

from zoo import callbacks
from zoo.applications.cifar_resnet import preactivated
from zoo.applications.registry import Top
from zoo.datasets.images import averaged
from zoo.recipes.experiment import ImageSettings, setting
from zoo.recipes.experiment.networks import piecewise

MOMENTUM = 0.9  # of moving averages: 0.99 needs a longer training
PROBED = 256  # test images that are probed after each epoch
VALIDATED = 2000  # test images of the learning curve


@dataclasses.dataclass(frozen=True, kw_only=True)
class Miniature(ImageSettings):
    """Settings of the miniature's training; ours."""

    train_examples: int | None = setting(5000, "Train on the first N images only; none: all.")
    side: int = setting(16, "Side of the averaged images, in pixels.")
    widths: tuple[int, ...] = setting((16, 32), "Channels of each stage.")
    blocks: int = setting(9, "Blocks of a stage.")
    batch: int = setting(128, "Images in a batch.")
    epochs: int = setting(16, "Number of epochs.")


SMOKE = Miniature(widths=(8, 8), blocks=2, batch=20, epochs=1, train_examples=40, test_examples=40)


def optimizer(iterations):
    """Return the optimizer of a training of so many iterations."""
    rate = piecewise([0.1, 0.01, 0.001], [0.5, 0.75], 1)(iterations)
    return keras.optimizers.SGD(rate, momentum=0.9)


def train(settings, run, variant="residual"):
    """Return the trained network, "residual" or "plain".

    The file training.csv in its folder has probes of the last stage's residual blocks after each
    epoch.
    """
    resize = functools.partial(averaged, side=settings.side)
    data = run.images(settings, "miniature", tested=VALIDATED, resize=resize)
    stages = tuple(
        (width, settings.blocks, 1 + (index > 0)) for index, width in enumerate(settings.widths)
    )

    def build():
        top = Top(name=variant)
        first = settings.widths[0]
        classes = data.images.classes
        return preactivated(first, stages, classes, data.shape, top, variant, momentum=MOMENTUM)

    name = f"{variant}-miniature"
    network = run.network(
        name, settings, data, build, optimizer, widths=settings.widths, blocks=settings.blocks
    )
    probing = []
    if variant == "residual":
        probes = [
            callbacks.IntermediateAccuracy(),
            callbacks.CosineLoss("block", "cosine_loss_block"),
            callbacks.L2Ratio(),
        ]
        probed = data.x_test[:PROBED], data.images.y_test[:PROBED]
        path = network.folder / "training.csv"
        probing.append(callbacks.RunProbes(probes, probed, batch_size=PROBED, path=path))
    network.train(probing)
    return network
