"""ImageNet's preprocessing in NumPy, compared with Keras's resizing."""

import keras
import numpy as np
import pytest

from helpers.harness import without_backend
from zoo.datasets import imagenet

pytestmark = without_backend


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3)).astype("uint8")


def test_a_box_is_enlarged_as_keras_resizes_its_pixels(images):
    x = imagenet.Crops(40).augment(images, np.random.default_rng(0))
    uniform = np.random.default_rng(0).random(size=(3, 6, 10))
    for image, samples, resized in zip(images, uniform, x, strict=True):
        top, left, height, width = imagenet.random_box((20, 30), samples[:5])
        part = image[top : top + height, left : left + width].astype("float32")
        expected = keras.ops.image.resize(part, (40, 40), data_format="channels_last")
        expected = keras.ops.convert_to_numpy(expected)
        expected = expected[:, ::-1] if samples[5, 0] < 0.5 else expected
        pixels = 255 * (resized * imagenet.STD + imagenet.MEAN)
        np.testing.assert_allclose(pixels, expected, atol=1.01)  # Pillow rounds twice


def test_a_center_is_reduced_as_keras_does_with_antialiasing(images):
    x = imagenet.Crops(9)(images)
    parts = images[:, 1:19, 6:24].astype("float32")
    expected = keras.ops.image.resize(parts, (9, 9), antialias=True, data_format="channels_last")
    pixels = 255 * (x * imagenet.STD + imagenet.MEAN)
    np.testing.assert_allclose(pixels, keras.ops.convert_to_numpy(expected), atol=1.01)


def test_images_of_another_kind_are_refused(images):
    for wrong in (images.astype("float32"), images[..., :2], images[0]):
        with pytest.raises(ValueError, match="uint8 images with 1 or 3 channels"):
            imagenet.Crops(9)(wrong)


def test_a_box_has_the_area_and_the_aspect_of_the_recipe():
    uniform = np.random.default_rng(0).random((300, 5, 10))
    boxes = np.array([imagenet.random_box((300, 500), one) for one in uniform])
    assert (boxes[:, :2] >= 0).all() and (boxes[:, :2] + boxes[:, 2:] <= [300, 500]).all()
    area, aspect = boxes[:, 2] * boxes[:, 3] / 150_000, boxes[:, 3] / boxes[:, 2]
    assert 0.078 < area.min() < 0.1 and 0.7 < area.max() < 1.01
    assert 0.74 < aspect.min() < 0.77 and 1.30 < aspect.max() < 1.35
    room = (boxes[:, 0] + 0.5) / (301 - boxes[:, 2])
    assert abs(room.mean() - 0.5) < 0.05  # the corner is anywhere; deviation 0.017


def test_where_no_box_fits_it_is_the_central_square():
    assert imagenet.random_box((9, 400), np.full((5, 10), 0.99)) == (0, 195, 9, 9)
    assert imagenet.center_box((3, 1), 0.2) == (1, 0, 1, 1)


def test_evaluation_uses_the_normalized_center(images):
    seen = imagenet.Crops(18)(images)  # 224 / 256 of 20 is 17.5, rounded to even
    expected = (images[:, 1:19, 6:24] / 255 - imagenet.MEAN) / imagenet.STD
    np.testing.assert_allclose(seen, expected, atol=1e-5)
    assert seen.dtype == np.float32


def test_training_crops_depend_on_the_generator_and_half_are_mirrored():
    ramp = np.broadcast_to(np.arange(40, dtype="uint8")[None, None, :, None], (400, 40, 40, 1))
    cut = imagenet.Crops(16)
    x, again, other = (cut.augment(ramp, np.random.default_rng(s)) for s in (0, 0, 1))
    assert np.array_equal(x, again) and not np.array_equal(x, other)
    assert (x[..., 0] * imagenet.STD[0] + imagenet.MEAN[0])[0].std() > 0
    falling = (x[:, 0, 0, 0] > x[:, 0, -1, 0]).mean()
    assert 0.4 < falling < 0.6  # 5 standard deviations are 0.125
