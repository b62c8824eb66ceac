"""ImageNet as tensorflow-datasets prepares it, read on access, and its crops, for every backend.

Reference: Russakovsky et al. (2015), ILSVRC-2012; fb.resnet.torch (`datasets/transforms.lua`),
whose recipe Greff et al. (2017) most likely used. Deviations: Pillow's bilinear resizing for
bicubic, no color jitter, no lighting noise, and the aspect ratio is not squared (a slip: its
comment says 3/4 to 4/3).
"""

import functools
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from zoo.checks import check_integers, require
from zoo.types import PathLike

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
        ValueError: If it has not been prepared as array_record, or `count` is not positive.
    """
    import tensorflow_datasets as tfds

    builder = tfds.builder("imagenet2012", data_dir=data_dir)
    known = builder.is_prepared() and builder.info.file_format.value == "array_record"
    expected = "a folder with imagenet2012 as array_record. Register at image-net.org, put "
    expected += "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar into downloads/manual, and "
    expected += "run `tfds build imagenet2012 --file_format=array_record`"
    require(known, expected, data_dir=str(builder.data_dir))
    total = builder.info.splits[split].num_examples
    count = total if count is None else count
    check_integers(1, count=count)
    part = f"{split}[:{min(count, total)}]"
    source = builder.as_data_source(part, decoders={"image": tfds.decode.SkipDecoding()})
    return Column(source, "image"), Column(source, "label")


@dataclass(frozen=True)
class Crops:
    """Crops of images; a side in pixels.

    Images are an array `(num_images, height, width, channels)`, uint8, or JPEGs of any sizes: an
    array of bytes as objects, `(num_images,)`. Gray images become three equal channels.
    """

    image_size: int

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Return the central square, `CENTER` of the shorter side, resized, normalized: float32."""
        return self._crop(images, [center_box] * len(images))

    def augment(self, images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return a random box of each image, resized, normalized, mirrored or not: float32."""
        uniform = generator.random(size=(len(images), 6, TRIES))
        boxes = [functools.partial(random_box, uniform=one[:5]) for one in uniform]
        images = self._crop(images, boxes)
        mirrored = uniform[:, 5, 0] < 0.5
        images[mirrored] = images[mirrored, :, ::-1]
        return images

    def _crop(self, images, boxes):
        known = images.dtype == np.uint8 and images.ndim == 4 and images.shape[-1] in (1, 3)
        expected = "uint8 images with 1 or 3 channels, (images, rows, columns, channels), or JPEGs"
        received = f"{images.dtype} of shape {images.shape}"
        require(images.dtype == object or known, expected, images=received)
        with ThreadPoolExecutor() as threads:  # Pillow works without the interpreter's lock
            squares = np.stack([*threads.map(self._square, images, boxes)])
        return (squares - np.float32(255) * np.float32(MEAN)) / (255 * np.float32(STD))

    def _square(self, image, box):
        if isinstance(image, bytes):
            picture = Image.open(io.BytesIO(image))
        else:
            picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
        top, left, height, width = box((picture.height, picture.width))
        size = (self.image_size, self.image_size)
        place = (left, top, left + width, top + height)
        resized = picture.convert("RGB").crop(place).resize(size, Image.Resampling.BILINEAR)
        return np.asarray(resized, "float32")


def center_box(shape: Sequence[int], fraction: float = CENTER) -> tuple[int, int, int, int]:
    """Return the central square, `fraction` of the shorter side: top, left, height, width."""
    side = max(round(fraction * min(shape)), 1)
    return (shape[0] - side) // 2, (shape[1] - side) // 2, side, side


def random_box(shape: Sequence[int], uniform: np.ndarray) -> tuple[int, int, int, int]:
    """Return a box with a share of the area in `AREA` and an aspect ratio in `ASPECT`.

    As in fb.resnet.torch, the central square if no try fits. `uniform` are samples from 0 to 1,
    `(5, tries)`; the box is top, left, height, width.
    """
    rows, columns = shape
    for share, ratio, turned, down, right in uniform.T:
        area = (AREA[0] + (AREA[1] - AREA[0]) * share) * rows * columns
        aspect = ASPECT[0] + (ASPECT[1] - ASPECT[0]) * ratio
        aspect = 1 / aspect if turned < 0.5 else aspect
        height, width = round((area / aspect) ** 0.5), round((area * aspect) ** 0.5)
        if 0 < height <= rows and 0 < width <= columns:
            top, left = down * (rows - height + 1), right * (columns - width + 1)
            return int(top), int(left), height, width
    return center_box(shape, 1.0)
