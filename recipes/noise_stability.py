"""Yu & Tomasi (2019), section 5, Figs 3, 10 and 12: noise and dominance, plain against residual.

    python recipes/noise_stability.py --data_dir cifar10.npz --depths 20
    python recipes/noise_stability.py --artifact section5 --budget paper

Looks into the networks of plain_vs_residual.py, which it finds in --runs or trains: layer cushions
(Fig. 3: those of the residual network are larger in all layers but two); interlayer cushions of
every block, activation contraction, what noise on the weights does to accuracy and output
(section 5: the interlayer cushion of one fully-fledged residual block is 0.20); how final features
and their gradients are distributed (Fig. 10); and dominant gradient flow at the first and the last
iteration (Fig. 12: over training residual networks have 4.06 times the plain ones' in deep layers,
1.24 in shallow ones, fully-fledged 3.07 and 0.99).

--run_dir gets section5-NETWORK.csv and .html, with their CSVs fig3-depthN.png, fig10-depthN.png,
fig12-depthN.png and fig12-full-depthN.png, and results.jsonl; --artifact makes one of them.
"""

import sys
import time

import numpy as np
from absl import app, flags

from experiment import flags as common
from experiment import hardware, plots, training
from yutomasi2019 import networks as plain_nets
from yutomasi2019 import noise_plots
from zoo.callbacks.training import PassProgress

ARTIFACTS = {  # the networks and depths that each needs
    "fig3": (("plain", "residual"), ("20", "32")),
    "section5": (plain_nets.FULL, ("20",)),
    "fig10": (("residual",), ("20",)),  # the paper's depth is lost
    "fig12": (("plain", "residual", *plain_nets.FULL), ("20",)),  # ibid.
}
IMAGES = {"smoke": 8, "minutes": 256, "paper": None}  # of Figs 3 and 10; "any in the training set"
NOISY = 10_000  # at most: of noise on the weights, of which the paper shows nothing
FEW = {"smoke": (2, 4), "minutes": (16, 16), "paper": (128, 128)}  # images, random projections
RATIOS = {"": (1.24, 4.06), "full_": (0.99, 3.07)}  # Fig. 12: shallow, deep layers
CUSHION = {("full_residual", 20): 0.20}  # section 5, of one block
EXCEPTIONS = 2  # layers of Fig. 3's networks
METRICS = {"fig3": "layer_cushion", "section5": "interlayer_cushion", "fig12": "dominant_flow"}

plain_nets.define_flags(ARTIFACTS)
flags.adopt_module_key_flags(plain_nets)
FLAGS = flags.FLAGS


def main(argv):
    common.check(argv)
    asked, found = plain_nets.asked(ARTIFACTS), {}
    given = plain_nets.folder("noise-stability", asked)

    def look(run, network, depth):
        found[network, depth] = inspect(run, network, depth, hardware.folder_for(given))

    failed = plain_nets.each(asked, look)
    folder = hardware.folder_for(given)
    for depth in dict.fromkeys(depth for _, depth in found):
        mine = {network: one for (network, at), one in found.items() if at == depth}
        draw(folder, depth, mine)
        compare_cushions(folder, depth, mine)
        compare_dominance(folder, depth, mine)
    if found:
        print(f"tables and figures: {folder}")
    sys.exit("\n".join(failed) or None)


def inspect(run, network, depth, folder):
    """What was measured of one network, by artifact, and its `plain_nets.Trained`."""
    import zoo

    flow, simple = plain_nets.wants("fig12"), network not in plain_nets.FULL
    first = dominance(run) if flow else None
    training.train(run)
    zoo.seed_everything(FLAGS.seed)
    trained = plain_nets.Trained.of(run, network, depth)
    found, name = {"trained": trained, "images": images(run)}, f"{network}{depth}"
    if network != "dominant":  # whose blocks are no full convolutions
        if simple and plain_nets.wants("fig3"):
            found["fig3"] = measured(trained, run, folder, "fig3", cushions)
        if plain_nets.wants("section5"):
            table = measured(trained, run, folder, "section5", interlayer_cushions) + noise(run)
            table += found.get("fig3") or cushions(run)
            for path in plots.places(folder / f"section5-{name}.csv"):
                table.to_csv(path)
            title = f"{name} after {run.epochs} epochs on {run.images.name}"
            table.to_html(folder / f"section5-{name}.html", title)
    if flow:
        found["fig12"] = first, measured(trained, run, folder, "fig12", dominance)
    if simple and plain_nets.wants("fig10"):
        found["fig10"] = final_features(run)
        record_features(trained, run, folder, found["fig10"])
    return found


