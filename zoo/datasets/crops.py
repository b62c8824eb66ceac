"""ImageNet's preprocessing for images in memory: random boxes, the centre, resized. NumPy alone.

What `zoo.datasets.imagenet` does to JPEGs in TensorFlow, for sets that fit into memory.
"""

from dataclasses import dataclass

import numpy as np

from zoo.datasets.imagenet import AREA, ASPECT, CENTRE, MEAN, STD, TRIES


@dataclass(frozen=True)
class Crops:
    """Images as fb.resnet.torch shows them: random boxes in training, the centre in evaluation.

    Grey images become three equal channels, as ImageNet's few grey ones are.

    Args:
        image_size: Side of the images that the network sees, in pixels.

    Example:

    >>> crops, images = Crops(32), np.zeros((2, 8, 8, 1), "uint8")
    >>> crops(images).shape, crops.augment(images, np.random.default_rng(0)).shape
    ((2, 32, 32, 3), (2, 32, 32, 3))
    """

    image_size: int

    def __call__(self, images):
        """The centre, `CENTRE` of the shorter side, resized and normalised: float32."""
        return self._cut(images, np.tile(centre_box(images.shape[1:3]), (len(images), 1)))

    def augment(self, images, generator):
        """A random box of each image, resized and normalised, every other one mirrored: float32."""
        draws = generator.random((len(images), 6, TRIES))
        images = self._cut(images, random_boxes(images.shape[1:3], draws[:, :5]))
        mirrored = draws[:, 5, 0] < 0.5
        images[mirrored] = images[mirrored, :, ::-1]
        return images

    def _cut(self, images, boxes):
        if np.ndim(images) != 4 or images.shape[-1] not in (1, 3):
            raise ValueError(
                "`images` must have the shape (num_images, height, width, 1 or 3). "
                f"Received: shape {np.shape(images)}."
            )
        images = resize_boxes(images, boxes, self.image_size)
        return (images - np.float32(255) * np.float32(MEAN)) / (255 * np.float32(STD))


def centre_box(shape, fraction=CENTRE):
    """The central square, `fraction` of the shorter side: top, left, height, width.

    Example:

    >>> centre_box((32, 40)).tolist()
    [2, 6, 28, 28]
    """
    side = max(int(np.rint(fraction * min(shape))), 1)
    return np.array([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])


def random_boxes(shape, uniform):
    """What `zoo.datasets.imagenet.random_box` draws, for many images of one shape.

    Args:
        shape: Height and width of the images.
        uniform: Numbers from 0 to 1, of shape `(num_images, 5, tries)`.

    Returns:
        Integers of shape `(num_images, 4)`: top, left, height, width.
    """
    shape, uniform = np.array(shape), np.asarray(uniform, "float32")
    sides = shape.astype("float32")
    area = np.float32(AREA[0]) + np.float32(AREA[1] - AREA[0]) * uniform[:, 0]
    area = area * sides[0] * sides[1]
    aspect = np.float32(ASPECT[0]) + np.float32(ASPECT[1] - ASPECT[0]) * uniform[:, 1]
    aspect = np.where(uniform[:, 2] < 0.5, 1 / aspect, aspect)
    crops = np.rint(np.stack([np.sqrt(area / aspect), np.sqrt(area * aspect)], 2)).astype(int)
    fits = np.all((crops <= shape) & (crops > 0), axis=2)  # (num_images, tries)
    crop = crops[np.arange(len(crops)), fits.argmax(axis=1)]  # the first that fits
    room = (shape - crop + 1).astype("float32")
    corner = np.minimum((uniform[:, 3:5, 0] * room).astype(int), shape - crop)
    return np.where(fits.any(1)[:, None], np.hstack([corner, crop]), centre_box(shape, 1.0))


def resize_boxes(images, boxes, size):
    """The pixels in a box of each image, resized to a square: bilinear, without a filter.

    Args:
        images: Of shape `(num_images, height, width, channels)`; one channel becomes three.
        boxes: Top, left, height, width of each.
        size: Side of the squares, in pixels.

    Returns:
        float32 array of shape `(num_images, size, size, 3)`.

    Example:

    >>> image = np.array([0.0, 4.0]).reshape(1, 1, 2, 1)
    >>> resize_boxes(image, [[0, 0, 1, 2]], 4)[0, 0, :, 0].tolist()
    [0.0, 1.0, 3.0, 4.0]
    """
    boxes, each = np.asarray(boxes), np.arange(len(images))[:, None, None]
    (top, bottom, down), (left, right, across) = (
        _neighbours(boxes[:, axis, None], boxes[:, 2 + axis, None], size) for axis in (0, 1)
    )
    rows = [images[each, row[:, :, None], np.arange(images.shape[2])] for row in (top, bottom)]
    lines = _between(*rows, down[:, :, None, None])  # (num_images, size, width, channels)
    places = np.arange(size)[:, None]
    columns = [lines[each, places, column[:, None]] for column in (left, right)]
    found = _between(*columns, across[:, None, :, None])
    return np.repeat(found, 3, axis=3) if found.shape[3] == 1 else found


def _neighbours(start, length, size):
    """Of each new pixel the two old ones beside its centre, and the second one's weight."""
    places = (np.arange(size, dtype="float32") + 0.5) * length / np.float32(size) - 0.5
    places = np.clip(places, 0, length - 1)
    first = places.astype(int)
    second = np.minimum(first + 1, length - 1)
    return start + first, start + second, (places - first).astype("float32")


def _between(first, second, weight):
    first = first.astype("float32")
    return first + weight * (second - first)
