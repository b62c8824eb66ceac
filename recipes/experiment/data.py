"""The images that the flags select, as training and evaluation read them."""

import dataclasses
import re
import zlib
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from experiment.flags import FLAGS
from zoo.datasets import images as sources
from zoo.datasets import preprocessing
from zoo.datasets.batches import Batches

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class Prepared(NamedTuple):
    """Images and what training and evaluation read of them."""

    images: Any  # `zoo.datasets.images.Images`, or what has its attributes
    preprocess: Any  # function that prepares images for evaluation, or None if they are prepared
    train: Any  # batches for training
    test: Any  # batches for validation: of the test images, or of the images held out
    x_test: np.ndarray  # prepared for evaluation


def prepare(study: Any, default_data: str) -> Prepared:
    """Load and prepare the images for a `Study`; `default_data` is the default of --data.

    Raises:
        ValueError: if there are too few images.
    """
    images = load(default_data, study.batch, study.minutes_images)
    if study.resize:
        images = study.resize(images)
    images, held_out = hold_out(images, study.validation, study.batch)
    preprocess = preprocessing.fit(study.preprocessing, images.x_train)
    x_test = preprocess(images.x_test)
    validation = x_test[: study.tested], images.y_test[: study.tested]
    if held_out:
        validation = preprocess(held_out[0]), held_out[1]
    train = Batches(
        images.x_train,
        images.y_train,
        study.batch,
        FLAGS.seed,
        preprocess.augment,
        drop_remainder=True,
    )
    test = Batches(*validation, study.batch, shuffle=False)
    return Prepared(images, preprocess, train, test, x_test)


def hold_out(images: sources.Images, count: int, batch: int) -> tuple:
    """Return `images` without the last `count` for training, and those; () if there are none."""
    kept = len(images.x_train) - count
    if kept < batch:
        raise ValueError(
            f"Expected --validation to leave at least one batch of {batch} training images. "
            f"Received: {count} of {len(images.x_train)}"
        )
    held_out = (images.x_train[kept:], images.y_train[kept:]) if count else ()
    return first(images, kept), held_out


def first(images: sources.Images, count: int) -> sources.Images:
    """Return `images` with the first `count` for training."""
    x_train = images.x_train[:count]
    return dataclasses.replace(images, x_train=x_train, y_train=images.y_train[:count])


def load(default_data: str, batch: int, minutes: int | None = None) -> sources.Images:
    """Return the images that the flags select; two batches of them for `--budget smoke`.

    Args:
        default_data: Default of --data.
        batch: Number of images in a batch.
        minutes: Number of training images of `--budget minutes`. Default: all.
    """
    images = sources.load(FLAGS.data or default_data, FLAGS.data_dir)
    if images.notice:
        logging.warning("%s", images.notice)
    if FLAGS.train_examples:
        images = _checked(first(images, FLAGS.train_examples), images)
    elif minutes and FLAGS.budget == "minutes":
        images = first(images, minutes)
    if FLAGS.budget == "smoke":
        images = dataclasses.replace(
            images, **{key: getattr(images, key)[: 2 * batch] for key in ARRAYS}
        )
    if len(images.x_train) < batch:
        raise ValueError(
            f"Expected at least one batch of {batch} training images. "
            f"Received: {len(images.x_train)} in {FLAGS.data_dir}"
        )
    return images


def _checked(images, all_images):
    """Return `images` if --train_examples leaves all classes; folders are sorted by class."""
    classes = len(set(images.y_train.tolist()))
    complete = len(images.x_train) == FLAGS.train_examples
    if not complete or classes < len(set(all_images.y_train.tolist())):
        raise ValueError(
            f"Expected --train_examples up to {len(all_images.x_train)}, enough to hold every "
            f"class. Received: {FLAGS.train_examples}, of {classes} classes"
        )
    return images


def deviations(
    images: sources.Images, known: bool, selected: bool = True, minutes: int | None = None
) -> list[str]:
    """Return how the images deviate from the paper's.

    Args:
        images: As `load` returned them.
        known: True if the paper used this data set.
        selected: True if `load` applied --budget and --train_examples to them.
        minutes: As for `load`.
    """
    deviations = []
    if not known:
        deviations.append(f"{images.name}: {images.notice or 'not the images of the paper'}")
    if selected and FLAGS.budget == "smoke":
        counts = f"{len(images.x_train)} training and {len(images.x_test)} test images only"
        deviations.append(counts)
    elif selected and (FLAGS.train_examples or (minutes and FLAGS.budget == "minutes")):
        deviations.append(f"the first {len(images.x_train):,} training images only")
    return deviations


def original_name(images: sources.Images) -> str:
    """Return the name of the data set that `images` are a part or a JPEG version of."""
    return re.sub(r"-[0-9.]+k| \(JPEG\)", "", images.name)


def identity(images: sources.Images) -> dict[str, Any]:
    """Return what identifies the images in the identity of a run."""
    checksum = None  # of images that are read from records
    if isinstance(images.x_train, np.ndarray):
        checksum = 0
        for key in ARRAYS:
            checksum = zlib.crc32(np.ascontiguousarray(getattr(images, key)), checksum)
    return {"data": images.name, "images": len(images.x_train), "checksum": checksum}
