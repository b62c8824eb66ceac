"""Yu & Tomasi (2019), section 5, Figs 3, 10 and 12: noise and dominance, plain against residual.

    python recipes/noise_stability.py --data_dir cifar10.npz --depths 20
    python recipes/noise_stability.py --networks full_plain,full_residual --depths 20

Looks into the networks of plain_vs_residual.py, which it finds in --runs or trains: dominant
gradient flow at the first and the last iteration (Fig. 12); layer cushions (Fig. 3: those of the
residual network lie to the right), interlayer cushions of every block, activation contraction, what
noise on the weights does to accuracy and output; and how final features and their gradients are
distributed (Fig. 10). The paper: dominance of residual over plain networks 4.06 in deep layers,
1.24 in shallow ones, fully-fledged 3.07 and 0.99; the interlayer cushion of one fully-fledged
residual block 0.20.

--run_dir gets NETWORK.csv and .html, fig3.png, fig10.png and fig12.png with their CSVs, and
results.jsonl.
"""

import time

import figures  # beside this script
import hardware
import image_recipe  # beside this script
import numpy as np
import plain_nets  # beside this script
from absl import app, flags

BUDGETS = {"smoke": (8, 2, 4), "minutes": (256, 16, 16), "paper": (10_000, 128, 128)}
# images of cushions, images of dominance, random projections; ours: the paper does not say
LARGEST = 4.0  # cushion of Fig. 3; ours: all beyond are in the last bin
RATIOS = {"": (1.24, 4.06), "full_": (0.99, 3.07)}  # shallow, deep: section 4
ARTIFACTS = {"layer_cushion": "fig3", "interlayer_cushion": "section5", "dominant_flow": "fig12"}
CUSHION = {("full_residual", 20): 0.20}  # section 5, of one block

plain_nets.define_flags(["20", "32", "44"])
FLAGS = flags.FLAGS


def main(argv):
    image_recipe.check(argv)
    import zoo

    asked = plain_nets.asked()
    given = FLAGS.run_dir or f"runs/noise-stability-{plain_nets.short(asked)}"
    tables, flows, features = {}, {}, {}
    for network, depth in asked:
        name, run = f"{network}{depth}", plain_nets.prepare(network, depth)
        folder = hardware.folder_for(given)
        folder.mkdir(parents=True, exist_ok=True)
        first = dominance(run)
        image_recipe.train(run)
        zoo.seed_everything(FLAGS.seed)
        began, last = time.perf_counter(), dominance(run)
        flows[network, depth] = first, last
        tables[name] = inspect(run, network) + last
        features[name] = final_features(run)
        tables[name].to_csv(folder / f"{name}.csv")
        data = f"{run.epochs} epochs on {run.images.name}"
        tables[name].to_html(folder / f"{name}.html", f"{name} after {data}")
        seconds = time.perf_counter() - began
        for metric in ARTIFACTS:
            if metric in tables[name].probes():
                record(run, name, metric, tables[name].values(metric), seconds, folder)
    draw_cushions(folder / "fig3.png", tables)
    draw_features(folder / "fig10.png", features)
    draw_dominance(folder / "fig12.png", flows)
    compare(run, flows, folder)


def dominance(run):
    """Dominant gradient flow of the network as it is now, on training images."""
    from zoo import callbacks

    few = BUDGETS[FLAGS.budget][1]
    data = run.prepared(run.images.x_train[:few]), run.images.y_train[:few]
    return callbacks.dominant_flow(run.model, data, batch_size=min(few, 8))


def inspect(run, network):
    """Cushions, contraction, and what noise does."""
    from zoo import callbacks

    num, few, projections = BUDGETS[FLAGS.budget]
    x, y = run.prepared(run.images.x_train[:num]), run.images.y_train[:num]
    table = callbacks.noise_sensitivity(run.model, (x, y), seed=FLAGS.seed)
    if network == "dominant":  # whose blocks are no full convolutions
        return table
    probes = [callbacks.LayerCushion(largest=LARGEST), callbacks.ActivationContraction()]
    options = {"projections": projections, "seed": FLAGS.seed}
    table += callbacks.run(probes, run.model, x)
    return table + callbacks.interlayer_cushions(run.model, x[:few], **options)


def final_features(run):
    """What the classifier reads, and the loss's gradient there, W (p - y), of each image."""
    import keras

    num = BUDGETS[FLAGS.budget][0]
    x, y = run.prepared(run.images.x_train[:num]), run.images.y_train[:num]
    classifier = run.model.layers[-1]
    both = keras.Model(run.model.inputs, [classifier.input, run.model.output])
    features, p = both.predict(x, verbose=0)
    kernel = keras.ops.convert_to_numpy(classifier.kernel)
    return features, (p - np.eye(p.shape[-1])[y.reshape(-1)]) @ kernel.T


def record(run, name, metric, values, seconds, folder):
    """One line: the mean of a measurement over the blocks, and each block's."""
    values = [*values.values()]
    network = name.rstrip("0123456789")
    paper = CUSHION.get((network, int(name.removeprefix(network))))
    write(
        run,
        folder,
        artifact="yutomasi2019/" + ARTIFACTS[metric],
        model=name,
        metric=metric,
        value=round(float(np.mean(values)), 5),
        std=None,
        paper=paper if metric == "interlayer_cushion" else None,
        departures=["mean over blocks"],
        seconds=round(seconds, 1),
        deviation_over_blocks=round(float(np.std(values)), 5),
        by_block=[round(value, 5) for value in values],
    )
    print(f"{name}: {metric} {np.mean(values):.4f}, {min(values):.4f} to {max(values):.4f}")


