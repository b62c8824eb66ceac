"""Images for the 50-layer networks: ImageNet's records, or any set that fits into memory."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from absl import flags, logging

from experiment.data import Prepared
from experiment.flags import FLAGS
from zoo.datasets import imagenet
from zoo.datasets import images as sources
from zoo.datasets.batches import Batches
from zoo.datasets.crops import CENTRE, Crops
from zoo.datasets.imagenet import RecordBatches, RecordValidation

flags.disclaim_key_flags()  # they are the recipe's

SIZES = {  # paper: section 5.1, and 4.2 for the probes; the others ours; None: all
    "smoke": {
        "image_size": 32,
        "batch": 8,
        "width": 1 / 16,
        "train_examples": 16,
        "test_examples": 16,
        "probe_examples": 8,
        "learning_rate": 0.02,
    },
    "minutes": {
        "image_size": 32,
        "batch": 64,
        "width": 1 / 8,
        "train_examples": None,
        "test_examples": 5000,
        "probe_examples": 1000,
        "learning_rate": 0.2,
    },
    "paper": {
        "image_size": 224,
        "batch": 256,
        "width": 1.0,
        "train_examples": None,
        "test_examples": None,
        "probe_examples": 5000,
        "learning_rate": 0.1,
    },
}
DATA = {"smoke": "cifar10", "minutes": "mnist", "paper": "imagenet"}
BLOCKS = {"minutes": (4, 4)}  # of each stage; others: the paper's
PROBE_BATCH = 32  # ours: top patches keep every activation in memory


def define_flags() -> None:
    """Define the flags whose defaults are the budget's in `SIZES`."""
    default = "Default: the budget's."
    help_text = f"Side of the images in pixels. {default}"
    flags.DEFINE_integer("image_size", None, help_text, lower_bound=32)
    help_text = f"Number of images in a batch, to which the learning rate is scaled. {default}"
    flags.DEFINE_integer("batch", None, help_text, lower_bound=2)
    help_text = f"Initial learning rate for a batch of 256. {default}"
    flags.DEFINE_float("learning_rate", None, help_text, lower_bound=1e-6)
    help_text = f"Factor of the number of feature maps. {default}"
    flags.DEFINE_float("width", None, help_text, 0.01, 1.0)
    help_text = f"Largest number of validation images. {default}"
    flags.DEFINE_integer("test_examples", None, help_text, lower_bound=1)
    help_text = f"Largest number of images to probe. {default}"
    flags.DEFINE_integer("probe_examples", None, help_text, lower_bound=1)


def setting(key: str) -> Any:
    """Return a flag's value, or if it is not given the budget's."""
    value = FLAGS[key].value
    return SIZES[FLAGS.budget][key] if value is None else value


@dataclasses.dataclass
class Inputs:
    """Images as a training and its probes read them."""

    prepared: Prepared  # for training and validation
    probed: Iterable  # batches of the validation images to probe
    indices: np.ndarray  # of the probed images in the validation set
    deviations: list[str]  # parts of the data set that are left out

    @property
    def name(self) -> str:
        """Name of the data set."""
        return self.prepared.images.name

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.prepared.images.classes


@dataclasses.dataclass
class RecordImages:
    """Attributes of ImageNet that are known without reading it; its parts only have a length."""

    x_train: range
    x_test: range
    name: str = "ImageNet"
    notice: str = ""
    classes: int = 1000


class Mapped:
    """Batches whose images a function changes; can be read more than once."""

    def __init__(self, batches: Iterable, change: Callable[[np.ndarray], np.ndarray]) -> None:
        self.batches = batches
        self.change = change

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for x, y in self.batches:
            yield self.change(np.asarray(x)), np.asarray(y)


def load(image_size: int, least: int) -> Inputs:
    """Load the images that the flags select.

    Raises:
        ValueError: if there are fewer training images than `least`, or none.
    """
    name = FLAGS.data or DATA[FLAGS.budget]
    if name in ("imagenet", "imagenet2012"):
        return load_records(image_size)
    return load_arrays(name, image_size, least)


