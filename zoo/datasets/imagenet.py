"""ImageNet from TFRecords: sharded reading, decoding, random-resized crops, per host.

TensorFlow, which does this for every backend, is imported when it is needed.

Reference: Russakovsky et al. (2015), ILSVRC-2012; preprocessing after fb.resnet.torch
(`datasets/transforms.lua`), whose recipe Greff et al. (2017) most likely used. Departures: bilinear
for bicubic, and neither colour jitter nor lighting noise.
"""

import glob
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zoo.io import replace

NUM_TRAIN, NUM_VALIDATION = 1_281_167, 50_000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # fb.resnet.torch; RGB from 0 to 1
AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # ibid., RandomSizedCrop
CENTRE = 224 / 256  # ibid.: of the shorter side, scaled to 256, the centre 224
BUFFER = 8192  # ours: records to draw the next one from, 0.9 GB
FILES = 16  # ours: files read at a time
NOISE, QUALITY = 12, 95  # ours: make a synthetic JPEG of 500 x 375 weigh 109 kB, as ImageNet's do


@dataclass(frozen=True)
class Records:
    """TFRecord files of JPEGs with labels, and the share of them that this host reads.

    Args:
        files: Paths of all shards, in the same order on every host; or a pattern, see `find`.
        shard_index: This host, from 0, e.g. `jax.process_index()`.
        num_shards: Number of hosts, e.g. `jax.process_count()`; each reads every n-th file.
        keys: Names of the image and of the label in a record.
        first_label: The label that the network calls 0.
        deterministic: Whether batches keep their order. Faster without if files stall.

    Raises:
        ValueError: if there is no such host, or there are fewer files than hosts.

    Example:

    >>> Records(("a", "b", "c"), shard_index=0, num_shards=2).own
    ('a', 'c')
    """

    files: tuple | str
    shard_index: int = 0
    num_shards: int = 1
    keys: tuple = ("image/encoded", "image/class/label")
    first_label: int = 0
    deterministic: bool = True

    def __post_init__(self):
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
    def own(self):
        """The files of this host."""
        return tuple(map(str, self.files[self.shard_index :: self.num_shards]))

    def train(self, batch_size, steps_per_epoch, image_size=224, seed=0, first_epoch=0):
        """Endless augmented batches; `fit` needs the same `steps_per_epoch`.

        The order of files and records, crops and mirrors are functions of (seed, epoch), unless
        `tf.random.set_seed` is called, so a training resumed with `first_epoch` goes on bit for
        bit. Every host has whole batches and as many of them: it repeats records if it has fewer.

        Args:
            batch_size: Images of this host in a batch.
            steps_per_epoch: Batches in an epoch: `NUM_TRAIN // (num_shards * batch_size)`.
            image_size: Side of the images, in pixels.
            seed: A whole number from 0.
            first_epoch: The epoch to start with, counted from 0.

        Returns:
            `tf.data.Dataset` of float32 images `(batch_size, image_size, image_size, 3)`,
            normalised by `MEAN` and `STD`, and int32 labels `(batch_size,)`.
        """
        import tensorflow as tf

        fold_in = tf.random.experimental.stateless_fold_in

        def passes(epoch):
            key = tf.stack([tf.constant(seed, "int64"), epoch])
            files = tf.random.experimental.stateless_shuffle(tf.constant(self.own), key)
            records = self._read(files)
            order = tf.cast(fold_in(key, 0)[0], "int64") % 2**31
            records = records.shuffle(BUFFER, seed=order, reshuffle_each_iteration=False)

            def example(index, record):
                draws = tf.random.stateless_uniform([6, TRIES], fold_in(key, index + 1))
                jpeg, label = self._parse(record)
                box = random_box(tf.image.extract_jpeg_shape(jpeg)[:2], draws[:5])
                image = decode(jpeg, box, image_size)
                return tf.where(draws[5, 0] < 0.5, image[:, ::-1], image), label

            examples = self._map(records.repeat().enumerate(), example)
            return examples.batch(batch_size, drop_remainder=True).take(steps_per_epoch)

        epochs = tf.data.Dataset.range(first_epoch, 2**31).flat_map(passes)
        return epochs.prefetch(tf.data.AUTOTUNE)

    def validation(self, batch_size, image_size=224):
        """One pass over this host's records, in their order: the centre of each image.

        `CENTRE` of the shorter side, cut out before it is resized: what resizing the whole to 256
        and cutting out 224 gives, but for the rounding. The last batch may be smaller.

        Args:
            batch_size: Images of this host in a batch.
            image_size: Side of the images, in pixels.

        Returns:
            `tf.data.Dataset` of images and labels, see `train`.
        """
        import tensorflow as tf

        def example(record):
            jpeg, label = self._parse(record)
            box = centre_box(tf.image.extract_jpeg_shape(jpeg)[:2], CENTRE)
            return decode(jpeg, box, image_size), label

        examples = self._map(self._read(tf.constant(self.own)), example)
        return examples.batch(batch_size).prefetch(tf.data.AUTOTUNE)

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
        return parsed[image], tf.cast(parsed[label] - self.first_label, "int32")


