"""Yu & Tomasi (2019), section 5, Figs 3 and 11 to 13: cushions and dominance of trained networks.

    python recipes/plain_vs_residual.py --data_dir cifar10.npz --depths 20 --run_dir runs/pair
    python recipes/noise_stability.py --data_dir cifar10.npz --trained runs/pair

Of each network that plain_vs_residual.py left in `--trained`: layer cushions (Fig. 3: those of the
residual one lie to the right), interlayer cushions of every block, activation contraction, what
noise on the weights does to accuracy and output, and dominant gradient flow (Fig. 12). And, without
any network, the trivial case simulated and approximated (Fig. 11) and appendix E (Fig. 13).

--run_dir gets NETWORK.csv and .html of each, fig3.png, fig11.png, fig12.png, fig13.png and
results.jsonl. The paper: mean dominance of residual over plain networks 4.06 in deep layers, 1.24
in shallow ones; the interlayer cushion of one fully-fledged residual block 0.20.
"""

import pathlib
import sys
import time

import numpy as np
from absl import app, flags

BUDGETS = {"smoke": (8, 2, 4), "minutes": (256, 8, 16), "paper": (10_000, 128, 128)}
# images of cushions, images of dominance, random projections; ours: the paper does not say

flags.DEFINE_string("trained", None, "The run directory of plain_vs_residual.py.", required=True)
flags.DEFINE_string("data", "cifar10", "See zoo.datasets.images; with --data_dir any name.")
flags.DEFINE_string("data_dir", None, "An .npz file or a folder: see zoo.datasets.images.")
flags.DEFINE_enum("budget", "minutes", list(BUDGETS), "How many images.")
flags.DEFINE_integer("seed", 0, "Of projections and noise.", lower_bound=0)
flags.DEFINE_string("run_dir", None, "Default: TRAINED/noise-stability.")
flags.DEFINE_string("results", None, "Also append the lines of results to this file.")
FLAGS = flags.FLAGS


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")
    import zoo
    from zoo.datasets import images as sources
    from zoo.datasets import preprocessing

    trained = pathlib.Path(FLAGS.trained)
    paths = sorted(trained.glob("*/model.keras"))
    try:
        if not paths:
            raise ValueError(f"Expected NETWORK/model.keras in --trained. Received: {trained}")
        images = sources.load(FLAGS.data, FLAGS.data_dir)
        prepared = preprocessing.fit("he_cifar", images.x_train)
    except (ValueError, sources.DownloadError) as error:
        sys.exit(f"noise_stability.py: {error}")
    folder = pathlib.Path(FLAGS.run_dir or trained / "noise-stability")
    folder.mkdir(parents=True, exist_ok=True)
    zoo.seed_everything(FLAGS.seed)
    num = BUDGETS[FLAGS.budget][0]
    x, y = prepared(images.x_train[:num]), images.y_train[:num]
    tables = {}
    for path in paths:
        name = path.parent.name
        tables[name] = inspect(path, name, images.name, x, y, folder)
    draw(folder, tables)
    draw_trivial(folder)


def inspect(path, name, data, x, y, folder):
    """All measurements of one network, in files and in a line of results for each mean."""
    import keras

    from zoo import callbacks

    start = time.perf_counter()
    _, few, projections = BUDGETS[FLAGS.budget]
    model = keras.models.load_model(path)
    table = callbacks.dominant_flow(model, (x[:few], y[:few]), batch_size=min(few, 8))
    if "dominant" not in name:
        probes = [callbacks.LayerCushion(), callbacks.ActivationContraction()]
        table += callbacks.run(probes, model, x)
        options = {"projections": projections, "seed": FLAGS.seed}
        table += callbacks.interlayer_cushions(model, x[:few], **options)
    table += callbacks.noise_sensitivity(model, (x, y), seed=FLAGS.seed)
    table.to_csv(folder / f"{name}.csv")
    table.to_html(folder / f"{name}.html", f"{name} on {len(x)} training images of {data}")
    seconds = time.perf_counter() - start
    for metric in ("layer_cushion", "interlayer_cushion", "dominant_flow"):
        if metric in table.probes():
            record(table, metric, name, data, seconds, folder)
    return table


