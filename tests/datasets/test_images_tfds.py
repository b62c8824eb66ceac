import contextlib
import gzip
import hashlib
import io
import sys
import types
import urllib.request

import keras
import numpy as np
import pytest

from helpers.harness import fresh_python, without_backend
from zoo.datasets import images

pytestmark = without_backend
pytest.importorskip("tensorflow_datasets", reason="tensorflow_datasets cannot be imported")

LABELS = {"train": np.arange(20) % 10, "test": np.arange(10) % 10}


def synthetic(shape):
    rng = np.random.default_rng(0)
    pixels = {k: rng.integers(0, 256, (len(y), *shape)).astype("uint8") for k, y in LABELS.items()}
    for split in pixels:
        pixels[split][:, 0, 0, 0] = np.arange(len(pixels[split]))  # to find them again
    return pixels


def files_of_mnist(pixels):
    """Return files in LeCun's format: 16 and 8 bytes of header, then pixels and labels."""
    files = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        files[f"{prefix}-images-idx3-ubyte.gz"] = bytes(16) + pixels[split].tobytes()
        files[f"{prefix}-labels-idx1-ubyte.gz"] = bytes(8) + LABELS[split].astype("uint8").tobytes()
    return {name: gzip.compress(content) for name, content in files.items()}


def prepare(folder, patch):
    """Return MNIST, with synthetic images on the server."""
    from tensorflow_datasets.core.download import download_manager, downloader
    from tensorflow_datasets.image_classification import mnist

    pixels = synthetic((28, 28, 1))
    files = files_of_mnist(pixels)

    @contextlib.contextmanager
    def serve(url, **kwargs):
        content = files[url.rpartition("/")[2]]
        yield types.SimpleNamespace(headers={}, url=url), [content]

    manager = download_manager.DownloadManager
    patch(downloader, "_open_url", serve)
    patch(manager, "_register_or_validate_checksums", lambda *a, **k: None)
    patch(urllib.request, "urlopen", lambda url, timeout: io.BytesIO())
    patch(mnist, "_TRAIN_EXAMPLES", 20)
    patch(mnist, "_TEST_EXAMPLES", 10)
    loaded = images.from_tfds("mnist", folder)
    for split, x, y in (
        ("train", loaded.x_train, loaded.y_train),
        ("test", loaded.x_test, loaded.y_test),
    ):
        order = np.argsort(x[:, 0, 0, 0])  # TFDS shuffles
        np.testing.assert_array_equal(x[order], pixels[split])
        np.testing.assert_array_equal(y[order], LABELS[split])
    assert loaded.classes == 10
    assert "NOT" in loaded.notice  # these are not the originals
    return loaded


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Prepare MNIST as array_record."""
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patches:
        return folder, prepare(folder, patches.setattr)


def test_prepared_images_are_read_without_a_network_and_without_tensorflow(prepared):
    folder, loaded = prepared
    code = f"""
import hashlib
import urllib.request
from zoo.datasets import images

urllib.request.urlopen = None
print(hashlib.sha256(images.from_tfds("mnist", {str(folder)!r}).x_train.tobytes()).hexdigest())
try:
    images.from_tfds("cifar10", {str(folder)!r})
except ImportError as error:
    print(error)
"""
    *_, result, error = fresh_python(code, block=["tensorflow"]).stdout.splitlines()
    assert result == hashlib.sha256(loaded.x_train.tobytes()).hexdigest()
    assert error == "tensorflow-datasets prepares images with TensorFlow, which is missing"


def test_tfrecords_that_were_prepared_before_are_read_by_tensorflow(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow", reason="TFRecords need TensorFlow, which is not installed")
    import tensorflow_datasets as tfds

    builder = type(tfds.builder("mnist", data_dir=tmp_path))
    write = builder.download_and_prepare
    with monkeypatch.context() as patches:
        patches.setattr(
            builder,
            "download_and_prepare",
            lambda self, file_format, **k: write(self, file_format="tfrecord", **k),
        )
        prepare(tmp_path, patches.setattr)
    assert list(tmp_path.glob("mnist/*/*.tfrecord*"))


def test_without_a_network_the_error_lists_alternatives(tmp_path, monkeypatch):
    def open_url(url, timeout):
        raise OSError("no route")

    monkeypatch.setattr(urllib.request, "urlopen", open_url)
    with pytest.raises(images.DownloadError) as error:
        images.from_tfds("cifar10", tmp_path)
    for way in ("--data_dir", str(tmp_path), "digits"):
        assert way in str(error.value)


def test_without_tfds_keras_loads_the_images(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    pixels = synthetic((28, 28, 1))
    parts = [(pixels[split][..., 0], LABELS[split]) for split in ("train", "test")]
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: parts)
    loaded = images.load("mnist")
    np.testing.assert_array_equal(loaded.x_train, pixels["train"])
    np.testing.assert_array_equal(loaded.y_test, LABELS["test"])
    assert "NOT MNIST" in loaded.notice
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: 1 / 0)
    with pytest.raises(images.DownloadError, match="division by zero.*--data_dir"):
        images.load("mnist")
