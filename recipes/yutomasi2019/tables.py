"""Tables 1 to 5 and Figs 7 to 9 of Yu & Tomasi (2019): the paper's numbers, ours, the results."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import zoo
from experiment import plots
from experiment.flags import FLAGS
from yutomasi2019 import figures, networks
from yutomasi2019.networks import Trained
from zoo.applications.simplified_resnet import WIDTHS

TRAINED = {  # training loss, the same with the penalty, test error, by depth
    "plain": {  # Table 1
        20: (0.07227, 0.07304, 0.1263),
        32: (0.1225, 0.1234, 0.1349),
        44: (0.4950, 0.4962, 0.2213),
    },
    "residual": {  # Tables 1 and 2
        20: (0.04287, 0.04338, 0.1131),
        32: (0.04847, 0.04903, 0.1143),
        44: (0.07397, 0.07459, 0.1182),
    },
    "transferred": {  # Table 2
        20: (0.04132, 0.04183, 0.1121),
        32: (0.04880, 0.04936, 0.1085),
        44: (0.07345, 0.07407, 0.1159),
    },
    "dominant": {  # Table 5
        20: (0.9385, None, 0.3152),
        32: (0.9440, None, 0.3119),
        44: (0.9397, None, 0.3183),
    },
}
UNKNOWN = (None, None, None)
PENALTIES = {  # Table 4: before and after training; Table 2 gives the residual networks' after
    "plain": {
        20: (5.393e-4, 7.743e-4),
        32: (8.878e-4, 9.458e-4),
        44: (1.238e-3, 1.180e-3),
    },
    "transferred": {20: (None, 5.122e-4), 32: (None, 5.561e-4), 44: (None, 6.194e-4)},
}
STARTS = {  # Table 4: training loss before
    "plain": {20: 2.309, 32: 2.308, 44: 2.309},
    "residual": {20: 2.305, 32: 2.305, 44: 2.306},
}
CIFAR = (32, 32, 3), 10  # the paper's images and number of classes
LOSS_OVER_PENALTY = {"plain": {20: 4281}}  # appendix D, before training
PLAIN_OVER_RESIDUAL = {20: 268}  # ibid.: penalties
LARGE_SHARES = {"plain": {32: 10.29}, "residual": {32: 76}}  # appendix C: in %, and "more than" 76
MODES = {"residual": {32: 0.9}}  # ibid., of the identity's entries after training
WEIGHTS = {  # ibid., of plain32: what is left of Table 3
    ("before", "identity"): {"paper_l1": 67},
    ("after", "identity"): {"paper_l1": 72},
    ("after", "> 0.25"): {"paper_l1": 700},
    ("before", "> 0.7"): {"paper_count": 1},
    ("after", "> 0.7"): {"paper_count": 26},
}
COLUMNS = {  # networks of a table; Table 5 repeats the transferred networks' numbers
    "table1": ("plain", "residual"),
    "table2": ("transferred", "residual"),
    "table5": ("transferred", *networks.DOMINANT),
}
RISKS = {"plain": {32: 0.13, 44: 0.46}, "transferred": {32: 0.055, 44: 0.083}}  # Fig. 9, 10 runs


@dataclasses.dataclass(frozen=True)
class Losses:
    """Losses of a network before or after training."""

    training_loss: float  # mean cross entropy over training images, in evaluation
    penalty: float  # that training pays: a residual network pays its plain equivalent's
    own_penalty: float  # of the weights as they are


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurements of a trained network."""

    trained: Trained
    losses: Mapping[str, Losses]  # "before" and "after" training
    # entries of the plain kernels by group, as above; None where a block's kernel is not a full one
    weights: Mapping[str, Mapping[str, np.ndarray]] | None
    error: float  # share of test images that are misclassified after training

    @property
    def network(self) -> str:
        """Name of the network."""
        return self.trained.network

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.trained.depth

    @property
    def risk(self) -> Sequence[float]:
        """Mean cross entropy of each epoch's training, without the penalty."""
        return self.trained.history[networks.RISK]

    def paper(self, numbers: Mapping[str, Mapping[int, Any]], default: Any = None) -> Any:
        """Return the paper's value for this network and these images, or `default`.

        `numbers` has the values by network and depth.
        """
        value = numbers.get(self.network, {}).get(self.depth, default)
        return value if self.trained.known else default


def metadata(measured: Measured) -> dict[str, Any]:
    """Return the further keys of the result of Tables 1, 2 and 5: losses, ours and the paper's."""
    loss, cost, _ = measured.paper(TRAINED, UNKNOWN)
    before = measured.losses["before"]
    after = measured.losses["after"]
    return {
        "training_loss": [round(each.training_loss, 6) for each in (before, after)],
        "penalty": [round(each.penalty, 8) for each in (before, after)],
        "own_penalty": [round(each.own_penalty, 9) for each in (before, after)],
        "paper_training_loss": loss,
        "cost": round(after.training_loss + after.penalty, 6),
        "paper_cost": cost,
    }