def images(run):
    """Of a line: on how many images of how many cushions and features were measured."""
    count = plain_nets.examples(run, IMAGES)
    return {"config": {"images": count}, "departures": plain_nets.fewer(run, count)}


def dominance(run):
    """Dominant gradient flow of the network as it is now, on training images."""
    from zoo import callbacks

    few = FEW[FLAGS.budget][0]
    data = run.data.preprocess(run.images.x_train[:few]), run.images.y_train[:few]
    return callbacks.dominant_flow(run.model, data, batch_size=min(few, 8))


def cushions(run):
    """Layer cushions and activation contraction."""
    from zoo import callbacks

    probes = (
        callbacks.LayerCushion(largest=noise_plots.LARGEST),
        callbacks.ActivationContraction(),
    )
    count = plain_nets.examples(run, IMAGES)
    say = PassProgress("layer cushions", count)
    return callbacks.run(probes, run.model, plain_nets.pieces(run, count), progress=say)


def interlayer_cushions(run):
    """Of every block."""
    from zoo import callbacks

    few, projections = FEW[FLAGS.budget]
    print(f"interlayer cushions of {few} images, {projections} projections", flush=True)
    x, options = run.data.preprocess(run.images.x_train[:few]), {"projections": projections}
    return callbacks.interlayer_cushions(run.model, x, **options, seed=FLAGS.seed)


def noise(run):
    """What noise on the weights does."""
    from zoo import callbacks

    count = min(NOISY, plain_nets.examples(run, IMAGES))
    print(f"noise on the weights, {count} images", flush=True)
    data = plain_nets.pieces(run, count)
    return callbacks.noise_sensitivity(run.model, data, seed=FLAGS.seed)


def final_features(run):
    """What the classifier reads, and the loss's gradient there, W (p - y), of each image."""
    import keras

    classifier = run.model.layers[-1]
    both = keras.Model(run.model.input, [classifier.input, run.model.output])
    kernel, found = keras.ops.convert_to_numpy(classifier.kernel), []
    for x, y in plain_nets.pieces(run, plain_nets.examples(run, IMAGES)):
        features, p = map(keras.ops.convert_to_numpy, both.predict_on_batch(x))
        found.append((features, (p - np.eye(p.shape[-1])[y.reshape(-1)]) @ kernel.T))
    return tuple(map(np.concatenate, zip(*found, strict=True)))


def measured(trained, run, folder, artifact, how):
    """The table of `how`, and its line: the mean of its metric over blocks, and each block's."""
    began, metric = time.perf_counter(), METRICS[artifact]
    table, (few, projections) = how(run), FEW[FLAGS.budget]
    values = np.array([*table.values(metric).values()])
    finite = values[np.isfinite(values)]
    told, paper = {"config": {"images": few}, "departures": []}, None
    readings = [plain_nets.TRAINING, "mean over blocks and images"]
    readings += [] if artifact == "fig3" else [f"{few} images: the paper does not say"]
    if artifact == "fig3":
        told = images(run)
    if artifact == "section5":
        paper = CUSHION.get((trained.network, trained.depth))
        told["config"]["projections"] = projections
        told["departures"] = ["mean over blocks; the paper: one of nine, which is lost"]
    told["metric"] = metric
    told["deviation_over_blocks"] = round(float(finite.std()), 5) if finite.size else None
    told["by_block"] = [round(value, 5) for value in values.tolist()]
    told["seconds"] = round(time.perf_counter() - began, 1)
    value = round(float(finite.mean()), 5) if finite.size else None
    trained.write(folder, artifact, value, paper, readings=readings, **told)
    where = f"{finite.min():.4f} to {finite.max():.4f}" if finite.size else "without signal"
    print(f"{trained.network}{trained.depth}: {metric} by block {where}", flush=True)
    return table


