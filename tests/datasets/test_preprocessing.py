import numpy as np
import pytest

from helpers.harness import without_backend
from zoo.datasets import preprocessing
from zoo.datasets.preprocessing import RECIPES, Preprocessing

pytestmark = without_backend
RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (7, 6, 5, 3)).astype("uint8")
TEST = RNG.integers(0, 256, (4, 6, 5, 3)).astype("uint8")
PLACES = np.broadcast_to(np.arange(99).reshape(1, 9, 11, 1), (500, 9, 11, 1))  # 11 * row + column


def test_contrast_is_normalized_image_by_image_over_all_values():
    second = np.stack([(x - x.mean()) / np.sqrt(x.var() + 10) for x in TRAIN.astype("float64")])
    ours = preprocessing.global_contrast_normalize(TRAIN)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, second, atol=1e-6)
    np.testing.assert_allclose(np.square(ours).mean(axis=(1, 2, 3)), 1, atol=0.01)  # card C: 1
    flat = np.full((1, 2, 2, 3), 200, "uint8")
    assert not preprocessing.global_contrast_normalize(flat).any()


def test_every_image_is_cropped_at_an_offset_of_its_own_all_equally_likely():
    crops = preprocessing.random_crop(PLACES, 7, 8, np.random.default_rng(1))
    assert crops.shape == (500, 7, 8, 1)
    offsets = crops[:, 0, 0, 0]
    for place, crop in zip(offsets, crops, strict=True):
        top, left = divmod(place, 11)
        np.testing.assert_array_equal(crop, PLACES[0, top : top + 7, left : left + 8])
    image = np.stack([PLACES[:1, ..., 0], PLACES[:1, ..., 0] + 100], axis=-1)
    crop = preprocessing.random_crop(image, 4, 4, np.random.default_rng(0))
    np.testing.assert_array_equal(crop[..., 1] - crop[..., 0], 100)  # channels stay together
    counts = np.unique_counts(offsets).counts
    assert len(counts) == 3 * 4 and counts.min() > 20  # 500 / 12 = 42, deviation 6


def test_half_of_the_images_are_mirrored_left_to_right_and_the_given_ones_are_kept():
    given = PLACES.copy()
    mirrored = Preprocessing(mirror=True).augment(given, np.random.default_rng(0))
    assert (given == PLACES).all()
    same = (mirrored == PLACES).all(axis=(1, 2, 3))
    np.testing.assert_array_equal(mirrored[~same], PLACES[~same][:, :, ::-1])
    assert 200 < same.sum() < 300  # 250, deviation 11


def augmented(padded, height, width, seed):
    """Reference implementation of crop and mirror, image by image."""
    generator = np.random.default_rng(seed)
    num_images, rows, columns, _ = padded.shape
    tops = generator.integers(rows - height + 1, size=num_images)
    lefts = generator.integers(columns - width + 1, size=num_images)
    coins = generator.random(num_images)
    out = []
    for image, top, left, coin in zip(padded, tops, lefts, coins, strict=True):
        window = image[top : top + height, left : left + width]
        out.append(window[:, ::-1] if coin < 0.5 else window)
    return np.stack(out)


def test_highway_cifar_subtracts_the_mean_of_the_padded_set():
    normalized = preprocessing.global_contrast_normalize(TRAIN)
    padded = np.pad(normalized, ((0, 0), (8, 8), (8, 8), (0, 0)))
    mean = padded.mean(axis=0)  # card C: of the 48 x 48 images
    prepare = preprocessing.fit("highway_cifar", TRAIN)
    ours = prepare.augment(TRAIN, np.random.default_rng(3))
    np.testing.assert_allclose(ours, augmented(padded - mean, 6, 5, 3), atol=1e-6)
    unpadded = preprocessing.global_contrast_normalize(TEST) - mean[8:-8, 8:-8]
    np.testing.assert_allclose(prepare(TEST), unpadded, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "scale", "fill"),
    [("jastrzebski_cifar", TRAIN.std(), "edge"), ("he_cifar", 255, "constant")],
)
def test_the_residual_papers_subtract_the_mean_image_and_shift_by_four(name, scale, fill):
    mean = TRAIN.mean(axis=0)  # of the pixels, before anything is subtracted, as is the deviation
    prepare = preprocessing.fit(name, TRAIN)
    np.testing.assert_allclose(prepare(TEST), (TEST - mean) / scale, atol=1e-5)
    padded = np.pad((TRAIN - mean) / scale, ((0, 0), (4, 4), (4, 4), (0, 0)), fill)
    ours = prepare.augment(TRAIN, np.random.default_rng(5))
    np.testing.assert_allclose(ours, augmented(padded, 6, 5, 5), atol=1e-5)


@pytest.mark.parametrize(("name", "scale"), [("highway_mnist", 256), ("highway_mlp", 255)])
def test_mnist_is_scaled_and_nothing_else(name, scale):
    prepare = preprocessing.fit(name, TRAIN)
    np.testing.assert_allclose(prepare(TEST), TEST / scale, rtol=1e-6)
    np.testing.assert_array_equal(prepare.augment(TEST, np.random.default_rng(0)), prepare(TEST))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_gives_float32_and_leaves_its_images_alone(name, monkeypatch):
    before = TRAIN.copy()
    prepare = preprocessing.fit(name, TRAIN)
    for images in (prepare(TRAIN), prepare.augment(TRAIN, np.random.default_rng(0))):
        assert (images.dtype, images.shape) == (np.float32, TRAIN.shape)
    assert (TRAIN == before).all()
    monkeypatch.setattr(preprocessing, "CHUNK", 3)  # the chunks are sums of one set
    np.testing.assert_allclose(preprocessing.fit(name, TRAIN)(TEST), prepare(TEST), atol=1e-6)


def test_invalid_images_and_recipes_are_refused():
    with pytest.raises(ValueError, match="one of 'highway_mlp', .* Received: name='zca'"):
        preprocessing.fit("zca", TRAIN)
    with pytest.raises(ValueError, match=r"of gray images: x.*shape=\(7, 6, 5\)"):
        preprocessing.fit("he_cifar", TRAIN[..., 0])
    with pytest.raises(ValueError, match=r"of gray images: x.*shape=\(7, 30\)"):
        preprocessing.RECIPES["he_cifar"].augment(TRAIN[..., 0].reshape(7, -1), None)
    with pytest.raises(ValueError, match=r"fitted to, \(6, 5, 3\).*Received: shape=\(6, 5, 1\)"):
        preprocessing.fit("he_cifar", TRAIN)(TEST[..., :1])
    with pytest.raises(ValueError, match="Received: standard_deviation=0.0"):
        preprocessing.fit("miniature", np.full((3, 2, 2, 1), 7, "uint8"))
