"""Claims of Yu & Tomasi (2019), each with a criterion that was written before its runs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiment.claim import FIVE_SEEDS, Claim, Lines, line

RISKS = 20  # levels at which errors are compared
LEARNED = 1.0  # risk of a network that has left the plateau


def named(lines: Lines, metric: str, model: str) -> Mapping[str, Any]:
    """Return the line of a metric and a model.

    Raises:
        ValueError: if there is none.
    """
    return line([row for row in lines if row["model"] == model], metric)


def depths(lines: Lines, network: str = "residual") -> list[int]:
    """Return the depths of the networks of one kind, in increasing order."""
    models = [row["model"] for row in lines if row["metric"] == "test_error"]
    numbers = {model.removeprefix(network) for model in models if model.startswith(network)}
    return sorted(int(number) for number in numbers if number.isdigit())


def curves(lines: Lines, network: str, depth: int) -> Mapping[str, Any]:
    """Return the line of a network's test error, with its curves."""
    return named(lines, "test_error", f"{network}{depth}")


def extra_error(lines: Lines) -> float:
    """Return by how many points the transferred networks' test error is above the residual's."""
    errors = [
        curves(lines, "transferred", depth)["value"] - curves(lines, "residual", depth)["value"]
        for depth in depths(lines)
    ]
    return 100 * float(np.mean(errors))


def growth(lines: Lines) -> float:
    """Return how many times more a plain network's loss grows with depth than a residual one's."""
    shallow, deep = depths(lines)[0], depths(lines)[-1]
    plain, residual = (
        curves(lines, network, deep)["training_loss"]
        / curves(lines, network, shallow)["training_loss"]
        for network in ("plain", "residual")
    )
    return plain / residual


def advantage(lines: Lines) -> float:
    """Return the deepest networks' training loss or test error, plain over residual: the smaller.

    Both are larger in the plain network if this is above 1.
    """
    deep = depths(lines)[-1]
    plain, residual = (curves(lines, network, deep) for network in ("plain", "residual"))
    return min(plain[key] / residual[key] for key in ("training_loss", "value"))


def error_at(line_of_network: Mapping[str, Any], risks: Sequence[float]) -> np.ndarray:
    """Return a network's test error when its risk was as given, interpolated over the logarithm."""
    risk = np.minimum.accumulate(line_of_network["risk_by_epoch"])
    error = np.array(line_of_network["test_error_by_epoch"])
    lowered = np.flatnonzero(np.diff(risk, prepend=math.inf) < 0)[::-1]  # np.interp: increasing
    return np.interp(np.log(risks), np.log(risk[lowered]), error[lowered])


def error_at_equal_risk(lines: Lines) -> float:
    """Return by how many points the plain network's error is above the residual's at equal risk.

    It is the mean over risks that both went through, equally spaced by their logarithm. The
    networks are the shallowest, which both train.
    """
    depth = depths(lines)[0]
    pair = [curves(lines, network, depth) for network in ("plain", "residual")]
    lowest = max(min(row["risk_by_epoch"]) for row in pair)
    risks = np.geomspace(lowest, max(lowest, LEARNED), RISKS)
    plain, residual = (error_at(row, risks) for row in pair)
    return 100 * float(np.mean(plain - residual))


def widest_gap(lines: Lines) -> float:
    """Return after what share of the training the risks from both starts differ most.

    It is 1 if the network from Kaiming's start never has the larger risk.
    """
    deep = depths(lines, "transferred")[-1]
    kaiming, transferred = (
        np.array(curves(lines, network, deep)["risk_by_epoch"])
        for network in ("plain", "transferred")
    )
    gap = kaiming - transferred
    return (1 + int(gap.argmax())) / len(gap) if gap.max() > 0 else 1.0


def distance(lines: Lines) -> float:
    """Return how far the deepest residual network's kernels move, relative to their start."""
    model = f"residual{depths(lines)[-1]}"
    return named(lines, "percent_of_large_mass_in_identity_entries", model)["distance_from_start"]


def initial_penalties(lines: Lines) -> float:
    """Return by how many % the ratio of initial penalties differs from the paper's 268."""
    ratio = named(lines, "penalty_before_training_plain_over_residual", f"nets {depths(lines)[0]}")
    return 100 * abs(ratio["value"] / 268 - 1)


