"""Images per second of the input pipelines alone, of the models, and of both together.

    KERAS_BACKEND=torch python recipes/benchmark.py pipelines

Pipelines: CIFAR (batches of 128 augmented images of 32 pixels from memory; highway_cifar) and
ImageNet records (synthetic JPEGs of 110 kB, random crops of 224 pixels; highway_resnet50). Measured
are the pipeline alone, training steps of the model on one batch, and training on the pipeline. On a
CPU both use the same cores. So each pipeline also serves a simulated device that uses no core: it
sleeps as long as a batch takes to make. Its share of the time at work is 1.0 if batches are made
meanwhile, and 0.5 if they are made in turn. The ImageNet pipeline, once it runs, is also compared
with two textbook ones on the same records: "whole" decodes every pixel and then crops and resizes,
"decode" only decodes, so that no pipeline of whole images can be faster. Draws pipelines.png and
its CSV.
"""

import itertools
import pathlib
import tempfile
import time

import numpy as np

from benchmarks import harness
from experiment import plots

PIPELINES = ("cifar", "imagenet")
CIFAR_BATCH = 128  # He et al. (2015), section 4.2
RATES = ("pipeline", "model", "both")
SIZE = 224
PREFETCHED = 3  # ours: batches made while another pipeline was timed; not counted


def add_flags(parser):
    """Add the benchmark's own flags."""
    add = parser.add_argument
    known = harness.some_of(PIPELINES)
    add("--pipelines", type=known, default="cifar,imagenet", help="Pipelines to measure.")
    add("--rounds", type=harness.positive, default=3, help="Measurements of each.")
    steps = "Batches per round of the pipeline, at least 4; the model takes a fourth of them."
    add("--steps", type=harness.positive, default=8, help=steps)
    add("--batch", type=harness.positive, default=16, help="Batch of ImageNet's images.")
    add("--seed", type=int, default=0, help="Random seed of weights, images and augmentation.")
    add("--run_dir", default="runs/benchmark-pipelines", help="Folder of the figure.")


