"""The published sets of images, told from all others by their test images.

Reference: LeCun, Bottou, Bengio, Haffner (1998), MNIST; Krizhevsky (2009), CIFAR-10 and CIFAR-100.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Known:
    """What tells an original set: sizes, and the mean of its test images, whatever their order.

    The means, as fractions of 255, are what many repositories print; MNIST's is measured.
    """

    title: str
    shape: tuple
    classes: int
    num_train: int
    num_test: int
    test_mean: tuple

    def deviation(self, x_test):
        """How far the means of the channels are from the original's; infinite in other sizes."""
        if x_test.shape != (self.num_test, *self.shape):
            return math.inf
        means = x_test.mean(axis=(0, 1, 2), dtype="float64") / 255
        return np.abs(means - self.test_mean).max()


CIFAR10_MEAN = (0.4942142800245097, 0.48513138901654346, 0.4504090927542889)
CIFAR100_MEAN = (0.5087964127604166, 0.48739301317401956, 0.44194221124387256)
KNOWN = {
    "mnist": Known("MNIST", (28, 28, 1), 10, 60_000, 10_000, (0.13251460584233699,)),
    "cifar10": Known("CIFAR-10", (32, 32, 3), 10, 50_000, 10_000, CIFAR10_MEAN),
    "cifar100": Known("CIFAR-100", (32, 32, 3), 100, 50_000, 10_000, CIFAR100_MEAN),
}
EXACT, RECODED = 1e-6, 1e-3  # CIFAR-10's means move by 1.5e-4 when JPEG has been at it: measured


def refuse_another(name, x_test, source):
    """Raises if images that are called as one known set are another one."""
    if name not in KNOWN:
        return
    for other, known in KNOWN.items():
        if other != name and known.deviation(x_test) <= RECODED:
            raise ValueError(
                f"{source} must have the images of {KNOWN[name].title}. Received: those of "
                f"{known.title}. Say `{other}` (--data {other}), or give another file."
            )


def title(name, x_train, x_test, source, is_jpeg):
    """What the images are called, and what must be said beside every number measured on them."""
    known = KNOWN.get(name)
    if known is None:
        return name, ""
    if known.deviation(x_test) > (RECODED if is_jpeg else EXACT):
        return Path(source).stem, (
            f"NOT {known.title}: the test images in {source} are not the original ones. The "
            "numbers compare with no paper's."
        )
    found, notice = known.title, ""
    if len(x_train) != known.num_train:
        found = f"{found}-{len(x_train) / 1000:g}k"
        notice = f"{len(x_train):,} of the {known.num_train:,} training images of {known.title}. "
    if is_jpeg:
        found, notice = f"{found} (JPEG)", notice + "Re-encoded as JPEG: not the original pixels."
    return found, notice.strip()