def write(folder: pathlib.Path, measured: Sequence[Measured]) -> None:
    """Write the tables that are asked for as CSV files, and the results of Tables 3 and 4."""
    for table, columns in COLUMNS.items():
        rows = [losses_row(network) for network in measured if network.network in columns]
        own = any(networks.TABLES[row["network"]] == table for row in rows)
        if own and networks.wants(table):
            plots.write_rows(folder / f"{table}.csv", rows)
    with_weights = [network for network in measured if network.weights]
    if networks.wants("table3"):
        for network in with_weights:
            rows = weight_rows(network)
            plots.write_rows(folder / f"table3-{network.network}{network.depth}.csv", rows)
            write_weight_result(folder, network, rows)
    if networks.wants("table4") and with_weights:
        rows = [row for network in with_weights for row in penalty_rows(folder, network)]
        plots.write_rows(folder / "table4.csv", rows)
        write_penalty_ratios(folder, with_weights)


def draw(folder: pathlib.Path, measured: Sequence[Measured]) -> None:
    """Draw Figs 7 to 9 as far as they are asked for, and write the results of Fig. 9."""
    for depth in dict.fromkeys(network.depth for network in measured):
        same_depth = [network for network in measured if network.depth == depth]
        with_weights = [network for network in same_depth if network.weights]
        if with_weights and networks.wants("fig7"):
            rows = [
                row
                for network in with_weights
                for row in figures.weight_rows(
                    network.network, network.weights, network.paper(MODES)
                )
            ]
            figures.fig7(folder / f"fig7-depth{depth}.png", rows)
        if networks.wants("fig8"):
            rows = [row for network in same_depth for row in risk_rows(network)]
            figures.fig8(folder / f"fig8-depth{depth}.png", rows)
            for network in same_depth:
                write_curves(folder, network)
    plain = [network for network in measured if network.network in figures.STARTS]
    if networks.wants("fig9") and plain:
        rows = []
        for network in plain:
            paper = network.paper(RISKS)
            rows += figures.start_rows(network.network, network.depth, network.risk, paper)
            network.trained.write(
                folder,
                "fig9",
                "training_risk",
                round(network.risk[-1], 6),
                paper,
            )
        figures.fig9(folder / "fig9.png", rows)


def risk_rows(measured: Measured) -> Iterator[dict[str, Any]]:
    """Return a network's rows of Fig. 8."""
    loss, _, error = measured.paper(TRAINED, UNKNOWN)
    return figures.risk_rows(
        network=measured.network,
        depth=measured.depth,
        risk=measured.risk,
        accuracy=measured.trained.history["val_accuracy"],
        paper_risk=loss,
        paper_test_error=error,
    )


def write_curves(folder: pathlib.Path, measured: Measured) -> None:
    """Write the result of Fig. 8: a network's test error, and risk and test error by epoch."""
    _, _, error = measured.paper(TRAINED, UNKNOWN)
    errors = [1 - share for share in measured.trained.history["val_accuracy"]]
    measured.trained.write(
        folder,
        "fig8",
        "test_error",
        round(measured.error, 5),
        error,
        more={
            "training_loss": measured.losses["after"].training_loss,
            "risk_by_epoch": [round(value, 6) for value in measured.risk],
            "test_error_by_epoch": [round(value, 5) for value in errors],
        },
    )


def losses_row(measured: Measured) -> dict[str, Any]:
    """Return a network's row of Tables 1, 2 and 5."""
    after = measured.losses["after"]
    loss, cost, error = measured.paper(TRAINED, UNKNOWN)
    return {
        "network": measured.network,
        "depth": measured.depth,
        "training_loss": after.training_loss,
        "cost": after.training_loss + after.penalty,
        "test_error": measured.error,
        "paper_training_loss": loss,
        "paper_cost": cost,
        "paper_test_error": error,
    }


def weight_rows(measured: Measured) -> list[dict[str, Any]]:
    """Return a network's rows of Table 3: statistics of its weights by group."""
    rows = []
    for when, groups in measured.weights.items():
        for group, entries in groups.items():
            row = {"when": when, "entries": group, "count": entries.size}
            row["mean"] = float(entries.mean()) if entries.size else 0.0
            row["std"] = float(entries.std()) if entries.size else 0.0
            row["l1"] = float(np.abs(entries).sum())
            paper = measured.paper({"plain": {32: WEIGHTS}}, {}).get((when, group), {})
            rows.append({**row, "paper_count": None, "paper_l1": None, **paper})
    return rows


