"""ImageNet as tensorflow-datasets prepares it, read on access, and its crops, for every backend.

Reference: Russakovsky et al. (2015), ILSVRC-2012; fb.resnet.torch (`datasets/transforms.lua`),
whose recipe Greff et al. (2017) most likely used. Deviations: bilinear instead of bicubic resizing,
no color jitter, no lighting noise, and the aspect ratio is not squared (a slip: its comment says
3/4 to 4/3).
"""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from zoo.types import PathLike, Shape

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # fb.resnet.torch; RGB from 0 to 1
AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # ibid., RandomSizedCrop
CENTER = 224 / 256  # ibid.: of the shorter side, scaled to 256, the center 224


class Column:
    """A feature of records, read on access: an array of numbers, or of bytes as objects.

    It stands for an array in `zoo.datasets.batches.Batches`, and need not fit into memory. `source`
    is a data source of tensorflow-datasets.
    """

    def __init__(self, source: Any, name: str) -> None:
        self.source = source
        self.name = name

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        values = [record[self.name] for record in self.source.__getitems__([*map(int, rows)])]
        return np.array(values, object if isinstance(values[0], bytes) else "int32")


def records(
    split: str, count: int | None = None, data_dir: PathLike | None = None
) -> tuple[Column, Column]:
    """Return the JPEGs and the labels of tensorflow-datasets' imagenet2012, if it is prepared.

    `split` is "train" or "validation", `count` takes the first images only, whose order is random,
    and `data_dir=None` is $TFDS_DATA_DIR or ~/tensorflow_datasets.

    Raises:
        ValueError: If it has not been prepared as array_record.
    """
    import tensorflow_datasets as tfds

    builder = tfds.builder("imagenet2012", data_dir=data_dir)
    if not builder.is_prepared() or builder.info.file_format.value != "array_record":
        raise ValueError(
            f"imagenet2012 must have been prepared as array_record in {builder.data_dir}. "
            "Received: no such files. Register at image-net.org, put ILSVRC2012_img_train.tar and "
            "ILSVRC2012_img_val.tar into downloads/manual, and run `tfds build imagenet2012 "
            "--file_format=array_record`."
        )
    total = builder.info.splits[split].num_examples
    part = f"{split}[:{min(count or total, total)}]"
    source = builder.as_data_source(part, decoders={"image": tfds.decode.SkipDecoding()})
    return Column(source, "image"), Column(source, "label")


@dataclass(frozen=True)
class Crops:
    """Crops of images; a side in pixels.

    Images are an array `(num_images, height, width, channels)`, or JPEGs of any sizes: an array of
    bytes as objects, `(num_images,)`. Gray images become three equal channels.
    """

    image_size: int

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Return the central square, `CENTER` of the shorter side, resized, normalized: float32."""
        return self._crop(images, lambda shape, rows: np.tile(center_box(shape), (len(rows), 1)))

    def augment(self, images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return a random box of each image, resized, normalized, mirrored or not: float32."""
        uniform = generator.random(size=(len(images), 6, TRIES))
        images = self._crop(images, lambda shape, rows: random_boxes(shape, uniform[rows, :5]))
        mirrored = uniform[:, 5, 0] < 0.5
        images[mirrored] = images[mirrored, :, ::-1]
        return images

    def _crop(self, images, boxes):
        rows = np.arange(len(images))
        if images.dtype == object:
            with ThreadPoolExecutor() as threads:  # Pillow decodes without the interpreter's lock
                squares = threads.map(self._decode, images, rows, [boxes] * len(rows))
                images = np.concatenate([*squares])
        else:
            images = resize_boxes(images, boxes(images.shape[1:3], rows), self.image_size)
        return (images - np.float32(255) * np.float32(MEAN)) / (255 * np.float32(STD))

    def _decode(self, jpeg, row, boxes: Callable[[Shape, np.ndarray], np.ndarray]):
        with Image.open(io.BytesIO(jpeg)) as image:
            ((top, left, height, width),) = boxes((image.height, image.width), np.array([row]))
            part = image.convert("RGB").crop((left, top, left + width, top + height))
        return resize_boxes(np.asarray(part)[None], [[0, 0, height, width]], self.image_size)


def center_box(shape: Sequence[int], fraction: float = CENTER) -> np.ndarray:
    """Return the central square, `fraction` of the shorter side: top, left, height, width."""
    side = max(int(np.rint(fraction * min(shape))), 1)
    return np.array([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])


def random_boxes(shape: Sequence[int], uniform: np.ndarray) -> np.ndarray:
    """Return boxes with a share of the area in `AREA` and an aspect ratio in `ASPECT`.

    As in fb.resnet.torch, the central square if none of the tries fits. `uniform` are samples from
    0 to 1, `(num_images, 5, tries)`; boxes are `(num_images, 4)`: top, left, height, width.
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
    return np.where(fits.any(1)[:, None], np.hstack([corner, size]), center_box(shape, 1.0))


def resize_boxes(images: np.ndarray, boxes: Any, size: int) -> np.ndarray:
    """Resize the pixels in a box of each image to a square of `size`: bilinear, not antialiased.

    `boxes` are top, left, height, width. One channel becomes three; float32.
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