def main(options):
    """Measure every pipeline with its model, and draw the rates."""
    import zoo

    zoo.seed_everything(options.seed)
    rows = []
    for name in options.pipelines:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            if name == "cifar":
                batches, model, batch = cifar(options)
                streams = {}
            else:
                batches, model, batch, streams = imagenet(options, folder)
            seconds = measure(batches, model, streams, options.rounds, options.steps)
        rates = {key: batch / seconds[key] for key in RATES}
        shares = {key: float(np.median(seconds["pipeline"] / seconds[key])) for key in seconds}
        ratios = {key: float(np.median(seconds[key] / seconds["ours"])) for key in streams}
        report(options, begin, name, model, batch, rates, shares, ratios)
        rows += [
            {"pipeline": name, "measured": key, "images_per_second": float(np.median(rates[key]))}
            for key in RATES
        ]
    folder = pathlib.Path(options.run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    columns = {"x": "measured", "y": "images_per_second", "panel": "pipeline"}
    plots.lines(folder / "pipelines.png", rows, **columns, log=["images_per_second"])


def cifar(options):
    """Return batches of noise as highway_conv.py trains on, the paper's network, and the batch."""
    import zoo
    from zoo.datasets import preprocessing
    from zoo.datasets.batches import Batches

    rng = np.random.default_rng(options.seed)
    count = CIFAR_BATCH * options.steps
    x = rng.integers(0, 256, (count, 32, 32, 3)).astype("uint8")
    augment = preprocessing.fit("highway_cifar", x).augment
    batches = Batches(x, np.arange(count) % 10, CIFAR_BATCH, options.seed, augment)
    return batches, zoo.highway_cifar(10), CIFAR_BATCH


def imagenet(options, folder):
    """Return batches of synthetic records, the paper's network, the batch, and endless streams."""
    import zoo
    from zoo.datasets import imagenet
    from zoo.datasets.batches import RecordBatches

    imagenet.write_synthetic(folder, 8, 32)
    records = imagenet.Records(pathlib.Path(folder) / "train-*")
    batches = RecordBatches(records, options.batch, options.steps, seed=options.seed)
    streams = {
        "ours": records.train(options.batch, steps_per_epoch=10**9, image_size=SIZE),
        "whole": textbook(records, options.batch, crop=True),
        "decode": textbook(records, options.batch, crop=False),
    }
    return batches, zoo.highway_resnet50(), options.batch, streams


def textbook(records, batch, crop):
    """Return a dataset that decodes all pixels and, with `crop`, crops, resizes and normalises."""
    import tensorflow as tf

    from zoo.datasets import imagenet

    def example(record):
        jpeg, label = records._parse(record)
        image = tf.io.decode_jpeg(jpeg, channels=3)
        if not crop:
            return tf.reduce_max(image[:1, :1]), label  # all are decoded, one pixel is used
        box = imagenet.random_box(tf.shape(image)[:2], tf.random.uniform([5, imagenet.TRIES]))
        image = tf.image.crop_to_bounding_box(image, *tf.unstack(box))
        image = tf.image.random_flip_left_right(tf.image.resize(image, [SIZE, SIZE]))
        mean = 255 * tf.constant(imagenet.MEAN)
        deviation = 255 * tf.constant(imagenet.STD)
        return (image - mean) / deviation, label

    dataset = tf.data.TFRecordDataset(list(records.host_files)).shuffle(imagenet.BUFFER).repeat()
    examples = dataset.map(example, tf.data.AUTOTUNE).batch(batch, drop_remainder=True)
    return examples.prefetch(tf.data.AUTOTUNE)


def measure(batches, model, streams, rounds, steps):
    """Return seconds per batch in each round, by what was measured."""
    from zoo.datasets.prefetch import Ahead

    model.compile("sgd", "sparse_categorical_crossentropy")
    epochs = itertools.count()
    ahead = Ahead(batches)
    batches.set_epoch(next(epochs))
    batch = batches[0]
    model.train_on_batch(*batch)  # compiles
    make_batches(batches, next(epochs), steps)  # warms up
    few = max(1, steps // 4)
    iterators = {name: iter(stream) for name, stream in streams.items()}
    names = (*RATES, "in_turn", "ahead", *streams)
    seconds = {name: np.zeros(rounds) for name in names}
    for index in range(rounds):
        pipeline = make_batches(batches, next(epochs), steps)
        seconds["pipeline"][index] = pipeline
        for name, iterator in iterators.items():
            for _ in range(PREFETCHED):
                next(iterator)
            begin = time.perf_counter()
            for _ in range(steps):
                next(iterator)
            seconds[name][index] = (time.perf_counter() - begin) / steps
        begin = time.perf_counter()
        for _ in range(few):
            model.train_on_batch(*batch)
        seconds["model"][index] = (time.perf_counter() - begin) / few
        train = make_batches(ahead, next(epochs), few, lambda batch: model.train_on_batch(*batch))
        seconds["both"][index] = train
        ahead.set_epoch(next(epochs))  # waits for the batch that is being made

        def work(batch, duration=pipeline):
            time.sleep(duration)

        seconds["in_turn"][index] = make_batches(batches, next(epochs), steps, work)
        seconds["ahead"][index] = make_batches(ahead, next(epochs), steps, work)
    return seconds


def make_batches(batches, epoch, steps, use=None):
    """Return seconds per batch of the first `steps` batches of an epoch, made and used."""
    batches.set_epoch(epoch)
    begin = time.perf_counter()
    for index in range(steps):
        batch = batches[index]
        if use is not None:
            use(batch)
    return (time.perf_counter() - begin) / steps


def report(options, begin, name, model, batch, rates, shares, ratios):
    """Print the rates of a pipeline, and write its line of results."""
    median = {key: float(np.median(values)) for key, values in rates.items()}
    print(
        f"{name}: pipeline {median['pipeline']:,.0f} images/s, training {model.name} "
        f"{median['model']:,.1f}, on the pipeline {median['both']:,.1f}; a device as fast as the "
        f"pipeline is at work {shares['in_turn']:.0%} of the time in turn, {shares['ahead']:.0%} "
        f"with batches made ahead",
        flush=True,
    )
    harness.write(
        options,
        begin,
        model=model.name,
        config={"pipeline": name, "batch": f"batches of {batch}"},
        metric="pipeline_over_model",
        **harness.statistics_of(rates["pipeline"] / rates["model"], digits=2),
        data="noise" if name == "cifar" else "synthetic JPEGs of 110 kB",
        budget=f"{options.rounds} rounds of {options.steps} batches",
        verdict=f"a device as fast works {shares['ahead']:.2f} of the time",
        more={
            "images_per_second": {key: round(value, 1) for key, value in median.items()},
            "device": {key: round(shares[key], 3) for key in ("in_turn", "ahead")},
            "ratios": {key: round(ratio, 3) for key, ratio in ratios.items() if key != "ours"},
        },
    )
