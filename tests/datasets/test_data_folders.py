"""One folder of several datasets: each is found by its name."""

import numpy as np
import pytest

from helpers.harness import CORPORA, shared_data, without_backend
from zoo.datasets import images, text

pytestmark = without_backend


def save(path, brightness):
    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = np.full((4, 2, 2, 1), brightness, "uint8"), np.arange(4) % 2
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)


@pytest.fixture
def folder(tmp_path):
    """Write datasets of brightness 1 and 2: a folder with a file, and a file."""
    save(tmp_path / "one" / "one_jpeg.npz", 1)
    (tmp_path / "one" / "decode.py").touch()
    save(tmp_path / "two.npz", 2)
    (tmp_path / "ptb").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / "ptb" / f"{split}.txt").write_text(f"a {split}\n")
    return tmp_path


def test_images_are_found_by_name(folder):
    for brightness, name in enumerate(("one", "two"), 1):
        assert (images.load(name, folder).x_train == brightness).all()
    assert (images.load("two", f"{folder}/../{folder.name}").x_test == 2).all()


@pytest.mark.parametrize("name", ["four", "one"])
def test_the_error_lists_the_folder_if_the_dataset_is_missing_or_ambiguous(folder, name):
    save(folder / "one" / "more.npz", 4)
    there = r"which has one/, ptb/, two.npz"
    with pytest.raises(ValueError, match=f"file `{name}.npz`.*Received: .*{there}"):
        images.load(name, folder)


def test_the_treebank_is_found_by_name(folder):
    assert text.load(folder).name == text.load(folder / "ptb").name == "ptb"
    (folder / "ptb" / "valid.txt").unlink()
    with pytest.raises(ValueError, match=r"ptb', which has \['test.txt', 'train.txt'\]"):
        text.load(folder)
    with pytest.raises(ValueError, match="decode.py"):
        text.load(folder / "one")


def test_the_data_folder_beside_the_repository_serves_every_recipe():
    shared_data("mnist/mnist.npz")
    assert images.load("mnist", CORPORA).name == "MNIST"
    shared_data("ptb/ptb.train.txt")
    assert text.load(CORPORA).name == "PTB"
