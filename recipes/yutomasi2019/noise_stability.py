"""Yu & Tomasi (2019), section 5, Figs 3, 10, 12: noise and dominance, plain against residual.

    python recipes/yutomasi2019/noise_stability.py --data_dir DATA
    python recipes/yutomasi2019/noise_stability.py --networks full_plain,full_residual

Measures the networks of yutomasi2019/networks.py before and after training:

* layer cushions (Fig. 3), larger in nearly all layers of the residual network, whose identity is in
  the numerator and not in the norm: by definition, before training and in a network of the same
  function, too; activation contraction; and interlayer cushions of each block (section 5);
* the effect of noise on the weights on accuracy and output (section 5);
* the distribution of final features and their gradients (Fig. 10: nearly normal);
* dominant gradient flow at the start and after each tenth of the training (Fig. 12: in the mean
  over training, in deep layers several times the plain networks').

The miniature is that of plain_vs_residual.py, which finds the networks that this one trained.
"""

import dataclasses
import functools

import keras
import numpy as np

from zoo import callbacks
from zoo.recipes.experiment import Artifact, Claim, Experiment, main, plots, setting
from zoo.recipes.yutomasi2019 import networks
from zoo.recipes.yutomasi2019.networks import (
    by_depth,
    depths_of,
    facts_of,
    paper,
    row,
    series,
    table,
)

KINDS = networks.CONVOLUTIONAL + networks.FULL  # cushions are those of full convolutions
NOISES = (0.01, 0.03, 0.1)  # norms relative to a kernel's; ours
NOISE_IMAGES = 10_000  # at most: of noise on the weights, of which the paper shows nothing
LARGEST_CUSHION = 4.0  # of Fig. 3; ours: larger ones are in the last bin
FEATURE_BINS = np.linspace(-4, 8, 61)  # of Fig. 10
RATIOS = {"": (1.24, 4.06), "full_": (0.99, 3.07)}  # Fig. 12: shallow, deep layers
CUSHION = {"full_residual": {20: 0.20}}  # section 5, of one block
EXCEPTIONS = {"residual": {20: 2, 32: 2}}  # layers of Fig. 3's networks with no larger cushion


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(networks.Networks):
    """Settings of the study of noise stability."""

    networks: tuple[str, ...] = setting(KINDS, "Networks to train.", KINDS)
    probe_examples: int | None = setting(
        None, "Training images of cushions, noise and features; none: all, as in the paper."
    )
    flow_examples: int = setting(128, "Training images of dominance, interlayer cushions; ours.")
    projections: int = setting(128, "Random projections of interlayer cushions; ours.")


SCALES = {
    "smoke": Settings(**networks.SMOKE, probe_examples=8, flow_examples=2, projections=4),
    "miniature": Settings(
        **networks.MINIATURE, probe_examples=1000, flow_examples=32, projections=16
    ),
    "full": Settings(),
}


def measure(settings, run):
    """Train the networks; return cushions, effects of noise, final features and dominance."""
    inspected = functools.partial(inspect, settings, run)
    by_depth = networks.measure_each(settings, run, inspected)
    return {"data": settings.data, "networks": by_depth}


def inspect(settings, run, network, kind):
    """Train one network, and return what is measured of it."""
    del kind
    model = network.model
    images = network.data.images
    count = settings.flow_examples
    sample = network.data.preprocess(images.x_train[:count]), images.y_train[:count]

    def cushions():
        progress = run.progress("layer cushions", settings.probe_examples or len(images.x_train))
        probes = [
            callbacks.LayerCushion(largest=LARGEST_CUSHION),
            callbacks.ActivationContraction(),
        ]
        batches = networks.batches(network, settings.probe_examples)
        table = callbacks.run(probes, model, batches, progress=progress)
        print(f"interlayer cushions, {settings.projections} projections", flush=True)
        between = callbacks.interlayer_cushions(
            model, sample[0], projections=settings.projections, seed=run.seed
        )
        scalars = ("layer_cushion", "layer_cushion_min", "activation_contraction_max")
        return {
            **{name: by_block(table, name) for name in scalars},
            "layer_cushion_histogram": table.array("layer_cushion_histogram"),
            "interlayer_cushion": by_block(between, "interlayer_cushion"),
        }

    def dominance():
        flow = callbacks.dominant_flow(model, sample, batch_size=min(count, 8))
        return by_block(flow, "dominant_flow")

    # Initial moving averages (0, 1) do not describe data.
    settled = network.data.preprocess(images.x_train[: settings.batch])
    with callbacks.batch_statistics(model, settled):
        before = cushions()
        flows = {0: dominance()}
    network.train([networks.KeepWeights(network)])
    flows |= networks.through_training(network, dominance)
    return {
        "before": before,
        "after": cushions(),
        "noise": noise(settings, run, network),
        "features": final_features(settings, network),
        "flow_epochs": np.array([*flows]),
        "flows": np.array([*flows.values()]),
    }


