"""Labelled images as arrays: MNIST and CIFAR from TFDS or Keras, .npz files, handwritten digits.

ImageNet, which fits into no memory, is in `zoo.datasets.imagenet`.

Reference: LeCun, Bottou, Bengio, Haffner (1998), MNIST; Krizhevsky (2009), CIFAR-10 and
CIFAR-100; Alpaydin, Kaynak (1998), the digits that scikit-learn includes.
"""

import importlib.util
import math
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

import keras
import numpy as np

from zoo.checks import is_integer, require
from zoo.datasets import download
from zoo.datasets.download import DownloadError
from zoo.io import UNREADABLE, open_npz
from zoo.types import PathLike, Shape

SPLITS = ("train", "test")
KEYS = ("x_train", "y_train", "x_test", "y_test")


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
WAYS_OUT = "Give an .npz file (--data_dir, or `data_dir=`), or use `digits`, no paper's images."


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images for training and test.

    Images are uint8, `(num_images, height, width, channels)`, labels int32 from 0, `(num_images,)`.

    `name` is "MNIST", "CIFAR-10" or "CIFAR-100" only for the original images, `notice` a warning
    that belongs to every number measured on these images, or "".
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    notice: str = ""


def averaged(images: Images, side: int) -> Images:
    """Return images of up to 32 x 32 pixels, padded to that size and averaged over squares.

    `side` is that of the new images, in pixels; a divisor of 32.

    Raises:
        ValueError: if they are larger, or `side` is no divisor.

    Example:
    >>> averaged(load("digits"), 4).x_test.shape
    (297, 4, 4, 1)
    """
    height, width = images.x_train.shape[1:3]
    require(max(height, width) <= 32, "up to 32 x 32 pixels", images=f"{height} x {width}")
    require(is_integer(side, 1) and 32 % side == 0, "a divisor of 32", side=side)
    resized = {}
    for key in ("x_train", "x_test"):
        x = getattr(images, key)
        margins = [((32 - size) // 2, (33 - size) // 2) for size in (height, width)]
        x = np.pad(x, [(0, 0), *margins, (0, 0)])
        x = x.reshape(len(x), side, 32 // side, side, 32 // side, x.shape[-1])
        resized[key] = np.rint(x.mean((2, 4), dtype="float32")).astype("uint8")
    return replace(images, name=f"{images.name} ({side} x {side})", **resized)


def load(name: str, data_dir: PathLike | None = None) -> Images:
    """Load images by name, or from a file.

    Args:
        name: "mnist", "cifar10" or "cifar100", downloaded once by tensorflow-datasets or, without
            it or TensorFlow, by `keras.datasets`, where the training images have another order;
            "digits", from scikit-learn; with `data_dir` also any other name.
        data_dir: An `.npz` file with x_train, y_train, x_test and y_test; or a folder of several
            datasets, with a file `NAME.npz` or a single one in `NAME/`. No other place is tried.

    Returns:
        `Images`. They are named "MNIST", "CIFAR-10" or "CIFAR-100" only if their test images are
        the original ones; with a part of the training images, for example "MNIST-10k".

    Raises:
        ValueError: If the name is unknown, or the file has other arrays.
        DownloadError: If the images cannot be downloaded.
        ImportError: If scikit-learn, which has the digits, is not installed.

    Example:
    >>> digits = load("digits")
    >>> digits.x_train.shape, digits.x_test.shape, digits.classes
    ((1500, 8, 8, 1), (297, 8, 8, 1), 10)
    """
    if data_dir is not None:
        path = _find(Path(data_dir).expanduser(), name)
        return _checked(name, _read_npz(path), path)
    if name == "digits":
        return digits()
    if name in KNOWN:
        try:
            return from_tfds(name)
        except ImportError:
            return from_keras(name)
    raise ValueError(
        f"`name` must be one of {', '.join(KNOWN)}, digits. Received: {name!r}. Give the images "
        "with `data_dir=` (--data_dir), or see `zoo.datasets.imagenet`."
    )


def digits() -> Images:
    """Return real handwritten digits, which need no network: 1,797 images of 8 x 8 pixels.

    scikit-learn's sums of black dots, 0 to 16, are scaled to 0 to 255. The last 297 are test images
    (ours: scikit-learn has one set).

    Raises:
        ImportError: If scikit-learn, which has them, is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "The digits come with scikit-learn, which is missing. Run: pip install scikit-learn"
        ) from error
    data = load_digits()
    x = np.rint(data.images * 255 / 16).astype("uint8")[..., None]
    y = data.target
    arrays = {"x_train": x[:1500], "y_train": y[:1500], "x_test": x[1500:], "y_test": y[1500:]}
    images = _checked("digits", arrays, "scikit-learn")
    return replace(images, notice="scikit-learn's digits of 8 x 8 pixels: no paper's data.")


def from_tfds(name: str, data_dir: PathLike | None = None) -> Images:
    """Load `Images` from tensorflow-datasets, in its order, which is shuffled but always the same.

    A dataset of `KNOWN` that it has prepared is read in any format; TFRecords need TensorFlow,
    array_record needs none. Others are downloaded and prepared as array_record, by TensorFlow, in
    `data_dir`; default: $TFDS_DATA_DIR or ~/tensorflow_datasets.

    Raises:
        DownloadError: If the images are not prepared, and their server does not answer in time.
        ImportError: If tensorflow-datasets is missing, or TensorFlow where it is needed.
    """
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=data_dir)
    if not builder.is_prepared():
        _prepare(builder, tfds.download.DownloadConfig(try_download_gcs=False))
    arrays: dict[str, np.ndarray] = {}
    for split in SPLITS:
        if builder.info.file_format.value == "array_record":
            examples = builder.as_data_source(split=split)
        else:
            examples = tfds.as_numpy(builder.as_dataset(split=split))
        x, y = zip(*((example["image"], example["label"]) for example in examples), strict=True)
        arrays |= {f"x_{split}": np.array(x), f"y_{split}": np.array(y)}
    return _checked(name, arrays, builder.data_dir)


def _prepare(builder, download_config):
    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError("tensorflow-datasets prepares images with TensorFlow, which is missing")
    try:
        # tensorflow-datasets itself retries for more than a minute
        urllib.request.urlopen(next(iter(builder.url_infos)), timeout=download.SECONDS).close()
        builder.download_and_prepare(file_format="array_record", download_config=download_config)
    except download.FAILURES as error:
        raise DownloadError(
            f"{builder.data_dir} has no {builder.name}, whose download failed: {error}. {WAYS_OUT}"
        ) from error


def from_keras(name: str) -> Images:
    """Load `Images` in `KNOWN` by `keras.datasets`, in the original order; see `from_tfds`."""
    try:
        train, test = getattr(keras.datasets, name).load_data()
    except Exception as error:  # Keras's has no class of its own
        raise DownloadError(f"The download of {name} failed: {error}. {WAYS_OUT}") from error
    return _checked(name, dict(zip(KEYS, (*train, *test), strict=True)), "keras.datasets")


def _find(path, name):
    require(path.exists(), "a file or a folder that exists", data_dir=str(path))
    if not path.is_dir():
        return path
    for file in (path / f"{name}.npz", path / name / f"{name}.npz"):
        if file.is_file():
            return file
    files = [*(path / name).glob("*.npz")]
    if len(files) == 1:
        return files[0]
    there = ", ".join(sorted(path.name + "/" * path.is_dir() for path in path.iterdir())[:12])
    raise ValueError(
        f"`data_dir` must be an .npz file, or have a file `{name}.npz`, or a folder `{name}` with "
        f"`{name}.npz` or a single .npz file. Received: data_dir={str(path)!r}, which has "
        f"{there or 'no files'}."
    )


def _read_npz(path):
    try:
        with open_npz(path) as file:
            names = sorted(file.files)
            arrays = {key: file[key] for key in KEYS if {*KEYS} <= {*names}}
    except UNREADABLE as error:
        raise ValueError(
            f"`data_dir` must be an .npz file without pickled objects. Received: {path}, which "
            f"cannot be read ({error})."
        ) from error
    if not arrays:
        raise ValueError(
            f"{path} must have the arrays {', '.join(KEYS)}. Received: {', '.join(names) or 'none'}"
        )
    return arrays


def _checked(name, arrays, source):
    known = KNOWN.get(name)
    shape, classes = (known.shape, known.classes) if known else (None, None)
    advice = " If these are other images, name them: `--data NAME`, a NAME of your own."
    checked = {}
    for split in SPLITS:  # the first fixes shape and classes
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        x = x[..., None] if x.ndim == 3 else x
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y  # Keras's CIFAR
        expected = "uint8, from 0 to 255, of shape (num_images, height, width, channels)"
        valid = x.dtype == np.uint8 and x.ndim == 4 and x.size
        require(valid, expected, **{f"x_{split}": f"{x.dtype} of shape {x.shape}, in {source}"})
        valid = y.dtype.kind in "iu" and y.shape == (len(x),)
        expected = f"integers, one for each of the {len(x)} images"
        require(valid, expected, **{f"y_{split}": f"{y.dtype} of shape {y.shape}, in {source}"})
        shape = shape or x.shape[1:]
        classes = classes or int(y.max()) + 1
        if x.shape[1:] != shape or y.min() < 0 or y.max() >= classes:
            raise ValueError(
                f"The images of {name} must have the shape {shape} and labels from 0 to "
                f"{classes - 1}. Received: shape {x.shape[1:]}, labels from {y.min()} to "
                f"{y.max()}, in {source}.{advice if known else ''}"
            )
        checked |= {f"x_{split}": x, f"y_{split}": y.astype("int32")}
    num_train = len(checked["x_train"])
    notice = ""
    if known and known.deviation(checked["x_test"]) > EXACT:
        name = Path(source).stem  # without folders: results are published
        notice = (
            f"NOT {known.title}: the test images in {Path(source).name} are not the original ones. "
            "The numbers are not comparable with published results."
        )
    elif known and num_train != known.num_train:
        name = f"{known.title}-{num_train / 1000:g}k"
        notice = f"{num_train:,} of the {known.num_train:,} training images of {known.title}."
    elif known:
        name = known.title
    return Images(name=name, **checked, classes=classes, notice=notice)
