r"""Rank correlation of five cheap scores of a block with the damage of its removal; of no paper.

    python recipes/depth_pruning.py --seeds 5
    python recipes/depth_pruning.py --trained residual-miniature,residual56 --runs RUNS \
        --data_dir DATA

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
blocks of a network that keep the shape, as the mean over networks, with an interval of 95 % by
bootstrap over networks, or over the blocks if there is one network.

With --trained, the networks that other recipes trained on MNIST at 16 x 16 pixels and keep in
--runs are measured instead. Of these, `zoo.depth_plan` also chooses a quarter of the blocks to
remove, on half of the images; on the other half the KL divergence without them is compared with
those of random choices of as many blocks.

--run_dir gets scores.png and scores.csv, blocks.csv and results.jsonl.
"""

import itertools
import json
import pathlib
import time

from experiment.script import run_script

import keras
import numpy as np
from absl import app, flags
from keras import layers
from scipy import stats

import zoo
from experiment import flags as common
from experiment import plots, results
from experiment.flags import FLAGS
from experiment.results import Result
from zoo import callbacks
from zoo.datasets import images, preprocessing
from zoo.io import load_model

BLOCKS = 10  # ours, as all sizes
WIDTH = 32
EPOCHS = {"smoke": 1, "minutes": 20, "paper": 60}
BOOTSTRAPS = 2000
TESTED = {"smoke": 8, "minutes": 1000, "paper": 10000}  # images for networks trained elsewhere
RANDOM = 20  # choices of blocks
BATCH = 64
NUMBERS = ("correlation", "low", "high", "networks")  # of a summary
SCORES = {  # sign of the score, and the probe's value, by name
    "block_influence": (1, "block_influence"),
    "l2_ratio": (1, "l2_ratio"),
    "weights": (1, "weight_statistics_l1"),
    "taylor": (-1, "taylor_term"),
    "cosine": (-1, "cosine_loss"),
}

flags.DEFINE_integer("seeds", 3, "Number of seeds, from --seed on.", lower_bound=1)
help_text = (
    "Names of trained networks, as in --runs before the data's name: all seeds are measured."
)
flags.DEFINE_list("trained", [], help_text)
flags.DEFINE_string("runs", "runs", "Folder in which recipes keep trained networks.")
common.define_data_flags()
common.define_output_flags("runs/depth-pruning-BUDGET", f"Epochs of the trainings: {EPOCHS}.")


def main():
    """Score the blocks of the networks, and correlate scores with damage."""
    start = time.process_time()
    folder = pathlib.Path(FLAGS.run_dir or f"runs/depth-pruning-{FLAGS.budget}")
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for data, *network in networks():
        rows += measure(*network)
        if FLAGS.trained:
            plan(folder, data, *network, start)
    plots.write_rows(folder / "blocks.csv", rows)
    summaries = [summary(score, rows) for score in SCORES]
    draw(folder / "scores.png", summaries)
    for row in summaries:
        record_scores(folder, data, row, rows, start)
    print(f"figures in {folder}")


def networks():
    """Yield data's name, name, seed, compiled model, test images and labels of each network."""
    for name in FLAGS.trained:
        yield from from_runs(name)
    if not FLAGS.trained:
        for seed in range(FLAGS.seed, FLAGS.seed + FLAGS.seeds):
            for name in NETWORKS:
                yield train(name, seed)


def from_runs(name):
    """Yield the trained networks of a name, of all seeds."""
    folders = sorted(path.parent for path in pathlib.Path(FLAGS.runs).glob(f"{name}-*/model.keras"))
    configs = [json.loads((folder / "config.json").read_text("utf-8")) for folder in folders]
    found = [pair for pair in zip(folders, configs, strict=True) if pair[1]["model"] == name]
    if not found:
        raise app.UsageError(f"Expected {name}-*/model.keras. Received: --runs={FLAGS.runs}")
    source = images.averaged(images.load(FLAGS.data or "mnist", FLAGS.data_dir), 16)
    for folder, config in found:
        prepare = preprocessing.fit(config["preprocessing"], source.x_train[: config["images"]])
        keras.utils.clear_session()
        model = load_model(folder / "model.keras")
        x, y = (values[: TESTED[FLAGS.budget]] for values in (source.x_test, source.y_test))
        yield source.name, name, config["seed"], model, prepare(x), y


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


def train(name, seed):
    """Return a network trained on digits."""
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
    return digits.name, name, seed, model, x_test, digits.y_test


