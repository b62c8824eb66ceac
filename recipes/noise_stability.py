"""Yu & Tomasi (2019), section 5, Figs 3, 10 and 12: noise and dominance, plain against residual.

    python recipes/noise_stability.py --data_dir DATA --depths 20
    python recipes/noise_stability.py --artifact section5 --budget paper

Measures the networks of plain_vs_residual.py, which it finds in --runs or trains: layer cushions
(Fig. 3: larger in nearly all layers of the residual network, whose identity is in the numerator
and not in the norm: by definition, before training and in a network of the same function) and
interlayer cushions of every block, both before and after training; activation contraction, and what
noise on the weights does to accuracy and output (section 5); the distribution of final features and
their gradients (Fig. 10); and dominant gradient flow at the first and the last iteration and, where
this command trains the networks, every `--flow_every` epochs (Fig. 12: in the mean over training,
in deep layers several times the plain networks'). The paper's numbers are `CUSHION`, `EXCEPTIONS`
and `RATIOS` below.

--run_dir gets section5-NETWORK.csv and .html, with their CSVs fig3-depthN.png, fig10-depthN.png,
fig12-depthN.png and fig12-full-depthN.png, and results.jsonl; --artifact makes one of them.
"""

import dataclasses
import sys
import time

from experiment.script import run_script

import keras
import numpy as np
from absl import flags

import zoo
from experiment import plots, training
from experiment.flags import FLAGS
from yutomasi2019 import figures, networks
from zoo import callbacks
from zoo.callbacks.training import PassProgress

ARTIFACTS = {  # the networks and depths that each needs
    "fig3": (("plain", "residual", "transferred"), ("20", "32")),
    "section5": (networks.FULL, ("20",)),
    "fig10": (("residual",), ("20",)),  # the paper's depth is lost
    "fig12": (("plain", "residual", *networks.FULL), ("20",)),  # ibid.
}
IMAGES = {"smoke": 8, "minutes": 1000, "paper": None}  # of Figs 3 and 10; "any in the training set"
NOISES = (0.01, 0.03, 0.1)  # norms relative to a kernel's; ours
NOISE_IMAGES = 10_000  # at most: of noise on the weights, of which the paper shows nothing
FLOW_IMAGES = {"smoke": 2, "minutes": 32, "paper": 128}  # of section 5 and Fig. 12; ours
PROJECTIONS = {"smoke": 4, "minutes": 16, "paper": 128}  # random ones, of section 5; ours
RATIOS = {"": (1.24, 4.06), "full_": (0.99, 3.07)}  # Fig. 12: shallow, deep layers
CUSHION = {("full_residual", 20): 0.20}  # section 5, of one block
EXCEPTIONS = {20: 2, 32: 2}  # layers of Fig. 3's networks with no larger cushion

networks.define_flags(ARTIFACTS)
help_text = "Epochs between two measurements of dominance in training. Default: a tenth of them."
flags.DEFINE_integer("flow_every", None, help_text, lower_bound=1)


@dataclasses.dataclass
class Measured:
    """Measurements of one network; None where an artifact is not asked for."""

    trained: networks.Trained
    sample: dict  # number of images of Figs 3 and 10, and its deviations: attributes of a result
    cushions: dict | None = None  # tables of Fig. 3, "before" and "after" training
    features: tuple | None = None  # features and gradients of Fig. 10
    flows: dict | None = None  # Fig. 12: "first" and "last" iteration, "mean" over training
    flow_epochs: list | None = None  # after which that was measured; 0: before the first