def record(table, metric, name, data, seconds, folder):
    """One line: the mean of a measurement over the blocks, and each block's."""
    from zoo import report

    values = [*table.values(metric).values()]
    print(f"{name}: {metric} {np.mean(values):.4f}, {min(values):.4f} to {max(values):.4f}")
    line = report.row(
        artifact="yutomasi2019/" + ("fig12" if metric == "dominant_flow" else "section5"),
        model=name,
        config={},
        metric=metric,
        value=round(float(np.mean(values)), 5),
        std=round(float(np.std(values)), 5),
        seeds=[FLAGS.seed],
        paper=None,
        data=data,
        budget=FLAGS.budget,
        epochs=None,
        departures=["the deviation is over blocks", "see the network's own line"],
        verdict="not comparable",
        seconds=round(seconds, 1),
        by_block=[round(value, 5) for value in values],
    )
    for path in filter(None, [folder / "results.jsonl", FLAGS.results]):
        report.append(path, line)


def draw(folder, tables):
    """Fig. 3, the layer cushions of the middle block, and Fig. 12, dominance over the layers."""
    from matplotlib.figure import Figure

    from zoo.files import replace

    figure = Figure(figsize=(5, 3), layout="constrained")
    axis = figure.subplots()
    for (name, table), style in zip(tables.items(), styles(), strict=False):
        if "layer_cushion_histogram" in table.probes():
            shares = table.array("layer_cushion_histogram")
            edges = np.linspace(0, 1, shares.shape[1] + 1)
            axis.stairs(shares[len(shares) // 2], edges, label=name, **style)
    axis.set(xlabel="layer cushion of the middle block", ylabel="share of examples")
    axis.legend(fontsize=7)
    replace(folder / "fig3.png", lambda new: figure.savefig(new, format="png", dpi=120))
    figure = Figure(figsize=(5, 3), layout="constrained")
    axis = figure.subplots()
    for (name, table), style in zip(tables.items(), styles(), strict=False):
        values = [*table.values("dominant_flow").values()]
        axis.plot(range(1, 1 + len(values)), values, label=name, **style)
    axis.set(xlabel="layer", ylabel="share of dominant channels")
    axis.legend(fontsize=7)
    replace(folder / "fig12.png", lambda new: figure.savefig(new, format="png", dpi=120))


def styles():
    """Lines that can be told apart in grey."""
    for color in ("black", "0.5", "0.75"):
        for line in ("-", "--", ":", "-."):
            yield {"color": color, "linestyle": line}


def draw_trivial(folder):
    """Fig. 11, P(r > 1) of the trivial case against its parameters, and Fig. 13, appendix E."""
    from matplotlib.figure import Figure

    from zoo.callbacks import probability_of_dominance, trivial_dominance
    from zoo.files import replace

    draws = 5 if FLAGS.budget == "smoke" else 100
    usual = {"width": 64, "depth": 5, "sigma": 0.03, "keep": 0.9}
    sweeps = {
        "width": (16, 32, 64, 128),
        "depth": (1, 2, 5, 10, 20),
        "sigma": (0.003, 0.01, 0.03, 0.1),
        "keep": (0.5, 0.7, 0.9, 1.0),
    }
    figure = Figure(figsize=(10, 3), layout="constrained")
    for axis, (key, values) in zip(figure.subplots(1, 4, sharey=True), sweeps.items(), strict=True):
        cases = [{**usual, key: value} for value in values]
        close = [trivial_dominance(**case) for case in cases]
        found = [trivial_dominance(**case, draws=draws, seed=FLAGS.seed) for case in cases]
        plain = [
            trivial_dominance(**case, residual=False, draws=draws, seed=FLAGS.seed)
            for case in cases
        ]
        axis.plot(values, close, "-", color="black", label="residual, approximated")
        axis.plot(values, found, "o", color="black", label="residual, simulated")
        axis.plot(values, plain, "s", color="0.6", label="plain, simulated")
        axis.set(xlabel=key, xscale="linear" if key == "keep" else "log")
    figure.axes[0].set_ylabel("P(r > 1)")
    figure.axes[0].legend(fontsize=7)
    replace(folder / "fig11.png", lambda new: figure.savefig(new, format="png", dpi=120))
    ratio = np.logspace(-2, 2, 200)
    figure = Figure(figsize=(5, 3), layout="constrained")
    axis = figure.subplots()
    axis.plot(ratio, probability_of_dominance(ratio), color="black", label="exact")
    axis.plot(ratio, probability_of_dominance(ratio, True), "--", color="0.5", label="logistic")
    axis.set(xlabel="ratio of the deviations", ylabel="P(|X| > |Y|)", xscale="log")
    axis.legend()
    replace(folder / "fig13.png", lambda new: figure.savefig(new, format="png", dpi=120))


if __name__ == "__main__":
    app.run(main)