def write_weight_result(
    folder: pathlib.Path, measured: Measured, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write the result of Table 3: the identity's share of the mass of large weights."""
    by_group = {(row["when"], row["entries"]): row for row in rows}
    before = by_group["before", "identity"]["l1"]
    after = by_group["after", "identity"]["l1"]
    large = by_group["after", "> 0.25"]["l1"]
    entries = {when: measured.weights[when]["all"] for when in ("before", "after")}
    distance = np.linalg.norm(entries["after"] - entries["before"])
    measured.trained.write(
        folder,
        "table3",
        "percent_of_large_mass_in_identity_entries",
        round(100 * after / large, 3) if large else None,
        measured.paper(LARGE_SHARES),
        more={
            "identity_l1": [round(before, 3), round(after, 3)],
            "large_l1": round(large, 3),
            "distance_from_start": round(float(distance / np.linalg.norm(entries["before"])), 5),
            "entries_over_0_7": [by_group[when, "> 0.7"]["count"] for when in ("before", "after")],
            "identity_mode": round(mode(measured.weights["after"]["identity"]), 4),
            **{f"paper_{key}": value for key, value in paper_weights(measured).items()},
        },
    )


def paper_weights(measured: Measured) -> dict[str, Any]:
    """Return the paper's numbers beside the result of Table 3, where it gives any."""
    peak = measured.paper(MODES)
    paper = {} if peak is None else {"identity_mode": peak}
    weights = measured.paper({"plain": {32: WEIGHTS}})
    if weights:
        both = ("before", "after")
        paper["identity_l1"] = [weights[when, "identity"]["paper_l1"] for when in both]
        paper["large_l1"] = weights["after", "> 0.25"]["paper_l1"]
        paper["entries_over_0_7"] = [weights[when, "> 0.7"]["paper_count"] for when in both]
    return paper


def mode(entries: np.ndarray) -> float:
    """Return the center of the fullest bin of Fig. 7."""
    fullest = int(np.histogram(entries, figures.WEIGHT_BINS)[0].argmax())
    return float(figures.WEIGHT_BINS[fullest : fullest + 2].mean())


def penalty_rows(folder: pathlib.Path, measured: Measured) -> Iterator[dict[str, Any]]:
    """Yield a network's rows of Table 4, before and after training, and write their results.

    Before training, a residual network's penalty is that of its own weights: only so is a plain
    network's larger by the paper's factor of `PLAIN_OVER_RESIDUAL`.
    """
    before, after = measured.losses["before"], measured.losses["after"]
    paper_before, paper_after = measured.paper(PENALTIES, (None, None))
    paper_loss, *_ = measured.paper(TRAINED, UNKNOWN)
    yield _penalty_row(
        folder,
        measured,
        "before",
        value=before.own_penalty,
        paper_loss=measured.paper(STARTS),
        paper_penalty=paper_before,
        paper_ratio=measured.paper(LOSS_OVER_PENALTY),
    )
    yield _penalty_row(
        folder,
        measured,
        "after",
        value=after.penalty,
        paper_loss=paper_loss,
        paper_penalty=paper_after,
    )


def _penalty_row(  # noqa: PLR0913 (the columns of Table 4)
    folder, measured, when, *, value, paper_loss, paper_penalty, paper_ratio=None
):
    losses = measured.losses[when]
    start = measured.trained.at_start(networks.width_deviations())
    trained = start if when == "before" else measured.trained
    trained.write(
        folder,
        "table4",
        f"penalty_{when}_training",
        round(value, 10),
        paper_penalty,
        more={
            "training_loss": round(losses.training_loss, 6),
            "paper_training_loss": paper_loss,
            "loss_over_penalty": round(losses.training_loss / value, 1),
            "paper_loss_over_penalty": paper_ratio,
        },
    )
    return {
        "network": measured.network,
        "depth": measured.depth,
        "when": when,
        **dataclasses.asdict(losses),
        "paper_training_loss": paper_loss,
        "paper_penalty": paper_penalty,
    }


def write_penalty_ratios(folder: pathlib.Path, measured: Sequence[Measured]) -> None:
    """Write the results of Table 4: a plain network's initial penalty over a residual one's.

    The networks are the paper's, of its widths, whatever --widths and --data are.
    """
    by_name = {(network.network, network.depth): network for network in measured}
    for (name, depth), plain in by_name.items():
        if name == "plain" and ("residual", depth) in by_name:
            zoo.seed_everything(FLAGS.seed)
            both = (networks.build(kind, depth, *CIFAR, WIDTHS) for kind in ("plain", "residual"))
            penalties = [networks.own_penalty(model) for model in both]
            plain.trained.at_start([]).write(
                folder,
                "table4",
                "penalty_before_training_plain_over_residual",
                round(penalties[0] / penalties[1], 2),
                PLAIN_OVER_RESIDUAL.get(depth),
                model=f"nets {depth}",
            )
