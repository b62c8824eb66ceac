"""Claims of Srivastava et al. (2015), each with a criterion that was written before its runs."""

import statistics
from collections.abc import Mapping
from typing import Any

from experiment.claim import FIVE_SEEDS, Claim, Lines, line

KINDS = ("plain", "highway")  # of the networks of Fig. 1
DEPTHS = (10, 20, 50, 100)  # ibid.


def loss(lines: Lines, kind: str, depth: int) -> float:
    """Return the lowest training loss of Fig. 1's networks of one kind and depth."""
    return line(lines, "best_training_loss", kind=kind, depth=depth)["value"]


def epochs(lines: Lines, kind: str, depth: int) -> int:
    """Return after how many epochs the best network's training loss is below 0.1.

    One that does not get there counts with all epochs, which understates the difference.
    """
    losses = line(lines, "best_training_loss", kind=kind, depth=depth)["training_loss_by_epoch"]
    reached = [epoch for epoch, value in enumerate(losses, start=1) if value < 0.1]
    return min(reached, default=len(losses))


def growth(lines: Lines) -> float:
    """Return how many times more a plain network's loss grows from 10 to 100 layers."""
    plain, highway = (loss(lines, kind, 100) / loss(lines, kind, 10) for kind in KINDS)
    return plain / highway


def speed(lines: Lines) -> float:
    """Return how many times as many epochs the plain network takes, geometric mean over depths."""
    ratios = (epochs(lines, "plain", depth) / epochs(lines, "highway", depth) for depth in DEPTHS)
    return statistics.geometric_mean(ratios)


SEARCH = {
    "paper": "srivastava2015",
    "section": "section 3.1, Fig. 1",
    "ratio": True,
    "commands": ("mnist_depth_search.py",),
    "backend": "jax",
    "figure": "fig1",
    "seeds": 4,
    "changed": "four seeds, after three had left S1 and S2 undecided",
}
CLAIMS = [
    Claim(
        name="S1",
        statement="Plain networks degrade with depth, highway networks do not.",
        quantity="growth of the lowest training loss from 10 to 100 layers, plain over highway",
        measure=growth,
        least=10,
        **SEARCH,
    ),
    Claim(
        name="S2",
        statement="At 100 layers the highway network's training loss is over 100 times lower.",
        quantity="lowest training loss at 100 layers, plain over highway",
        measure=lambda lines: loss(lines, "plain", 100) / loss(lines, "highway", 100),
        least=100,
        reason="2,000 images are few enough that the plain network of 100 layers memorizes them, "
        "too: the losses of seeds 0 to 3 are 0.015 to 0.097, and the highway's 0.0012 to 0.012",
        **SEARCH,
    ),
    Claim(
        name="S3",
        statement="Highway networks converge faster.",
        quantity="epochs to a training loss of 0.1, plain over highway, mean over four depths",
        measure=speed,
        least=1,
        **SEARCH,
    ),
]


def opened_more_sparsely(lines: Lines) -> float:
    """Return how much sparser the gates of one example are than their mean."""
    row = lines[0]
    return row["sparsity_of_one_example"] - row["sparsity_of_the_mean"]


def fall(lines: Lines) -> float:
    """Return the last epoch's training loss over the first one's."""
    losses = lines[0]["training_loss_by_epoch"]
    return losses[-1] / losses[0]


