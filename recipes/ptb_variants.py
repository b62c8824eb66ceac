"""`ptb_char_lm.py --variant all`: Table 1a of Greff et al. (2017), six runs and their order.

Each variant is a run of its own in --run_dir/VARIANT, so a killed one goes on where it was.
--run_dir gets table1a.png and .csv, and results.jsonl: Kendall's tau between the order of our test
perplexities and that of the paper, 1 if they are the same.
"""

import itertools
import json
import pathlib
import re
import sys

import children  # beside this script
import figures  # beside this script


def run_all(variants, paper, flags):
    """Runs every variant, prints and draws the table; returns the exit status.

    Args:
        variants: Their names.
        paper: The paper's test perplexity of the large model, by variant.
        flags: The recipe's flags.
    """
    folder = pathlib.Path(
        flags.run_dir or f"runs/ptb-variants-{flags.size or flags.budget}-{flags.seed}"
    )
    rest = [word for word in joined(sys.argv[1:]) if not re.match("--(variant|run_dir)=", word)]
    rows = []
    for variant in variants:
        own = [f"--variant={variant}", f"--run_dir={folder / variant}"]
        if code := children.run([sys.executable, sys.argv[0], *rest, *own]):
            return code
        text = (folder / variant / "results.jsonl").read_text(encoding="utf-8")
        rows.append(json.loads(text.splitlines()[-1]))
    if len({row["epochs"] for row in rows}) > 1:
        epochs = {row["config"]["variant"]: row["epochs"] for row in rows}
        return f"Expected as many epochs of each variant. Received: {epochs} in {folder}"
    values = [row["value"] for row in rows]
    theirs = [paper[variant] for variant in variants]
    tau = kendall(values, theirs)
    print(f"{'variant':10}{'ours':>10}{'paper, large':>15}")
    for variant, value, other in zip(variants, values, theirs, strict=True):
        print(f"{variant:10}{value:10.2f}{other:15.2f}")
    print(f"Kendall's tau between the two orders: {tau:.2f}; all in {folder}")
    draw(folder / "table1a.png", variants, values, theirs, rows[0])
    record(folder, rows, tau, flags)
    return 0


def joined(words):
    """Flags as --name=value."""
    found = []
    for word in words:
        if found and re.fullmatch("--?[a-z_]+", found[-1]) and not word.startswith("-"):
            found[-1] += "=" + word
        else:
            found.append(word)
    return [re.sub("^-(?=[a-z])", "--", word) for word in found]


def kendall(ours, theirs):
    """Kendall's tau of two lists without ties: pairs in the same order less others, of all."""
    pairs = [*itertools.combinations(range(len(ours)), 2)]
    same = sum((ours[a] < ours[b]) == (theirs[a] < theirs[b]) for a, b in pairs)
    return 2 * same / len(pairs) - 1


def draw(path, variants, values, theirs, row):
    figure, axis = figures.new()
    axis.plot(variants, values, "o", color="black", label=f"ours, {row['epochs']} epochs")
    axis.plot(variants, theirs, "x", color="0.5", label="paper, large, 25 epochs")
    axis.set(
        ylabel="test perplexity", yscale="log", title=f"{row['data']}, {row['config']['size']}"
    )
    axis.legend(fontsize=7)
    table = zip(variants, values, theirs, strict=True)
    names = ("variant", "test_perplexity", "paper_large")
    figures.save(path, figure, [dict(zip(names, line, strict=True)) for line in table])


def record(folder, rows, tau, flags):
    """The line of results of the order."""
    from zoo import report

    departures = [*rows[0]["departures"]]
    if rows[0]["config"]["size"] != "large":
        departures.append(
            f"the {rows[0]['config']['size']} model; the paper's order is the large's"
        )
    line = report.row(
        artifact="greff2017/table1a",
        model="char_lm",
        config={"size": rows[0]["config"]["size"], "variant": "all"},
        metric="kendall_tau_with_the_paper's_order",
        value=round(tau, 3),
        std=None,
        seeds=rows[0]["seeds"],
        paper=1.0,
        data=rows[0]["data"],
        budget=flags.budget,
        epochs=rows[0]["epochs"],
        departures=departures,
        verdict="same order" if tau == 1 else "another order",
        seconds=round(sum(row["seconds"] for row in rows), 1),
        test_perplexity={row["config"]["variant"]: row["value"] for row in rows},
    )
    for path in filter(None, [folder / "results.jsonl", flags.results]):
        report.append(path, line)
