"""Recognize the published image datasets by their test images.

Reference: LeCun, Bottou, Bengio, Haffner (1998), MNIST; Krizhevsky (2009), CIFAR-10 and CIFAR-100.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zoo.types import Shape


@dataclass(frozen=True)
class Known:
    """Sizes of a published dataset, and the mean of its test images, which no order changes.

    The means, as fractions of 255, are those that many repositories print; MNIST's is measured.
    """

    title: str
    shape: Shape
    classes: int
    num_train: int
    num_test: int
    test_mean: tuple[float, ...]

    def deviation(self, x_test: np.ndarray) -> float:
        """Return the largest deviation of a channel's mean; infinite for other sizes."""
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
EXACT = 1e-6
RECODED = 1e-3  # ours: encoding CIFAR-10 as JPEG moves its means by 1.5e-4


def refuse_another(name: str, x_test: np.ndarray, source: str | Path) -> None:
    """Raise ValueError if images loaded as `name` are another published dataset."""
    if name not in KNOWN:
        return
    for other, known in KNOWN.items():
        if other != name and known.deviation(x_test) <= RECODED:
            raise ValueError(
                f"{source} must have the images of {KNOWN[name].title}. Received: those of "
                f"{known.title}. Say `{other}` (--data {other}), or give another file."
            )


def title(
    name: str, x_train: np.ndarray, x_test: np.ndarray, source: str | Path, is_jpeg: bool
) -> tuple[str, str]:
    """Return the title of the images, and a notice on how far numbers on them are comparable."""
    known = KNOWN.get(name)
    if known is None:
        return name, ""
    if known.deviation(x_test) > (RECODED if is_jpeg else EXACT):
        return Path(source).stem, (
            f"NOT {known.title}: the test images in {source} are not the original ones. The "
            "numbers are not comparable with published results."
        )
    name = known.title
    notices = []
    if len(x_train) != known.num_train:
        name += f"-{len(x_train) / 1000:g}k"
        notices.append(
            f"{len(x_train):,} of the {known.num_train:,} training images of {known.title}."
        )
    if is_jpeg:
        name += " (JPEG)"
        notices.append("Re-encoded as JPEG: not the original pixels.")
    return name, " ".join(notices)
