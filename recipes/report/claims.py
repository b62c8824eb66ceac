"""Claims of the papers: a criterion written before the runs, measured values, a verdict.

A claim is measured by a recipe's `--budget minutes`, its miniature: a small network trained to the
end of a short schedule. The run directories are RUN_DIR/COMMAND/seedN; a run that ended has
a file `ended` there, and is not repeated. The interval is Student's, of 95 %, over seeds; that of a
ratio is taken of its logarithm. A claim is "shown" if the whole interval fulfills the criterion,
"contradicted" if none of it does, else "undecided", as with fewer than three seeds.
"""

import collections
import dataclasses
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from experiment import process
from report import markdown, records
from zoo.io import replace

PATH = records.FOLDER / records.CLAIMS
RECIPES = pathlib.Path(__file__).resolve().parents[1]
KINDS = ("plain", "highway")  # of the networks of Srivastava et al. (2015), Fig. 1
DEPTHS = (10, 20, 50, 100)  # ibid.
SEEDS = 3  # fewer decide nothing
# Student's t distribution, 97.5 %, by number of seeds
QUANTILES = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}

VERDICTS = ("shown", "contradicted", "undecided")
PAGE = RECIPES.parent / "docs" / "claims.md"
README = RECIPES.parent / "README.md"
BEGIN = "<!-- claims: written by `make results` -->"
END = "<!-- end of claims -->"
INTRODUCTION = """# Claims of the papers

The page is generated from recipes/results/claims.jsonl by `make results`; do not edit it. Each
claim is measured by a miniature: a small network on small data, trained to the end of a short
schedule. The interval is Student's, of 95 %, over seeds; a ratio's is taken of its logarithm. A
claim is shown if the whole interval fulfills the criterion, contradicted if none of it does, else
undecided, as with fewer than three seeds.
"""

Lines = Sequence[Mapping[str, Any]]  # of results, of one run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper, and the comparison that decides it.

    Attributes:
        name: E.g. "S1".
        paper: A key of `records.TITLES`.
        section: Section, table or figure of the paper.
        statement: The claim, in one sentence.
        quantity: Noun phrase for the measured number.
        measure: Function from the lines of one seed's run to that number.
        least: The claim holds if the number is at least this; or None.
        most: The claim holds if the number is at most this; or None.
        ratio: True if the number is positive and averaged by its logarithm.
        command: Script and flags of the miniature, beside --seed and --run_dir.
        backend: Keras backend that runs it fastest.
        figure: Name of the figure in the run directory, e.g. "fig1"; "": none.
    """

    name: str
    paper: str
    section: str
    statement: str
    quantity: str
    measure: Callable[[Lines], float]
    least: float | None = None
    most: float | None = None
    ratio: bool = False
    command: str
    backend: str = "torch"
    figure: str = ""

    @property
    def criterion(self) -> str:
        """The criterion as a sentence."""
        side, bound = ("most", self.most) if self.least is None else ("least", self.least)
        return f"{self.quantity}: at {side} {bound:g}"

    def holds(self, value: float) -> bool:
        """Return True if a value fulfills the criterion."""
        if self.least is not None and value < self.least:
            return False
        return self.most is None or value <= self.most


def line(lines: Lines, metric: str, **config: Any) -> Mapping[str, Any]:
    """Return the line of a metric whose model has this configuration.

    Raises:
        ValueError: if there is none.
    """
    for row in lines:
        if row["metric"] == metric and config.items() <= row["config"].items():
            return row
    raise ValueError(f"No line of {metric!r} with {config}; delete the run directory to repeat it.")


def loss(lines: Lines, kind: str, depth: int) -> float:
    """Return the lowest training loss of Fig. 1's networks of one kind and depth."""
    return line(lines, "best_training_loss", kind=kind, depth=depth)["value"]


def epochs_to(lines: Lines, kind: str, depth: int, target: float = 0.1) -> int:
    """Return after how many epochs the best network's training loss is below `target`.

    One that does not get there counts with all epochs, which understates the difference.
    """
    losses = line(lines, "best_training_loss", kind=kind, depth=depth)["training_loss_by_epoch"]
    reached = [epoch for epoch, value in enumerate(losses, start=1) if value < target]
    return min(reached, default=len(losses))


def growth(lines: Lines) -> float:
    """Return how many times more a plain network's loss grows from 10 to 100 layers."""
    plain, highway = (loss(lines, kind, 100) / loss(lines, kind, 10) for kind in KINDS)
    return plain / highway


def speed(lines: Lines) -> float:
    """Return how many times as many epochs the plain network takes, geometric mean over depths."""
    logs = [
        math.log(epochs_to(lines, "plain", depth) / epochs_to(lines, "highway", depth))
        for depth in DEPTHS
    ]
    return math.exp(statistics.fmean(logs))


