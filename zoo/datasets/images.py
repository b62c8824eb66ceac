"""Labelled images as arrays: MNIST and CIFAR from TFDS, a local file or folder, handwritten digits.

ImageNet, which fits into no memory, is `zoo.datasets.imagenet`.

Reference: LeCun, Bottou, Bengio, Haffner (1998), MNIST; Krizhevsky (2009), CIFAR-10 and
CIFAR-100; Alpaydin, Kaynak (1998), the digits that scikit-learn carries.
"""

import http.client
import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from zoo.datasets import download as connection
from zoo.datasets import fingerprints as known_images
from zoo.datasets import image_files
from zoo.datasets.download import DownloadError
from zoo.datasets.fingerprints import KNOWN


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images in two parts.

    Args:
        name: "MNIST", "CIFAR-10" and "CIFAR-100" for the original images and nothing else.
        x_train: uint8 array of shape `(num_train, height, width, channels)`.
        y_train: int32 array of shape `(num_train,)`, labels from 0.
        x_test: uint8 array of shape `(num_test, height, width, channels)`.
        y_test: int32 array of shape `(num_test,)`.
        classes: Their number, as the builders take it.
        notice: What must be said beside every number measured on them; often "".
        class_names: The names by label, where the source has them.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    notice: str = ""
    class_names: tuple = ()


def load(name, data_dir=None, side=None):
    """Images by name, or from a file or a folder.

    Args:
        name: "mnist", "cifar10" or "cifar100", from tensorflow-datasets, which downloads them
            once; "digits", which scikit-learn carries; with `data_dir` also any other.
        data_dir: An `.npz` file with x_train, y_train, x_test and y_test, or with train_jpeg,
            train_offsets, train_labels and the same for test (all files' bytes in one array, file
            i from offset i to offset i + 1); or a folder with `train/CLASS/*.png` (or jpg) and
            `test/CLASS/*.png`; or a folder of several sets, with one of these in `NAME/`, or the
            file `NAME.npz`. No other place is tried.
        side: Makes squares of so many pixels of the images of a folder, which may differ in size,
            and allows any name that tensorflow-datasets knows, whose images become such squares.

    Returns:
        `Images`. Those of a known set are called "MNIST", "CIFAR-10" or "CIFAR-100" only if their
        test images are the original ones; with a part of the training images, for example
        "MNIST-10k"; from JPEG bytes, for example "CIFAR-10 (JPEG)".

    Raises:
        ValueError: if the name is unknown, or the file or folder is not as described, or holds
            another known set.
        DownloadError: if tensorflow-datasets has not got the images and cannot fetch them.
        ImportError: if the package that has them is not installed.

    Example:

    >>> digits = load("digits")
    >>> digits.x_train.shape, digits.x_test.shape, digits.classes
    ((1500, 8, 8, 1), (297, 8, 8, 1), 10)
    """
    if data_dir is not None:
        path = image_files.find(Path(data_dir).expanduser(), name)
        arrays, names, is_jpeg = (
            (*image_files.read_folder(path, side), False)
            if path.is_dir()
            else image_files.read_npz(path)
        )
        return _checked(name, arrays, path, names, is_jpeg)
    if name == "digits":
        return digits()
    if name in KNOWN:
        return from_tfds(name)
    if side:
        return from_tfds(name, side=side)
    raise ValueError(
        f"`name` must be one of {', '.join(KNOWN)}, digits. Received: {name!r}. Give the images "
        "with `data_dir=` (--data_dir), or see `zoo.datasets.imagenet`."
    )


