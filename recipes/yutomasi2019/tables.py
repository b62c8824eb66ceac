"""Tables 1 to 5 of Yu & Tomasi (2019): their numbers, ours beside them, and the lines of results.

plain_vs_residual.py imports it from beside itself.
"""

import dataclasses

import numpy as np

from experiment import plots
from yutomasi2019 import networks as plain_nets

TRAINED = {  # training loss, the same with the penalty, test error, depth by depth
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
PENALTIES = {  # Table 4: before and after training; its residual networks' after are Table 2's
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
    "table5": ("transferred", "dominant"),
}
BINS = np.linspace(-1, 1.5, 101)  # of Fig. 7


@dataclasses.dataclass(frozen=True)
class Losses:
    """Of a network at some time: mean cross entropy, the penalty that is paid, and that of the
    weights as they are, which a residual network does not pay: it pays what its plain equal would.
    """

    training_loss: float
    penalty: float
    own_penalty: float


@dataclasses.dataclass(frozen=True)
class Found:
    """What the tables and figures need of a network.

    Attributes:
        trained: A `plain_nets.Trained`.
        losses: `Losses` before and after training.
        weights: Entries of the plain kernels by group, before and after; None where a block's
            kernel is not a full one.
        error: On test images, after training.
    """

    trained: plain_nets.Trained
    losses: dict
    weights: dict | None
    error: float

    @property
    def key(self):
        return self.trained.network, self.trained.depth

    def paper(self, numbers, default=None):
        """The paper's numbers of this network, of a table by network and depth, on its images."""
        found = numbers.get(self.key[0], {}).get(self.key[1], default)
        return found if self.trained.known else default


def told(found):
    """Of the line of Tables 1, 2 and 5: training loss and penalty, ours and the paper's."""
    loss, cost, _ = found.paper(TRAINED, (None,) * 3)
    both = found.losses["before"], found.losses["after"]
    return {
        "training_loss": [round(one.training_loss, 6) for one in both],
        "penalty": [round(one.penalty, 8) for one in both],
        "own_penalty": [round(one.own_penalty, 9) for one in both],
        "paper_training_loss": loss,
        "cost": round(both[1].training_loss + both[1].penalty, 6),
        "paper_cost": cost,
    }


def write(folder, all_found):
    """The CSV files of the tables that are asked for, and the lines of Tables 3 and 4."""
    for table, networks in COLUMNS.items():
        rows = [outcome(one) for one in all_found if one.key[0] in networks]
        mine = any(plain_nets.TABLES[row["network"]] == table for row in rows)
        if mine and plain_nets.wants(table):
            plots.write_rows(folder / f"{table}.csv", rows)
    weighed = [one for one in all_found if one.weights]
    if plain_nets.wants("table3"):
        for one in weighed:
            name = "table3-{}{}.csv".format(*one.key)
            plots.write_rows(folder / name, statistics(one))
            weight_line(folder, one)
    if plain_nets.wants("table4") and weighed:
        rows = [row for one in weighed for row in penalties(folder, one)]
        plots.write_rows(folder / "table4.csv", rows)
        ratios(folder, weighed)


def outcome(found):
    """A row of Tables 1, 2 and 5."""
    after, (network, depth) = found.losses["after"], found.key
    ours = (after.training_loss, after.training_loss + after.penalty, found.error)
    names, paper = ("training_loss", "cost", "test_error"), found.paper(TRAINED, (None,) * 3)
    return {
        **{"network": network, "depth": depth, **dict(zip(names, ours, strict=True))},
        **{f"paper_{name}": value for name, value in zip(names, paper, strict=True)},
    }


def statistics(found):
    """The rows of Table 3 of a network."""
    rows = []
    for when, groups in found.weights.items():
        for key, w in groups.items():
            numbers = (w.mean(), w.std(), np.abs(w).sum()) if w.size else (0.0, 0.0, 0.0)
            numbers = dict(zip(("mean", "std", "l1"), map(float, numbers), strict=True))
            row = {"when": when, "entries": key, "count": w.size, **numbers}
            paper = found.paper({"plain": {32: WEIGHTS}}, {}).get((when, key), {})
            rows.append({**row, "paper_count": None, "paper_l1": None, **paper})
    return rows


def weight_line(folder, found):
    """The line of Table 3: the identity's entries' share of the large weights' mass."""
    rows = {(row["when"], row["entries"]): row for row in statistics(found)}
    pair = {when: rows[when, "identity"]["l1"] for when in ("before", "after")}
    large = rows["after", "> 0.25"]["l1"]
    share = round(100 * pair["after"] / large, 3) if large else None
    over = [rows[when, "> 0.7"]["count"] for when in pair]
    paper = {f"paper_{k}": v for k, v in paper_weights(found).items()}
    found.trained.write(
        folder,
        "table3",
        share,
        found.paper(LARGE_SHARES),
        readings=[plain_nets.TRAINING],
        metric="percent_of_large_mass_in_identity_entries",
        identity_l1=[round(value, 3) for value in pair.values()],
        large_l1=round(large, 3),
        entries_over_0_7=over,
        identity_mode=round(mode(found.weights["after"]["identity"]), 4),
        **paper,
    )


def paper_weights(found):
    """What the paper says of Table 3, where it does."""
    peak = found.paper(MODES)
    known = {} if peak is None else {"identity_mode": peak}
    if found.trained.known and found.key == ("plain", 32):
        identity = [WEIGHTS[when, "identity"]["paper_l1"] for when in ("before", "after")]
        over = [WEIGHTS[when, "> 0.7"]["paper_count"] for when in ("before", "after")]
        large = WEIGHTS["after", "> 0.25"]["paper_l1"]
        known |= {"identity_l1": identity, "large_l1": large, "entries_over_0_7": over}
    return known


def mode(entries):
    """The centre of the fullest bin of Fig. 7."""
    place = int(np.histogram(entries, BINS)[0].argmax())
    return float(BINS[place : place + 2].mean())


def penalties(folder, found):
    """The rows and lines of Table 4 of a network, before and after training.

    Before, a residual network's penalty is that of its own weights: so the paper's factor of 268.
    """
    network, depth = found.key
    before, after = found.losses["before"], found.losses["after"]
    paper = found.paper(PENALTIES, (None, None))
    starts, ends = found.paper(STARTS), found.paper(TRAINED, (None,) * 3)[0]
    ratio = found.paper(LOSS_OVER_PENALTY)
    cases = {
        "before": (found.trained.at_start(), before, before.own_penalty, starts, paper[0], ratio),
        "after": (found.trained, after, after.penalty, ends, paper[1], None),
    }
    for when, (trained, losses, value, paper_loss, paper_penalty, paper_ratio) in cases.items():
        trained.write(
            folder,
            "table4",
            round(value, 10),
            paper_penalty,
            readings=[] if when == "before" else [plain_nets.TRAINING],
            metric=f"penalty_{when}_training",
            training_loss=round(losses.training_loss, 6),
            paper_training_loss=paper_loss,
            loss_over_penalty=round(losses.training_loss / value, 1),
            paper_loss_over_penalty=paper_ratio,
        )
        yield {
            **{"network": network, "depth": depth, "when": when, **dataclasses.asdict(losses)},
            **{"paper_training_loss": paper_loss, "paper_penalty": paper_penalty},
        }


def ratios(folder, all_found):
    """The lines of Table 4: how much more a plain network's start costs than a residual one's."""
    by_key = {one.key: one for one in all_found}
    for (network, depth), plain in by_key.items():
        residual = by_key.get(("residual", depth))
        if network == "plain" and residual:
            own = [one.losses["before"].own_penalty for one in (plain, residual)]
            plain.trained.at_start().write(
                folder,
                "table4",
                round(own[0] / own[1], 2),
                PLAIN_OVER_RESIDUAL.get(depth),
                model=f"nets {depth}",
                metric="penalty_before_training_plain_over_residual",
            )