def by_block(table, name):
    """Return a probe's values by block."""
    return np.array([*table.values(name).values()])


def noise(settings, run, network):
    """Return accuracy and change of the output under noise on the weights, first without any."""
    images = len(network.data.images.x_train)
    count = min(NOISE_IMAGES, settings.probe_examples or images)
    print(f"noise on the weights, {count} images", flush=True)
    table = callbacks.noise_sensitivity(
        network.model, networks.batches(network, count), NOISES, seed=run.seed
    )
    return {
        key: np.array([row.value for row in table.of_probe(f"noise_{key}")])
        for key in ("accuracy", "change")
    }


def final_features(settings, network):
    """Return densities, means and deviations of final features and the gradients there.

    The features are the classifier's inputs; the loss's gradients are W (p - y).
    """
    classifier = network.model.layers[-1]
    both = keras.Model(network.model.input, [classifier.input, network.model.output])
    kernel = keras.ops.convert_to_numpy(classifier.kernel)
    features, gradients = [], []
    for x, y in networks.batches(network, settings.probe_examples):
        inputs, p = map(keras.ops.convert_to_numpy, both.predict_on_batch(x))
        features.append(inputs)
        gradients.append((p - np.eye(p.shape[-1])[y.reshape(-1)]) @ kernel.T)
    return {
        "feature": distribution(np.concatenate(features)),
        "gradient": distribution(np.concatenate(gradients)),
    }


def distribution(values):
    """Return how `(images, features)` are distributed, in standard deviations of each feature.

    Features that are dead, the same for all images, are left out.
    """
    deviations = values.std(0)
    scaled = (values[:, deviations > 0] / deviations[deviations > 0]).ravel()
    width = FEATURE_BINS[1] - FEATURE_BINS[0]
    return {
        "density": np.histogram(scaled, FEATURE_BINS)[0] / max(scaled.size, 1) / width,
        "mean": float(scaled.mean()) if scaled.size else 0.0,
        "deviation": float(values.std()),
    }


def fig3(seeds):
    """Draw layer cushions of images before and after training, of three blocks of each depth.

    They are the middle blocks of each third of the depth.
    """

    def columns(one, when, part):
        histograms = one[when]["layer_cushion_histogram"]
        count, bins = histograms.shape
        block = count * part // 6
        return {
            "from": np.linspace(0, LARGEST_CUSHION, bins, endpoint=False),
            "share": histograms[block],
            "block": [f"block {block + 1} of {count}"] * bins,
        }

    rows = []
    for part in (1, 3, 5):
        for when in ("before", "after"):
            of_part = functools.partial(columns, when=when, part=part)
            rows += series(seeds, of_part, networks.CONVOLUTIONAL, when=f"{when} training")
    rows.sort(key=lambda row: row["depth"])
    label = f"layer cushion of an image, a ratio (last bin: {LARGEST_CUSHION:g} and beyond)"
    labels = {"from": label, "share": "share of images"}
    options = {"by": ["network", "when"], "panel": "block", "labels": labels, "steps": True}
    return plots.lines(rows, x="from", y="share", **options) if rows else None


def section5(seeds):
    """Draw interlayer and smallest layer cushions and the largest contraction by block."""
    labels = {
        "interlayer_cushion": "interlayer cushion",
        "layer_cushion_min": "smallest layer cushion of an image",
        "activation_contraction_max": "largest activation contraction",
    }

    def columns(one):
        values = {key: one["after"][key] for key in labels}
        return {"block": range(1, len(one["after"]["layer_cushion"]) + 1), **values}

    options = {"by": "network", "panel": "layers", "labels": labels}
    return plots.lines(series(seeds, columns), x="block", y=[*labels], **options)


