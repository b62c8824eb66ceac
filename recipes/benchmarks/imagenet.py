"""Images per second of the ImageNet pipeline, on synthetic records, without a network behind it.

    python recipes/benchmark.py imagenet

`zoo.datasets.imagenet.Records.train` beside two peers in the same run: "whole", the textbook
pipeline, which decodes every pixel and then crops and resizes; and "decode", decoding alone, the
time that no pipeline of whole images can fall below. TensorFlow feeds every backend, so
KERAS_BACKEND does not matter. Rounds take turns; a ratio is the median over rounds, with its range.
"""

import pathlib
import statistics
import tempfile
import time

from absl import app, flags

flags.DEFINE_integer("batch", 64, "Images in a batch.", lower_bound=1)
flags.DEFINE_integer("batches", 8, "Batches in a round.", lower_bound=1)
flags.DEFINE_integer("rounds", 5, "Rounds of each.", lower_bound=1)
flags.DEFINE_integer("files", 8, "Files of records.", lower_bound=1)
flags.DEFINE_integer("images_per_file", 64, "Images in each.", lower_bound=1)
flags.DEFINE_string("pattern", None, "TFRecords of your own instead, e.g. '/data/train-*'.")
flags.DEFINE_string("results", None, "Append the line of results to this file.")
FLAGS = flags.FLAGS
SIZE = 224


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")
    from experiment import results
    from zoo.datasets import imagenet

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        pattern = FLAGS.pattern or pathlib.Path(folder) / "train-*"
        if FLAGS.pattern is None:
            imagenet.write_synthetic(folder, FLAGS.files, FLAGS.images_per_file)
        records = imagenet.Records(pattern)
        pipelines = {
            "ours": records.train(FLAGS.batch, steps_per_epoch=10**9, image_size=SIZE),
            "whole": textbook(records, crop=True),
            "decode": textbook(records, crop=False),
        }
        rates = measure({name: iter(dataset) for name, dataset in pipelines.items()})
    median = statistics.median(rates["ours"])
    print(f"ours: {median:,.0f} images/s of {SIZE} x {SIZE}, {min(rates['ours']):,.0f} to", end=" ")
    print(f"{max(rates['ours']):,.0f}")
    ratios = {}
    for peer in ("whole", "decode"):
        found = [a / b for a, b in zip(rates["ours"], rates[peer], strict=True)]
        ratios[peer] = round(statistics.median(found), 3)
        print(f"over {peer}: {ratios[peer]:.2f} ({min(found):.2f} to {max(found):.2f})")
    line = results.row(
        artifact="benchmark/imagenet_input",
        model="zoo.datasets.imagenet",
        config={"batch": FLAGS.batch, "image_size": SIZE},
        metric="images_per_second",
        value=round(median, 1),
        std=round(statistics.pstdev(rates["ours"]), 1),
        seeds=[0],
        paper=None,
        data="synthetic JPEGs of 110 kB" if FLAGS.pattern is None else FLAGS.pattern,
        budget=f"{FLAGS.rounds} rounds of {FLAGS.batches} batches",
        epochs=None,
        departures=[],
        verdict=f"{ratios['whole']:.2f} of decoding whole images first",
        seconds=round(time.perf_counter() - start, 1),
        ratios=ratios,
    )
    if FLAGS.results:
        results.append(FLAGS.results, line)


def textbook(records, crop):
    """Decode all pixels; then, with `crop`, cut out the random box, resize, mirror, normalise."""
    import tensorflow as tf

    from zoo.datasets import imagenet

    def example(record):
        jpeg, label = records._parse(record)
        image = tf.io.decode_jpeg(jpeg, channels=3)
        if not crop:
            return tf.reduce_max(image[:1, :1]), label  # all are decoded, one pixel is handed on
        box = imagenet.random_box(tf.shape(image)[:2], tf.random.uniform([5, imagenet.TRIES]))
        image = tf.image.crop_to_bounding_box(image, *tf.unstack(box))
        image = tf.image.random_flip_left_right(tf.image.resize(image, [SIZE, SIZE]))
        mean, std = (255 * tf.constant(v) for v in (imagenet.MEAN, imagenet.STD))
        return (image - mean) / std, label

    dataset = tf.data.TFRecordDataset(list(records.host_files)).shuffle(imagenet.BUFFER).repeat()
    examples = dataset.map(example, tf.data.AUTOTUNE).batch(FLAGS.batch, drop_remainder=True)
    return examples.prefetch(tf.data.AUTOTUNE)


def measure(iterators):
    """Images per second by pipeline, one number a round; the first batches are not counted."""
    rates = {name: [] for name in iterators}
    for _ in range(FLAGS.rounds):
        for name, batches in iterators.items():
            for _ in range(3):  # what was prefetched while another pipeline was timed
                next(batches)
            start = time.perf_counter()
            for _ in range(FLAGS.batches):
                next(batches)
            seconds = time.perf_counter() - start
            rates[name].append(FLAGS.batch * FLAGS.batches / seconds)
    return rates


if __name__ == "__main__":
    app.run(main)
