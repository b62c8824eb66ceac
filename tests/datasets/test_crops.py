"""ImageNet's preprocessing in NumPy, compared with Keras's resizing and TensorFlow's boxes."""

import keras
import numpy as np
import pytest

from helpers.harness import without_backend
from zoo.datasets import crops, imagenet

pytestmark = without_backend


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3)).astype("uint8")


@pytest.mark.parametrize("size", [5, 16, 40])
def test_a_box_is_resized_as_keras_resizes_its_pixels(images, size):
    boxes = np.array([[0, 0, 20, 30], [3, 7, 9, 16], [19, 29, 1, 1]])
    result = crops.resize_boxes(images, boxes, size)
    for image, (top, left, height, width), resized in zip(images, boxes, result, strict=True):
        part = image[top : top + height, left : left + width].astype("float32")
        expected = keras.ops.image.resize(part, (size, size), data_format="channels_last")
        np.testing.assert_allclose(resized, keras.ops.convert_to_numpy(expected), atol=1e-3)


def test_a_box_of_the_new_size_is_the_image_itself(images):
    result = crops.resize_boxes(images[:1], [[2, 3, 8, 8]], 8)
    np.testing.assert_array_equal(result[0], images[0, 2:10, 3:11])


def test_boxes_are_those_of_imagenet_s_pipeline():
    pytest.importorskip("tensorflow", reason="the boxes to compare with are TensorFlow's")
    samples = np.random.default_rng(1).random((50, 5, 10)).astype("float32")
    samples[0, 0] = 1.0  # the whole image, which fits only with its own aspect ratio
    for shape in ((32, 32), (60, 25)):
        expected = [imagenet.random_box(np.array(shape, "int32"), row).numpy() for row in samples]
        np.testing.assert_array_equal(crops.random_boxes(shape, samples), expected)


def test_evaluation_uses_the_normalized_centre(images):
    seen = crops.Crops(18)(images)  # 224 / 256 of 20 is 17.5, rounded to even
    expected = (images[:, 1:19, 6:24] / 255 - imagenet.MEAN) / imagenet.STD
    np.testing.assert_allclose(seen, expected, atol=1e-5)
    assert seen.dtype == np.float32


def test_training_crops_depend_on_the_generator_and_half_are_mirrored():
    ramp = np.broadcast_to(np.arange(40.0)[None, None, :, None], (400, 40, 40, 1))
    cut = crops.Crops(16)
    x, again, other = (cut.augment(ramp, np.random.default_rng(s)) for s in (0, 0, 1))
    assert np.array_equal(x, again) and not np.array_equal(x, other)
    assert (x[..., 0] * imagenet.STD[0] + imagenet.MEAN[0])[0].std() > 0
    falling = (x[:, 0, 0, 0] > x[:, 0, -1, 0]).mean()
    assert 0.4 < falling < 0.6  # 5 standard deviations are 0.125


def test_arrays_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"1 or 3\). Received: shape \(2, 8, 8, 4\)"):
        crops.Crops(8)(np.zeros((2, 8, 8, 4)))
