import io

import numpy as np
import pytest

from helpers.harness import shared_data, without_backend
from zoo.datasets import images

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


def encoded(picture, suffix="png"):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, suffix)
    return file.getvalue()


def write_folder(folder):
    """Write ARRAYS as PNG files; the order of the classes differs from that of their names."""
    for split in ("train", "test"):
        for i, (x, y) in enumerate(zip(ARRAYS[f"x_{split}"], ARRAYS[f"y_{split}"], strict=True)):
            place = folder / split / ("ant", "bee", "Cow")[y]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{i:02d}.PNG").write_bytes(encoded(x))
            (place / "Thumbs.db").touch()
    return folder


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


def test_a_folder_has_a_class_for_each_of_its_folders(tmp_path):
    loaded = images.load("custom", write_folder(tmp_path))
    assert loaded.classes == 3
    order = np.argsort((ARRAYS["y_train"] + 1) % 3, kind="stable")  # Cow, ant, bee; by file name
    assert (loaded.x_train == ARRAYS["x_train"][order]).all()
    np.testing.assert_array_equal(loaded.y_train, ((ARRAYS["y_train"] + 1) % 3)[order])


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (np.full((1, 3), 128, "uint8"), [128, 128, 128]),
        (np.array([[255, 32_768, 65_535]], "uint16"), [0, 128, 255]),  # of 16 bits the upper 8
    ],
)
def test_a_folder_of_gray_images_is_gray(tmp_path, pixels, expected):
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
        (tmp_path / split / "a" / "1.png").write_bytes(encoded(pixels))
    loaded = images.load("custom", tmp_path)
    assert loaded.x_train.shape == (1, 1, 3, 1)
    assert loaded.x_train.ravel().tolist() == expected


def test_images_of_many_sizes_become_squares(tmp_path):
    for i, shape in enumerate(((8, 20, 3), (12, 6, 3))):
        pixels = np.full(shape, 40 * i, "uint8")
        pixels[:, : max(shape[1] // 2 - 5, 0)] = 255  # outside of the central square
        for split in ("train", "test"):
            path = tmp_path / split / "ab"[i] / "1.png"
            path.parent.mkdir(parents=True)
            path.write_bytes(encoded(pixels, "png"))
    with pytest.raises(ValueError, match="All images must have one size"):
        images.load("custom", tmp_path)
    loaded = images.load("custom", tmp_path, side=4)
    assert loaded.x_train.shape == (2, 4, 4, 3)
    assert (loaded.x_train == np.array([0, 40]).reshape(2, 1, 1, 1)).all()


BAD_ARRAYS = {
    "must have the arrays x_train.*Received: x_test, x_train, y_test": {"y_train": None},
    "x_train must be uint8.*Received: float32": {"x_train": ARRAYS["x_train"].astype("float32")},
    r"Received: uint8 of shape \(20, 60\)": {"x_train": ARRAYS["x_train"].reshape(20, 60)},
    r"Received: uint8 of shape \(0, 4": {
        "x_test": ARRAYS["x_test"][:0],
        "y_test": np.array([], int),
    },
    r"must have the shape \(4, 5, 3\).*shape \(4, 4, 3\)": {"x_test": ARRAYS["x_test"][:, :, 1:]},
    "y_train must be integers .*one for each of the 20 images": {"y_train": ARRAYS["y_train"][1:]},
    "y_test must be integers": {"y_test": ARRAYS["y_test"] / 1},
    "y_test must be integers below 2147483647": {"y_test": ARRAYS["y_test"] + 2**31},
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
    with pytest.raises(ValueError, match="cannot be read .*No such file"):
        images.load("custom", tmp_path / "none.npz")
    path = saved(tmp_path / "a.npz")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="cannot be read"):
        images.load("custom", path)
    np.save(tmp_path / "one.npy", ARRAYS["x_train"])
    with pytest.raises(ValueError, match="cannot be read"):
        images.load("custom", tmp_path / "one.npy")


def test_a_folder_that_is_not_train_and_test_of_classes_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="folders `train` and `test` with the same classes"):
        images.load("custom", tmp_path)
    folder = write_folder(tmp_path)
    (folder / "train" / "ant" / "00.PNG").write_bytes(encoded(ARRAYS["x_train"][0][1:]))
    with pytest.raises(
        ValueError, match=r"one size. Received: \(4, 5\) in .*, but \(3, 5\) in .*00"
    ):
        images.load("custom", folder)
    (folder / "train" / "ant" / "00.PNG").write_text("not a picture")
    with pytest.raises(ValueError, match="Expected a PNG or JPEG image. Received: .*00.PNG"):
        images.load("custom", folder)
    (folder / "train" / "ant" / "00.PNG").unlink()
    for split in ("train", "test"):
        (folder / split / "dog").mkdir()
    with pytest.raises(ValueError, match="Received: none in .*dog"):
        images.load("custom", folder)
    (folder / "test" / "dog").rmdir()
    with pytest.raises(ValueError, match="with the same classes.*'dog'"):
        images.load("custom", folder)


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
