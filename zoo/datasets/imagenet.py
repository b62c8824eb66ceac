"""ImageNet as tensorflow-datasets prepares it, and its crops, for every backend.

TFRecords of JPEGs are decoded and cropped by tf.data; TensorFlow is imported on use. `Crops` cuts
arrays alike.

Reference: Russakovsky et al. (2015), ILSVRC-2012; fb.resnet.torch (`datasets/transforms.lua`),
whose recipe Greff et al. (2017) most likely used. Deviations: bilinear instead of bicubic resizing,
no color jitter, no lighting noise, and the aspect ratio is not squared (a slip: its comment says
3/4 to 4/3).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from zoo.datasets.batches import Batch, check_index
from zoo.types import PathLike

NUM_TRAIN, NUM_VALIDATION = 1_281_167, 50_000
BUFFER = 8192  # ours: records to sample the next one from, 0.9 GB
FILES = 16  # ours: files read in parallel
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # fb.resnet.torch; RGB from 0 to 1
AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # ibid., RandomSizedCrop
CENTER = 224 / 256  # ibid.: of the shorter side, scaled to 256, the center 224


def prepared(split: str, data_dir: PathLike | None = None) -> list[str]:
    """Return the TFRecord files of tensorflow-datasets' imagenet2012, if it has been prepared.

    The split is "train" or "validation"; default folder: $TFDS_DATA_DIR or ~/tensorflow_datasets.

    Raises:
        ValueError: If it has not been prepared as TFRecords.
    """
    import tensorflow_datasets as tfds

    builder = tfds.builder("imagenet2012", data_dir=data_dir)
    if not builder.is_prepared() or builder.info.file_format.value != "tfrecord":
        raise ValueError(
            f"imagenet2012 must have been prepared as TFRecords in {builder.data_dir}. Received: "
            "no such files. Register at image-net.org, put ILSVRC2012_img_train.tar and "
            "ILSVRC2012_img_val.tar into downloads/manual, and run `tfds build imagenet2012`."
        )
    return [str(path) for path in builder.info.splits[split].filepaths]


class RecordBatches(keras.utils.PyDataset):
    """Batches of TFRecords of JPEGs for `fit`, to be read in order.

    Float32 images `(batch, image_size, image_size, 3)`, normalized by `MEAN` and `STD`, and int32
    labels. (seed, epoch) determine the order of files and records, crops and mirroring, unless
    `tf.random.set_seed` is called; tf.data prefetches the batches. `fit` needs `Epochs` and
    `shuffle=False`, see `zoo.datasets.batches.Batches`.

    Args:
        files: Paths of TFRecords of JPEGs (`image`) with labels (`label`), in the same order in
            every process.
        batch_size: Images in a batch; the last may be smaller.
        count: Images in an epoch.
        image_size: Side of the images, in pixels.
        seed: Random seed, 0 or more.
        augment: If `False`, the first images in their order, the center of each.

    Raises:
        RuntimeError: On access to an augmented batch before the epoch is set.
    """

    def __init__(
        self,
        files: Sequence[str],
        batch_size: int,
        count: int,
        image_size: int = 224,
        seed: int = 0,
        augment: bool = True,
    ) -> None:
        super().__init__()
        self.files = [*files]
        self.batch_size = batch_size
        self.count = count
        self.image_size = image_size
        self.seed = seed
        self.augment = augment
        self.epoch: int | None = None if augment else 0
        self.batch_sizes = {min(batch_size, count), count - (len(self) - 1) * batch_size}
        self._stream: Any = None
        self._part = (0, 1)
        self._next = 0

    def set_epoch(self, epoch: int) -> None:
        """Select the batches of `epoch`, counted from 0."""
        if epoch != self.epoch:
            self._stream = None
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    def __getitem__(self, index: int) -> Batch:
        return self.part(index, 0, 1)

    def part(self, index: int, number: int, parts: int) -> Batch:
        """Return one of equal parts of a batch.

        The records of the whole batch are read, but no images of other parts are decoded.
        """
        check_index(index, len(self))
        if self.epoch is None:
            raise RuntimeError("Pass `callbacks=[Epochs(batches)]` to `fit`, or `set_epoch(0)`.")
        if self._stream is None or index < self._next or self._part != (number, parts):
            self._part = number, parts
            self._stream = self._read(self.epoch, number, parts)
            self._next = 0
        while self._next <= index:
            batch = next(self._stream)
            self._next += 1
        return batch

    def _read(self, epoch, number, parts):
        """Return an iterator of the parts of batches whose sizes are multiples of `parts`."""
        import tensorflow as tf

        key = tf.constant([self.seed, epoch], "int64")
        files = tf.constant(self.files)
        if self.augment:
            files = tf.random.experimental.stateless_shuffle(files, key)
        records = tf.data.Dataset.from_tensor_slices(files).interleave(
            tf.data.TFRecordDataset, cycle_length=FILES, num_parallel_calls=tf.data.AUTOTUNE
        )
        if self.augment:
            order = tf.random.experimental.stateless_fold_in(key, 0)[0]
            order = tf.cast(order, "int64") % 2**31
            records = records.shuffle(BUFFER, seed=order, reshuffle_each_iteration=False).repeat()
        size = tf.constant(self.batch_size, "int64")

        def is_own(index, _):
            rows = tf.minimum(size, self.count - index // size * size)  # the last may be fewer
            place = index % size * parts
            return (place >= number * rows) & (place < (number + 1) * rows)

        def example(index, record):
            key_of_record = tf.random.experimental.stateless_fold_in(key, index + 1)
            return self._example(record, key_of_record)

        own = records.take(self.count).enumerate().filter(is_own)
        batches = own.map(example, tf.data.AUTOTUNE).batch(size // parts).prefetch(2)
        return batches.as_numpy_iterator()

    def _example(self, record, key):
        import tensorflow as tf

        types = {"image": "string", "label": "int64"}
        features = {key: tf.io.FixedLenFeature([], kind) for key, kind in types.items()}
        parsed = tf.io.parse_single_example(record, features)
        jpeg, label = parsed["image"], tf.cast(parsed["label"], "int32")
        uniform = tf.random.stateless_uniform([6, TRIES], key)

        def box_in(shape, uniform):
            box = random_boxes(shape, uniform[None])[0] if self.augment else center_box(shape)
            return box.astype("int32")

        shape = tf.image.extract_jpeg_shape(jpeg)[:2]
        box = tf.numpy_function(box_in, [shape, uniform[:5]], "int32")
        image = decode(jpeg, box, self.image_size)
        if self.augment:
            image = tf.where(uniform[5, 0] < 0.5, image[:, ::-1], image)
        return image, label


def decode(jpeg: Any, box: Any, image_size: int) -> Any:
    """Decode the pixels of `jpeg` in `box` only; resize them to a square and normalize."""
    import tensorflow as tf

    box = tf.ensure_shape(box, [4])
    image = tf.image.decode_and_crop_jpeg(jpeg, box, channels=3, dct_method="INTEGER_FAST")
    image = tf.image.resize(image, [image_size, image_size])
    return (image - 255 * np.array(MEAN, "float32")) / (255 * np.array(STD, "float32"))


@dataclass(frozen=True)
class Crops:
    """Crops of arrays that fit into memory, as `RecordBatches` cuts JPEGs; a side in pixels.

    Gray images become three equal channels, as ImageNet's few gray ones do.
    """

    image_size: int

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Return the central square, `CENTER` of the shorter side, resized, normalized: float32."""
        return self._crop(images, np.tile(center_box(images.shape[1:3]), (len(images), 1)))

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


def resize_boxes(images: np.ndarray, boxes: np.ndarray, size: int) -> np.ndarray:
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
