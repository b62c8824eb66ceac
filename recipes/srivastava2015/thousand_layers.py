"""Srivastava et al. (2015), section 2.2: a highway network of a thousand layers trains with SGD.

    python recipes/srivastava2015/thousand_layers.py --data_dir DATA

highway_mlp(1001) of 50 units on MNIST, its thousand highway layers one scanned stack, by plain SGD
with momentum; and, as a control, a thousand plain layers. The paper: training networks of more than
1,000 layers "does not stall"; it says no more of them. Ours: T's bias starts at -7, so that gates
open to 0.0009 and the share of the input after a thousand layers is (1 - 0.0009)^1000, or 0.4; from
-4 it is 1e-8, and the loss stays at ln 10, that of guessing.
"""

import functools
import math

import keras
import numpy as np

import zoo
from zoo.recipes import experiment
from zoo.recipes.experiment import Artifact, Claim, Experiment, main, plots, setting
from zoo.recipes.experiment.definitions import contrast


class Settings(experiment.ImageSettings):
    """Settings of the deep network."""

    depth: int = setting(1001, "Number of layers, a plain one first; section 2.2: over 1,000.")
    units: int = setting(50, "Units of a layer; section 3.1.")
    gate_bias: float = setting(-7.0, "Initial bias of T; ours.", least=-math.inf)
    rate: float = setting(0.05, "Learning rate; ours.")
    epochs: int = setting(400, "Number of epochs; the axis of Fig. 1.")


SCALES = {
    "smoke": Settings(depth=20, epochs=1, train_examples=200, test_examples=200),
    "miniature": Settings(epochs=10, train_examples=2000),
    "full": Settings(),
}


def measure(settings, run):
    """Train both networks, and return their training losses by epoch."""
    data = run.images(settings, "highway_mlp")
    sgd = functools.partial(keras.optimizers.SGD, settings.rate, momentum=0.9)
    measured = {"guessing": math.log(data.images.classes), "loss_by_epoch": {}}
    options = {"units": settings.units, "gate_bias": settings.gate_bias, "stacked": True}
    mlp = functools.partial(zoo.highway_mlp, settings.depth, activation="tanh", **options)
    for name, variant in (("highway", "coupled"), ("plain", "plain")):
        build = functools.partial(mlp, variant=variant, **data.sizes)
        folder = f"{name}_mlp{settings.depth}"
        network = run.network(folder, settings, data, build, lambda _: sgd(), **options)
        network.train()
        measured["loss_by_epoch"][name] = np.array(network.history["loss"])
    return measured


def section2_2(seeds):
    """Draw the training losses of each epoch, and that of guessing."""

    def rows_of(one):
        for name, losses in one["loss_by_epoch"].items():
            yield from plots.numbered("epoch", {"loss": losses}, network=name)

    rows = plots.with_seeds(seeds, rows_of)
    marks = [{"loss": seeds[0]["guessing"], "label": "guessing"}]
    labels = {"loss": "mean training cross entropy, nats"}
    return plots.lines(rows, x="epoch", y="loss", by="network", marks=marks, labels=labels)


def fall(one, name):
    """Return a network's training loss of the last epoch over the first epoch's."""
    losses = one["loss_by_epoch"][name]
    return float(losses[-1] / losses[0])


EXPERIMENT = Experiment(
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
            **contrast(fall, "highway", "plain", "1,000 plain layers"),
            at_most=0.5,
            ratio=True,
            figure="section2.2",
        )
    ],
    deviations=["rate, momentum, batch, epochs and gate bias are ours"],
)

if __name__ == "__main__":
    main("srivastava2015/thousand_layers")
