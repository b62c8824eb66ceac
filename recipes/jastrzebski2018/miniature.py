"""A miniature of ResNet-110 that `lesions.py` and `iterative_inference.py` inspect, trained once.

18 residual blocks (or the same layers without skips) on 5,000 images of MNIST averaged to 16 x 16
pixels, 208,170 parameters, 16 epochs to the end of the schedule: its training loss is then near the
paper's 0.0012, and its late blocks are redundant. Nine blocks a stage are needed: three refine
nothing.
"""

import dataclasses
import functools

import keras

from experiment import training
from experiment.flags import FLAGS
from experiment.training import Run, Study
from zoo import callbacks
from zoo.applications.cifar_resnet import preactivated
from zoo.applications.input_and_head import Top
from zoo.datasets import images as sources

STAGES = {  # channels, blocks and strides of each stage
    "smoke": ((8, 2, 1), (8, 2, 2)),
    "minutes": ((16, 9, 1), (32, 9, 2)),
}
MOMENTUM = 0.9  # of moving averages: 0.99 needs a longer training
PROBED = 256  # test images that are probed after each epoch
SMOKE_BATCH = 20
DEVIATION = "a miniature: 18 blocks, 16 x 16 pixels"
STUDY = Study(
    artifact="jastrzebski2018/fig5",
    preprocessing="miniature",
    batch=128,
    optimizer=lambda iterations: keras.optimizers.SGD(
        training.piecewise([0.1, 0.01, 0.001], [0.5, 0.75], 1)(iterations), momentum=0.9
    ),
    epochs=16,
    minutes=16,
    minutes_images=5000,
    tested=2000,
    paper={},
    resize=functools.partial(sources.averaged, side=16),
)


def train(variant: str = "residual") -> Run:
    """Train the network, "residual" or "plain", or find it trained.

    The run directory gets training.csv: the last stage's residual blocks after each epoch.
    """
    study = STUDY
    if FLAGS.budget == "smoke":
        study = dataclasses.replace(study, batch=SMOKE_BATCH)
    run = training.prepare(
        study,
        f"{variant}-miniature",
        "mnist",
        lambda images: build(variant, images),
        shared=True,
        probed=PROBED,
    )
    probing = []
    if variant == "residual":
        probes = [
            callbacks.IntermediateAccuracy(),
            callbacks.CosineLoss("block", "cosine_loss_block"),
            callbacks.L2Ratio(),
        ]
        probed = run.data.x_test[:PROBED], run.images.y_test[:PROBED]
        path = run.folder / "training.csv"
        probing.append(callbacks.RunProbes(probes, probed, batch_size=PROBED, path=path))
    training.train(run, probing)
    return run


def build(variant, images):
    """Return the network for these images."""
    stages = STAGES[FLAGS.budget]
    shape = images.x_train.shape[1:]
    top = Top(name=variant)
    return preactivated(
        stages[0][0], stages, images.classes, shape, top, variant, momentum=MOMENTUM
    )