def measure(name, seed, model, x, y):
    """Return a row for each block that keeps the shape: scores, and the damage of its removal."""
    probes = [
        callbacks.BlockInfluence(),
        callbacks.L2Ratio(),
        callbacks.WeightStatistics(),
        callbacks.TaylorTerm("network"),
        callbacks.CosineLoss(),
    ]
    table = callbacks.run(probes, model, (x, y), batch_size=BATCH)
    losses = callbacks.lesions(model, (x, y), batch_size=BATCH).values("lesion_loss")
    accuracy = round(100 * float(model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"]), 2)
    print(f"{name}, seed {seed}: test accuracy {accuracy} %", flush=True)
    rows = []
    for block in zoo.blocks.find_blocks(model)[0]:
        if not block.changes_shape:
            row = {"network": name, "seed": seed, "accuracy": accuracy, "block": block.name}
            row["damage"] = losses[block.name] - losses[None]
            for score, (sign, value) in SCORES.items():
                row[score] = sign * table.values(value)[block.name]
            rows.append(row)
    return rows


def plan(folder, source, name, seed, model, x, y, start):  # noqa: PLR0913, PLR0917
    """Remove a quarter of the blocks, and record the damage beside that of random choices."""
    half = len(x) // 2
    data = x[half:], y[half:]
    chosen = zoo.depth_plan(model, x[:half], 0.75, batch_size=BATCH)
    count = len(chosen.blocks)
    report = callbacks.prune_report(model, data, chosen.blocks, batch_size=BATCH)
    table = callbacks.random_lesions(model, data, [count], RANDOM, FLAGS.seed, batch_size=BATCH)
    random = [row.value for row in table.of_probe("lesions_kl") if row.block is not None]
    record(
        folder,
        start,
        artifact="pruning/plan",
        data=source,
        model=name,
        config={"removed": count, "images": len(x)},
        metric="kl_of_the_plan",
        value=round(report["kl"][1], 5),
        seeds=[seed],
        more={
            "random_median": round(float(np.median(random)), 5),
            "random_range": [round(min(random), 5), round(max(random), 5)],
            "blocks": chosen.blocks,
            "accuracy": [round(v, 4) for v in report["accuracy"]],
            "parameters_kept": round(chosen.after.parameters / chosen.before.parameters, 4),
            "operations_kept": round(chosen.after.operations / chosen.before.operations, 4),
        },
    )


def summary(score, rows):
    """Return the mean correlation of one score, its interval, and the means by network."""
    groups = {}
    for row in rows:
        groups.setdefault((row["network"], row["seed"]), []).append(row)
    correlations = {key: correlation(score, group) for key, group in groups.items()}
    values = np.array([*correlations.values()])
    rng = np.random.default_rng(0)
    if len(values) > 1:
        draws = rng.choice(values, (BOOTSTRAPS, len(values))).mean(axis=1)
    else:
        chosen = rng.integers(0, len(rows), (BOOTSTRAPS, len(rows)))
        draws = [correlation(score, [rows[i] for i in numbers]) for numbers in chosen]
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    by_network = {}
    for name, _ in groups:
        by_network[name] = float(np.mean([v for (n, _), v in correlations.items() if n == name]))
    numbers = (float(values.mean()), float(low), float(high), len(values))
    return {"score": score, **dict(zip(NUMBERS, numbers, strict=True)), **by_network}


def correlation(score, rows):
    """Return the rank correlation of one score and the damage."""
    return rank_correlation([row[score] for row in rows], [row["damage"] for row in rows])


def rank_correlation(first, second):
    """Return Spearman's correlation; equal numbers share their mean rank. NaN if all are equal."""
    if min(len({*first}), len({*second})) == 1:
        return float("nan")
    return float(stats.spearmanr(first, second).statistic)


def draw(path, summaries):
    """Draw the correlations with their intervals, and the means of each network."""
    figure, axis = plots.new()
    for position, row in enumerate(summaries):
        axis.plot([position] * 2, [row["low"], row["high"]], color="0.4", linewidth=2)
    axis.plot([row["correlation"] for row in summaries], "ko", label="all networks")
    names = [key for key in summaries[0] if key not in ("score", *NUMBERS)]
    for name, mark in zip(names, itertools.cycle("sv^Dxo"), strict=False):
        axis.plot([row[name] for row in summaries], mark, markersize=4, alpha=0.7, label=name)
    axis.axhline(0, color="0.7", linewidth=0.8)
    axis.set_xticks(range(len(summaries)), [row["score"] for row in summaries], rotation=20)
    axis.set_ylabel("rank correlation with damage")
    axis.legend(fontsize=7)
    plots.save(path, figure, summaries)


def record_scores(folder, data, row, rows, start):
    """Write the result of one score."""
    names = [*dict.fromkeys(r["network"] for r in rows)]
    blocks = {name: {r["block"] for r in rows if r["network"] == name} for name in names}
    record(
        folder,
        start,
        artifact="pruning/scores",
        data=data,
        model=", ".join(names),
        config={"blocks": {name: len(blocks[name]) for name in names}},
        metric=f"rank_correlation_{row['score']}",
        value=round(row["correlation"], 3),
        seeds=sorted({r["seed"] for r in rows}),
        more={
            "interval": [round(row["low"], 3), round(row["high"], 3)],
            "networks": row["networks"],
            "by_network": {name: round(row[name], 3) for name in names},
        },
    )


def record(folder, start, **values):
    """Write a result."""
    trained = not FLAGS.trained
    result = Result(
        budget=FLAGS.budget,
        epochs=EPOCHS[FLAGS.budget] if trained else None,
        verdict="",
        seconds=round(time.process_time() - start, 1),
        **values,
    )
    results.write(result, folder / "results.jsonl", FLAGS.results)
    print(f"{result.model}, {result.metric}: {result.value}, {result.more}")


if __name__ == "__main__":
    run_script(main)
