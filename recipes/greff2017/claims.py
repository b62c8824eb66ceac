"""Claims of Greff et al. (2017), each with a criterion that was written before its runs."""

import statistics

from greff2017.variants import kendall
from report.claim import Claim, Lines, line

TOLERATED = 5  # points of accuracy; ours


def spared(lines: Lines) -> float:
    """Return the share of blocks that can be left out for `TOLERATED` points of accuracy, in %."""
    row = line(lines, "accuracy_without_a_block")
    accuracies = [*row["by_block"].values()]
    floor = row["whole"] - TOLERATED
    return 100 * sum(accuracy >= floor for accuracy in accuracies) / len(accuracies)


def smoothness(lines: Lines) -> float:
    """Return Kendall's correlation of the test accuracy and the order of the blocks, over orders.

    The order is itself measured by its Kendall tau with the trained one.
    """
    orders = line(lines, "accuracy_after_a_swap_in_each_stage")["orders"]
    return kendall([order["accuracy"] for order in orders], [order["tau"] for order in orders])


def cost_of_a_swap(lines: Lines) -> float:
    """Return the median test error that a swap of two blocks in each stage adds, in points."""
    row = line(lines, "accuracy_after_a_swap_in_each_stage")
    swapped = [order["accuracy"] for order in row["orders"] if order["swaps"] == 1]
    return row["whole"] - statistics.median(swapped)


LESIONS = {
    "paper": "greff2017",
    "commands": ("lesions.py --networks=residual --export=false",),
}
CLAIMS = [
    Claim(
        name="G3",
        section="sections 2 and 4.4, after Veit et al. (2016)",
        statement="Most blocks of a residual network can be left out, one at a time.",
        quantity="share of the blocks without which it keeps its test accuracy to 5 points, in %",
        measure=spared,
        least=50,
        figure="section2",
        **LESIONS,
    ),
    Claim(
        name="G4",
        section="sections 2 and 4.4, after Veit et al. (2016)",
        statement="The error rises smoothly with the disorder of a stage's blocks.",
        quantity="Kendall's correlation of the order's tau and the test accuracy, over 30 orders",
        measure=smoothness,
        least=0.4,
        figure="section4.4",
        **LESIONS,
    ),
    Claim(
        name="G4b",
        section="section 2, after Veit et al. (2016)",
        statement="Many orders of a stage's blocks increase the error only a little.",
        quantity="median test error that a swap of two blocks in each stage adds, in points",
        measure=cost_of_a_swap,
        most=10,
        figure="section4.4",
        **LESIONS,
    ),
]