def dominant_accuracy(lines: Lines) -> float:
    """Return the accuracy of dominant entries in % of the residual networks', the lowest."""
    return min(
        100
        * (1 - curves(lines, "dominant", depth)["value"])
        / (1 - curves(lines, "residual", depth)["value"])
        for depth in depths(lines)
    )


def smaller_cushions(lines: Lines) -> float:
    """Return the % of layers whose cushion is not larger in the residual network."""
    rows = [row for row in lines if row["metric"] == "layers_without_larger_cushion"]
    return 100 * sum(row["value"] for row in rows) / sum(row["layers"] for row in rows)


def interlayer_ratio(lines: Lines) -> float:
    """Return the interlayer cushion of full networks, mean over blocks, residual over plain."""
    plain, residual = (
        next(
            row["value"]
            for row in lines
            if row["metric"] == "interlayer_cushion" and row["model"].startswith(network)
        )
        for network in ("full_plain", "full_residual")
    )
    return residual / plain


def extra_loss_to_noise(lines: Lines) -> float:
    """Return by how many points noise costs a plain network more accuracy, shallowest networks.

    There both kinds fit the training images, so that both have all their accuracy to lose.
    """
    shallow = depths(lines)[0]
    plain, residual = (
        named(lines, "accuracy_lost_to_noise", f"{network}{shallow}")["value"]
        for network in ("plain", "residual")
    )
    return plain - residual


def dominance(lines: Lines) -> float:
    """Return dominance, residual over plain, or its rise with the layer: the smaller, over depths.

    The rise is the ratio in the deep half of the layers over that in the shallow half.
    """
    numbers = []
    for depth in depths(lines):
        shallow, deep = (
            named(lines, f"dominance_of_residual_over_plain_{part}", f"nets {depth}")["value"]
            for part in ("shallow", "deep")
        )
        numbers += [shallow, deep / shallow]
    return min(numbers)


def simulation_gap(lines: Lines) -> float:
    """Return the difference of simulated and approximated dominance, mean over settings."""
    return named(lines, "largest_difference_of_approximation", "trivial networks")[
        "mean_difference"
    ]


