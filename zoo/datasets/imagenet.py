"""ImageNet from TFRecords: sharded reading, decoding and random-resized crops on every host.

tf.data does this for every backend; TensorFlow is imported on use.

Reference: Russakovsky et al. (2015), ILSVRC-2012; preprocessing after fb.resnet.torch
(`datasets/transforms.lua`), whose recipe Greff et al. (2017) most likely used. Deviations: bilinear
instead of bicubic resizing, no colour jitter, no lighting noise.
"""

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.io import replace
from zoo.types import PathLike, Tensor

NUM_TRAIN, NUM_VALIDATION = 1_281_167, 50_000
CLASSES = 1000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # fb.resnet.torch; RGB from 0 to 1
AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # ibid., RandomSizedCrop
CENTRE = 224 / 256  # ibid.: of the shorter side, scaled to 256, the centre 224
BUFFER = 8192  # ours: records to sample the next one from, 0.9 GB
FILES = 16  # ours: files read in parallel
NOISE, QUALITY = 12, 95  # ours: a synthetic JPEG of 500 x 375 then has 109 kB, as ImageNet's


@dataclass(frozen=True)
class Records:
    """TFRecord files of JPEGs with labels, and this host's shard of them.

    Args:
        files: Tuple of all paths, in the same order on every host; or a pattern, see `find`.
        shard_index: Index of this host, from 0, e.g. `jax.process_index()`.
        num_shards: Number of hosts, e.g. `jax.process_count()`; each reads every n-th file.
        keys: Names of the image and the label in a record.
        first_label: Label of the records that becomes 0.
        deterministic: If `False`, batches may change their order, which is faster if files stall.
        classes: Number of classes, or `None` if it is not known. Reading a label that is negative,
            or not below it, raises `tf.errors.InvalidArgumentError`.

    Raises:
        ValueError: If there is no such host, or there are fewer files than hosts.

    Example:
    >>> Records(("a", "b", "c"), shard_index=0, num_shards=2).host_files
    ('a', 'c')
    """

    files: Any  # tuple or pattern; a tuple after initialization
    shard_index: int = 0
    num_shards: int = 1
    keys: tuple[str, str] = ("image/encoded", "image/class/label")
    first_label: int = 0
    deterministic: bool = True
    classes: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.files, str | Path):
            object.__setattr__(self, "files", find(self.files))
        if not 0 <= self.shard_index < self.num_shards:
            raise ValueError(
                "`shard_index` must be from 0 to `num_shards` - 1. Received: "
                f"shard_index={self.shard_index}, num_shards={self.num_shards}"
            )
        if len(self.files) < self.num_shards:
            raise ValueError(
                f"Each host needs a file of its own. Received: {len(self.files)} files for "
                f"{self.num_shards} hosts. Write the records into more files."
            )

    @property
    def host_files(self) -> tuple[str, ...]:
        """Files that this host reads."""
        return tuple(map(str, self.files[self.shard_index :: self.num_shards]))

    def train(
        self,
        batch_size: int,
        steps_per_epoch: int,
        image_size: int = 224,
        seed: int = 0,
        first_epoch: int = 0,
        part: tuple[int, int] = (0, 1),
    ) -> Any:
        """Return endless augmented batches; `fit` needs the same `steps_per_epoch`.

        (seed, epoch) determine the order of files and records, crops and mirroring, unless
        `tf.random.set_seed` is called; a training resumed with `first_epoch` therefore continues
        bit for bit. Every host has the same number of whole batches: one with fewer records
        repeats some.

        Args:
            batch_size: Images of this host in a batch.
            steps_per_epoch: Batches in an epoch: `NUM_TRAIN // (num_shards * batch_size)`.
            image_size: Side of the images, in pixels.
            seed: Random seed, 0 or more.
            first_epoch: First epoch, counted from 0.
            part: (index, number of parts): of every batch only one of equal parts. The records of
                the whole batch are read, but no others than the part's are decoded.

        Returns:
            `tf.data.Dataset` of float32 images `(batch_size, image_size, image_size, 3)`,
            normalized by `MEAN` and `STD`, and int32 labels `(batch_size,)`.
        """
        import tensorflow as tf

        fold_in = tf.random.experimental.stateless_fold_in
        start, stop = _bounds(batch_size, *part)

        def one_epoch(epoch):
            key = tf.stack([tf.constant(seed, "int64"), epoch])
            files = tf.random.experimental.stateless_shuffle(tf.constant(self.host_files), key)
            records = self._read(files)
            order = tf.cast(fold_in(key, 0)[0], "int64") % 2**31
            records = records.shuffle(BUFFER, seed=order, reshuffle_each_iteration=False)

            def example(index, record):
                uniform = tf.random.stateless_uniform([6, TRIES], fold_in(key, index + 1))
                jpeg, label = self._parse(record)
                box = random_box(tf.image.extract_jpeg_shape(jpeg)[:2], uniform[:5])
                image = decode(jpeg, box, image_size)
                return tf.where(uniform[5, 0] < 0.5, image[:, ::-1], image), label

            numbered = records.repeat().enumerate()
            if stop - start < batch_size:
                numbered = numbered.filter(
                    lambda index, _: (index % batch_size >= start) & (index % batch_size < stop)
                )
            examples = self._map(numbered, example)
            return examples.batch(stop - start, drop_remainder=True).take(steps_per_epoch)

        epochs = tf.data.Dataset.range(first_epoch, 2**31).flat_map(one_epoch)
        return epochs.prefetch(tf.data.AUTOTUNE)

    def validation(
        self,
        batch_size: int,
        image_size: int = 224,
        count: int | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> Any:
        """Return one pass over this host's records, in their order: the centre of each image.

        The square of `CENTRE` of the shorter side is cropped before resizing, which equals, up to
        rounding, resizing the image to 256 and cropping 224. The last batch may be smaller.

        Args:
            batch_size: Images of this host in a batch.
            image_size: Side of the images, in pixels.
            count: Number of images, the first ones; `None` takes all.
            part: As for `train`; a part needs `count`, at least one image in each part.

        Returns:
            `tf.data.Dataset` of images and labels as in `train`.
        """
        import tensorflow as tf

        def example(record):
            jpeg, label = self._parse(record)
            box = centre_box(tf.image.extract_jpeg_shape(jpeg)[:2], CENTRE)
            return decode(jpeg, box, image_size), label

        records = self._read(tf.constant(self.host_files)).take(-1 if count is None else count)
        start, stop = _bounds(batch_size, *part)
        if count is not None and stop - start < batch_size:
            whole = count - count % batch_size  # images in whole batches
            last = _bounds(count % batch_size, *part)
            bounds = tf.constant([[start, stop], last], "int64")

            def is_own(index, record):
                first, end = tf.unstack(bounds[tf.cast(index >= whole, "int32")])
                return (index % batch_size >= first) & (index % batch_size < end)

            records = records.enumerate().filter(is_own).map(lambda index, record: record)
        examples = self._map(records, example)
        return examples.batch(stop - start).prefetch(tf.data.AUTOTUNE)

    def _read(self, files):
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(files).interleave(
            tf.data.TFRecordDataset,
            cycle_length=FILES,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=self.deterministic,
        )

    def _map(self, dataset, function):
        import tensorflow as tf

        return dataset.map(function, tf.data.AUTOTUNE, deterministic=self.deterministic)

    def _parse(self, record):
        import tensorflow as tf

        image, label = self.keys
        features = {
            image: tf.io.FixedLenFeature([], "string"),
            label: tf.io.FixedLenFeature([], "int64"),
        }
        parsed = tf.io.parse_single_example(record, features)
        labels = parsed[label] - self.first_label
        last = tf.int32.max if self.classes is None else self.classes - 1
        text = f"Expected labels from {self.first_label} to {last + self.first_label}. Received:"
        tf.debugging.Assert((labels >= 0) & (labels <= last), [text, parsed[label]])
        return parsed[image], tf.cast(labels, "int32")


def _bounds(size, number, parts):
    """Return where a part of `size` rows begins and ends, as `numpy.array_split` cuts them."""
    rows = np.array_split(np.arange(size), parts)
    ends = np.cumsum([0, *map(len, rows)])
    return int(ends[number]), int(ends[number + 1])


def find(pattern: PathLike) -> tuple[str, ...]:
    """Return the files that match `pattern`, such as "/data/train-*", sorted.

    Raises:
        ValueError: If there are none.
    """
    files = tuple(sorted(glob.glob(str(Path(pattern).expanduser()))))
    if not files:
        raise ValueError(
            f"`pattern` must match TFRecord files. Received: pattern={str(pattern)!r}, which "
            "matches none. Write it with a wildcard, such as /data/train-*, quoted in a shell."
        )
    return files


def prepared(split: str, data_dir: PathLike | None = None, **kwargs: Any) -> Records:
    """Return the `Records` of tensorflow-datasets' imagenet2012, if it has been prepared.

    Args:
        split: "train" or "validation".
        data_dir: Its folder; default: $TFDS_DATA_DIR or ~/tensorflow_datasets.
        **kwargs: Arguments of `Records`: `shard_index`, `num_shards`, `deterministic`.

    Raises:
        ValueError: If it has not been prepared as TFRecords.
    """
    import tensorflow_datasets as tfds

    builder = tfds.builder("imagenet2012", data_dir=data_dir)
    info = builder.info
    if not builder.is_prepared() or info.file_format.value != "tfrecord":
        raise ValueError(
            f"imagenet2012 must have been prepared as TFRecords in {builder.data_dir}. Received: "
            "no such files. Register at image-net.org, put ILSVRC2012_img_train.tar and "
            "ILSVRC2012_img_val.tar into downloads/manual, and run `tfds build imagenet2012`."
        )
    files = tuple(map(str, info.splits[split].filepaths))
    return Records(files, keys=("image", "label"), classes=CLASSES, **kwargs)


def random_box(shape: Tensor, uniform: Tensor) -> Tensor:
    """Return a random box with a share of the area in `AREA` and an aspect ratio in `ASPECT`.

    Deviation from fb.resnet.torch, which squares the aspect ratio (a slip: its comment says 3/4 to
    4/3). As there, the central square if none of the tries fits.

    Args:
        shape: Height and width of the image, an int32 tensor.
        uniform: Uniform samples from 0 to 1, of shape `(5, tries)`.

    Returns:
        int32 tensor: top, left, height, width.
    """
    import tensorflow as tf

    sides = tf.cast(shape, "float32")
    area = (AREA[0] + (AREA[1] - AREA[0]) * uniform[0]) * sides[0] * sides[1]
    aspect = ASPECT[0] + (ASPECT[1] - ASPECT[0]) * uniform[1]
    aspect = tf.where(uniform[2] < 0.5, 1 / aspect, aspect)
    sizes = tf.stack([tf.sqrt(area / aspect), tf.sqrt(area * aspect)], axis=1)
    sizes = tf.cast(tf.round(sizes), "int32")  # (tries, 2)
    fits = tf.reduce_all((sizes <= shape) & (sizes > 0), axis=1)
    size = sizes[tf.argmax(tf.cast(fits, "int32"))]  # the first that fits
    room = tf.cast(shape - size + 1, "float32")
    corner = tf.minimum(tf.cast(uniform[3:5, 0] * room, "int32"), shape - size)
    return tf.where(tf.reduce_any(fits), tf.concat([corner, size], 0), centre_box(shape, 1.0))


def centre_box(shape: Tensor, fraction: float) -> Tensor:
    """Return the central square, `fraction` of the shorter side: top, left, height, width."""
    import tensorflow as tf

    side = tf.round(fraction * tf.cast(tf.reduce_min(shape), "float32"))
    side = tf.maximum(tf.cast(side, "int32"), 1)
    return tf.concat([(shape - side) // 2, tf.stack([side, side])], 0)


def decode(jpeg: Tensor, box: Tensor, image_size: int) -> Tensor:
    """Decode the pixels of `jpeg` in `box` only; resize them to a square and normalize."""
    import tensorflow as tf

    image = tf.image.decode_and_crop_jpeg(jpeg, box, channels=3, dct_method="INTEGER_FAST")
    image = tf.image.resize(image, [image_size, image_size])
    return (image - 255 * np.array(MEAN, "float32")) / (255 * np.array(STD, "float32"))


def write_synthetic(
    folder: PathLike,
    num_files: int = 8,
    images_per_file: int = 64,
    size: tuple[int, int] = (375, 500),
    classes: int = 1000,
    seed: int = 0,
) -> tuple[str, ...]:
    """Write TFRecords of synthetic images that cost as much to read as ImageNet's.

    Smooth colours with noise, 500 x 375 as ImageNet's median, JPEGs of about 110 kB as its mean:
    data for benchmarks, from which nothing can be learned. Files are complete or absent.

    Args:
        folder: Folder for `train-00000-of-00008` and so on.
        num_files: Number of files.
        images_per_file: Images in a file.
        size: Height and width, in pixels.
        classes: Labels are sampled from 0 to `classes - 1`.
        seed: Random seed, 0 or more.

    Returns:
        The paths, as from `find`.
    """
    import tensorflow as tf

    def record(rng):
        colours = tf.image.resize(rng.uniform(0, 255, (6, 8, 3)), size, "bicubic")
        noise = rng.normal(0, NOISE, (*size, 1))
        pixels = tf.cast(tf.clip_by_value(colours + noise, 0, 255), "uint8")
        jpeg = tf.io.encode_jpeg(pixels, quality=QUALITY).numpy()
        features = {
            "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
            "image/class/label": tf.train.Feature(
                int64_list=tf.train.Int64List(value=[int(rng.integers(classes))])
            ),
        }
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    paths = []
    for i in range(num_files):
        rng = np.random.default_rng([seed, i])

        def write(temporary, rng=rng):
            with tf.io.TFRecordWriter(str(temporary)) as writer:
                for _ in range(images_per_file):
                    writer.write(record(rng))

        path = Path(folder) / f"train-{i:05d}-of-{num_files:05d}"
        replace(path, write)
        paths.append(str(path))
    return tuple(paths)
