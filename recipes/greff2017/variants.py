"""`ptb_char_lm.py --variant all`: Table 1a of Greff et al. (2017), six runs and their order.

Each variant is a run of its own in --run_dir/VARIANT, so a killed one resumes. --run_dir gets
table1a.png and .csv, and results.jsonl: Kendall's tau between the order of our test perplexities
and that of the paper, 1 if they are the same.
"""

import dataclasses
import itertools
import pathlib
import sys
from collections.abc import Mapping, Sequence

from experiment import run_dirs
from experiment.results import NOT_COMPARABLE, Result
from greff2017 import figures


def compare(
    results: Mapping[str, Result], paper: Mapping[str, float], folder: pathlib.Path
) -> None:
    """Print, draw and write how the variants compare; end the process if they are not comparable.

    `results` and `paper`, the test perplexities of the paper's large model, are by variant.
    """
    epochs = {variant: result.epochs for variant, result in results.items()}
    if len({*epochs.values()}) > 1:
        sys.exit(f"Expected as many epochs of each variant. Received: {epochs} in {folder}")
    values = {variant: result.value for variant, result in results.items()}
    tau = kendall([*values.values()], [paper[variant] for variant in values])
    print(f"{'variant':10}{'ours':>10}{'paper, large':>15}")
    for variant, value in values.items():
        print(f"{variant:10}{value:10.2f}{paper[variant]:15.2f}")
    print(f"Kendall's tau between the two orders: {tau:.2f}; all in {folder}")
    first, *_ = results.values()
    size = first.config["size"]
    rows = [
        {"variant": variant, "test_perplexity": value, "paper_large": paper[variant]}
        for variant, value in values.items()
    ]
    figures.table1a(folder / "table1a.png", rows)
    deviations = [*first.deviations]
    if size != "large":
        deviations.append(f"the {size} model; the paper's order is the large's")
    result = dataclasses.replace(
        first,
        config={"size": size, "variant": "all"},
        value=round(tau, 3),
        metric="kendall_tau_with_the_paper's_order",
        paper=1.0 if first.data == "PTB" else None,
        deviations=deviations,
        verdict=order_verdict(tau, deviations),
        seconds=round(sum(result.seconds for result in results.values()), 1),
        more={"test_perplexity": values},
    )
    run_dirs.write(folder, result)


def kendall(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return Kendall's tau of two lists without ties: the share of pairs in order, -1 to 1."""
    pairs = [*itertools.combinations(range(len(ours)), 2)]
    same = sum((ours[a] < ours[b]) == (theirs[a] < theirs[b]) for a, b in pairs)
    return 2 * same / len(pairs) - 1


def order_verdict(tau: float, deviations: Sequence[str]) -> str:
    """Return the verdict on an order; with deviations from the paper it is not comparable."""
    if deviations:
        return NOT_COMPARABLE
    return "same order" if tau == 1 else "another order"