class DominanceByEpoch(keras.callbacks.Callback):
    """Measure dominance every few epochs, in dominance.csv of the run directory.

    A resumed training goes on with the rows of its earlier epochs.
    """

    def __init__(self, run):
        super().__init__()
        self.run = run
        self.path = run.folder / "dominance.csv"
        self.every = FLAGS.flow_every or max(run.epochs // 10, 1)

    def read(self):
        """Return the rows of the finished epochs."""
        rows = callbacks.Table.from_csv(self.path) if self.path.exists() else ()
        return [row for row in rows if row.epoch <= self.run.epochs]

    def on_epoch_end(self, epoch, logs=None):
        """Measure if it is due, and replace rows of epochs that are repeated."""
        if (epoch + 1) % self.every == 0:
            self.model  # noqa: B018  # on JAX, attaches the trained values to the variables
            rows = [row for row in self.read() if row.epoch <= epoch]
            rows += [row._replace(epoch=epoch + 1) for row in dominance(self.run)]
            callbacks.Table(rows).to_csv(self.path)


def main():
    """Measure the networks, then draw figures and write results that compare them."""
    selected = networks.selected(ARTIFACTS)
    folder = networks.figures_folder("noise-stability", selected)
    measured = {}

    def inspect(run, network, depth):
        measured.setdefault(depth, {})[network] = measure(run, network, depth, folder)

    failures = networks.prepare_each(selected, inspect)
    for depth, by_network in measured.items():
        draw(folder, depth, by_network)
        compare_cushions(folder, depth, by_network)
        compare_dominance(folder, depth, by_network)
    if measured:
        print(f"tables and figures: {folder}")
    sys.exit("\n".join(failures) or None)


def measure(run, network, depth, folder):
    """Train a network and return what is `Measured` of it."""
    wants_flow = networks.wants("fig12")
    is_simple = network not in networks.FULL
    has_cushions = network not in networks.DOMINANT  # whose blocks are no full convolutions
    wants_cushions = has_cushions and is_simple and networks.wants("fig3")
    wants_interlayer = has_cushions and networks.wants("section5")
    by_epoch = DominanceByEpoch(run)
    first_flow = at_start(run, dominance) if wants_flow else None
    first_cushions = at_start(run, cushions) if wants_cushions else None
    first_interlayer = at_start(run, interlayer_cushions) if wants_interlayer else None
    training.train(run, [by_epoch] if wants_flow else [])
    zoo.seed_everything(FLAGS.seed)
    count = networks.num_examples(run, IMAGES)
    sample = {
        "config": {"images": count},
        "deviations": networks.sample_deviations(run, count),
    }
    measured = Measured(networks.Trained.of(run, network, depth), sample)
    if wants_cushions:
        measured.cushions = measure_cushions(run, measured, folder, first_cushions)
    if wants_interlayer:
        table = measure_interlayer_cushions(run, measured, folder, first_interlayer)
        table += measure_noise(run, measured, folder)
        table += measured.cushions["after"] if measured.cushions else cushions(run)
        for path in plots.places(folder / f"section5-{network}{depth}.csv"):
            table.to_csv(path)
        title = f"{network}{depth} after {run.epochs} epochs on {run.images.name}"
        callbacks.write_html(table, folder / f"section5-{network}{depth}.html", title)
    if wants_flow:
        measure_dominance(run, measured, folder, first_flow, by_epoch.read())
    if is_simple and networks.wants("fig10"):
        measured.features = final_features(run)
        write_features(folder, measured)
    return measured


def at_start(run, function):
    """Return a measurement of the untrained network.

    Its batch normalization uses averages that have settled on the first training batch; the initial
    ones, 0 and 1, are no data's.
    """
    x = run.data.preprocess(run.images.x_train[: networks.BATCH])
    with callbacks.batch_statistics(run.model, x):
        return function(run)


def dominance(run):
    """Return the dominant gradient flow of the network as it is now, on training images."""
    count = FLOW_IMAGES[FLAGS.budget]
    data = run.data.preprocess(run.images.x_train[:count]), run.images.y_train[:count]
    return callbacks.dominant_flow(run.model, data, batch_size=min(count, 8))


def measure_dominance(run, measured, folder, first, in_training):
    """Measure the dominant gradient flow after training, and write its result.

    `first` is the table before training, `in_training` has the rows of `DominanceByEpoch`; of
    `measured`, `flows` and `flow_epochs` are set.
    """
    start = time.perf_counter()
    last = dominance(run)
    by_epoch = {0: first.values("dominant_flow")}
    for row in in_training:
        if row.probe == "dominant_flow":
            by_epoch.setdefault(row.epoch, {})[row.block] = row.value
    by_epoch[run.epochs] = last.values("dominant_flow")
    mean = {
        block: float(np.mean([values[block] for values in by_epoch.values()]))
        for block in by_epoch[0]
    }
    measured.flows = {"first": by_epoch[0], "last": by_epoch[run.epochs], "mean": mean}
    measured.flow_epochs = [*by_epoch]
    count = FLOW_IMAGES[FLAGS.budget]
    write_mean(
        folder,
        measured.trained,
        "fig12",
        "dominant_flow",
        last,
        start,
        config={"images": count},
        assumptions=[f"{count} images: the paper does not say"],
        more={
            "before_by_block": rounded(by_epoch[0]),
            "mean_by_block": rounded(mean),
            "epochs_of_mean": measured.flow_epochs,
        },
    )


def rounded(by_block):
    """Return a metric's values by block for a line of results."""
    return [round(value, 5) for value in by_block.values()]


def cushions(run):
    """Return layer cushions and activation contraction."""
    cushion = callbacks.LayerCushion(largest=figures.LARGEST_CUSHION)
    count = networks.num_examples(run, IMAGES)
    batches = networks.training_batches(run, count)
    progress = PassProgress("layer cushions", count)
    probes = [cushion, callbacks.ActivationContraction()]
    return callbacks.run(probes, run.model, batches, progress=progress)


def measure_cushions(run, measured, folder, before):
    """Return the tables of Fig. 3 before and after training, and write its result."""
    start = time.perf_counter()
    after = cushions(run)
    write_mean(
        folder,
        measured.trained,
        "fig3",
        "layer_cushion",
        after,
        start,
        more={
            "before_by_block": rounded(before.values("layer_cushion")),
            "smallest_by_block": rounded(after.values("layer_cushion_min")),
            "largest_contraction_by_block": rounded(after.values("activation_contraction_max")),
        },
        **measured.sample,
    )
    return {"before": before, "after": after}


def interlayer_cushions(run):
    """Return the interlayer cushions of every block of the network as it is now."""
    count = FLOW_IMAGES[FLAGS.budget]
    projections = PROJECTIONS[FLAGS.budget]
    print(f"interlayer cushions of {count} images, {projections} projections", flush=True)
    x = run.data.preprocess(run.images.x_train[:count])
    return callbacks.interlayer_cushions(run.model, x, projections=projections, seed=FLAGS.seed)


def measure_interlayer_cushions(run, measured, folder, before):
    """Return the interlayer cushions after training, and write the result of section 5."""
    start = time.perf_counter()
    table = interlayer_cushions(run)
    count = FLOW_IMAGES[FLAGS.budget]
    write_mean(
        folder,
        measured.trained,
        "section5",
        "interlayer_cushion",
        table,
        start,
        paper=CUSHION.get((measured.trained.network, measured.trained.depth)),
        config={"images": count, "projections": PROJECTIONS[FLAGS.budget]},
        deviations=["mean over blocks; the paper: one of nine, which is lost"],
        assumptions=[f"{count} images: the paper does not say"],
        more={"before_by_block": rounded(before.values("interlayer_cushion"))},
    )
    return table


def write_mean(  # noqa: PLR0913 (what distinguishes the three results)
    folder, trained, artifact, metric, table, start, *, assumptions=(), more, **values
):
    """Write the result of a metric: its mean over blocks, and the value of each block."""
    by_block = np.array([*table.values(metric).values()])
    finite = by_block[np.isfinite(by_block)]
    trained.write(
        folder,
        artifact,
        metric,
        round(float(finite.mean()), 5) if finite.size else None,
        assumptions=["mean over blocks and images", *assumptions],
        seconds=round(time.perf_counter() - start, 1),
        more={
            "deviation_over_blocks": round(float(finite.std()), 5) if finite.size else None,
            "by_block": rounded(table.values(metric)),
            **more,
        },
        **values,
    )
    extent = f"{finite.min():.4f} to {finite.max():.4f}" if finite.size else "without signal"
    print(f"{trained.network}{trained.depth}: {metric} by block {extent}", flush=True)


def measure_noise(run, measured, folder):
    """Return the sensitivity to noise on the weights, and write the accuracy lost to it, in %."""
    start = time.perf_counter()
    count = min(NOISE_IMAGES, networks.num_examples(run, IMAGES))
    print(f"noise on the weights, {count} images", flush=True)
    batches = networks.training_batches(run, count)
    table = callbacks.noise_sensitivity(run.model, batches, NOISES, seed=FLAGS.seed)
    by_size = {row.unit: row.value for row in table.of_probe("noise_accuracy")}
    clean = by_size.pop(None)
    lost = [round(100 * (clean - value), 4) for value in by_size.values()]
    measured.trained.write(
        folder,
        "section5",
        "accuracy_lost_to_noise",
        lost[-1],
        config={"images": count, "noise": NOISES[-1]},
        deviations=networks.sample_deviations(run, count),
        assumptions=["normal noise on all kernels, sizes ours"],
        seconds=round(time.perf_counter() - start, 1),
        more={"noises": NOISES, "accuracy_lost_by_noise": lost},
    )
    return table


def final_features(run):
    """Return the classifier's inputs and the loss's gradients there, W (p - y), of each image."""
    classifier = run.model.layers[-1]
    both = keras.Model(run.model.input, [classifier.input, run.model.output])
    kernel = keras.ops.convert_to_numpy(classifier.kernel)
    features = []
    gradients = []
    for x, y in networks.training_batches(run, networks.num_examples(run, IMAGES)):
        inputs, p = map(keras.ops.convert_to_numpy, both.predict_on_batch(x))
        features.append(inputs)
        gradients.append((p - np.eye(p.shape[-1])[y.reshape(-1)]) @ kernel.T)
    return np.concatenate(features), np.concatenate(gradients)


def write_features(folder, measured):
    """Write the result of Fig. 10: the gradients' mean in their standard deviations."""
    features, gradients = measured.features
    feature_mean = _mean(figures.in_deviations(features))
    gradient_mean = _mean(figures.in_deviations(gradients))
    measured.trained.write(
        folder,
        "fig10",
        "mean_of_final_gradients_in_deviations",
        gradient_mean,
        more={
            "feature_mean": feature_mean,
            "feature_deviation": round(float(features.std()), 6),
            "gradient_deviation": round(float(gradients.std()), 6),
        },
        **measured.sample,
    )


def _mean(values):
    return round(float(values.mean()), 6) if values.size else None


def draw(folder, depth, measured):
    """Draw Figs 3, 10 and 12 of the networks of one depth."""
    simple = [network for network in measured if network not in networks.FULL]

    def select(attribute, names):
        values = {name: getattr(measured[name], attribute) for name in names if name in measured}
        return {f"{name}{depth}": value for name, value in values.items() if value is not None}

    cushions = select("cushions", simple)
    rows = [
        row
        for when in ("before", "after")
        for name, tables in cushions.items()
        for row in figures.cushion_rows(name, when, tables[when])
    ]
    if rows:
        figures.fig3(folder / f"fig3-depth{depth}.png", rows)
    features = select("features", simple)
    rows = [row for name, pair in features.items() for row in figures.feature_rows(name, pair)]
    if rows:
        figures.fig10(folder / f"fig10-depth{depth}.png", rows)
    for kind, names in (("", simple), ("full-", networks.FULL)):
        flows = select("flows", names)
        rows = [row for name, tables in flows.items() for row in figures.flow_rows(name, tables)]
        if rows:
            figures.fig12(folder / f"fig12-{kind}depth{depth}.png", rows)


def compare_cushions(folder, depth, measured):
    """Write the result of Fig. 3: layers whose cushion is not larger in the residual network."""
    pair = [measured.get(network) for network in ("residual", "plain")]
    if any(network is None or network.cushions is None for network in pair):
        return
    residual, plain = (
        np.array([*network.cushions["after"].values("layer_cushion").values()]) for network in pair
    )
    exceptions = int(np.sum(~(residual > plain)))
    print(f"{depth}: cushions larger in all but {exceptions} of {len(plain)} layers", flush=True)
    pair[0].trained.write(
        folder,
        "fig3",
        "layers_without_larger_cushion",
        exceptions,
        EXCEPTIONS.get(depth),
        model=f"nets {depth}",
        assumptions=["means over images compared, of all blocks"],
        more={"layers": len(plain)},
        **pair[0].sample,
    )


def compare_dominance(folder, depth, measured):
    """Write the results of Fig. 12: residual over plain dominance, in shallow and deep layers."""
    for prefix, papers in RATIOS.items():
        pair = [measured.get(prefix + kind) for kind in ("residual", "plain")]
        if any(network is None or network.flows is None for network in pair):
            continue
        by_layer = [[*network.flows["mean"].values()] for network in pair]
        epochs = ", ".join(map(str, pair[0].flow_epochs))
        half = len(by_layer[0]) // 2
        parts = {"shallow": slice(0, half), "deep": slice(half, None)}
        for (part, layers), paper in zip(parts.items(), papers, strict=True):
            residual, plain = (float(np.mean(values[layers])) for values in by_layer)
            ratio = residual / plain if plain else np.inf
            print(f"{prefix}{depth}: dominance, residual over plain, {part}: {ratio:.2f}")
            pair[0].trained.write(
                folder,
                "fig12",
                f"dominance_of_residual_over_plain_{part}",
                round(ratio, 3),
                paper,
                [f"mean after epochs {epochs}; the paper's is over the whole training"],
                model=f"{prefix}nets {depth}",
                config={"images": FLOW_IMAGES[FLAGS.budget]},
                assumptions=["shallow: the first half; the paper's part is lost"],
            )


if __name__ == "__main__":
    run_script(main)
