"""A looped against an unshared character language model on Penn Treebank.

    python recipes/looped_lm.py --data_dir DATA --seeds 3

Four small transformers (pre-norm, causal) predict the next character, trained alike:

- looped: one block, used six times (zoo.Loop);
- random: the same, with a random number of uses in each training batch (1 plus a Poisson variable
  of mean 5);
- deep: six blocks of that width: as many operations, six times the weights;
- narrow: six blocks of a smaller width: about as many weights.

Measured on the test text: perplexity per character of each network, and of the looped ones by
number of loops from 1 to 24. A network that is trained with a fixed number is known to be at its
best near that number, and random numbers to make it robust (Geiping et al., 2025, arXiv:2502.05171,
section 3.3; Dehghani et al., 2018, arXiv:1807.03819). Perplexities are of a miniature: they are not
comparable with published results.

--run_dir gets loops.png with its CSV, the networks' weights, and results.jsonl; a killed run
resumes with the network that it was training.
"""

import json
import pathlib
import statistics
import sys
import time
import zlib

from experiment.script import run_script

import keras
import numpy as np
from absl import flags

import zoo
from experiment import flags as common
from experiment import plots, results
from experiment.flags import FLAGS
from experiment.results import Result
from zoo import callbacks
from zoo.datasets import ptb
from zoo.io import replace, save_weights

LOOPS = 6  # ours, as all sizes
MOST = 24  # loops at test time
WIDTH = {"smoke": 8, "minutes": 64, "paper": 128}
NARROW = {"smoke": 4, "minutes": 26, "paper": 52}  # 6 blocks with about one block's weights
STEPS = {"smoke": 16, "minutes": 64, "paper": 128}  # characters of a sequence
UPDATES = {"smoke": 2, "minutes": 800, "paper": 8000}
TESTED = {"smoke": 4, "minutes": 256, "paper": 1024}  # sequences of the test text
BATCH = 32
HEADS = 2
NETWORKS = ("looped", "random", "deep", "narrow")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

flags.DEFINE_string("data_dir", None, "Folder with [ptb.]train.txt and so on. Default: download.")
flags.DEFINE_integer("seeds", 1, "Number of seeds, from --seed on.", lower_bound=1)
common.define_output_flags("runs/looped-lm-BUDGET", f"Updates of the weights: {UPDATES}.")


def main():
    """Train and measure the four networks for each seed."""
    folder = pathlib.Path(FLAGS.run_dir or f"runs/looped-lm-{FLAGS.budget}")
    folder.mkdir(parents=True, exist_ok=True)
    text, characters = load()
    seeds = [*range(FLAGS.seed, FLAGS.seed + FLAGS.seeds)]
    rows = []
    for seed in seeds:
        for name in NETWORKS:
            rows += measure(folder, name, seed, text, len(characters))
    for name in NETWORKS:
        write(folder, name, [row for row in rows if row["network"] == name])
    looped = [row for row in rows if row["network"] in ("looped", "random")]
    marks = [{"label": f"trained with {LOOPS}", "loops": LOOPS}]
    labels = {"loops": "loops at test time", "perplexity": "perplexity per character"}
    options = {"by": "network", "marks": marks, "labels": labels, "log": ("perplexity",)}
    plots.lines(folder / "loops.png", looped, x="loops", y="perplexity", **options, table=rows)
    print(f"figures in {folder}")


def load():
    """Return training and test text as character ids, and the characters."""
    corpus = ptb.load(FLAGS.data_dir)
    texts = [corpus.vocabulary.decode(part) for part in (corpus.train, corpus.test)]
    characters = sorted({*"".join(texts)})
    ids = {character: index for index, character in enumerate(characters)}
    return [np.array([ids[c] for c in text], "int32") for text in texts], characters


