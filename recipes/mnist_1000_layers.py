"""Srivastava et al. (2015), section 2.2: a highway network of a thousand layers trains with SGD.

    python recipes/mnist_1000_layers.py --data_dir mnist.npz

highway_mlp(1001) of 50 units on MNIST, its thousand highway layers one scanned stack, by plain SGD
with momentum. The paper: training networks of more than 1,000 layers "does not stall"; it says no
more of them. Ours: T's bias starts at -7, so that gates open to 0.0009 and the share of the input
after a thousand layers is (1 - 0.0009)^1000, or 0.4; from -4 it is 1e-8, and the loss stays at
ln 10.

The run directory holds what highway_conv.py's holds, and section2.2.png and .csv: the training loss
of each epoch. Not stalled means that it falls below that of guessing, ln 10 = 2.303. The result is
the last of these losses.
"""

import math

from experiment.script import run_script

import keras
from absl import flags

import zoo
from experiment import flags as common
from experiment import training
from srivastava2015 import figures

UNITS = 50  # section 3.1
GATE_BIAS = -7.0  # ours
DEPTH = 1001  # section 2.2: more than 1,000, the plain first layer among them
SMOKE_DEPTH = 20

flags.DEFINE_integer(
    "depth", None, f"Number of layers. Default: {DEPTH}; smoke: {SMOKE_DEPTH}.", lower_bound=2
)
flags.DEFINE_float("rate", 0.05, "Learning rate.", lower_bound=0.0)  # ours
common.define_image_flags()
FLAGS = flags.FLAGS

STUDY = training.Study(
    artifact="srivastava2015/section2.2",
    preprocessing="highway_mlp",
    batch=100,  # ours
    optimizer=lambda iterations: keras.optimizers.SGD(FLAGS.rate, momentum=0.9),  # ours
    epochs=400,  # the axis of Fig. 1
    scales=False,
    minutes=10,  # ours
    minutes_images=2000,
    paper={"MNIST": None},
)


def main():
    """Run the recipe."""
    name = f"highway_mlp{depth()}"
    run = training.prepare(STUDY, name, "mnist", build, depth=depth())
    training.train(run)
    losses = run.history["loss"]
    guess = math.log(run.images.classes)
    rows = [
        {"epoch": epoch, "loss": loss, "guessing": guess} for epoch, loss in enumerate(losses, 1)
    ]
    figures.section2_2(run.folder / "section2.2.png", rows)
    stalled = "stalled" if losses[-1] > 0.99 * guess else "did not stall"
    print(f"training loss {losses[0]:.4f} to {losses[-1]:.4f}, guessing {guess:.4f}: {stalled}")
    training.finish(
        run,
        name,
        {"units": UNITS, "gate_bias": GATE_BIAS, "rate": FLAGS.rate},
        run.paper,
        [] if depth() > 1000 else [f"{depth()} layers, not more than 1,000"],
        ["rate, momentum, batch, epochs and gate bias are ours"],
        measured=("training_loss", round(losses[-1], 5)),
        test_accuracy=round(training.accuracy_percent(run.history)[-1], 3),
        training_loss_by_epoch=[round(loss, 5) for loss in losses],
        found=stalled,
    )


def depth():
    """Return the number of layers: --depth, or the budget's."""
    return FLAGS.depth or (SMOKE_DEPTH if FLAGS.budget == "smoke" else DEPTH)


def build(images):
    """Return the network for these images, always one scanned stack."""
    return zoo.highway_mlp(
        depth(),
        UNITS,
        "tanh",
        gate_bias=GATE_BIAS,
        classes=images.classes,
        input_shape=images.x_train.shape[1:],
        stacked=True,
    )


if __name__ == "__main__":
    run_script(main)