def fig10(seeds):
    """Draw densities of final features and of the loss's gradients there, and the normal one."""
    low = FEATURE_BINS[:-1]
    centers = low + (low[1] - low[0]) / 2
    normal = np.exp(-(centers**2) / 2) / np.sqrt(2 * np.pi)
    rows = []
    for quantity in ("feature", "gradient"):

        def columns(one, quantity=quantity):
            return {"from": low, "density": one["features"][quantity]["density"]}

        rows += series(seeds, columns, of=quantity)
        pairs = zip(low, normal, strict=True)
        place = {"network": "N(0, 1)", "of": quantity, "seed": 0}
        rows += [{**place, "from": x, "density": density} for x, density in pairs]
    labels = {
        "feature": "final feature, in its standard deviations",
        "gradient": "gradient of the loss there, in its standard deviations",
        "from": "value",
    }
    options = {"by": ["network", "depth"], "panel": "of", "labels": labels, "steps": True}
    return plots.lines(rows, x="from", y="density", **options)


def fig12(seeds):
    """Draw the share of dominant channels by block: at both ends of training, and in the mean."""
    labels = {
        "first": "share of dominant channels, first iteration",
        "last": "last iteration",
        "mean": "mean over training",
    }

    def columns(one):
        flows = one["flows"]
        values = {"first": flows[0], "last": flows[-1], "mean": flows.mean(0)}
        return {"block": range(1, flows.shape[1] + 1), **values}

    options = {"by": "network", "panel": "layers", "labels": labels}
    return plots.lines(series(seeds, columns), x="block", y=[*labels], **options)


def section5_numbers(seeds):
    """Return means over blocks, the effects of noise, and residual networks against plain ones."""
    before, after = (functools.partial(mean_cushion, when=when) for when in ("before", "after"))
    quantities = {
        "interlayer cushion before training, mean over blocks": (before, {}),
        "interlayer cushion, mean over blocks": (after, CUSHION),
        "layer cushion, mean over blocks": (lambda one: one["after"]["layer_cushion"].mean(), {}),
    }
    for index, size in enumerate(NOISES, 1):
        lost = functools.partial(lost_to_noise, index=index)
        quantities[f"points of accuracy lost to noise of {size:.0%}"] = lost, {}
    rows = table(seeds, quantities)
    for prefix, published in RATIOS.items():
        pair = [f"{prefix}residual", f"{prefix}plain"]
        depths = depths_of(seeds[0], pair[0])
        if any(depths_of(one, kind) != depths for one in seeds for kind in pair):
            continue
        ratios = np.array([dominance_ratios(one, prefix) for one in seeds])
        for i, depth in enumerate(depths):
            for half, part in enumerate(("shallow", "deep")):
                known = paper(seeds, {"": {depth: published[half]}}, "", depth)
                quantity = f"dominance in the {part} half of the blocks"
                rows.append(row(" over ".join(pair), depth, quantity, ratios[:, i, half], known))
            if not prefix:
                layers = [exceptions(one, depth).sum() for one in seeds]
                known = paper(seeds, EXCEPTIONS, "residual", depth)
                rows.append(row("both", depth, "layers without a larger cushion", layers, known))
    return rows


def mean_cushion(facts, when="after"):
    """Return the mean interlayer cushion of the blocks that pass on a signal."""
    values = facts[when]["interlayer_cushion"]
    return float(np.mean(values[np.isfinite(values)]))


def lost_to_noise(facts, index=-1):
    """Return the accuracy that noise of the size of this index in `noise` costs, in points."""
    accuracy = facts["noise"]["accuracy"]
    return 100 * float(accuracy[0] - accuracy[index])


