import io

import numpy as np
import pytest
from PIL import Image

from helpers.harness import without_backend
from zoo.datasets import imagenet
from zoo.datasets.batches import Batches
from zoo.datasets.imagenet import MEAN, STD, Crops

pytestmark = without_backend
SIZES = [(40, 52), (30, 20), (40, 52), (64, 41), (33, 90)]


def jpeg_of(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=95)
    return file.getvalue()


def pixels_of(jpeg):
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))


@pytest.fixture(scope="module")
def jpegs():
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (*size, 3)).astype("uint8") for size in SIZES]
    return np.array(list(map(jpeg_of, [*images, images[0][..., 0]])), object)  # the last is gray


def test_jpegs_of_any_size_are_cut_as_arrays_are(jpegs):
    for seed in range(5):
        x = Crops(16).augment(jpegs, np.random.default_rng(seed))
        assert x.shape == (6, 16, 16, 3) and x.dtype == np.float32
        for row, jpeg in enumerate(jpegs):
            array = np.repeat(pixels_of(jpeg)[None], 6, 0)
            expected = Crops(16).augment(array, np.random.default_rng(seed))[row]
            np.testing.assert_array_equal(x[row], expected)
            np.testing.assert_array_equal(Crops(16)(jpegs)[row], Crops(16)(array)[row])


def test_evaluation_uses_the_normalized_center_of_a_jpeg(jpegs):
    x = Crops(35)(jpegs[:1])  # 40 * 224 / 256 = 35 of 40 x 52: no resizing
    expected = (pixels_of(jpegs[0])[2:37, 8:43] / 255 - MEAN) / STD
    np.testing.assert_allclose(x[0], expected, atol=1e-5)


def test_records_prepared_by_tfds_are_found_and_read_on_access(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow", reason="tensorflow-datasets prepares records by it")
    tfds = pytest.importorskip("tensorflow_datasets", reason="cannot be imported")
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(num_classes=9),
        }
    )
    with tfds.core.registered.skip_registration():

        class Imagenet2012(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("5.1.0")

            def _info(self):
                return tfds.core.DatasetInfo(builder=self, features=features)

            def _split_generators(self, dl_manager):
                return {"validation": self._generate_examples()}

            def _generate_examples(self):
                for i in range(5):
                    yield i, {"image": np.full((20, 30, 3), 50 * i, "uint8"), "label": i}

    builder = Imagenet2012(data_dir=tmp_path)
    monkeypatch.setattr(tfds, "builder", lambda name, data_dir: builder)
    with pytest.raises(ValueError, match="tfds build imagenet2012"):
        imagenet.records("validation")
    builder.download_and_prepare(file_format="array_record")
    images, labels = imagenet.records("validation", 4)
    assert len(images) == len(labels) == 4 and len(imagenet.records("validation", 9)[0]) == 5
    with pytest.raises(ValueError, match="`count` must be a positive integer"):
        imagenet.records("validation", 0)
    batches = Batches(images, labels, 3, seed=2, augment=Crops(4).augment)
    seen = []
    for epoch in range(2):
        batches.set_epoch(epoch)
        for x, y in batches:
            gray = x.mean(axis=(1, 2)) * STD + MEAN
            np.testing.assert_allclose(gray, np.repeat(50 / 255 * y[:, None], 3, 1), atol=0.01)
            assert y.dtype == np.int32
            seen += y.tolist()
    assert len({*seen}) == 4 and sorted(seen[:4]) == sorted(seen[4:]) and seen[:4] != seen[4:]
