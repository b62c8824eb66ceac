"""`ptb_char_lm.py --variant all`: Table 1a of Greff et al. (2017), six runs and their order.

Each variant is a run of its own in --run_dir/VARIANT, so a killed one goes on where it was.
--run_dir gets table1a.png and .csv, and results.jsonl: Kendall's tau between the order of our test
perplexities and that of the paper, 1 if they are the same.
"""

import itertools
import sys

from experiment import hardware, plots


def compare(lines, paper, folder, flags):
    """Prints, draws and records how the variants stand to each other; ends if they cannot be.

    Args:
        lines: Each variant's line of results.
        paper: The paper's test perplexity of the large model, by variant.
        folder: Gets the table.
        flags: The recipe's flags.
    """
    epochs = {variant: line["epochs"] for variant, line in lines.items()}
    if len({*epochs.values()}) > 1:
        sys.exit(f"Expected as many epochs of each variant. Received: {epochs} in {folder}")
    values = [line["value"] for line in lines.values()]
    theirs = [paper[variant] for variant in lines]
    tau = kendall(values, theirs)
    print(f"{'variant':10}{'ours':>10}{'paper, large':>15}")
    for variant, value, other in zip(lines, values, theirs, strict=True):
        print(f"{variant:10}{value:10.2f}{other:15.2f}")
    print(f"Kendall's tau between the two orders: {tau:.2f}; all in {folder}")
    rows = [*lines.values()]
    draw(folder / "table1a.png", [*lines], values, theirs, rows[0])
    record(folder, rows, tau, flags)


def kendall(ours, theirs):
    """Kendall's tau of two lists without ties: pairs in the same order less others, of all."""
    pairs = [*itertools.combinations(range(len(ours)), 2)]
    same = sum((ours[a] < ours[b]) == (theirs[a] < theirs[b]) for a, b in pairs)
    return 2 * same / len(pairs) - 1


def draw(path, variants, values, theirs, row):
    figure, axis = plots.new()
    axis.plot(variants, values, "o", color="black", label=f"ours, {row['epochs']} epochs")
    axis.plot(variants, theirs, "x", color="0.5", label="paper, large, 25 epochs")
    axis.set(
        ylabel="test perplexity", yscale="log", title=f"{row['data']}, {row['config']['size']}"
    )
    axis.legend(fontsize=7)
    table = zip(variants, values, theirs, strict=True)
    names = ("variant", "test_perplexity", "paper_large")
    plots.save(path, figure, [dict(zip(names, line, strict=True)) for line in table])


def record(folder, rows, tau, flags):
    """The line of results of the order."""
    from experiment import results

    departures = [*rows[0]["departures"]]
    if rows[0]["config"]["size"] != "large":
        departures.append(
            f"the {rows[0]['config']['size']} model; the paper's order is the large's"
        )
    line = results.row(
        artifact="greff2017/table1a",
        model="char_lm",
        config={"size": rows[0]["config"]["size"], "variant": "all"},
        metric="kendall_tau_with_the_paper's_order",
        value=round(tau, 3),
        std=None,
        seeds=rows[0]["seeds"],
        paper=1.0 if rows[0]["data"] == "PTB" else None,
        data=rows[0]["data"],
        budget=flags.budget,
        epochs=rows[0]["epochs"],
        departures=departures,
        verdict="same order" if tau == 1 else "another order",
        seconds=round(sum(row["seconds"] for row in rows), 1),
        test_perplexity={row["config"]["variant"]: row["value"] for row in rows},
    )
    line |= {key: rows[0][key] for key in ("backend", "hardware", "commit")}  # of the training
    hardware.append(folder, line)
