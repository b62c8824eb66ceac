"""Rank correlation of five cheap scores of a block with the damage of its removal; of no paper.

    python recipes/pruning/scores.py --seeds 0,1,2,3,4

Trains three networks of ten blocks on the handwritten digits of scikit-learn: a residual network
of dense layers (LayerNorm, ReLU, Dense), a highway network, and a pre-norm transformer whose tokens
are the rows of an image. On test images it measures the loss without each block, and scores each
block by

    block_influence  1 - cos(x, y), Men et al. (2024); the angular distance of Gromov et al. (2024)
                     ranks single examples alike
    l2_ratio         |f| / |x|, Jastrzebski et al. (2018)
    weights          L1 norm of its kernels
    taylor           first-order change of the loss by its removal, -f . dL/dx
    cosine           cosine of -f and dL/dx

Reported is Spearman's correlation of a score and the increase of the loss over the blocks of a
network that keep the shape, as the mean over networks with a 95 % bootstrap interval.
"""

import dataclasses

import keras
import numpy as np
from keras import layers
from scipy import stats

import zoo
from zoo import callbacks
from zoo.datasets import images
from zoo.graph.blocks import find_blocks
from zoo.recipes.experiment import Artifact, Experiment, Settings, main, plots, setting

BATCH = 64
BOOTSTRAPS = 2000
SCORES = {  # sign of the score, and the probe's value, by name
    "block_influence": (1, "block_influence"),
    "l2_ratio": (1, "l2_ratio"),
    "weights": (1, "weight_statistics_l1"),
    "taylor": (-1, "taylor_term"),
    "cosine": (-1, "cosine_loss"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pruning(Settings):
    """Settings of the study; all ours."""

    blocks: int = setting(10, "Blocks of a network.")
    width: int = setting(32, "Features of a block.")
    epochs: int = setting(60, "Number of epochs.")


SCALES = {"smoke": Pruning(epochs=1), "miniature": Pruning(epochs=20), "full": Pruning()}


def residual(x, settings):
    """Return the features of a residual network of dense layers."""
    x = layers.Dense(settings.width)(layers.Flatten()(x))
    for i in range(settings.blocks):
        y = layers.ReLU()(layers.LayerNormalization()(x))
        x = layers.Add(name=f"block{i}")([x, layers.Dense(settings.width)(y)])
    return layers.LayerNormalization()(x)


def highway(x, settings):
    """Return the features of a highway network."""
    x = layers.Dense(settings.width)(layers.Flatten()(x))
    for i in range(settings.blocks):
        x = zoo.HighwayDense(name=f"block{i}")(x)
    return x


def transformer(x, settings):
    """Return the features of a transformer whose tokens are the rows of an image."""
    width = settings.width
    x = layers.Dense(width)(layers.Reshape((8, 8))(x))
    for i in range(0, settings.blocks, 2):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(2, width // 2)(y, y)
        x = layers.Add(name=f"block{i}")([x, y])
        y = layers.Dense(2 * width, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add(name=f"block{i + 1}")([x, layers.Dense(width)(y)])
    return layers.Flatten()(layers.LayerNormalization()(x))


NETWORKS = {"residual": residual, "highway": highway, "transformer": transformer}


def measure(settings, run):
    """Train the networks; return the scores of their blocks and the damage of each removal."""
    digits = images.load("digits")
    run.data.append(digits.name)
    return {
        name: run.part(name, lambda name=name: measure_network(settings, run, digits, name))
        for name in NETWORKS
    }


def measure_network(settings, run, digits, name):
    """Train one network, and return scores and damage of its blocks that keep the shape."""
    keras.utils.clear_session()
    run.start(settings)
    x_train, x_test = (x.astype("float32") / 255 for x in (digits.x_train, digits.x_test))
    inputs = keras.Input(x_train.shape[1:])
    outputs = layers.Dense(digits.classes, "softmax")(NETWORKS[name](inputs, settings))
    model = keras.Model(inputs, outputs, name=name)
    optimizer = keras.optimizers.Adam(2e-3)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x_train, digits.y_train, 64, settings.epochs, verbose=0)
    data = x_test, digits.y_test
    probes = [
        callbacks.BlockInfluence(),
        callbacks.L2Ratio(),
        callbacks.WeightStatistics(),
        callbacks.TaylorTerm("network"),
        callbacks.CosineLoss(),
    ]
    table = callbacks.run(probes, model, data, batch_size=BATCH)
    lesions = callbacks.lesions(model, data, batch_size=BATCH)
    losses = lesions.values("lesion_loss")
    names = [block.name for block in find_blocks(model)[0] if not block.changes_shape]
    accuracy = 100 * lesions.values("lesion_accuracy")[None]
    print(f"{name}: test accuracy {accuracy:.2f} %", flush=True)
    return {
        "blocks": names,
        "accuracy": accuracy,
        "damage": np.array([losses[block] - losses[None] for block in names]),
        **{
            score: sign * np.array([table.values(value)[block] for block in names])
            for score, (sign, value) in SCORES.items()
        },
    }


def rank_correlation(first, second):
    """Return Spearman's correlation; equal numbers share their mean rank. NaN if all are equal."""
    if min(len({*first}), len({*second})) == 1:
        return float("nan")
    return float(stats.spearmanr(first, second).statistic)


def summary(seeds):
    """Return a row a score: the mean correlation over networks, its interval, and by network."""
    rows = []
    for score in SCORES:
        correlations = {
            name: [rank_correlation(one[name][score], one[name]["damage"]) for one in seeds]
            for name in NETWORKS
        }
        values = np.concatenate([*correlations.values()])
        draws = np.random.default_rng(0).choice(values, (BOOTSTRAPS, len(values))).mean(axis=1)
        low, high = np.nanpercentile(draws, [2.5, 97.5])
        row = {"score": score, "correlation": values.mean(), "low": low, "high": high}
        row |= {name: np.mean(of_network) for name, of_network in correlations.items()}
        rows.append({k: v if k == "score" else round(float(v), 3) for k, v in row.items()})
    return rows


def figure(seeds):
    """Draw the correlations with their intervals, and the means of each network."""
    rows = summary(seeds)
    drawn, axis = plots.new()
    for position, row in enumerate(rows):
        axis.plot([position] * 2, [row["low"], row["high"]], color="0.4", linewidth=2)
    axis.plot([row["correlation"] for row in rows], "ko", label="all networks")
    for name, mark in zip(NETWORKS, "sv^", strict=True):
        axis.plot([row[name] for row in rows], mark, markersize=4, alpha=0.7, label=name)
    axis.axhline(0, color="0.7", linewidth=0.8)
    axis.set_xticks(range(len(rows)), [row["score"] for row in rows], rotation=20)
    axis.set_ylabel("rank correlation with damage")
    axis.legend(fontsize=7)
    return drawn


EXPERIMENTS = (
    Experiment(
        name="pruning/scores",
        scales=SCALES,
        measure=measure,
        artifacts=[
            Artifact("table", "rank correlation of scores with damage", "", summary),
            Artifact("scores", "rank correlation of scores with damage", "", figure),
        ],
        seeds=(0, 1, 2),
    ),
)

if __name__ == "__main__":
    main("pruning/scores")
