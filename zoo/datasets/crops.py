"""ImageNet's crops: random boxes for training, the central square for evaluation.

Reference: fb.resnet.torch (`datasets/transforms.lua`), whose recipe Greff et al. (2017) most likely
used. Deviations: bilinear instead of bicubic resizing, no color jitter, no lighting noise, and the
aspect ratio is not squared (a slip: its comment says 3/4 to 4/3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # fb.resnet.torch; RGB from 0 to 1
AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # ibid., RandomSizedCrop
CENTRE = 224 / 256  # ibid.: of the shorter side, scaled to 256, the center 224


@dataclass(frozen=True)
class Crops:
    """Crops of arrays that fit into memory; `zoo.datasets.imagenet` cuts the same from JPEGs.

    Gray images become three equal channels, as ImageNet's few gray ones do.

    Args:
        image_size: Side of the network's images, in pixels.

    Example:
    >>> crops, images = Crops(32), np.zeros((2, 8, 8, 1), "uint8")
    >>> crops(images).shape, crops.augment(images, np.random.default_rng(0)).shape
    ((2, 32, 32, 3), (2, 32, 32, 3))
    """

    image_size: int

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Return the central square, `CENTRE` of the shorter side, resized, normalized: float32."""
        return self._crop(images, np.tile(centre_box(images.shape[1:3]), (len(images), 1)))

    def augment(self, images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return a random box of each image, resized, normalized, mirrored or not: float32."""
        uniform = generator.random(size=(len(images), 6, TRIES))
        images = self._crop(images, random_boxes(images.shape[1:3], uniform[:, :5]))
        mirrored = uniform[:, 5, 0] < 0.5
        images[mirrored] = images[mirrored, :, ::-1]
        return images

    def _crop(self, images, boxes):
        images = resize_boxes(images, boxes, self.image_size)
        return (images - np.float32(255) * np.float32(MEAN)) / (255 * np.float32(STD))


def centre_box(shape: Sequence[int], fraction: float = CENTRE) -> np.ndarray:
    """Return the central square, `fraction` of the shorter side: top, left, height, width.

    Example:
    >>> centre_box((32, 40)).tolist()
    [2, 6, 28, 28]
    """
    side = max(int(np.rint(fraction * min(shape))), 1)
    return np.array([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])


def random_boxes(shape: Sequence[int], uniform: np.ndarray) -> np.ndarray:
    """Return boxes with a share of the area in `AREA` and an aspect ratio in `ASPECT`.

    As in fb.resnet.torch, the central square if none of the tries fits.

    Args:
        shape: Height and width of the images.
        uniform: Uniform samples from 0 to 1, of shape `(num_images, 5, tries)`.

    Returns:
        Integers of shape `(num_images, 4)`: top, left, height, width.
    """
    sides = np.array(shape)
    uniform = np.asarray(uniform, "float32")
    height, width = sides.astype("float32")
    area = np.float32(AREA[0]) + np.float32(AREA[1] - AREA[0]) * uniform[:, 0]
    area = area * height * width
    aspect = np.float32(ASPECT[0]) + np.float32(ASPECT[1] - ASPECT[0]) * uniform[:, 1]
    aspect = np.where(uniform[:, 2] < 0.5, 1 / aspect, aspect)
    sizes = np.rint(np.stack([np.sqrt(area / aspect), np.sqrt(area * aspect)], 2)).astype(int)
    fits = np.all((sizes <= sides) & (sizes > 0), axis=2)  # (num_images, tries)
    size = sizes[np.arange(len(sizes)), fits.argmax(axis=1)]  # the first that fits
    room = (sides - size + 1).astype("float32")
    corner = np.minimum((uniform[:, 3:5, 0] * room).astype(int), sides - size)
    return np.where(fits.any(1)[:, None], np.hstack([corner, size]), centre_box(shape, 1.0))


def resize_boxes(images: np.ndarray, boxes: np.ndarray, size: int) -> np.ndarray:
    """Resize the pixels in a box of each image to a square: bilinear, not antialiased.

    Args:
        images: Shape `(num_images, height, width, channels)`; one channel becomes three.
        boxes: Top, left, height, width for each image.
        size: Side of the squares, in pixels.

    Returns:
        float32 array of shape `(num_images, size, size, 3)`.

    Example:
    >>> image = np.array([0.0, 4.0]).reshape(1, 1, 2, 1)
    >>> resize_boxes(image, [[0, 0, 1, 2]], 4)[0, 0, :, 0].tolist()
    [0.0, 1.0, 3.0, 4.0]
    """
    boxes = np.asarray(boxes)
    image = np.arange(len(images))[:, None]
    for axis in (0, 1):  # rows; then columns, which swapaxes makes the rows
        start = boxes[:, axis, None]
        length = boxes[:, 2 + axis, None]
        places = (np.arange(size, dtype="float32") + 0.5) * length / np.float32(size) - 0.5
        places = np.clip(places, 0, length - 1)
        first = places.astype(int)
        second = np.minimum(first + 1, length - 1)
        weight = (places - first).astype("float32")[:, :, None, None]
        lines = images[image, start + first].astype("float32")
        images = lines + weight * (images[image, start + second] - lines)
        images = images.swapaxes(1, 2)
    return np.repeat(images, 3, axis=3) if images.shape[3] == 1 else images
