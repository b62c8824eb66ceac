"""`ptb_char_lm.py --variant all`: Table 1a of Greff et al. (2017), six runs and their order.

Each variant is a run of its own in --run_dir/VARIANT, so a killed one goes on where it was.
--run_dir gets table1a.png and .csv, and results.jsonl: Kendall's tau between the order of our test
perplexities and that of the paper, 1 if they are the same.
"""

import dataclasses
import itertools
import sys

from experiment import plots, run_dirs


def compare(trained, paper, folder):
    """Print, draw and record how the variants compare; end the process if they cannot be.

    Args:
        trained: Each variant's `Result`.
        paper: The paper's test perplexity of the large model, by variant.
        folder: Gets the table.
    """
    epochs = {variant: result.epochs for variant, result in trained.items()}
    if len({*epochs.values()}) > 1:
        sys.exit(f"Expected as many epochs of each variant. Received: {epochs} in {folder}")
    values = [result.value for result in trained.values()]
    theirs = [paper[variant] for variant in trained]
    tau = kendall(values, theirs)
    print(f"{'variant':10}{'ours':>10}{'paper, large':>15}")
    for variant, value, other in zip(trained, values, theirs, strict=True):
        print(f"{variant:10}{value:10.2f}{other:15.2f}")
    print(f"Kendall's tau between the two orders: {tau:.2f}; all in {folder}")
    draw(folder / "table1a.png", [*trained], values, theirs, trained[[*trained][0]])
    record(folder, [*trained.values()], tau)


def kendall(ours, theirs):
    """Kendall's tau of two lists without ties: pairs in the same order less others, of all."""
    pairs = [*itertools.combinations(range(len(ours)), 2)]
    same = sum((ours[a] < ours[b]) == (theirs[a] < theirs[b]) for a, b in pairs)
    return 2 * same / len(pairs) - 1


def draw(path, variants, values, theirs, result):
    """Draw the perplexities of the variants, ours and the paper's."""
    figure, axis = plots.new()
    axis.plot(variants, values, "o", color="black", label=f"ours, {result.epochs} epochs")
    axis.plot(variants, theirs, "x", color="0.5", label="paper, large, 25 epochs")
    title = f"{result.data}, {result.config['size']}"
    axis.set(ylabel="test perplexity", yscale="log", title=title)
    axis.legend(fontsize=7)
    table = zip(variants, values, theirs, strict=True)
    names = ("variant", "test_perplexity", "paper_large")
    plots.save(path, figure, [dict(zip(names, line, strict=True)) for line in table])


def record(folder, trained, tau):
    """Write the result of the order."""
    first = trained[0]
    size = first.config["size"]
    deviations = [*first.deviations]
    if size != "large":
        deviations.append(f"the {size} model; the paper's order is the large's")
    result = dataclasses.replace(
        first,
        config={"size": size, "variant": "all"},
        metric="kendall_tau_with_the_paper's_order",
        value=round(tau, 3),
        paper=1.0 if first.data == "PTB" else None,
        deviations=deviations,
        verdict="same order" if tau == 1 else "another order",
        seconds=round(sum(result.seconds for result in trained), 1),
        more={"test_perplexity": {r.config["variant"]: r.value for r in trained}},
    )
    run_dirs.write(folder, result)
