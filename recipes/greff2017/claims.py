"""Claims of Greff et al. (2017), each with a criterion that was written before its runs."""

import statistics
from collections.abc import Mapping
from typing import Any

from experiment.claim import FIVE_SEEDS, Claim, Lines, line
from greff2017.variants import kendall

TOLERATED = 5  # points of accuracy; ours


def stages(lines: Lines) -> list[list[tuple[float, float]]]:
    """Return mean and deviation of the estimation error of each block, stage by stage."""
    return line(lines, "estimation_error", network="resnet_bn")["by_stage"]


def bias(lines: Lines) -> float:
    """Return the mean of |mean error| / deviation over the blocks that Fig. 3 finds unbiased.

    Those are the blocks of all stages but the last; the last block of a stage has no error.
    """
    blocks = [block for stage in stages(lines)[:-1] for block in stage[:-1]]
    return statistics.fmean(abs(mean) / deviation for mean, deviation in blocks)


def refinement(lines: Lines) -> float:
    """Return the deviation before a stage's last block over that after its first."""
    return statistics.geometric_mean(stage[-2][1] / stage[0][1] for stage in stages(lines))


def residual_mean(lines: Lines) -> float:
    """Return the relative mean of residual functions, with normalization over without."""
    normalized, other = (
        statistics.fmean(line(lines, "estimation_error", network=name)["relative_residual_mean"])
        for name in ("resnet_bn", "resnet")
    )
    return normalized / other


def highway_error(lines: Lines) -> float:
    """Return the test error of the normalized highway network over the residual one's."""
    errors = order(lines)["errors"]
    return errors["highway_bn"] / errors["resnet_bn"]


def overfit(lines: Lines) -> float:
    """Return the smallest of four ratios; all are above 1 if normalization prevents overfitting.

    They are, of the residual and of the highway network, the test error without over with
    normalization, and the training loss with over without.
    """
    errors, losses = order(lines)["errors"], order(lines)["training_loss"]
    return min(
        ratio
        for name in ("resnet", "highway")
        for ratio in (errors[name] / errors[f"{name}_bn"], losses[f"{name}_bn"] / losses[name])
    )


def order(lines: Lines) -> Mapping[str, Any]:
    """Return the line that compares the 50-layer networks."""
    return line(lines, "kendall_tau_with_the_paper's_order")


IMAGENET = {
    "paper": "greff2017",
    "commands": (
        "imagenet_resnet50.py --networks=highway,resnet,highway_bn,resnet_bn --export=false",
    ),
    "backend": "jax",
}
CURVES = "fig5-highway-resnet-highway_bn-resnet_bn"
CLAIMS = [
    Claim(
        name="G1",
        section="section 4.2, Fig. 3",
        statement="Blocks estimate the last output of their stage without bias.",
        quantity="|mean| over deviation of the estimation error, mean over blocks of stage 1",
        measure=bias,
        most=0.25,
        figure="fig3-resnet_bn",
        reason="The ReLU after the sum cuts negative values, so that outputs grow along a stage "
        "although E[F] is near 0: in stage 1 of seed 0 the residuals of blocks 2 to 4 have means "
        "of 0.05, 0.03 and 0.03, and the last output's mean is 0.68 above the first's.",
        **IMAGENET,
    ),
    Claim(
        name="G2",
        section="section 4.2, Fig. 3",
        statement="The deviation of the estimation error decreases over the blocks of a stage.",
        quantity="deviation before the last block over that after the first, mean over stages",
        measure=refinement,
        most=0.8,
        ratio=True,
        figure="fig3-resnet_bn",
        **IMAGENET,
    ),
]


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
    "seeds": 5,
    "changed": FIVE_SEEDS,
}
CLAIMS += [
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
        reason="the first stage: a swap in the second stage alone costs 0 to 1.2 points "
        "(medians of 8 orders, three seeds), one in the first alone 6 to 79. And one "
        "swap disorders nine blocks more (tau about 0.6) than the 54 of Veit et al.",
        figure="section4.4",
        **LESIONS,
    ),
]
GATED = ("c_only", "coupled", "full")  # with a multiplicative carry gate


def perplexities(lines: Lines) -> Mapping[str, float]:
    """Return the test perplexity of the six language models, by variant."""
    return line(lines, "kendall_tau_with_the_paper's_order", variant="all")["test_perplexity"]


