"""Does the input pipeline starve the device: images per second of it alone, of the model, of both.

    KERAS_BACKEND=torch python recipes/benchmark.py pipelines

For CIFAR (batches of 128 augmented images of 32 pixels from memory; highway_cifar) and for ImageNet
records (synthetic JPEGs of 110 kB, random crops of 224 pixels; highway_resnet50). The pipeline
alone, training steps of the model on one batch again and again, and training on the pipeline. On
these CPUs both want the same cores. So each pipeline also feeds a device that needs none: one that
sleeps as long as a batch takes to make, as an accelerator just as fast would; "of it" is its share
of the time at work: 1.0 if the batches are made meanwhile, half if they are made in turn. Draws
pipelines.png and its CSV.
"""

import functools
import itertools
import pathlib
import statistics
import tempfile
import time

import numpy as np
from absl import app, flags

from experiment import plots

KINDS = ("cifar", "imagenet")

flags.DEFINE_list("pipelines", list(KINDS), "Which to measure.")
flags.DEFINE_integer("rounds", 3, "How often each is measured.", lower_bound=1)
flags.DEFINE_integer(
    "steps", 8, "Batches of a round; of the model's steps a fourth.", lower_bound=4
)
flags.DEFINE_integer("batch", 16, "Images of a batch of ImageNet's.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Of weights, images and augmentation.", lower_bound=0)
flags.DEFINE_string("run_dir", "runs/benchmark-pipelines", "Where the figure goes.")
flags.DEFINE_string("results", None, "Also append the lines of results to this file.")
FLAGS = flags.FLAGS