def load_records(image_size: int) -> Inputs:
    """Read ImageNet as TFDS prepared it: `--data_dir` is the folder of TFDS."""
    train = imagenet.prepared("train", FLAGS.data_dir)
    validation = imagenet.prepared("validation", FLAGS.data_dir)
    batch = setting("batch")
    num_train = min(setting("train_examples") or imagenet.NUM_TRAIN, imagenet.NUM_TRAIN)
    num_test = min(setting("test_examples") or imagenet.NUM_VALIDATION, imagenet.NUM_VALIDATION)
    if num_train < batch:
        raise ValueError(
            f"Expected at least one batch of {batch} training images. Received: {num_train}. "
            f"Give more --train_examples, or a smaller --batch."
        )
    batches = RecordBatches(train, batch, num_train // batch, image_size, FLAGS.seed)
    test = RecordValidation(validation, batch, num_test, image_size)
    num_probed = setting("probe_examples")
    deviations = left_out("training", num_train, imagenet.NUM_TRAIN, ", others in each epoch")
    deviations += left_out("validation", num_test, imagenet.NUM_VALIDATION)
    images = RecordImages(range(num_train), range(num_test))
    return Inputs(
        Prepared(images, None, batches, test, RecordValidation(validation, 4, 4, image_size)[0][0]),
        RecordValidation(validation, PROBE_BATCH, num_probed, image_size),
        np.arange(num_probed),
        deviations,
    )


def left_out(part: str, count: int, total: int, more: str = "") -> list[str]:
    """Return the deviation from the paper of using only `count` of `total` images of a part."""
    return [] if count == total else [f"{count} of {total} {part} images{more}"]


def load_arrays(name: str, image_size: int, least: int) -> Inputs:
    """Load images into memory; see `zoo.datasets.images.load`."""
    images = sources.load(name, FLAGS.data_dir, side=math.ceil(image_size / CENTRE))
    if images.notice:
        logging.warning("%s", images.notice)
    num_train, num_test = len(images.x_train), len(images.x_test)
    train = sample(num_train, setting("train_examples"))
    test = sample(num_test, setting("test_examples"))
    deviations = left_out("training", len(train), num_train)
    deviations += left_out("validation", len(test), num_test)
    images = dataclasses.replace(
        images,
        name=images.name.replace("/", "-"),
        x_train=images.x_train[train],
        y_train=images.y_train[train],
        x_test=images.x_test[test],
        y_test=images.y_test[test],
    )
    if len(train) < least:
        raise ValueError(
            f"Expected at least one batch of {least} training images. Received: "
            f"{len(train)} in {FLAGS.data_dir or name}. Give more, or a smaller --batch."
        )
    crops = Crops(image_size)
    batch = setting("batch")

    def centre(x, generator):
        return crops(x)

    def cropped(x, y, batch):
        batches = Batches(x, y, batch, augment=centre, shuffle=False)
        batches.set_epoch(0)
        return batches

    batches = None  # --trained needs none
    if len(train) >= batch:
        arrays = images.x_train, images.y_train
        # a miniature's capacity shows in how it fits, and little data are enough to overfit
        augment = centre if FLAGS.budget == "minutes" else crops.augment
        batches = Batches(*arrays, batch, FLAGS.seed, augment, drop_remainder=True)
    probed = sample(len(test), setting("probe_examples"))
    return Inputs(
        Prepared(
            images,
            crops,
            batches,
            cropped(images.x_test, images.y_test, batch),
            crops(images.x_test[:4]),
        ),
        cropped(images.x_test[probed], images.y_test[probed], PROBE_BATCH),
        test[probed],
        deviations,
    )


def sample(total: int, count: int | None) -> np.ndarray:
    """Return sorted indices of `count` of `total` images, or of all.

    Of sets sorted by class, they are of all classes.
    """
    order = np.random.default_rng(0).permutation(total)
    return np.sort(order[:count])
