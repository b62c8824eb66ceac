"""The images of the recipes: what the flags ask for, as a training reads them.

`image_recipe.py` imports it from beside itself.
"""

import dataclasses
import re
import zlib

import numpy as np
from absl import flags, logging

FLAGS = flags.FLAGS


def define_flags():
    """Which images, and how many of them."""
    flags.DEFINE_string("data", None, "mnist, cifar10, cifar100; with --data_dir any name.")
    where = "An .npz file, a folder of images, or of sets by name: zoo.datasets.images.load."
    flags.DEFINE_string("data_dir", None, where)
    flags.DEFINE_integer("train_examples", None, "Only the first N for training.", lower_bound=1)


def arrays(study, default_data):
    """Images, their preprocessing, batches of both parts, and the test images as it makes them.

    The batches of the second part are of the test images, or of those that the study holds out.
    """
    from zoo.datasets import images as sources
    from zoo.datasets import preprocessing
    from zoo.datasets.batches import Batches

    images = load(sources, default_data, study.batch)
    images, held = held_out(images, study.validation, study.batch)
    prepared = preprocessing.fit(study.preprocessing, images.x_train)
    train = images.x_train, images.y_train, study.batch, FLAGS.seed, prepared.augment
    x_test = prepared(images.x_test)
    seen = (prepared(held[0]), held[1]) if held else (x_test, images.y_test)
    test = Batches(*seen, study.batch, shuffle=False)
    return images, prepared, Batches(*train, drop_remainder=True), test, x_test


def held_out(images, count, batch):
    """`images` without the last `count` for training, and those, if there are any."""
    kept = len(images.x_train) - count
    if kept < batch:
        raise ValueError(
            f"Expected --validation to leave at least one batch of {batch} training images. "
            f"Received: {count} of {len(images.x_train)}"
        )
    held = (images.x_train[kept:], images.y_train[kept:]) if count else ()
    rest = {key: getattr(images, key)[:kept] for key in ("x_train", "y_train")}
    return dataclasses.replace(images, **rest), held


def load(sources, default_data, batch):
    """The images asked for; two batches of them for `--budget smoke`."""
    images = sources.load(FLAGS.data or default_data, FLAGS.data_dir)
    if images.notice:
        logging.warning("%s", images.notice)
    if FLAGS.train_examples:
        images = first(images, FLAGS.train_examples)
    if FLAGS.budget == "smoke":
        keys = ("x_train", "y_train", "x_test", "y_test")
        cut = {key: getattr(images, key)[: 2 * batch] for key in keys}
        images = dataclasses.replace(images, **cut)
    if len(images.x_train) < batch:
        raise ValueError(
            f"Expected at least one batch of {batch} training images. "
            f"Received: {len(images.x_train)} in {FLAGS.data_dir}"
        )
    return images


def first(images, count):
    """`images` with the first `count` for training, which hold every class but in folders."""
    x, y = images.x_train[:count], images.y_train[:count]
    if len(x) < count or len(set(y.tolist())) < len(set(images.y_train.tolist())):
        raise ValueError(
            f"Expected --train_examples up to {len(images.x_train)}, enough to hold every class. "
            f"Received: {count}, of {len(set(y.tolist()))} classes"
        )
    return dataclasses.replace(images, x_train=x, y_train=y)


def left_out(images):
    """What the flags leave out of the set, sentences."""
    if FLAGS.budget == "smoke":
        return [f"{len(images.x_train)} training and {len(images.x_test)} test images only"]
    count = FLAGS.train_examples
    return [f"the first {count:,} training images only"] if count else []


def original(images):
    """The name of the set that these are, of which they may be a part or JPEGs."""
    return re.sub(r"-[0-9.]+k| \(JPEG\)", "", images.name)


def checksum(images):
    """Of images and labels in memory; None where these are read from records."""
    found, keys = 0, ("x_train", "y_train", "x_test", "y_test")
    if not isinstance(images.x_train, np.ndarray):
        return None
    for key in keys:
        found = zlib.crc32(np.ascontiguousarray(getattr(images, key)), found)
    return found