def gain_of_carry_gates(lines: Lines) -> float:
    """Return the worst perplexity with a carry gate over the best of the other variants."""
    values = perplexities(lines)
    others = min(value for variant, value in values.items() if variant not in GATED)
    return max(values[variant] for variant in GATED) / others


def distance(lines: Lines) -> float:
    """Return by how many % the perplexities of residual and plain differ."""
    values = perplexities(lines)
    return 100 * abs(values["residual"] / values["plain"] - 1)


def gain_of_transform_gates(lines: Lines) -> float:
    """Return the perplexity of t_only over that of residual."""
    values = perplexities(lines)
    return values["t_only"] / values["residual"]


PTB = {
    "paper": "greff2017",
    "section": "section 5.2, Table 1a",
    "commands": ("ptb_char_lm.py --variant=all --export=false",),
    "backend": "jax",
    "figure": "table1a",
}
CLAIMS += [
    Claim(
        name="G5",
        statement="Of six forms, those with a multiplicative carry gate model language best.",
        quantity="worst test perplexity of c_only, coupled and full over the best of the others",
        measure=gain_of_carry_gates,
        most=1,
        reason="at this size (1,000 words, 100,000 tokens) the form of the two highway layers "
        "hardly matters: the six perplexities of a seed are within 6 %, and the plain layers' is "
        "the lowest in two of three",
        ratio=True,
        **PTB,
    ),
    Claim(
        name="G6",
        statement="The residual form is hardly better than a plain layer.",
        quantity="difference of the test perplexities of residual and plain, in %",
        measure=distance,
        most=5,
        **PTB,
    ),
    Claim(
        name="G7",
        statement="A transform gate alone is far better than the residual form.",
        quantity="test perplexity, t_only over residual",
        measure=gain_of_transform_gates,
        most=0.95,
        ratio=True,
        **PTB,
    ),
]
CLAIMS += [
    Claim(
        name="G8",
        section="section 5.1, Table 1b, Fig. 5",
        statement="With normalization, highway and residual networks perform very similarly.",
        quantity="test error, highway over residual",
        measure=highway_error,
        most=1.25,
        ratio=True,
        figure=CURVES,
        **IMAGENET,
    ),
    Claim(
        name="G8b",
        section="section 5.1, Table 1b, Fig. 5",
        statement="Without normalization, both networks fit better and generalize worse.",
        quantity="smallest of four ratios: test error without over with normalization, and "
        "training loss with over without, of both networks",
        measure=overfit,
        least=1,
        ratio=True,
        figure=CURVES,
        reason="The errors are higher without normalization, as in the paper, but 18 epochs, "
        "where the paper has 90, are too few to fit without it: the loss still falls when the "
        "rate drops.",
        **IMAGENET,
    ),
    Claim(
        name="G9",
        section="sections 3.2 and 5.1, equation 9",
        statement="Batch normalization keeps the expected residual near zero.",
        quantity="norm of E[F] over the root mean square of F, with normalization over without",
        measure=residual_mean,
        most=0.5,
        ratio=True,
        figure="section3.2",
        **IMAGENET,
    ),
]


def error_of_pointwise_gates(lines: Lines) -> float:
    """Return the test error of the highway network with 1 x 1 gates over that with gates like H."""
    pointwise, like_h = (
        line(lines, "kendall_tau_with_the_paper's_order", networks=networks)["errors"]["highway_bn"]
        for networks in ("highway_bn,resnet_bn", "highway,resnet,highway_bn,resnet_bn")
    )
    return pointwise / like_h


CLAIMS += [
    Claim(
        name="G10",
        paper="greff2017",
        section="section 5.1, on He et al. (2016)",
        statement="Gates need the receptive field of H: with 1 x 1 gates highways do worse.",
        quantity="test error of the normalized highway network, gates of 1 x 1 over gates like H",
        measure=error_of_pointwise_gates,
        least=1.1,
        ratio=True,
        commands=(
            *IMAGENET["commands"],
            "imagenet_resnet50.py --networks=highway_bn,resnet_bn --gates=pointwise --export=false",
        ),
        backend="jax",
        figure="fig5-highway_bn_1x1-resnet_bn",
    ),
]