def digits():
    """Real handwritten digits for machines without a network: 1,797 of 8 x 8 pixels.

    scikit-learn's sum of black dots, 0 to 16, is brought to 0 to 255. The last 297 are test
    images: ours; scikit-learn has one set, the test part of the original, whose writers are not
    those of the first digits.

    Raises:
        ImportError: if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "The digits come with scikit-learn, which is not installed. "
            "Run: pip install 'highway-zoo[digits]'"
        ) from error
    data = load_digits()
    x, y = np.rint(data.images * 255 / 16).astype("uint8")[..., None], data.target
    arrays = {"x_train": x[:1500], "y_train": y[:1500], "x_test": x[1500:], "y_test": y[1500:]}
    images = _checked("digits", arrays, "scikit-learn", tuple("0123456789"))
    return replace(images, notice="scikit-learn's digits of 8 x 8 pixels: no paper's data.")


def from_tfds(name, data_dir=None, side=None):
    """`Images` from tensorflow-datasets, in its order, which is shuffled but always the same.

    What it has already prepared is read, in any format; TFRecords need TensorFlow. What it has
    not is downloaded and kept as array_record, which needs none.

    Args:
        name: A name in `KNOWN`; with `side` any set of tensorflow-datasets with `image`, `label`
            and a split `test` or `validation`.
        data_dir: Where it keeps prepared sets; by default $TFDS_DATA_DIR or ~/tensorflow_datasets.
        side: `None`, or what `zoo.datasets.image_files.square` makes of every image, in pixels.

    Raises:
        ValueError: if it does not know the name, or the set is of another kind.
        DownloadError: if it has not got the images, and their server does not answer in time.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            f"{name} comes with tensorflow-datasets, which cannot be imported ({error}). Run: pip "
            "install tensorflow-datasets; or give a file or folder with `data_dir=` (--data_dir)."
        ) from error
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError as error:
        raise ValueError(f"`name` must be one that tensorflow-datasets knows. {error}") from error
    if not builder.is_prepared():
        _prepare(builder, tfds)
    arrays, splits = {}, builder.info.splits
    wanted = {"train": "train", "test": "test" if "test" in splits else "validation"}
    if not {*wanted.values()} <= {*splits} or not {"image", "label"} <= {*builder.info.features}:
        raise ValueError(
            f"{name} must have images with labels, to train and to test. Received: the splits "
            f"{[*splits]}, the features {[*builder.info.features]}."
        )
    for part, split in wanted.items():
        if builder.info.file_format.value == "array_record":
            examples = builder.as_data_source(split=split)
        else:
            examples = tfds.as_numpy(builder.as_dataset(split=split))
        pairs = ((example["image"], example["label"]) for example in examples)
        if side:
            pairs = ((image_files.square_array(image, side), label) for image, label in pairs)
        arrays[f"x_{part}"], arrays[f"y_{part}"] = map(np.array, zip(*pairs, strict=True))
    return _checked(name, arrays, builder.data_dir, tuple(builder.info.features["label"].names))


def _prepare(builder, tfds):
    if importlib.util.find_spec("tensorflow") is None:
        _spare_tensorflow(builder)
    try:
        reach(next(iter(builder.url_infos)))
        builder.download_and_prepare(
            file_format="array_record",
            download_config=tfds.download.DownloadConfig(try_download_gcs=False),
        )
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(
            f"{builder.name} is not in {builder.data_dir}, and its download failed: {error}. Ways "
            "out: give an .npz file or a folder of images (--data_dir, or `data_dir=`); or copy "
            "the folder from a machine where tensorflow-datasets has prepared it; or, without a "
            "network, use `load('digits')`, whose numbers are not comparable with any paper's."
        ) from error


def _spare_tensorflow(builder):
    """Lets Python open the files, and PIL make the PNGs, that TFDS leaves to TensorFlow."""
    from tensorflow_datasets.core.download import extractor

    gfile = SimpleNamespace(GFile=open)
    python = SimpleNamespace(io=SimpleNamespace(gfile=gfile), compat=SimpleNamespace(as_text=str))
    for module in (extractor, sys.modules[type(builder).__module__]):
        module.tf = python
    generate = builder._generate_examples

    def generate_pictures(*args, **kwargs):
        from PIL import Image

        for key, example in generate(*args, **kwargs):
            yield key, {**example, "image": Image.fromarray(np.squeeze(example["image"]))}

    builder._generate_examples = generate_pictures


def reach(url):
    """Returns if `url` answers in time: TFDS itself tries for more than a minute.

    Raises:
        OSError: if it does not.
    """
    connection.connect(url).close()


def _checked(name, arrays, source, class_names=(), is_jpeg=False):
    """`Images` of arrays, if they can be; `source` is what errors call them."""
    known, parts = KNOWN.get(name), {}
    for split in ("train", "test"):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        x = x[..., None] if x.ndim == 3 else x
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y  # Keras's CIFAR
        if x.dtype != np.uint8 or x.ndim != 4 or not x.size:
            raise ValueError(
                f"x_{split} must be uint8, from 0 to 255, of shape (num_images, height, width, "
                f"channels). Received: {x.dtype} of shape {x.shape}, in {source}."
            )
        if y.dtype.kind not in "iu" or y.shape != (len(x),):
            raise ValueError(
                f"y_{split} must be whole numbers, one for each of the {len(x)} images. "
                f"Received: {y.dtype} of shape {y.shape}, in {source}."
            )
        parts[split] = x, y
    (x_train, y_train), (x_test, y_test) = parts["train"], parts["test"]
    known_images.refuse_another(name, x_test, source)
    wanted = known.shape if known else x_train.shape[1:]
    for split, (x, _) in parts.items():
        if x.shape[1:] != wanted:
            raise ValueError(
                f"The images of {name} must have the shape {wanted}. "
                f"Received: x_{split} of shape {x.shape}, in {source}."
            )
    classes = known.classes if known else len(class_names) or int(y_train.max()) + 1
    for split, (_, y) in parts.items():
        if y.min() < 0 or y.max() >= classes:
            raise ValueError(
                f"The labels of {name} must be from 0 to {classes - 1}. Received: y_{split} from "
                f"{y.min()} to {y.max()}, in {source}."
            )
    title, notice = known_images.title(name, x_train, x_test, source, is_jpeg)
    y_train, y_test = y_train.astype("int32"), y_test.astype("int32")
    return Images(title, x_train, y_train, x_test, y_test, classes, notice, tuple(class_names))
