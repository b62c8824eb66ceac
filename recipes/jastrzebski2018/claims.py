"""Claims of Jastrzebski et al. (2018), each with a criterion that was written before its runs."""

import statistics
from collections.abc import Mapping
from typing import Any

from experiment.claim import FIVE_SEEDS, Claim, Lines, line

LAST_BLOCKS = 5  # of Fig. 6


def negative_blocks(lines: Lines) -> float:
    """Return the share of blocks whose cosine loss is negative, in %."""
    row = line(lines, "cosine_loss_of_last_block")
    return 100 * row["negative_blocks"] / row["blocks"]


def cosine_of_high_blocks(lines: Lines) -> float:
    """Return the mean cosine loss of the later half of the blocks minus the earlier half's."""
    cosines = line(lines, "cosine_loss_of_last_block")["by_block"]
    middle = len(cosines) // 2
    return statistics.fmean(cosines[middle:]) - statistics.fmean(cosines[:middle])


def ratio_of_last_blocks(lines: Lines) -> float:
    """Return the mean l2 ratio of the last five blocks."""
    return statistics.fmean(line(lines, "l2_ratio_of_last_block")["by_block"][-LAST_BLOCKS:])


def growth_of_ratio(lines: Lines) -> float:
    """Return the mean l2 ratio of the last stage after the last epoch over the first epoch's."""
    ratios = line(lines, "l2_ratio_of_last_stage")["by_probed_epoch"]
    return ratios[-1] / ratios[0]


def largest_step(lines: Lines) -> float:
    """Return the largest step of the early readout, as a share of its rise in the stage, in %."""
    accuracies = line(lines, "intermediate_accuracy")["by_block_of_last_stage"]
    steps = [after - before for before, after in zip(accuracies, accuracies[1:], strict=False)]
    rise = accuracies[-1] - accuracies[0]
    return 100 * max(steps) / rise if rise > 0 else float("inf")


def gain_of_borderline(lines: Lines) -> float:
    """Return the accuracy that borderline examples gain minus that of all examples, in points."""
    groups = line(lines, "borderline_accuracy")["by_block"]
    gains = {group: values[-1] - values[0] for group, values in groups.items()}
    return gains["borderline"] - gains["all"]


def gain_by_unrolling(lines: Lines) -> float:
    """Return the accuracy that borderline examples gain by the repetitions, in points."""
    row = line(lines, "borderline_accuracy_unrolled")
    return row["value"] - row["before"]


def negative_repetitions(lines: Lines) -> float:
    """Return the share of the scaled repetitions whose cosine loss is negative, in %."""
    row = line(lines, "repetitions_with_negative_cosine")
    return 100 * row["value"] / row["repetitions"]


def unscaled_repetitions(lines: Lines) -> float:
    """Return after how many unscaled repetitions the cosine loss is first not negative."""
    cosines = line(lines, "repetitions_with_negative_cosine")["cosines"]["1.0"]
    return next((i for i, cosine in enumerate(cosines) if cosine >= 0), len(cosines))


def at_start(lines: Lines, network: str) -> Mapping[str, Any]:
    """Return the line of one of the paper's networks before training."""
    return line(lines, "growth_of_activation_norm_before_training", network=network)


def growth(lines: Lines, network: str, other: str, key: str = "value") -> float:
    """Return how many times more the norm of activations grows in one network than in another."""
    return at_start(lines, network)[key] / at_start(lines, other)[key]


def accuracy(lines: Lines, network: str) -> float:
    """Return the test accuracy of a trained network in %."""
    return line(lines, "test_accuracy_of_sharing", network=network)["value"]


def gap(lines: Lines, network: str) -> float:
    """Return training minus test accuracy of a network, in points."""
    row = line(lines, "test_accuracy_of_sharing", network=network)
    return row["training_accuracy"] - row["value"]


def repair_by_statistics(lines: Lines) -> float:
    """Return the share of UBN's gain over naive sharing that the statistics alone have, in %."""
    naive, statistics_, ubn = (accuracy(lines, name) for name in ("naive", "statistics", "ubn"))
    return 100 * (statistics_ - naive) / (ubn - naive) if ubn > naive else float("nan")