def write(run, folder, **facts):
    """A line of results in `folder` and in `--results`."""
    from zoo import report

    departures = [*image_recipe.usual_departures(run), *facts.pop("departures")]
    usual = {"config": {}, "seeds": [FLAGS.seed], "data": run.images.name, "epochs": run.epochs}
    usual |= {"budget": FLAGS.budget, "departures": departures, "verdict": "not comparable"}
    line = report.row(**{**usual, **facts})
    hardware.append(folder, line)


def compare(run, flows, folder):
    """Dominance of the residual over that of the plain network, in shallow and in deep layers."""
    for prefix, papers in RATIOS.items():
        for depth in dict.fromkeys(depth for _, depth in flows):
            pair = [flows.get((prefix + kind, depth)) for kind in ("residual", "plain")]
            if None in pair:
                continue
            by_layer = [[*flow[-1].values("dominant_flow").values()] for flow in pair]
            half = len(by_layer[0]) // 2
            parts = {"shallow": slice(0, half), "deep": slice(half, None)}
            for (part, where), paper in zip(parts.items(), papers, strict=True):
                ratio = float(np.divide(*(np.mean(values[where]) for values in by_layer)))
                print(f"{prefix}{depth}: dominance, residual over plain, {part}: {ratio:.2f}")
                departures = ["at the last iteration; the paper: mean over training"]
                departures.append("shallow: the first half of the layers; the paper's is lost")
                metric = f"dominance_of_residual_over_plain_{part}"
                facts = {"model": f"{prefix}nets {depth}", "metric": metric, "paper": paper}
                facts |= {"value": round(ratio, 3), "std": None, "departures": departures}
                write(run, folder, artifact="yutomasi2019/fig12", seconds=0.0, **facts)


def draw_cushions(path, tables):
    """Fig. 3: per-sample cushions, a panel for each third of the depth."""
    tables = {n: t for n, t in tables.items() if "layer_cushion_histogram" in t.probes()}
    if not tables:
        return
    figure, axes = figures.new(10, 3, ncols=3, sharey=True)
    rows = []
    for (name, table), style in zip(tables.items(), figures.styles(), strict=False):
        shares, blocks = table.array("layer_cushion_histogram"), table.values("layer_cushion")
        edges = np.linspace(0, LARGEST, shares.shape[1] + 1)
        for axis, part in zip(axes, (1, 3, 5), strict=True):
            index = len(shares) * part // 6
            axis.stairs(shares[index], edges, label=f"{name}, block {index}", **style)
            axis.legend(fontsize=6)
        rows += (
            {"network": name, "block": block, "from": round(low, 4), "share": share}
            for block, line in zip(blocks, shares.tolist(), strict=True)
            for low, share in zip(edges[:-1], line, strict=True)
        )
    axes[1].set(xlabel=f"layer cushion of an image (last bin: {LARGEST:g} and beyond)")
    axes[0].set(ylabel="share of images")
    figures.save(path, figure, rows)


def draw_features(path, features):
    """Fig. 10: final features and their gradients, less mean and over deviation of each."""
    figure, axes = figures.new(8, 3, ncols=2, sharey=True)
    edges, rows = np.linspace(-4, 4, 41), []
    for (name, pair), style in zip(features.items(), figures.styles(), strict=False):
        for axis, what, values in zip(axes, ("feature", "gradient"), pair, strict=True):
            centred = values - values.mean(0)
            spread = values.std(0)
            scaled = centred[:, spread > 0] / spread[spread > 0]  # dead features left out
            density = np.histogram(scaled, edges)[0] / max(scaled.size, 1) / (edges[1] - edges[0])
            axis.stairs(density, edges, label=name, **style)
            axis.set(xlabel=f"final {what}, in its deviations")
            rows += (
                {"network": name, "of": what, "from": round(low, 4), "density": value}
                for low, value in zip(edges[:-1].tolist(), density.tolist(), strict=True)
            )
    axes[0].set(ylabel="density")
    axes[0].legend(fontsize=7)
    figures.save(path, figure, rows)


def draw_dominance(path, flows):
    """Fig. 12: the share of dominant channels over the layers, first and last iteration."""
    figure, axes = figures.new(9, 3.5, ncols=2, sharey=True)
    rows = []
    for (key, pair), style in zip(flows.items(), figures.styles(), strict=False):
        for axis, when, table in zip(axes, ("first", "last"), pair, strict=True):
            values = [*table.values("dominant_flow").values()]
            layers, name = range(1, 1 + len(values)), "{} {}".format(*key)
            axis.plot(layers, values, label=name, **style)
            axis.set(xlabel="block", title=f"{when} iteration")
            rows += (
                {"network": name, "iteration": when, "block": block, "dominant_flow": value}
                for block, value in zip(layers, values, strict=True)
            )
    axes[0].set(ylabel="share of dominant channels")
    axes[0].legend(fontsize=7)
    figures.save(path, figure, rows)


if __name__ == "__main__":
    app.run(main)