SEARCH = {
    "paper": "srivastava2015",
    "section": "section 3.1, Fig. 1",
    "ratio": True,
    "command": "mnist_depth_search.py",
    "backend": "jax",
    "figure": "fig1",
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
    "command": "mnist_gates.py --export=false",
    "backend": "jax",
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
        command="mnist_1000_layers.py --export=false",
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


def select(names: Sequence[str]) -> list[Claim]:
    """Return the claims of these names; of none, all.

    Raises:
        ValueError: if there is no such claim.
    """
    known = {claim.name: claim for claim in CLAIMS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"Expected claims of {', '.join(known)}. Received: {', '.join(unknown)}")
    return [known[name] for name in names or known]


def interval(values: Sequence[float], ratio: bool) -> tuple[float, float] | None:
    """Return the ends of Student's 95 % interval of the mean over seeds; None below three."""
    if len(values) not in QUANTILES or not all(map(math.isfinite, values)):
        return None
    shown = [math.log(value) for value in values] if ratio else values
    half = QUANTILES[len(values)] * statistics.stdev(shown) / math.sqrt(len(values))
    mean = statistics.fmean(shown)
    ends = mean - half, mean + half
    return tuple(map(math.exp, ends)) if ratio else ends


def verdict(claim: Claim, values: Sequence[float]) -> str:
    """Return "shown", "contradicted" or "undecided"; see the module."""
    ends = interval(values, claim.ratio)
    if ends is None:
        return "undecided"
    held = {claim.holds(end) for end in ends}
    if len(held) > 1:
        return "undecided"
    return "shown" if held == {True} else "contradicted"


def evaluate(claim: Claim, runs: Mapping[int, Lines]) -> dict[str, Any]:
    """Return the line of claims.jsonl of a claim.

    Args:
        claim: The claim.
        runs: Lines of results of each seed's run.
    """
    values = [claim.measure(lines) for lines in runs.values()]
    mean = statistics.geometric_mean(values) if claim.ratio else statistics.fmean(values)
    ends = interval(values, claim.ratio)
    last = [*runs.values()][-1][-1]
    return {
        "claim": claim.name,
        "paper": f"{records.TITLES[claim.paper].split(':')[0]}, {claim.section}",
        "statement": claim.statement,
        "criterion": claim.criterion,
        "value": float(f"{mean:.4g}"),
        "interval": ends and [float(f"{end:.4g}") for end in ends],
        "values": [float(f"{value:.4g}") for value in values],
        "seeds": [*runs],
        "verdict": verdict(claim, values),
        "command": f"python recipes/reproduce.py claims {claim.name} --data_dir DATA",
        "commit": last["commit"],
        "backend": last["backend"],
        "hardware": last["hardware"],
        "seconds": round(sum(row["seconds"] for lines in runs.values() for row in lines), 1),
        "data": last["data"],
        "departures": last["departures"],
        "figure": claim.figure and f"claims/{claim.paper}-{claim.figure}",
    }


def folder_of(claim: Claim, seed: int, runs: pathlib.Path) -> pathlib.Path:
    """Return the run directory of a claim's command and a seed; claims of one command share it."""
    slug = re.sub("[^A-Za-z0-9_]+", "-", claim.command.replace(".py", "")).strip("-")
    return runs / slug / f"seed{seed}"


def run(claim: Claim, seed: int, flags: Sequence[str], runs: pathlib.Path) -> int:
    """Run a claim's command with a seed, unless it has ended before; return its exit status.

    Args:
        claim: The claim.
        seed: Random seed.
        flags: Flags of the recipe that replace those of the miniature.
        runs: Folder of the run directories.
    """
    folder = folder_of(claim, seed, runs)
    ended = folder / "ended"
    if ended.exists():
        return 0
    script, *own = claim.command.split()
    words = [str(RECIPES / script), "--budget=minutes", *own, *flags]
    words += [f"--seed={seed}", f"--run_dir={folder}"]
    print(f"+ {claim.name}, seed {seed}: {shlex.join(words)}", flush=True)
    status = process.run([sys.executable, *words], {**os.environ, "KERAS_BACKEND": claim.backend})
    if status == 0:
        replace(ended, pathlib.Path.touch)
    return status


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results."""
    return [json.loads(part) for part in path.read_text(encoding="utf-8").split("\n") if part]


def measured(claim: Claim, runs: pathlib.Path) -> Iterator[tuple[int, Lines]]:
    """Yield the seeds of a claim's command whose run has ended, each with its lines."""
    parent = folder_of(claim, 0, runs).parent
    found = sorted(parent.glob("seed*/ended"), key=lambda path: int(path.parent.name[4:]))
    for path in found:
        yield int(path.parent.name[4:]), read(path.with_name("results.jsonl"))


def save(lines: Sequence[Mapping[str, Any]]) -> None:
    """Write lines of claims.jsonl, each instead of an earlier one of its claim."""
    known = {row["claim"]: row for row in [*load(), *lines]}
    ordered = [known[claim.name] for claim in CLAIMS if claim.name in known]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ordered)
    replace(PATH, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def save_figure(claim: Claim, folder: pathlib.Path) -> None:
    """Copy a claim's figure and its rows from a run directory to recipes/results/claims."""
    target = records.FOLDER / "claims"
    target.mkdir(exist_ok=True)
    for suffix in (".png", ".csv"):
        shutil.copyfile(
            folder / f"{claim.figure}{suffix}", target / f"{claim.paper}-{claim.figure}{suffix}"
        )


def load() -> list[dict[str, Any]]:
    """Return the lines of claims.jsonl; none if there is no such file."""
    return read(PATH) if PATH.exists() else []


def main(
    names: Sequence[str], seeds: int, flags: Sequence[str], runs: pathlib.Path, keep: bool
) -> int:
    """Run what is missing of claims, print their verdicts, and return the first bad exit status.

    Args:
        names: Names of claims; none: all.
        seeds: Number of seeds of each.
        flags: Flags for every recipe, e.g. --data_dir.
        runs: Folder of the run directories.
        keep: True writes claims.jsonl and the first seed's figures into recipes/results.

    Raises:
        ValueError: if there is no such claim, or there are too many seeds.
    """
    claims = select(names)
    if seeds > max(QUANTILES):
        raise ValueError(f"Expected --seeds of {max(QUANTILES)} at most. Received: {seeds}")
    failed = [
        status
        for claim in claims
        for seed in range(seeds)
        if (status := run(claim, seed, flags, runs))
    ]
    rows = [
        evaluate(claim, by_seed) for claim in claims if (by_seed := dict(measured(claim, runs)))
    ]
    for row in rows:
        print(f"{row['claim']}: {row['verdict']}. {row['criterion']}; {number(row)}")
    if keep:
        save(rows)
        for claim in claims:
            first = next(measured(claim, runs), None)
            if first and claim.figure:
                save_figure(claim, folder_of(claim, first[0], runs))
    return next(iter(failed), 0)


def number(row: Mapping[str, Any]) -> str:
    """Return the measured value of a line with its interval and number of seeds."""
    ends = f" ({row['interval'][0]:g} to {row['interval'][1]:g})" if row["interval"] else ""
    count = len(row["seeds"])
    return f"{row['value']:g}{ends}, {count} seed{'s' if count > 1 else ''}"


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many claims are shown, contradicted and undecided, in one sentence."""
    counts = collections.Counter(row["verdict"] for row in rows)
    parts = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    return f"{len(rows)} claims measured: {', '.join(parts)}."


def short_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of README.md, a line a claim."""
    lines = ["| claim | verdict | criterion | measured |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = f"{row['claim']}: {row['statement']}", f"**{row['verdict']}**", row["criterion"]
        lines.append(f"| {' | '.join(cells)} | {number(row)} |")
    return "\n".join(lines)


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return docs/claims.md: the table, then each claim's criterion, numbers and command."""
    sections = [section(row) for row in rows]
    return "\n".join([INTRODUCTION, summary(rows), "", short_table(rows), "", *sections])


def section(row: Mapping[str, Any]) -> str:
    """Return the section of one claim."""
    values = ", ".join(f"{value:g}" for value in row["values"])
    origin = f"{row['backend']}, {row['hardware']}, {row['seconds'] / 60:.0f} min"
    lines = [
        f"## {row['claim']}: {row['verdict']}",
        "",
        f"{row['statement']} {row['paper']}.",
        "",
        f"- Criterion, written before the runs: {row['criterion']}.",
        f"- Measured: {number(row)}; by seed {values}.",
        f"- {row['data']}; {origin} for all seeds; commit {row['commit']}.",
        f"- Deviations from the paper: {'; '.join(row['departures'])}",
        f"- `{row['command']} --seeds {len(row['seeds'])}`",
    ]
    if row["figure"]:
        picture = f"{markdown.RESULTS}/{row['figure']}.png"
        lines += ["", f"![{row['claim']}, seed {row['seeds'][0]}]({picture})"]
    return "\n".join([*lines, ""])


def write() -> None:
    """Write docs/claims.md and the table in README.md from claims.jsonl."""
    rows = load()
    replace(PAGE, lambda path: path.write_text(page(rows), encoding="utf-8"))
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    table = f"{BEGIN}\n{summary(rows)}\n\n{short_table(rows)}\n{END}"
    replace(README, lambda path: path.write_text(f"{head}{table}{tail}", encoding="utf-8"))
