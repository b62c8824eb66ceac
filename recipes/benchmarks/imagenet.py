"""Images per second of the ImageNet pipeline alone, over two textbook pipelines.

    python recipes/benchmark.py imagenet

Compares `zoo.datasets.imagenet.Records.train` on synthetic records with "whole", which decodes
every pixel and then crops and resizes, and with "decode", which only decodes: no pipeline of whole
images can be faster. TensorFlow reads the records for every backend, so KERAS_BACKEND does not
matter. Pipelines take turns; ratios are taken round by round.
"""

import pathlib
import tempfile
import time

import numpy as np

from benchmarks import harness

SIZE = 224
PREFETCHED = 3  # ours: batches made while another pipeline was timed; not counted


def add_flags(parser):
    """Add the benchmark's own flags."""
    add = parser.add_argument
    add("--batch", type=harness.positive, default=64, help="Images per batch.")
    add("--batches", type=harness.positive, default=8, help="Batches per round.")
    add("--rounds", type=harness.positive, default=5, help="Measurements of each pipeline.")
    add("--files", type=harness.positive, default=8, help="Synthetic files of records.")
    add("--images_per_file", type=harness.positive, default=64, help="Images per synthetic file.")
    add("--pattern", help="Read these TFRecords instead, e.g. '/data/train-*'.")


def main(options):
    """Measure the three pipelines in turn."""
    from zoo.datasets import imagenet

    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        pattern = options.pattern or pathlib.Path(folder) / "train-*"
        if options.pattern is None:
            imagenet.write_synthetic(folder, options.files, options.images_per_file)
        records = imagenet.Records(pattern)
        pipelines = {
            "ours": records.train(options.batch, steps_per_epoch=10**9, image_size=SIZE),
            "whole": textbook(records, options.batch, crop=True),
            "decode": textbook(records, options.batch, crop=False),
        }
        rates = measure(pipelines, options.batch, options.batches, options.rounds)
    print(f"ours: {harness.spread(rates['ours'])} images/s of {SIZE} x {SIZE}")
    ratios = {}
    for peer in ("whole", "decode"):
        ratio = rates["ours"] / rates[peer]
        ratios[peer] = round(float(np.median(ratio)), 3)
        print(f"over {peer}: {harness.spread(ratio)}")
    harness.write(
        options,
        begin,
        artifact="benchmark/imagenet_input",
        model="zoo.datasets.imagenet",
        config={"batch": options.batch, "image_size": SIZE},
        metric="images_per_second",
        **harness.statistics_of(rates["ours"], digits=1),
        data=options.pattern or "synthetic JPEGs of 110 kB",
        budget=f"{options.rounds} rounds of {options.batches} batches",
        verdict=f"{ratios['whole']:.2f} of decoding whole images first",
        more={"ratios": ratios},
    )


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


def measure(pipelines, batch, batches, rounds):
    """Return images per second in each round, by pipeline."""
    iterators = {name: iter(dataset) for name, dataset in pipelines.items()}
    rates = {name: np.zeros(rounds) for name in iterators}
    for index in range(rounds):
        for name, iterator in iterators.items():
            for _ in range(PREFETCHED):
                next(iterator)
            begin = time.perf_counter()
            for _ in range(batches):
                next(iterator)
            rates[name][index] = batch * batches / (time.perf_counter() - begin)
    return rates