GATES = {
    "paper": "srivastava2015",
    "commands": ("mnist_gates.py --export=false",),
    "backend": "jax",
    "seeds": 5,
    "changed": FIVE_SEEDS,
}
CLAIMS += [
    Claim(
        name="S4",
        paper="srivastava2015",
        section="section 2.2",
        statement="The training of 1,000 highway layers does not stall.",
        quantity="training loss of the last epoch over the first epoch's",
        measure=fall,
        most=0.5,
        ratio=True,
        commands=("mnist_1000_layers.py --export=false",),
        backend="jax",
        figure="section2.2",
    ),
    Claim(
        name="S5",
        section="section 4, Fig. 2",
        statement="Most gate biases fall in training.",
        quantity="share of the biases of T below their start, in %",
        measure=lambda lines: lines[0]["fallen_biases_percent"],
        least=50,
        figure="fig2",
        **GATES,
    ),
    Claim(
        name="S6",
        section="section 4, Fig. 2",
        statement="The gates of one example are sparse, their mean over examples is not.",
        quantity="Hoyer's sparsity of T, of one example minus that of the mean",
        measure=opened_more_sparsely,
        least=0.1,
        figure="fig2",
        **GATES,
    ),
    Claim(
        name="S7",
        section="section 4, Fig. 2",
        statement="The outputs of a 50-layer network change mainly in the first 15 layers.",
        quantity="share of the change of one example's outputs in the first 15 layers, in %",
        measure=lambda lines: lines[0]["change_in_first_layers_percent"],
        least=50,
        figure="fig2",
        reason="the images are memorized while the layers' mean biases are within 0.1 of their "
        "start, and the last ten layers' mean gates (0.14 to 0.16) are those of the first 15 (0.13 "
        "to 0.14)",
        **GATES,
    ),
    Claim(
        name="S8",
        section="section 4.1, Fig. 3",
        statement="On MNIST, classes open the gates differently in the first 15 layers.",
        quantity="share of the difference between classes' mean gates in the first 15 layers, in %",
        measure=lambda lines: lines[0]["class_differences_in_first_layers_percent"],
        least=50,
        figure="fig3",
        reason="the images are memorized while the layers' mean biases are within 0.1 of their "
        "start, and the last layers, next to the classifier, differ between classes as much "
        "as the first",
        **GATES,
    ),
    Claim(
        name="S9",
        section="section 4.2, Fig. 4",
        statement="About 60 % of the layers of a 50-layer network are idle on MNIST.",
        quantity="share of layers without which the training loss rises by less than 10 %, in %",
        measure=lambda lines: line(lines, "idle_layers_percent")["value"],
        least=50,
        figure="fig4",
        **GATES,
    ),
]


def of_data(lines: Lines, name: str) -> Mapping[str, Any]:
    """Return the line of the gates' study on a data set."""
    return next(row for row in lines if row["data"].startswith(name))


def further_layers(lines: Lines) -> float:
    """Return how many more % of the layers are idle on MNIST than on CIFAR-10."""
    return of_data(lines, "MNIST")["value"] - of_data(lines, "CIFAR-10")["value"]


def rise_of_biases(lines: Lines) -> float:
    """Return the correlation of a layer's mean bias of T with its depth, on CIFAR-10."""
    biases = of_data(lines, "CIFAR-10")["gate_bias_mean"]
    return statistics.correlation(range(len(biases)), biases)


HARDER = {
    **GATES,
    "commands": (*GATES["commands"], "mnist_gates.py --data=cifar10 --export=false"),
    "seeds": 3,
    "changed": "",
    "figure": "fig4-cifar10",
}
CLAIMS += [
    Claim(
        name="S10",
        section="section 4.2, Fig. 4",
        statement="Harder data use more of the layers (the paper: CIFAR-100 against MNIST).",
        quantity="share of idle layers, on MNIST minus on CIFAR-10, in points",
        measure=further_layers,
        least=10,
        **HARDER,
    ),
    Claim(
        name="S10b",
        section="section 4, Fig. 2",
        statement="On the harder data the gates' biases rise with depth.",
        quantity="correlation of a layer's mean bias with its depth, on CIFAR-10",
        measure=rise_of_biases,
        least=0.5,
        **{**HARDER, "figure": "fig2-cifar10"},
    ),
    Claim(
        name="S11",
        paper="srivastava2015",
        section="section 3.2, Table 1",
        statement="A convolutional highway network of 39,000 parameters classifies MNIST well.",
        quantity="test accuracy after 4,000 of the 180,000 iterations, 10,000 images, in %",
        measure=lambda lines: line(lines, "test_accuracy")["value"],
        least=97,
        changed="4,000 iterations with batches of 50, after 2,000 with batches of 100 had reached "
        "94.7 % (seed 0), the training loss still falling",
        commands=("highway_conv.py --export=false",),
    ),
]