def dominance_ratios(one, prefix=""):
    """Return dominance, residual over plain, in the shallow and deep half: `(depths, 2)`."""

    def halves(facts):
        mean = facts["flows"].mean(0)
        return [mean[: len(mean) // 2].mean(), mean[len(mean) // 2 :].mean()]

    residual, plain = (by_depth(one, prefix + kind, halves) for kind in ("residual", "plain"))
    return residual / plain


def dominance(one):
    """Return dominance, residual over plain, or its rise with the layer: the smaller, over depths.

    The rise is the ratio in the deep half of the layers over that in the shallow half.
    """
    shallow, deep = dominance_ratios(one).T
    return float(min(shallow.min(), (deep / shallow).min()))


def exceptions(one, depth):
    """Return for each layer if its cushion is not larger in the residual network."""
    residual, plain = (
        facts_of(one, kind, depth)["after"]["layer_cushion"] for kind in ("residual", "plain")
    )
    return ~(residual > plain)


def smaller_cushions(one):
    """Return the % of layers whose cushion is not larger in the residual network."""
    layers = np.concatenate([exceptions(one, depth) for depth in depths_of(one)])
    return 100 * float(layers.mean())


def interlayer_ratio(one):
    """Return the interlayer cushion of full networks, mean over blocks, residual over plain."""
    plain, residual = (by_depth(one, kind, mean_cushion)[0] for kind in networks.FULL)
    return residual / plain


def extra_loss_to_noise(one):
    """Return by how many points noise costs a plain network more accuracy, shallowest networks.

    There both kinds fit the training images, so that both have all their accuracy to lose.
    """
    plain, residual = (by_depth(one, kind, lost_to_noise)[0] for kind in ("plain", "residual"))
    return plain - residual


ARTIFACTS = (
    Artifact(
        "fig3",
        "layer cushions",
        "the residual network's are larger, as they are by definition",
        fig3,
    ),
    Artifact(
        "section5",
        "cushions by block",
        "interlayer cushion of one fully-fledged residual block: 0.20",
        section5,
    ),
    Artifact("fig10", "final features and their gradients", "nearly normal", fig10),
    Artifact(
        "fig12",
        "dominance by layer",
        "residual over plain 1.24 in shallow, 4.06 in deep layers; fully-fledged 0.99, 3.07",
        fig12,
    ),
    Artifact(
        "section5-numbers",
        "cushions, noise and dominance, residual against plain",
        "no larger layer cushion in 2 of 18 layers; dominance as in Fig. 12",
        section5_numbers,
    ),
)
CLAIMS = (
    Claim(
        name="Y9",
        section="section 5, Fig. 3",
        statement="Nearly all layer cushions of residual networks are larger than plain ones' (by "
        "definition: the identity counts in the output and not in the kernel's norm).",
        quantity="share of layers without a larger cushion, in %",
        measure=smaller_cushions,
        at_most=12,  # the paper: 2 of 18 layers
        figure="fig3",
    ),
    Claim(
        name="Y10",
        section="section 5",
        statement="The interlayer cushions of fully-fledged residual blocks are much larger than "
        "those of plain ones.",
        quantity="interlayer cushion, mean over blocks, 20 layers, residual over plain",
        measure=interlayer_ratio,
        at_least=2,
        ratio=True,
        reason="The paper has one block of nine; which one is lost. Both kinds are alike before "
        "training, too: the normalizations scale both. Without them, in the simplified networks, "
        "the residual's cushions are the larger ones, by less than the factor of the criterion.",
        figure="section5",
    ),
    Claim(
        name="Y11",
        section="section 5",
        statement="Noise on the weights hurts residual networks less.",
        quantity="accuracy lost to noise of 10 % on kernels, 20 layers, plain minus residual, in "
        "points",
        measure=extra_loss_to_noise,
        at_least=0,
    ),
    Claim(
        name="Y12",
        section="section 5, Fig. 12",
        statement="Dominance is larger in residual networks, and more so in late layers.",
        quantity="the smaller of dominance in the shallow half, residual over plain, and the deep "
        "half's ratio over it; the smaller of two depths",
        measure=dominance,
        at_least=1,
        ratio=True,
        figure="fig12",
    ),
)
EXPERIMENTS = (
    Experiment(
        name="yutomasi2019/noise_stability",
        scales=SCALES,
        measure=measure,
        artifacts=ARTIFACTS,
        claims=CLAIMS,
        deviations=[
            *networks.CHOICES,
            "interlayer cushion: mean over blocks; the paper: one of nine, which is lost",
            "dominance: mean after each tenth of the training; the paper: over the whole training",
            "numbers of images and projections, sizes of the noise on all kernels, and the "
            "division into shallow and deep halves are ours: the paper's are lost",
        ],
    ),
)

if __name__ == "__main__":
    main("yutomasi2019/noise_stability")