def record_features(trained, run, folder, pair):
    """The line of Fig. 10: how far the gradients' mean is from zero, in their deviations."""
    found = {}
    for what, values in zip(("feature", "gradient"), pair, strict=True):
        scaled = noise_plots.in_deviations(values)
        found[f"{what}_mean"] = float(scaled.mean()) if scaled.size else None
        found[f"{what}_deviation"] = float(values.std())
    found = {key: value and round(value, 6) for key, value in found.items()}
    value, metric = found.pop("gradient_mean"), "mean_of_final_gradients_in_deviations"
    found |= {"metric": metric, "readings": [plain_nets.TRAINING], **images(run)}
    trained.write(folder, "fig10", value, **found)


def draw(folder, depth, found):
    """The figures of the networks of one depth."""

    def of(artifact, networks):
        has = [n for n in networks if artifact in found.get(n, ())]
        return {f"{network}{depth}": found[network][artifact] for network in has}

    simple = [network for network in found if network not in plain_nets.FULL]
    if tables := of("fig3", ("plain", "residual")):  # the paper's
        noise_plots.draw_cushions(folder / f"fig3-depth{depth}.png", tables)
    if features := of("fig10", simple):
        noise_plots.draw_features(folder / f"fig10-depth{depth}.png", features)
    for kind, networks in (("", simple), ("full-", plain_nets.FULL)):
        if flows := of("fig12", networks):
            noise_plots.draw_dominance(folder / f"fig12-{kind}depth{depth}.png", flows)


def compare_cushions(folder, depth, found):
    """The line of Fig. 3: the layers whose cushion is not larger in the residual network."""
    pair = [found.get(network, {}) for network in ("residual", "plain")]
    if any("fig3" not in one for one in pair):
        return
    residual, plain = (np.array([*one["fig3"].values("layer_cushion").values()]) for one in pair)
    smaller, trained = int(np.sum(~(residual > plain))), pair[0]["trained"]
    print(f"{depth}: cushions larger in all but {smaller} of {len(plain)} layers", flush=True)
    told = {"model": f"nets {depth}", "metric": "layers_without_larger_cushion"}
    told |= {"layers": len(plain), **pair[0]["images"]}
    readings = [plain_nets.TRAINING, "means over images compared, of all blocks"]
    paper = EXCEPTIONS if depth in (20, 32) else None
    trained.write(folder, "fig3", smaller, paper, readings=readings, **told)


def compare_dominance(folder, depth, found):
    """The lines of Fig. 12: the residual network's over the plain one's, shallow and deep."""
    for prefix, papers in RATIOS.items():
        pair = [found.get(prefix + kind, {}) for kind in ("residual", "plain")]
        if any("fig12" not in one for one in pair):
            continue
        by_layer = [[*one["fig12"][1].values("dominant_flow").values()] for one in pair]
        half = len(by_layer[0]) // 2
        parts = {"shallow": slice(0, half), "deep": slice(half, None)}
        for (part, where), paper in zip(parts.items(), papers, strict=True):
            residual, plain = (float(np.mean(values[where])) for values in by_layer)
            ratio = residual / plain if plain else np.inf
            print(f"{prefix}{depth}: dominance, residual over plain, {part}: {ratio:.2f}")
            told = {"metric": f"dominance_of_residual_over_plain_{part}"}
            told |= {"model": f"{prefix}nets {depth}", "config": {"images": FEW[FLAGS.budget][0]}}
            departures = ["at the last iteration; the paper: mean over training"]
            readings = [plain_nets.TRAINING, "shallow: the first half; the paper's part is lost"]
            trained = pair[0]["trained"]
            trained.write(folder, "fig12", round(ratio, 3), paper, departures, readings, **told)


if __name__ == "__main__":
    app.run(main)
