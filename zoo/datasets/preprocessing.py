"""Preprocessing and augmentation of images as in the papers, in NumPy: float32, NHWC.

Random functions take a `numpy.random.Generator`, so that every backend trains on the same images
(`zoo.datasets.batches`).
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from zoo.checks import check_choice, require

# squared gray levels; Srivastava et al. do not give theirs: pylearn2's, whose data FitNets used
EPSILON = 10.0
CHUNK = 1024  # ours: images that are float at a time, 12 MB of CIFAR


def global_contrast_normalize(images: np.ndarray, epsilon: float = EPSILON) -> np.ndarray:
    """Compute (x - mean) / sqrt(variance + epsilon) over all values of each image, in float32.

    Images are `(num_images, height, width, channels)`, values from 0 to 255. Epsilon, in squared
    gray levels, keeps the noise of flat images small.

    Example:
    >>> global_contrast_normalize(np.array([[[[9.0], [15.0]]], [[[7.0], [7.0]]]]), 7.0).tolist()
    [[[[-0.75], [0.75]]], [[[0.0], [0.0]]]]
    """
    images = _checked(images).astype("float32")
    images -= images.mean(axis=(1, 2, 3), keepdims=True)
    variance = np.square(images).mean(axis=(1, 2, 3), keepdims=True)
    return images / np.sqrt(variance + np.float32(epsilon))


def random_crop(
    images: np.ndarray, height: int, width: int, generator: np.random.Generator
) -> np.ndarray:
    """Crop a window of `height` x `width` from each image, all positions equally likely.

    Example:
    >>> rows = np.arange(5.0).reshape(1, 5, 1, 1)
    >>> random_crop(rows, 3, 1, np.random.default_rng(0)).ravel().tolist()
    [2.0, 3.0, 4.0]
    """
    rows, columns = images.shape[1:3]
    tops = generator.integers(rows - height + 1, size=len(images))
    lefts = generator.integers(columns - width + 1, size=len(images))
    places = zip(images, tops, lefts, strict=True)
    return np.stack([x[top : top + height, left : left + width] for x, top, left in places])


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """A paper's preprocessing, (x - mean) / scale, and augmentation; `fit` measures the numbers.

    Args:
        contrast: If `True`, normalize the contrast of each image first.
        center: If `True`, subtract the mean image of the training set.
        scale: Divisor; "std" for the standard deviation of all values of the training set, before
            the mean image is subtracted.
        shift: Largest random shift of training images in each direction, in pixels.
        fill: Values at the border: "constant" for zeros, "edge" repeats the outermost pixel (Keras
            calls it nearest).
        mirror: If `True`, mirror training images with probability 1/2.
        mean: Image to subtract, or 0.

    Example:
    >>> train = np.arange(2 * 4 * 4 * 3, dtype="uint8").reshape(2, 4, 4, 3)
    >>> prepare = fit("highway_cifar", train)
    >>> prepare(train).shape  # for evaluation
    (2, 4, 4, 3)
    >>> prepare.augment(train, np.random.default_rng(0)).shape  # for training
    (2, 4, 4, 3)
    """

    contrast: bool = False
    center: bool = False
    scale: float | Literal["std"] = 1.0
    shift: int = 0
    fill: Literal["constant", "edge"] = "constant"
    mirror: bool = False
    mean: np.ndarray | float = 0.0

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Return the network's inputs for evaluation, float32."""
        images = self.normalize(images)
        known = np.shape(self.mean)
        expected = f"that of the images it was fitted to, {known}: fit it to a set of these images"
        require(known in ((), images.shape[1:]), expected, shape=images.shape[1:])
        return (images - self.mean) / np.float32(self.scale)

    def augment(self, images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return the network's inputs for training, float32.

        The margin is zero after the mean image is subtracted, as in the highway authors' data:
        they subtract the mean of the *padded* images, which is zero in the margin and the mean
        image inside (so the same image is subtracted from their test images, without padding).
        """
        images = self(images)
        height, width = images.shape[1:3]
        if self.shift:
            margin = (self.shift, self.shift)
            images = np.pad(images, ((0, 0), margin, margin, (0, 0)), self.fill)
            images = random_crop(images, height, width, generator)
        if self.mirror:
            mirrored = generator.random(size=len(images)) < 0.5
            images[mirrored] = images[mirrored, :, ::-1]
        return images

    def normalize(self, images: np.ndarray) -> np.ndarray:
        """Return float32 images, before `mean` and `scale`."""
        if self.contrast:
            return global_contrast_normalize(images)
        return _checked(images).astype("float32")


RECIPES = {
    # Srivastava et al. (2015), 3.1; brainstorm's preparation of MNIST
    "highway_mlp": Preprocessing(scale=255.0),
    # ours: without subtracting the mean it hardly trains
    "highway_mlp_color": Preprocessing(center=True, scale=255.0),
    # flukeskywalker/highway-networks, "mnist-10layers": 0.00390625 x
    "highway_mnist": Preprocessing(scale=256.0),
    # ibid., README: contrast normalized, padded by 8; the mean image; crops; mirror.
    "highway_cifar": Preprocessing(contrast=True, center=True, shift=8, mirror=True),
    # Jastrzebski et al. (2018) do not say; the first author's later code (src/data.py) does:
    # (x - mean image) / std(x), Keras's shift by 0.125 with nearest fill, flip. Deviation: -4 to 4
    # are equally likely; Keras rounded a real number, so -4 and 4 came half as often.
    "jastrzebski_cifar": Preprocessing(center=True, scale="std", shift=4, fill="edge", mirror=True),
    # He et al. (2015), 4.2: per-pixel mean subtracted, 4 pixels padded, crop or its mirror image.
    "he_cifar": Preprocessing(center=True, scale=255.0, shift=4, mirror=True),  # scale: ours
    # ours: few and small digits, to be memorized
    "miniature": Preprocessing(center=True, scale="std"),
}


def fit(name: str, train: np.ndarray) -> Preprocessing:
    """Fit one of `RECIPES` to training images `(num_images, height, width, channels)`, uint8.

    Raises:
        ValueError: If there is no such recipe, or the standard deviation to divide by is 0.
    """
    check_choice(RECIPES, name=name)
    recipe = RECIPES[name]
    train = _checked(train)
    if not recipe.center and recipe.scale != "std":
        return recipe
    total = np.zeros(train.shape[1:])
    squares = 0.0
    for start in range(0, len(train), CHUNK):
        chunk = recipe.normalize(train[start : start + CHUNK]).astype("float64")
        total += chunk.sum(axis=0)
        squares += np.square(chunk).sum()
    mean = total / len(train)
    scale = recipe.scale
    if scale == "std":
        scale = float(np.sqrt(squares / train.size - mean.mean() ** 2))
    expected = "positive, that of images which differ from pixel to pixel"
    require(scale > 0, expected, standard_deviation=scale)
    return replace(recipe, mean=mean.astype("float32") if recipe.center else 0.0, scale=scale)


def _checked(images):
    valid = np.ndim(images) == 4 and np.size(images)
    expected = "(num_images, height, width, channels), none of them 0; of gray images: x[..., None]"
    require(valid, expected, shape=np.shape(images))
    return np.asarray(images)