def main(argv):
    if len(argv) > 1 or not {*FLAGS.pipelines} <= {*KINDS} or not FLAGS.pipelines:
        raise app.UsageError(
            f"Expected flags only, and --pipelines of {', '.join(KINDS)}. Received: {argv[1:]}, "
            f"{FLAGS.pipelines}"
        )
    import zoo

    zoo.seed_everything(FLAGS.seed)
    rows = []
    for kind in FLAGS.pipelines:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            batches, model, name, batch = cifar() if kind == "cifar" else imagenet(folder)
            found = measure(batches, model)
        rows += tell(kind, name, batch, found, time.perf_counter() - start)
    folder = pathlib.Path(FLAGS.run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    draw(folder / "pipelines.png", rows)


def cifar():
    """Batches as highway_conv.py trains on, of noise, and the paper's network."""
    import zoo
    from zoo.datasets import preprocessing
    from zoo.datasets.batches import Batches

    rng, count, batch = np.random.default_rng(FLAGS.seed), 128 * FLAGS.steps, 128
    x = rng.integers(0, 256, (count, 32, 32, 3)).astype("uint8")
    prepared = preprocessing.fit("highway_cifar", x)
    batches = Batches(x, np.arange(count) % 10, batch, FLAGS.seed, prepared.augment)
    return batches, zoo.highway_cifar(10), "highway_cifar", batch


def imagenet(folder):
    """Batches of records, and the paper's network."""
    import zoo
    from zoo.datasets import imagenet
    from zoo.datasets.batches import RecordBatches

    imagenet.write_synthetic(folder, 8, 32)
    records = imagenet.Records(pathlib.Path(folder) / "train-*")
    batches = RecordBatches(records, FLAGS.batch, FLAGS.steps, seed=FLAGS.seed)
    return batches, zoo.highway_resnet50(), "highway_resnet50", FLAGS.batch


def measure(batches, model):
    """Seconds a batch, by what was measured, a number a round."""
    from zoo.datasets.prefetch import Ahead

    model.compile("sgd", "sparse_categorical_crossentropy")
    epochs, ahead = itertools.count(), Ahead(batches)
    batches.set_epoch(next(epochs))
    one = batches[0]
    model.train_on_batch(*one)  # compiles
    alone = seconds_of(batches, next(epochs), lambda batch: None, FLAGS.steps)  # warms up
    fewer = max(1, FLAGS.steps // 4)
    found = {key: [] for key in ("pipeline", "model", "both", "device_in_turn", "device_ahead")}
    for _ in range(FLAGS.rounds):
        alone = seconds_of(batches, next(epochs), lambda batch: None, FLAGS.steps)
        found["pipeline"].append(alone)
        begin = time.perf_counter()
        for _ in range(fewer):
            model.train_on_batch(*one)
        found["model"].append((time.perf_counter() - begin) / fewer)
        train = seconds_of(ahead, next(epochs), lambda batch: model.train_on_batch(*batch), fewer)
        found["both"].append(train)
        ahead.set_epoch(next(epochs))  # waits for what is being made
        for key, source in (("device_in_turn", batches), ("device_ahead", ahead)):
            work = functools.partial(sleep, alone)
            seconds = seconds_of(source, next(epochs), work, FLAGS.steps)
            found[key].append(alone / seconds)
    return found


def sleep(seconds, batch):
    """What a device does that needs no core."""
    time.sleep(seconds)


def seconds_of(batches, epoch, use, steps):
    """Seconds a batch, of `steps` batches that are made and used."""
    batches.set_epoch(epoch)
    begin = time.perf_counter()
    for index in range(steps):
        use(batches[index])
    return (time.perf_counter() - begin) / steps


def tell(kind, name, batch, found, seconds):
    """Prints and writes what was found; returns rows of the figure."""
    from experiment import results

    rates = {key: [batch / s for s in found[key]] for key in ("pipeline", "model", "both")}
    middle = {key: statistics.median(values) for key, values in rates.items()}
    shares = {key: statistics.median(found[f"device_{key}"]) for key in ("in_turn", "ahead")}
    print(
        f"{kind}: pipeline {middle['pipeline']:,.0f} images/s, training {name} "
        f"{middle['model']:,.1f}, on the pipeline {middle['both']:,.1f}; a device just as fast as "
        f"the pipeline is at work {shares['in_turn']:.0%} of the time in turn, "
        f"{shares['ahead']:.0%} ahead",
        flush=True,
    )
    ratios = [a / b for a, b in zip(rates["pipeline"], rates["model"], strict=True)]
    line = results.row(
        artifact="benchmark/pipelines",
        model=name,
        config={"pipeline": kind, "batch": f"batches of {batch}"},
        metric="pipeline_over_model",
        value=round(statistics.median(ratios), 2),
        std=round(statistics.pstdev(ratios), 2),
        seeds=[FLAGS.seed],
        paper=None,
        data="noise" if kind == "cifar" else "synthetic JPEGs of 110 kB",
        budget=f"{FLAGS.rounds} rounds of {FLAGS.steps} batches",
        epochs=None,
        departures=[],
        verdict=f"a device as fast works {shares['ahead']:.2f} of the time",
        seconds=round(seconds, 1),
        images_per_second={key: round(value, 1) for key, value in middle.items()},
        device={key: round(value, 3) for key, value in shares.items()},
    )
    if FLAGS.results:
        results.append(FLAGS.results, line)
    return [
        {"pipeline": kind, "measured": key, "images_per_second": value}
        for key, value in middle.items()
    ]


def draw(path, rows):
    """Bars of images per second, on a logarithmic axis."""
    kinds = [*dict.fromkeys(row["pipeline"] for row in rows)]
    figure, axes = plots.new(3.2 * len(kinds), 3, ncols=len(kinds), squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        mine = [row for row in rows if row["pipeline"] == kind]
        bars = axis.bar(
            [row["measured"] for row in mine], [row["images_per_second"] for row in mine],
            color=plots.COLORS[: len(mine)],
        )  # fmt: skip
        axis.bar_label(bars, fmt="{:,.0f}", fontsize=8)
        axis.set(title=kind, ylabel="images per second", yscale="log")
    plots.save(path, figure, rows)


if __name__ == "__main__":
    app.run(main)
