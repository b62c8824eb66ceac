"""Rank correlation of five cheap scores of a block with the damage of its removal; of no paper.

    python recipes/depth_pruning.py
    python recipes/depth_pruning.py --seeds 10

Trains three networks of ten blocks on the handwritten digits of scikit-learn: a residual network
of dense layers (LayerNorm, ReLU, Dense), a highway network, and a pre-norm transformer whose tokens
are the rows of an image. On test images it measures the loss without each block, and scores each
block by

    block_influence  1 - cos(x, y), Men et al. (2024); the angular distance of Gromov et al. (2024)
                     ranks single examples alike
    l2_ratio         |f| / |x|, Jastrzebski et al. (2018)
    weights          L1 norm of its kernels
    taylor           the change of the loss to first order that removing it makes, -f . dL/dx
    cosine           the cosine of -f and dL/dx

The value on record is Spearman's correlation of a score and the increase of the loss over the
blocks of a network, as the mean over networks, with an interval of 95 % by bootstrap over networks.

--run_dir gets scores.png and scores.csv, blocks.csv and results.jsonl.
"""

import pathlib
import time

from experiment.script import run_script

import keras
import numpy as np
from absl import flags
from keras import layers

import zoo
from experiment import flags as common
from experiment import plots, results
from experiment.flags import FLAGS
from experiment.results import Result
from zoo import callbacks
from zoo.datasets import images

BLOCKS = 10  # ours, as all sizes
WIDTH = 32
EPOCHS = {"smoke": 1, "minutes": 20, "paper": 60}
BOOTSTRAPS = 2000
SCORES = {  # sign of the score, and the probe's value, by name
    "block_influence": (1, "block_influence"),
    "l2_ratio": (1, "l2_ratio"),
    "weights": (1, "weight_statistics_l1"),
    "taylor": (-1, "taylor_term"),
    "cosine": (-1, "cosine_loss"),
}

flags.DEFINE_integer("seeds", 3, "Number of seeds, from --seed on.", lower_bound=1)
common.define_output_flags("runs/depth-pruning-BUDGET", f"Epochs of the trainings: {EPOCHS}.")
flags.adopt_module_key_flags(common)


def main(argv):
    """Train the networks, and correlate scores with damage."""
    common.check(argv)
    start = time.process_time()
    folder = pathlib.Path(FLAGS.run_dir or f"runs/depth-pruning-{FLAGS.budget}")
    folder.mkdir(parents=True, exist_ok=True)
    seeds = [*range(FLAGS.seed, FLAGS.seed + FLAGS.seeds)]
    rows = [row for seed in seeds for name in NETWORKS for row in measure(name, seed)]
    plots.write_rows(folder / "blocks.csv", rows)
    summaries = [summary(score, rows) for score in SCORES]
    draw(folder / "scores.png", summaries)
    seconds = round(time.process_time() - start, 1)
    for row in summaries:
        record(folder, row, seeds, seconds)
    print(f"figures in {folder}")


def residual(x):
    """Return the features of a residual network of dense layers."""
    x = layers.Dense(WIDTH)(layers.Flatten()(x))
    for i in range(BLOCKS):
        y = layers.ReLU()(layers.LayerNormalization()(x))
        x = layers.Add(name=f"block{i}")([x, layers.Dense(WIDTH)(y)])
    return layers.LayerNormalization()(x)


def highway(x):
    """Return the features of a highway network."""
    x = layers.Dense(WIDTH)(layers.Flatten()(x))
    for i in range(BLOCKS):
        x = zoo.HighwayDense(name=f"block{i}")(x)
    return x


