"""ImageNet as tensorflow-datasets prepares it: TFRecords of JPEGs, decoded and cropped by tf.data.

It feeds every backend; TensorFlow is imported on use.

Reference: Russakovsky et al. (2015), ILSVRC-2012; preprocessing in `zoo.datasets.crops`.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from zoo.datasets.batches import Batch, check_index
from zoo.datasets.crops import MEAN, STD, TRIES, centre_box, random_boxes
from zoo.types import PathLike

NUM_TRAIN, NUM_VALIDATION = 1_281_167, 50_000
BUFFER = 8192  # ours: records to sample the next one from, 0.9 GB
FILES = 16  # ours: files read in parallel


def prepared(split: str, data_dir: PathLike | None = None) -> list[str]:
    """Return the TFRecord files of tensorflow-datasets' imagenet2012, if it has been prepared.

    Args:
        split: "train" or "validation".
        data_dir: Its folder; default: $TFDS_DATA_DIR or ~/tensorflow_datasets.

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
    """Augmented batches of TFRecords for `fit`, to be read in order.

    Float32 images `(batch, image_size, image_size, 3)`, normalized by `zoo.datasets.crops.MEAN` and
    `STD`, and int32 labels. (seed, epoch) determine the order of files and records, crops and
    mirroring, unless `tf.random.set_seed` is called; tf.data prefetches the batches. `fit` needs
    `Epochs` and `shuffle=False`, see `zoo.datasets.batches.Batches`.

    Args:
        files: Paths of TFRecords of JPEGs (`image`) with labels (`label`), in the same order in
            every process.
        batch_size: Images in a batch.
        steps: Batches in an epoch.
        image_size: Side of the images, in pixels.
        seed: Random seed, 0 or more.

    Raises:
        RuntimeError: On access to a batch before the epoch is set.
    """

    def __init__(
        self,
        files: Sequence[str],
        batch_size: int,
        steps: int,
        image_size: int = 224,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.files = [*files]
        self.batch_size = batch_size
        self.steps = steps
        self.image_size = image_size
        self.seed = seed
        self.count = batch_size * steps
        self.epoch: int | None = None
        self.batch_sizes = {batch_size}
        self._stream: Any = None
        self._part = (0, 1)
        self._next = 0

    def set_epoch(self, epoch: int) -> None:
        """Select the batches of `epoch`, counted from 0."""
        if epoch != self.epoch:
            self._stream = None
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps

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
            self._stream = self._batches().as_numpy_iterator()
            self._next = 0
        while self._next <= index:
            batch = next(self._stream)
            self._next += 1
        return batch

    def _batches(self):
        """Return the parts of the batches, whose sizes are multiples of the number of parts."""
        import tensorflow as tf

        number, parts = self._part
        size = tf.constant(self.batch_size, "int64")

        def is_own(index, _):
            rows = tf.minimum(size, self.count - index // size * size)  # the last may be fewer
            place = index % size * parts
            return (place >= number * rows) & (place < (number + 1) * rows)

        own = self._records().take(self.count).enumerate().filter(is_own)
        return own.map(self._example, tf.data.AUTOTUNE).batch(size // parts).prefetch(2)

    def _key(self):
        import tensorflow as tf

        return tf.constant([self.seed, self.epoch], "int64")

    def _records(self):
        import tensorflow as tf

        files = tf.random.experimental.stateless_shuffle(tf.constant(self.files), self._key())
        order = tf.random.experimental.stateless_fold_in(self._key(), 0)[0]
        order = tf.cast(order, "int64") % 2**31
        shuffled = _read(files).shuffle(BUFFER, seed=order, reshuffle_each_iteration=False)
        return shuffled.repeat()

    def _example(self, index, record):
        import tensorflow as tf

        def draw(shape, uniform):
            return random_boxes(shape, uniform[None])[0].astype("int32")

        key = tf.random.experimental.stateless_fold_in(self._key(), index + 1)
        uniform = tf.random.stateless_uniform([6, TRIES], key)
        jpeg, label = _parsed(record)
        shape = tf.image.extract_jpeg_shape(jpeg)[:2]
        image = decode(
            jpeg, tf.numpy_function(draw, [shape, uniform[:5]], "int32"), self.image_size
        )
        return tf.where(uniform[5, 0] < 0.5, image[:, ::-1], image), label


class RecordValidation(RecordBatches):
    """Batches of the first images of TFRecords, in their order: the center of each.

    Args:
        files: As for `RecordBatches`.
        batch_size: Images in a batch; the last may be smaller.
        count: Number of images.
        image_size: Side of the images, in pixels.
    """

    def __init__(
        self, files: Sequence[str], batch_size: int, count: int, image_size: int = 224
    ) -> None:
        super().__init__(files, batch_size, -(-count // batch_size), image_size)
        self.epoch = 0
        self.count = count
        self.batch_sizes = {min(batch_size, count), count - (self.steps - 1) * batch_size}

    def _records(self):
        return _read(self.files)

    def _example(self, index, record):
        import tensorflow as tf

        jpeg, label = _parsed(record)
        shape = tf.image.extract_jpeg_shape(jpeg)[:2]
        box = tf.numpy_function(lambda s: centre_box(s).astype("int32"), [shape], "int32")
        return decode(jpeg, box, self.image_size), label


def _read(files):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(files).interleave(
        tf.data.TFRecordDataset, cycle_length=FILES, num_parallel_calls=tf.data.AUTOTUNE
    )


def _parsed(record):
    import tensorflow as tf

    kinds = {"image": "string", "label": "int64"}
    features = {key: tf.io.FixedLenFeature([], kind) for key, kind in kinds.items()}
    parsed = tf.io.parse_single_example(record, features)
    return parsed["image"], tf.cast(parsed["label"], "int32")


def decode(jpeg: Any, box: Any, image_size: int) -> Any:
    """Decode the pixels of `jpeg` in `box` only; resize them to a square and normalize."""
    import tensorflow as tf

    box = tf.ensure_shape(box, [4])
    image = tf.image.decode_and_crop_jpeg(jpeg, box, channels=3, dct_method="INTEGER_FAST")
    image = tf.image.resize(image, [image_size, image_size])
    return (image - 255 * np.array(MEAN, "float32")) / (255 * np.array(STD, "float32"))
