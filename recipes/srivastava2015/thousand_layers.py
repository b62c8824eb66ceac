"""Srivastava et al. (2015), section 2.2: a highway network of a thousand layers trains with SGD.

    python recipes/srivastava2015/thousand_layers.py --data_dir DATA

highway_mlp(1001) of 50 units on MNIST, its thousand highway layers one scanned stack, by plain SGD
with momentum. The paper: training networks of more than 1,000 layers "does not stall"; it says no
more of them. Ours: T's bias starts at -7, so that gates open to 0.0009 and the share of the input
after a thousand layers is (1 - 0.0009)^1000, or 0.4; from -4 it is 1e-8, and the loss stays at
ln 10, that of guessing.
"""

import dataclasses
import math

import keras
import numpy as np

import zoo
from zoo.recipes.experiment import Artifact, Claim, Experiment, ImageSettings, main, plots, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(ImageSettings):
    """Settings of the deep network."""

    depth: int = setting(1001, "Number of layers, a plain one first; section 2.2: over 1,000.")
    units: int = setting(50, "Units of a layer; section 3.1.")
    gate_bias: float = setting(-7.0, "Initial bias of T; ours.")
    rate: float = setting(0.05, "Learning rate; ours.")
    epochs: int = setting(400, "Number of epochs; the axis of Fig. 1.")


SCALES = {
    "smoke": Settings(depth=20, epochs=1, train_examples=200, test_examples=200),
    "miniature": Settings(epochs=10, train_examples=2000),
    "full": Settings(),
}


def measure(settings, run):
    """Train the network, and return its training losses by epoch."""
    data = run.images(settings, "highway_mlp")

    def build():
        return zoo.highway_mlp(
            settings.depth,
            settings.units,
            "tanh",
            gate_bias=settings.gate_bias,
            classes=data.images.classes,
            input_shape=data.shape,
            stacked=True,
        )

    def optimizer(_iterations):
        return keras.optimizers.SGD(settings.rate, momentum=0.9)

    identity = {"units": settings.units, "gate_bias": settings.gate_bias, "stacked": True}
    network = run.network(
        f"highway_mlp{settings.depth}", settings, data, build, optimizer, **identity
    )
    network.train()
    return {
        "loss_by_epoch": np.array(network.history["loss"]),
        "guessing": math.log(data.images.classes),
        "test_accuracy": network.accuracies[-1],
    }


def section2_2(seeds):
    """Draw the training loss of each epoch, and that of guessing."""
    rows = plots.with_seeds(
        seeds,
        lambda one: [
            {"epoch": epoch, "loss": loss} for epoch, loss in enumerate(one["loss_by_epoch"], 1)
        ],
    )
    marks = [{"loss": seeds[0]["guessing"], "label": "guessing"}]
    labels = {"loss": "mean training cross entropy, nats"}
    return plots.lines(rows, x="epoch", y="loss", marks=marks, labels=labels)


EXPERIMENTS = (
    Experiment(
        name="srivastava2015/thousand_layers",
        scales=SCALES,
        measure=measure,
        artifacts=[Artifact("section2.2", "a highway network of 1,000 layers trains", section2_2)],
        claims=[
            Claim(
                name="S4",
                section="section 2.2",
                statement="The training of 1,000 highway layers does not stall.",
                quantity="training loss of the last epoch over the first epoch's",
                measure=lambda one: one["loss_by_epoch"][-1] / one["loss_by_epoch"][0],
                at_most=0.5,
                ratio=True,
                figure="section2.2",
            )
        ],
        deviations=["rate, momentum, batch, epochs and gate bias are ours"],
    ),
)

if __name__ == "__main__":
    main("srivastava2015/thousand_layers")