def transformer(x):
    """Return the features of a transformer whose tokens are the rows of an image."""
    x = layers.Dense(WIDTH)(layers.Reshape((8, 8))(x))
    for i in range(0, BLOCKS, 2):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(2, WIDTH // 2)(y, y)
        x = layers.Add(name=f"block{i}")([x, y])
        y = layers.Dense(2 * WIDTH, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add(name=f"block{i + 1}")([x, layers.Dense(WIDTH)(y)])
    return layers.Flatten()(layers.LayerNormalization()(x))


NETWORKS = {"residual": residual, "highway": highway, "transformer": transformer}


def measure(name, seed):
    """Train one network and return a row for each of its blocks: scores, and the damage."""
    keras.utils.clear_session()
    zoo.seed_everything(seed)
    digits = images.load("digits")
    x_train, x_test = (x.astype("float32") / 255 for x in (digits.x_train, digits.x_test))
    inputs = keras.Input(x_train.shape[1:])
    outputs = layers.Dense(digits.classes, "softmax")(NETWORKS[name](inputs))
    model = keras.Model(inputs, outputs, name=name)
    model.compile(
        keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(x_train, digits.y_train, 64, EPOCHS[FLAGS.budget], verbose=0)
    data = x_test, digits.y_test
    probes = [
        callbacks.BlockInfluence(),
        callbacks.L2Ratio(),
        callbacks.WeightStatistics(),
        callbacks.TaylorTerm("network"),
        callbacks.CosineLoss(),
    ]
    table = callbacks.run(probes, model, data)
    losses = callbacks.lesions(model, data).values("lesion_loss")
    accuracy = round(100 * float(model.evaluate(*data, verbose=0)[1]), 2)
    print(f"{name}, seed {seed}: test accuracy {accuracy} %", flush=True)
    rows = []
    for block, loss in losses.items():
        if block is not None:
            row = {"network": name, "seed": seed, "accuracy": accuracy, "block": block}
            row["damage"] = loss - losses[None]
            for score, (sign, value) in SCORES.items():
                row[score] = sign * table.values(value)[block]
            rows.append(row)
    return rows


def summary(score, rows):
    """Return the mean correlation of one score, its interval, and the means by network."""
    groups = {}
    for row in rows:
        groups.setdefault((row["network"], row["seed"]), []).append(row)
    correlations = {
        key: rank_correlation([r[score] for r in group], [r["damage"] for r in group])
        for key, group in groups.items()
    }
    values = np.array([*correlations.values()])
    draws = np.random.default_rng(0).choice(values, (BOOTSTRAPS, len(values))).mean(axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    by_network = {
        name: float(np.mean([v for (n, _), v in correlations.items() if n == name]))
        for name in NETWORKS
    }
    numbers = {"correlation": float(values.mean()), "low": float(low), "high": float(high)}
    return {"score": score, **numbers, "networks": len(values), **by_network}


def rank_correlation(first, second):
    """Return Spearman's correlation of numbers without ties."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


def draw(path, summaries):
    """Draw the correlations with their intervals, and the means of each network."""
    figure, axis = plots.new()
    for position, row in enumerate(summaries):
        axis.plot([position] * 2, [row["low"], row["high"]], color="0.4", linewidth=2)
    axis.plot([row["correlation"] for row in summaries], "ko", label="all networks")
    for name, mark in zip(NETWORKS, "sv^", strict=True):
        axis.plot([row[name] for row in summaries], mark, markersize=4, alpha=0.7, label=name)
    axis.axhline(0, color="0.7", linewidth=0.8)
    axis.set_xticks(range(len(summaries)), [row["score"] for row in summaries], rotation=20)
    axis.set_ylabel("rank correlation with damage")
    axis.legend(fontsize=7)
    plots.save(path, figure, summaries)


def record(folder, row, seeds, seconds):
    """Write the result of one score."""
    result = Result(
        artifact="pruning/scores",
        model=", ".join(NETWORKS),
        config={"blocks": BLOCKS, "width": WIDTH},
        metric=f"rank_correlation_{row['score']}",
        value=round(row["correlation"], 3),
        seeds=seeds,
        data="digits",
        budget=FLAGS.budget,
        epochs=EPOCHS[FLAGS.budget],
        verdict="",
        seconds=seconds,
        more={
            "interval": [round(row["low"], 3), round(row["high"], 3)],
            "networks": row["networks"],
            "by_network": {name: round(row[name], 3) for name in NETWORKS},
        },
    )
    results.write(result, folder / "results.jsonl", FLAGS.results)
    print(f"{row['score']}: {result.value}, 95 % in {result.more['interval']}")


if __name__ == "__main__":
    run_script(main)
