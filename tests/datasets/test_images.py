import sys

import keras
import numpy as np
import pytest

from helpers.harness import shared_data, without_backend
from zoo import probe
from zoo.datasets import images
from zoo.recipes.experiment import command_line

pytestmark = without_backend

RNG = np.random.default_rng(0)
ARRAYS = {
    "x_train": RNG.integers(0, 256, (20, 4, 5, 3)).astype("uint8"),
    "y_train": np.arange(20) % 3,
    "x_test": RNG.integers(0, 256, (10, 4, 5, 3)).astype("uint8"),
    "y_test": np.arange(10) % 3,
}


def saved(path, **changes):
    arrays = {key: value for key, value in (ARRAYS | changes).items() if value is not None}
    np.savez(path, **arrays)
    return path


def same_pixels(loaded, arrays=ARRAYS):
    return all(np.array_equal(getattr(loaded, key), value) for key, value in arrays.items())


@pytest.fixture
def small_cifar(monkeypatch):
    """Register ARRAYS as the original CIFAR-10."""
    mean = ARRAYS["x_test"].mean((0, 1, 2)) / 255
    known = images.Known("CIFAR-10", (4, 5, 3), 3, 20, 10, mean)
    monkeypatch.setitem(images.KNOWN, "cifar10", known)


def test_a_file_of_arrays_is_read_as_it_is(tmp_path):
    loaded = images.load("custom", saved(tmp_path / "a.npz"))
    assert same_pixels(loaded)
    assert (loaded.name, loaded.classes, loaded.notice) == ("custom", 3, "")
    assert loaded.x_train.dtype == np.uint8 and loaded.y_train.dtype == np.int32


def test_gray_images_get_a_channel_and_keras_labels_lose_an_axis(tmp_path):
    gray = {key: ARRAYS[key][..., 0] for key in ("x_train", "x_test")}
    labels = {key: ARRAYS[key][:, None] for key in ("y_train", "y_test")}
    loaded = images.load("custom", saved(tmp_path / "a.npz", **gray, **labels))
    expected = {key: ARRAYS[key][..., :1] for key in gray}
    assert same_pixels(loaded, {**ARRAYS, **expected})


def test_only_the_original_gets_the_title(tmp_path, small_cifar):
    original = images.load("cifar10", saved(tmp_path / "a.npz"))
    assert (original.name, original.notice, original.classes) == ("CIFAR-10", "", 3)
    order = np.random.default_rng(1).permutation(10)  # as in tensorflow-datasets
    shuffled = {key: ARRAYS[key][order] for key in ("x_test", "y_test")}
    assert images.load("cifar10", saved(tmp_path / "b.npz", **shuffled)).name == "CIFAR-10"
    some = {key: ARRAYS[key][:12] for key in ("x_train", "y_train")}
    part = images.load("cifar10", saved(tmp_path / "c.npz", **some))
    assert part.name == "CIFAR-10-0.012k" and "12 of the 20" in part.notice
    changed = np.where(ARRAYS["x_test"] > 250, 250, ARRAYS["x_test"])
    other = images.load("cifar10", saved(tmp_path / "other.npz", x_test=changed))
    assert other.name == "other" and "NOT CIFAR-10" in other.notice
    assert str(tmp_path) not in other.notice


BAD_ARRAYS = {
    "must have the arrays x_train.*Received: x_test, x_train, y_test": {"y_train": None},
    "must be uint8.*Received: x_train='float32": {"x_train": ARRAYS["x_train"].astype("float32")},
    r"Received: x_train='uint8 of shape \(20, 60\)": {"x_train": ARRAYS["x_train"].reshape(20, 60)},
    r"Received: x_test='uint8 of shape \(0, 4": {
        "x_test": ARRAYS["x_test"][:0],
        "y_test": np.array([], int),
    },
    r"must have the shape \(4, 5, 3\).*shape \(4, 4, 3\)": {"x_test": ARRAYS["x_test"][:, :, 1:]},
    "`y_train` must be integers, one for each of the 20 images": {"y_train": ARRAYS["y_train"][1:]},
    "`y_test` must be integers": {"y_test": ARRAYS["y_test"] / 1},
    "from 0 to 2. Received: .* from 0 to 3": {"y_test": np.arange(10) % 4},
    "Received: .* from -1 to 1": {"y_train": ARRAYS["y_train"] - 1},
    "without pickled objects": {"y_test": np.array([{}] * 10)},
}


@pytest.mark.parametrize("message", BAD_ARRAYS)
def test_arrays_that_are_not_labelled_images_are_an_error(tmp_path, message):
    with pytest.raises(ValueError, match=message):
        images.load("custom", saved(tmp_path / "a.npz", **BAD_ARRAYS[message]))


def test_a_published_dataset_needs_its_shape_and_labels(tmp_path):
    with pytest.raises(
        ValueError, match=r"images of mnist must have the shape \(28, 28, 1\).*--data NAME"
    ):
        images.load("mnist", saved(tmp_path / "a.npz"))
    many = {f"x_{k}": np.zeros((12, 28, 28), "uint8") for k in ("train", "test")}
    many |= {f"y_{k}": np.arange(12) for k in ("train", "test")}
    with pytest.raises(ValueError, match="from 0 to 9. Received: .* from 0 to 11"):
        images.load("mnist", saved(tmp_path / "b.npz", **many))


def test_a_file_that_is_missing_or_damaged_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="`data_dir` must be a file or a folder that exists"):
        images.load("custom", tmp_path / "none.npz")
    path = saved(tmp_path / "a.npz")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="cannot be read"):
        images.load("custom", path)
    np.save(tmp_path / "one.npy", ARRAYS["x_train"])
    with pytest.raises(ValueError, match="cannot be read"):
        images.load("custom", tmp_path / "one.npy")


def test_mnist_10k_is_distinguished_from_mnist():
    loaded = images.load("mnist", shared_data("mnist/mnist_train10k_test10k.npz"))
    assert loaded.name == "MNIST-10k" and "10,000 of the 60,000" in loaded.notice
    assert loaded.x_train.shape == (10_000, 28, 28, 1) and loaded.classes == 10
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]  # LeCun's test set
    assert np.bincount(loaded.y_test).tolist() == counts


def test_the_digits_need_no_network():
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install scikit-learn")
    loaded = images.load("digits")
    assert (len(loaded.x_train), len(loaded.x_test), loaded.classes) == (1500, 297, 10)
    assert loaded.x_train.max() == 255 and len(np.unique(loaded.x_train)) == 17
    assert set(loaded.y_test.tolist()) == set(range(10))


def test_an_unknown_name_is_an_error():
    with pytest.raises(ValueError, match="one of mnist, cifar10, cifar100, digits.*'imagenet'"):
        images.load("imagenet")


def test_without_scikit_learn_the_commands_say_so_in_a_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "model.keras")
    with pytest.raises(SystemExit, match="zoo.probe: The digits.* pip install scikit-learn"):
        probe.main([str(tmp_path / "model.keras"), "--data", "digits"])
    assert "pip install scikit-learn" in command_line.guarded(images.digits)