def block(width, name):
    """Return a pre-norm transformer block, a model from `(steps, width)` to the same."""
    x = inputs = keras.Input((None, width))
    y = keras.layers.LayerNormalization(name="attention_norm")(x)
    attention = keras.layers.MultiHeadAttention(HEADS, width // HEADS, name="attention")
    x = keras.layers.Add(name="attention_sum")([x, attention(y, y, use_causal_mask=True)])
    y = keras.layers.LayerNormalization(name="feedforward_norm")(x)
    y = keras.layers.Dense(4 * width, "gelu", name="feedforward")(y)
    y = keras.layers.Dense(width, name="feedforward_out")(y)
    return keras.Model(inputs, keras.layers.Add(name="feedforward_sum")([x, y]), name=name)


def build(name, num_characters, seed):
    """Return one of `NETWORKS`, compiled."""
    zoo.seed_everything(seed)
    width = (NARROW if name == "narrow" else WIDTH)[FLAGS.budget]
    steps = STEPS[FLAGS.budget]
    inputs = keras.Input((steps,), dtype="int32")
    x = keras.layers.Embedding(num_characters, width, name="characters")(inputs)
    x = Positions(name="positions")(x)
    if name in ("looped", "random"):
        random = "poisson" if name == "random" else None
        x = zoo.Loop(block(width, "block"), LOOPS, random, seed=seed, name="loop")(x)
    else:
        for index in range(LOOPS):
            x = block(width, f"block{index}")(x)
    x = keras.layers.LayerNormalization(name="last_norm")(x)
    model = keras.Model(inputs, keras.layers.Dense(num_characters, name="logits")(x), name=name)
    updates = UPDATES[FLAGS.budget]
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, updates - updates // 10, warmup_target=2e-3, warmup_steps=updates // 10
    )
    model.compile(keras.optimizers.AdamW(rate, clipnorm=1.0), LOSS)
    return model


class Positions(keras.layers.Layer):
    """Learned positions, added to the input."""

    def build(self, input_shape):
        """Create a vector for each position."""
        self.table = self.add_weight(input_shape[1:], initializer="random_normal", name="table")

    def call(self, x):
        """Return the sum."""
        return x + self.table


def measure(folder, name, seed, text, num_characters):
    """Train one network, or read its weights, and return its rows: perplexity by loops."""
    start = time.process_time()
    keras.utils.clear_session()
    model = build(name, num_characters, seed)
    path = folder / f"{name}-{seed}.weights.h5"
    trained = folder / f"{name}-{seed}.json"  # written last
    steps = STEPS[FLAGS.budget]
    checksum = zlib.crc32(text[0].tobytes())
    if trained.exists():
        before = json.loads(trained.read_text())
        if before["text"] != checksum:
            sys.exit(
                f"looped_lm.py: {folder} has networks of another text. Choose another --run_dir."
            )
        model.load_weights(path)
    else:
        rng = np.random.default_rng(seed)
        starts = rng.integers(0, len(text[0]) - steps - 1, UPDATES[FLAGS.budget] * BATCH)
        windows = np.stack([text[0][i : i + steps + 1] for i in starts])
        model.fit(windows[:, :-1], windows[:, 1:], BATCH, shuffle=False, verbose=2)
        save_weights(model, path)
        before = {"text": checksum, "seconds": round(time.process_time() - start, 1)}
        replace(trained, lambda temporary: temporary.write_text(json.dumps(before)))
        start = time.process_time()
    count = TESTED[FLAGS.budget]
    windows = text[1][: count * (steps + 1)].reshape(count, steps + 1)
    data = windows[:, :-1], windows[:, 1:]
    if name in ("looped", "random"):
        table = callbacks.loops(model, data, range(1, MOST + 1), loss=LOSS, batch_size=BATCH)
        losses = {row.unit: row.value for row in table.of_probe("loop_loss")}
    else:
        losses = {LOOPS: model.evaluate(*data, batch_size=BATCH, verbose=0)}
    labels = {"network": name, "seed": seed, "weights": model.count_params()}
    seconds = round(before["seconds"] + time.process_time() - start, 1)
    print(f"{name}, seed {seed}: loss {losses[LOOPS]:.3f}, {seconds} s", flush=True)
    return [
        {**labels, "loops": n, "perplexity": float(np.exp(loss)), "seconds": seconds}
        for n, loss in losses.items()
    ]


def write(folder, name, rows):
    """Write the perplexity of one network with the loops that it was trained with."""
    trained = [row["perplexity"] for row in rows if row["loops"] == LOOPS]
    numbers = sorted({row["loops"] for row in rows})
    means = {
        n: round(statistics.mean(row["perplexity"] for row in rows if row["loops"] == n), 4)
        for n in numbers
    }
    result = Result(
        artifact="looped/ptb",
        model=name,
        config={"loops": LOOPS, "width": (NARROW if name == "narrow" else WIDTH)[FLAGS.budget]},
        metric="test_perplexity_per_character",
        value=round(statistics.mean(trained), 4),
        std=round(statistics.stdev(trained), 4) if len(trained) > 1 else None,
        seeds=sorted({row["seed"] for row in rows}),
        data="PTB",
        budget=FLAGS.budget,
        verdict="",
        seconds=round(sum(row["seconds"] for row in rows if row["loops"] == LOOPS), 1),
        more={"weights": rows[0]["weights"], "by_loops": means},
    )
    results.write(result, folder / "results.jsonl", FLAGS.results)
    print(f"{name}: {result.value} with {result.more['weights']} weights; by loops {means}")


if __name__ == "__main__":
    run_script(main)
