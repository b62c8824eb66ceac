"""Images for the 50-layer networks: ImageNet's records, or any set that fits into memory.

imagenet_resnet50.py imports it from beside itself.
"""

import dataclasses
import math

import numpy as np
from absl import flags, logging

from experiment.data import Prepared

FLAGS = flags.FLAGS
SIZES = {  # paper: section 5.1, and 4.2 for the probes; the others ours; None: all
    "smoke": {"image_size": 32, "batch": 8, "width": 1 / 16, "train_examples": 16},
    "minutes": {"image_size": 32, "batch": 64, "width": 1 / 4, "train_examples": 10_000},
    "paper": {"image_size": 224, "batch": 256, "width": 1.0, "train_examples": None},
}
# 0.1, by the batch of 64, keeps the loss of resnet_bn above log(10) for 3 epochs of CIFAR-10
SIZES["smoke"] |= {"test_examples": 16, "probe_examples": 8, "learning_rate": 0.02}
SIZES["minutes"] |= {"test_examples": 5000, "probe_examples": 500, "learning_rate": 0.02}
SIZES["paper"] |= {"test_examples": None, "probe_examples": 5000, "learning_rate": 0.1}
PROBED = 32  # ours: images at a time; finding patches keeps every activation


def define_flags():
    """The flags whose defaults `SIZES` has, by budget."""
    told = "Default: the budget's."
    flags.DEFINE_integer("image_size", None, f"Side in pixels. {told}", lower_bound=32)
    flags.DEFINE_integer("batch", None, f"The learning rate goes along. {told}", lower_bound=2)
    rate = f"The first, for a batch of 256. {told}"
    flags.DEFINE_float("learning_rate", None, rate, lower_bound=1e-6)
    flags.DEFINE_float("width", None, f"Factor of the feature maps. {told}", 0.01, 1.0)
    for part in ("test", "probe"):  # image_data has that of training
        flags.DEFINE_integer(f"{part}_examples", None, f"At most. {told}", lower_bound=1)


def setting(key):
    """A flag's value, or the budget's."""
    given = FLAGS[key].value
    return SIZES[FLAGS.budget][key] if given is None else given


@dataclasses.dataclass
class Fed:
    """Images as a training and its probes read them.

    Attributes:
        images: `zoo.datasets.images.Images`, or `RecordImages`.
        prepared: What evaluation does to images; None: it is done.
        train: Batches for `Epochs` and `fit`.
        test: Batches of validation images.
        probed: The same of those to probe.
        places: Of the probed images in the validation set.
        x_test: A few of them, as the network sees them.
        missing: What has been left out, sentences.
    """

    images: object
    prepared: object
    train: object
    test: object
    probed: object
    places: np.ndarray
    x_test: np.ndarray
    missing: list

    def as_study(self, study, default_data):
        """See `image_recipe.Study.data`."""
        return Prepared(self.images, self.prepared, self.train, self.test, self.x_test)


@dataclasses.dataclass
class RecordImages:
    """What is known of ImageNet without reading it; its parts only have a length."""

    x_train: range
    x_test: range
    name: str = "ImageNet"
    notice: str = ""
    classes: int = 1000


class Mapped:
    """Batches whose images a function has changed; can be read more than once."""

    def __init__(self, batches, change):
        self.batches, self.change = batches, change

    def __iter__(self):
        for x, y in self.batches:
            yield self.change(np.asarray(x)), np.asarray(y)


def feed(image_size, least):
    """The images that the flags ask for.

    Args:
        image_size: Side of the images that the network sees, in pixels.
        least: Training images that must be there.

    Raises:
        ValueError: if there are fewer, or none.
    """
    name = FLAGS.data or ("imagenet" if FLAGS.budget == "paper" else "cifar10")
    if name in ("imagenet", "imagenet2012"):
        return from_records(image_size)
    return from_arrays(name, image_size, least)


def from_records(image_size):
    """ImageNet from TFDS: `--data_dir` is its folder."""
    from zoo.datasets import imagenet
    from zoo.datasets.batches import RecordBatches

    train, validation = (
        imagenet.prepared(part, FLAGS.data_dir) for part in ("train", "validation")
    )
    batch, full = setting("batch"), (imagenet.NUM_TRAIN, imagenet.NUM_VALIDATION)
    wanted = setting("train_examples"), setting("test_examples")
    counts = [min(asked or n, n) for asked, n in zip(wanted, full, strict=True)]
    if counts[0] < batch:
        raise ValueError(
            f"Expected at least one batch of {batch} training images. Received: {counts[0]}. "
            f"Give more --train_examples, or a smaller --batch."
        )
    batches = RecordBatches(train, batch, counts[0] // batch, image_size, FLAGS.seed)
    read = validation.validation(batch, image_size)
    test = read if counts[1] == full[1] else first(read, counts[1], batch)
    probed = first(read, setting("probe_examples"), PROBED)
    (x, _), *_ = read.take(1)
    images = RecordImages(*map(range, counts))
    places = np.arange(setting("probe_examples"))
    left = told("training", counts[0], full[0], ", others in each epoch")
    left += told("validation", counts[1], full[1])
    return Fed(images, None, batches, test, probed, places, x.numpy()[:4], left)


def first(dataset, count, batch):
    return dataset.unbatch().take(count).batch(batch)


def told(part, count, full, more=""):
    return [] if count == full else [f"{count} of {full} {part} images{more}"]


def from_arrays(name, image_size, least):
    """A file, a folder, or a set of TFDS: see `zoo.datasets.images.load`."""
    from zoo.datasets import images as sources
    from zoo.datasets.batches import Batches
    from zoo.datasets.crops import CENTRE, Crops

    images = sources.load(name, FLAGS.data_dir, side=math.ceil(image_size / CENTRE))
    if images.notice:
        logging.warning("%s", images.notice)
    parts, left, batch = {}, [], setting("batch")
    for part, says in (("train", "training"), ("test", "validation")):
        x, y = getattr(images, f"x_{part}"), getattr(images, f"y_{part}")
        chosen = some(len(x), setting(f"{part}_examples"))
        left += told(says, len(chosen), len(x))
        parts |= {f"x_{part}": x[chosen], f"y_{part}": y[chosen]}
    images = dataclasses.replace(images, name=images.name.replace("/", "-"), **parts)
    if len(images.x_train) < least:
        raise ValueError(
            f"Expected at least one batch of {least} training images. Received: "
            f"{len(images.x_train)} in {FLAGS.data_dir or name}. Give more, or a smaller --batch."
        )
    crops = Crops(image_size)

    def seen(x, y, batch):
        batches = Batches(x, y, batch, augment=lambda x, generator: crops(x), shuffle=False)
        batches.set_epoch(0)
        return batches

    drawn = images.x_train, images.y_train, batch, FLAGS.seed, crops.augment
    train = Batches(*drawn, drop_remainder=True) if len(images.x_train) >= batch else None
    places = some(len(images.x_test), setting("probe_examples"))
    x, y = images.x_test, images.y_test
    probed, test = seen(x[places], y[places], PROBED), seen(x, y, batch)
    return Fed(images, crops, train, test, probed, chosen[places], crops(x[:4]), left)


def some(full, count):
    """Places of `count` of `full` images, of all classes if they are sorted by class; in order."""
    order = np.random.default_rng(0).permutation(full)
    return np.sort(order[:count])