TRAINED = {  # claims about the same trained networks; the first command trains most of them
    "paper": "yutomasi2019",
    "commands": (
        "noise_stability.py --networks=plain,residual,transferred,full_plain,full_residual",
        "plain_vs_residual.py --export=false",
    ),
}
DEEP = "fig8-depth56"
CLAIMS = [
    Claim(
        name="Y1",
        paper="yutomasi2019",
        section="section 4.1, Fig. 6",
        statement="A residual network and the plain network that computes the same function stay "
        "equal in training with double precision, but for rounding.",
        quantity="largest difference of a weight at the end of training",
        measure=lambda lines: lines[0]["value"],
        most=0.001,
        ratio=True,
        reason="The difference stays at rounding for the first 77 steps or more and then jumps by "
        "several orders of magnitude, most likely where a ReLU is open in one network only.",
        commands=("divergence.py",),
        figure="fig6",
        seeds=5,
        changed=FIVE_SEEDS,
    ),
    Claim(
        name="Y2",
        section="section 4.2, Table 2",
        statement="A plain network that starts equal to a residual one reaches its accuracy.",
        quantity="test error, transferred minus residual, mean over two depths, in points",
        measure=extra_error,
        most=1,
        figure="fig9",
        **TRAINED,
    ),
    Claim(
        name="Y3",
        section="section 4.2, Table 1",
        statement="Depth raises the training loss more in plain than in residual networks.",
        quantity="growth of the training loss from 20 to 56 layers, plain over residual",
        measure=growth,
        least=2,  # the paper: 4.0, from 20 to 44
        ratio=True,
        figure="fig9",
        **TRAINED,
    ),
    Claim(
        name="Y4",
        section="section 4.2, Table 1",
        statement="Deep residual networks have lower risk and test error than plain ones.",
        quantity="the smaller of training loss and test error with 56 layers, plain over residual",
        measure=advantage,
        least=1,
        ratio=True,
        figure=DEEP,
        **TRAINED,
    ),
    Claim(
        name="Y5",
        section="appendix D, Fig. 8",
        statement="At equal risk, residual networks have the lower test error.",
        quantity="test error at equal risk, 20 layers, plain minus residual, mean over risks, in "
        "points",
        measure=error_at_equal_risk,
        least=0,
        changed="At first over 20 and 56 layers; the plain network of 56 did not train in seed 0.",
        figure="fig8-depth20",
        **TRAINED,
    ),
    Claim(
        name="Y6",
        paper="yutomasi2019",
        section="appendix D.1, Fig. 9",
        statement="Plain networks from Kaiming's start and from the residual's part early in "
        "training.",
        quantity="share of the training after which their risks differ most, 32 layers",
        measure=widest_gap,
        most=0.5,  # the paper: 15 of 200 epochs
        changed="At first with 56 layers, where the plain network did not train in seed 0, so that "
        "the gap grew to the end; 32 is a depth of the paper's Fig. 9.",
        commands=("plain_vs_residual.py --networks=plain,transferred --depths=32 --export=false",),
        figure="fig9",
    ),
    Claim(
        name="Y7",
        section="appendix C, Fig. 7",
        statement="The weights of a residual network move little from their start.",
        quantity="distance of the plain kernels from their start over its norm, 56 layers",
        measure=distance,
        most=0.5,
        figure="fig7-depth56",
        **TRAINED,
    ),
    Claim(
        name="Y8",
        section="appendix D, Table 4",
        statement="At the start, the penalty of a plain network is 268 times the residual one's.",
        quantity="difference of the ratio from 268, in %",
        measure=initial_penalties,
        most=10,
        **TRAINED,
    ),
    Claim(
        name="Y9",
        section="section 5, Fig. 3",
        statement="Nearly all layer cushions of residual networks are larger than plain ones' (by "
        "definition: the identity counts in the output and not in the kernel's norm).",
        quantity="share of layers without a larger cushion, in %",
        measure=smaller_cushions,
        most=12,  # the paper: 2 of 18 layers
        figure="fig3-depth20",
        **TRAINED,
    ),
    Claim(
        name="Y10",
        section="section 5",
        statement="The interlayer cushions of fully-fledged residual blocks are much larger than "
        "those of plain ones.",
        quantity="interlayer cushion, mean over blocks, 20 layers, residual over plain",
        measure=interlayer_ratio,
        least=2,
        ratio=True,
        reason="The paper has one block of nine, it is lost which. Both kinds are alike before "
        "training, too: the normalizations scale both. Without them, in the simplified networks, "
        "the residual's cushions are the larger ones, by less than the factor of the criterion.",
        **TRAINED,
    ),
    Claim(
        name="Y11",
        section="section 5",
        statement="Noise on the weights hurts residual networks less.",
        quantity="accuracy lost to noise of 10 % on kernels, 20 layers, plain minus residual, in "
        "points",
        measure=extra_loss_to_noise,
        least=0,
        **TRAINED,
    ),
    Claim(
        name="Y12",
        section="section 5, Fig. 12",
        statement="Dominance is larger in residual networks, and more so in late layers.",
        quantity="the smaller of dominance in the shallow half, residual over plain, and the deep "
        "half's ratio over it; the smaller of two depths",
        measure=dominance,
        least=1,
        ratio=True,
        figure=DEEP.replace("8", "12"),
        **TRAINED,
    ),
    Claim(
        name="Y13",
        section="appendix D, Table 5",
        statement="Dominant entries alone reach over 75 % of the accuracy at any depth.",
        quantity="accuracy, dominant over residual, the lower of two depths, in %",
        measure=dominant_accuracy,
        least=75,
        figure=DEEP,
        **TRAINED,
    ),
    Claim(
        name="Y14",
        paper="yutomasi2019",
        section="appendix D, Fig. 11",
        statement="In the trivial case, the closed form of dominance agrees with its simulation.",
        quantity="difference of the probabilities, mean over 21 settings",
        measure=simulation_gap,
        most=0.05,
        commands=("trivial_dominance.py",),
        figure="fig11",
    ),
]