def find(pattern):
    """The files that match `pattern`, such as "/data/train-*", sorted.

    Raises:
        ValueError: if there are none.
    """
    files = tuple(sorted(glob.glob(str(Path(pattern).expanduser()))))
    if not files:
        raise ValueError(
            f"`pattern` must match TFRecord files. Received: pattern={str(pattern)!r}, which "
            "matches none. Write it with a wildcard, such as /data/train-*, quoted in a shell."
        )
    return files


def prepared(split, data_dir=None, **kwargs):
    """The `Records` of tensorflow-datasets' imagenet2012, which must have been prepared.

    Args:
        split: "train" or "validation".
        data_dir: Its folder; by default $TFDS_DATA_DIR or ~/tensorflow_datasets.
        **kwargs: Of `Records`: `shard_index`, `num_shards`, `deterministic`.

    Raises:
        ValueError: if it has not been prepared, or not as TFRecords.
    """
    import tensorflow_datasets as tfds

    builder = tfds.builder("imagenet2012", data_dir=data_dir)
    info = builder.info
    if not builder.is_prepared() or info.file_format.value != "tfrecord":
        raise ValueError(
            f"imagenet2012 must have been prepared as TFRecords in {builder.data_dir}. Received: "
            "nothing of that kind. Register at image-net.org, put ILSVRC2012_img_train.tar and "
            "ILSVRC2012_img_val.tar into downloads/manual, and run `tfds build imagenet2012`."
        )
    files = tuple(map(str, info.splits[split].filepaths))
    return Records(files, keys=("image", "label"), **kwargs)


def random_box(shape, uniform):
    """A crop of `AREA` of the image and of an aspect in `ASPECT`, wide or high: top, left, size.

    Departure from fb.resnet.torch, which takes the square of the aspect (a slip: its comment
    says 3/4 to 4/3). If none of the tries fits, the central square, as there.

    Args:
        shape: Height and width of the image, an int32 tensor.
        uniform: Numbers from 0 to 1, of shape `(5, tries)`.

    Returns:
        int32 tensor: top, left, height, width.
    """
    import tensorflow as tf

    sides = tf.cast(shape, "float32")
    area = (AREA[0] + (AREA[1] - AREA[0]) * uniform[0]) * sides[0] * sides[1]
    aspect = ASPECT[0] + (ASPECT[1] - ASPECT[0]) * uniform[1]
    aspect = tf.where(uniform[2] < 0.5, 1 / aspect, aspect)
    crops = tf.stack([tf.sqrt(area / aspect), tf.sqrt(area * aspect)], axis=1)
    crops = tf.cast(tf.round(crops), "int32")  # (tries, 2)
    fits = tf.reduce_all((crops <= shape) & (crops > 0), axis=1)
    crop = crops[tf.argmax(tf.cast(fits, "int32"))]  # the first that fits
    room = tf.cast(shape - crop + 1, "float32")
    corner = tf.minimum(tf.cast(uniform[3:5, 0] * room, "int32"), shape - crop)
    return tf.where(tf.reduce_any(fits), tf.concat([corner, crop], 0), centre_box(shape, 1.0))


def centre_box(shape, fraction):
    """The central square, `fraction` of the shorter side: top, left, height, width."""
    import tensorflow as tf

    side = tf.round(fraction * tf.cast(tf.reduce_min(shape), "float32"))
    side = tf.maximum(tf.cast(side, "int32"), 1)
    return tf.concat([(shape - side) // 2, tf.stack([side, side])], 0)


def decode(jpeg, box, image_size):
    """The pixels of `jpeg` in `box`, resized to a square and normalised; the rest is skipped."""
    import tensorflow as tf

    image = tf.image.decode_and_crop_jpeg(jpeg, box, channels=3, dct_method="INTEGER_FAST")
    image = tf.image.resize(image, [image_size, image_size])
    return (image - 255 * np.array(MEAN, "float32")) / (255 * np.array(STD, "float32"))


def write_synthetic(folder, num_files=8, images_per_file=64, size=(375, 500), classes=1000, seed=0):
    """Writes TFRecords of invented images that cost as much to read as ImageNet's.

    Smooth blots under noise, 500 x 375 as ImageNet's median, JPEGs of about 110 kB as its mean:
    a benchmark's data, from which nothing can be learnt. A file that is there is whole.

    Args:
        folder: Where to write `train-00000-of-00008` and so on.
        num_files: Number of files.
        images_per_file: Images in each.
        size: Height and width, in pixels.
        classes: Labels are drawn from 0 to `classes - 1`.
        seed: A whole number from 0.

    Returns:
        The paths, as `find` would give them.
    """
    import tensorflow as tf

    def record(rng):
        blots = tf.image.resize(rng.uniform(0, 255, (6, 8, 3)), size, "bicubic")
        noise = rng.normal(0, NOISE, (*size, 1))
        pixels = tf.cast(tf.clip_by_value(blots + noise, 0, 255), "uint8")
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