REFINEMENT = {
    "paper": "jastrzebski2018",
    "commands": ("iterative_inference.py --export=false",),
    "seeds": 5,
    "changed": FIVE_SEEDS,
}
CLAIMS = [
    Claim(
        name="J1",
        section="section 4.1, Fig. 4",
        statement="The cosine of a block's branch and the loss's gradient is negative.",
        quantity="share of the blocks whose cosine loss on test images is negative, in %",
        measure=negative_blocks,
        least=90,
        figure="fig4-miniature",
        **REFINEMENT,
    ),
    Claim(
        name="J1b",
        section="section 4.1, Fig. 4",
        statement="The cosine loss is more negative in high blocks.",
        quantity="mean cosine loss of the later half of the blocks minus the earlier half's",
        measure=cosine_of_high_blocks,
        most=-0.05,
        figure="fig4-miniature",
        **REFINEMENT,
    ),
    Claim(
        name="J2",
        section="section 4.2, Fig. 2",
        statement="High blocks change the representation little.",
        quantity="mean l2 ratio of the last five blocks on test images",
        measure=ratio_of_last_blocks,
        most=0.5,
        figure="fig2-miniature",
        **REFINEMENT,
    ),
    Claim(
        name="J3",
        section="appendix C, Fig. 14",
        statement="The l2 ratio of the last stage's blocks rises in training.",
        quantity="mean l2 ratio of the last stage, after the last epoch over after the first",
        measure=growth_of_ratio,
        least=1,
        ratio=True,
        figure="fig14-miniature",
        **REFINEMENT,
    ),
    Claim(
        name="J4",
        section="section 4.2, Fig. 5",
        statement="The accuracy of the early readout rises gradually over the last stage.",
        quantity="largest step between two blocks, as a share of the whole rise, in %",
        measure=largest_step,
        most=50,
        figure="fig5-miniature",
        **REFINEMENT,
    ),
    Claim(
        name="J5",
        section="section 4.3, Fig. 6",
        statement="The last blocks correct mainly borderline examples.",
        quantity="test accuracy that borderline examples gain over the last five blocks, beyond "
        "that of all examples, in points",
        measure=gain_of_borderline,
        least=10,
        figure="fig6-miniature",
        **REFINEMENT,
    ),
    Claim(
        name="J6",
        section="section 4.4, Fig. 7",
        statement="Repeating the last block, scaled, lowers the training loss.",
        quantity="training loss after 20 repetitions over before",
        measure=lambda lines: line(lines, "training_loss_unrolled_over_trained")["value"],
        most=0.95,
        ratio=True,
        figure="fig7-miniature",
        **REFINEMENT,
    ),
    Claim(
        name="J6b",
        section="section 4.4, Fig. 7",
        statement="Repeating the last block, scaled, corrects borderline examples.",
        quantity="accuracy of borderline test examples after 20 repetitions minus before, in "
        "points",
        measure=gain_by_unrolling,
        least=5,
        reason="few examples: 2 to 6 of 25 to 45 become wrong, in the paper 5 of 51 right; "
        "their loss rises, as the paper says of test images",
        figure="fig7-miniature",
        **REFINEMENT,
    ),
    Claim(
        name="J7",
        section="section 4.4, appendix E, Fig. 20",
        statement="With f scaled, the cosine loss of every repetition is negative.",
        quantity="share of 20 scaled repetitions whose cosine loss is negative, in %",
        measure=negative_repetitions,
        least=95,
        figure="fig20-miniature",
        **REFINEMENT,
    ),
    Claim(
        name="J7b",
        section="section 4.4, appendix E, Fig. 20",
        statement="Without scaling, the cosine loss is negative for the first repetitions only.",
        quantity="first repetitions with a negative cosine loss, of 20 (the paper: 2)",
        measure=unscaled_repetitions,
        most=10,
        figure="fig20-miniature",
        **REFINEMENT,
    ),
]

SHARING = {
    "paper": "jastrzebski2018",
    "commands": ("shared_blocks.py --export=false",),
}
CLAIMS += [
    Claim(
        name="J8",
        section="section 4.5, Fig. 8",
        statement="With naive sharing activations explode before training.",
        quantity="growth of the activation norm through 110 layers of naive sharing over that "
        "through ResNet-38, moving averages at their initial values",
        measure=lambda lines: growth(lines, "naive", "unshared"),
        least=10,
        ratio=True,
        figure="fig8-start-initial-averages",
        **SHARING,
    ),
    Claim(
        name="J8b",
        section="section 4.5, Fig. 8",
        statement="With naive sharing activations explode even where batches normalize.",
        quantity="growth of the activation norm through 110 layers of naive sharing over that "
        "through ResNet-38, the batch's statistics",
        measure=lambda lines: growth(lines, "naive", "unshared", "with_batch_statistics"),
        least=10,
        ratio=True,
        reason="where batches normalize, each use adds a branch of the same norm: the norm grows "
        "linearly, not exponentially, with the number of uses",
        figure="fig8-start-batch-statistics",
        **SHARING,
    ),
    Claim(
        name="J8c",
        section="section 4.5, Fig. 8",
        statement="Naive sharing has a larger ratio of gradient norms between stages.",
        quantity="gradient norm of the first stage over the last before training, naive sharing "
        "over ResNet-38",
        measure=lambda lines: growth(
            lines, "naive", "unshared", "gradient_norm_first_to_last_stage"
        ),
        least=2,
        ratio=True,
        figure="fig8-start-batch-statistics",
        **SHARING,
    ),
    Claim(
        name="J9",
        section="section 4.5, Fig. 8",
        statement="Naive sharing overfits: test accuracy falls far below training accuracy.",
        quantity="training minus test accuracy, naive sharing minus no sharing, in points",
        measure=lambda lines: gap(lines, "naive") - gap(lines, "unshared"),
        least=5,
        figure="fig9-miniature",
        **SHARING,
    ),
    Claim(
        name="J10",
        section="section 4.5, Table 1",
        statement="With unshared normalization (UBN) sharing does as well as no sharing.",
        quantity="test accuracy of UBN minus that without sharing, in points",
        measure=lambda lines: accuracy(lines, "ubn") - accuracy(lines, "unshared"),
        least=-1,
        figure="fig9-miniature",
        **SHARING,
    ),
    Claim(
        name="J10b",
        section="section 4.5, Fig. 9",
        statement="Of UBN's parts, unsharing the statistics matters most.",
        quantity="share of UBN's gain in test accuracy over naive sharing that unshared "
        "statistics alone have, in %",
        measure=repair_by_statistics,
        least=50,
        figure="fig9-miniature",
        **SHARING,
    ),
    Claim(
        name="J10c",
        section="section 4.5, Fig. 9",
        statement="UBN prevents the explosion of activations before training.",
        quantity="growth of the activation norm through 110 layers, naive sharing over UBN, moving "
        "averages at their initial values",
        measure=lambda lines: growth(lines, "naive", "ubn"),
        least=10,
        ratio=True,
        figure="fig8-start-initial-averages",
        **SHARING,
    ),
]
