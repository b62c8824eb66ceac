"""Input, classifier and saved weights of the networks for images."""

import warnings
from collections.abc import Sequence
from typing import TypedDict

import keras
from keras import layers

from zoo.checks import check_integers, is_integer
from zoo.initializers import Uniform
from zoo.types import PathLike, Shape, Tensor


class Top(TypedDict, total=False):
    """Arguments of `keras.applications` that every builder but `char_lm` takes.

    Attributes:
        include_top: False ends the model in the last features.
        pooling: "avg" or "max" pools these features over the image.
        classifier_activation: "softmax", or `None` for logits.
        weights: Path of a `.weights.h5` file, a name of `zoo.list_weights()`, or `None`.
        name: Name of the model.
    """

    include_top: bool
    pooling: str | None
    classifier_activation: str | None
    weights: PathLike | None
    name: str | None


DEFAULTS: Top = {
    "include_top": True,
    "pooling": None,
    "classifier_activation": "softmax",
    "weights": None,
    "name": None,
}
POOLS = {"avg": layers.GlobalAveragePooling2D, "max": layers.GlobalMaxPooling2D}


def image_input(input_shape: Shape, smallest: int) -> Tensor:
    """Return the input of a network that needs images of at least `smallest` pixels a side.

    Raises:
        ValueError: if `input_shape` is no `(height, width, channels)`, where None is a side that
            may vary, or an image is too small.
    """
    shape = tuple(input_shape)
    sides_fit = all(side is None or is_integer(side, 1) for side in shape[:2])
    if len(shape) != 3 or not is_integer(shape[2], 1) or not sides_fit:
        raise ValueError(
            f"`input_shape` must be (height, width, channels), channels last and known. "
            f"Received: input_shape={input_shape!r}"
        )
    if any(side is not None and side < smallest for side in shape[:2]):
        raise ValueError(
            f"This network downsamples its images and needs at least {smallest} x {smallest} "
            f"pixels, channels last. Received: input_shape={shape}. Enlarge the images, e.g. with "
            f"keras.layers.Resizing({smallest}, {smallest})."
        )
    return keras.Input(shape, name="images")


def classifier(
    inputs: Tensor,
    x: Tensor,
    head: Sequence[keras.Layer],
    classes: int,
    initializer: keras.Initializer,
    top: Top,
    uniform_bias: bool = False,
) -> keras.Model:
    """Return the model from `inputs` to class probabilities, or to features.

    `head` are the layers between `x`, the last features, `(batch, height, width, channels)`, and
    the classifier, whose kernel `initializer` starts. With `uniform_bias` its biases start as those
    of PyTorch's linear layers do, from U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)), instead of at zero.
    In mixed precision the classifier is float32, as a sum over classes follows.

    Raises:
        ValueError: if `classes` is not positive, `pooling` is unknown, images of unknown size
            meet a head that needs their size, or the weights do not fit this network.
    """
    options: Top = {**DEFAULTS, **top}
    pooling = options["pooling"]
    if pooling is not None and (pooling not in POOLS or len(x.shape) != 4):
        raise ValueError(
            f"`pooling` must be None, 'avg' or 'max', and None where features are no image. "
            f"Received: pooling={pooling!r}"
        )
    if options["include_top"]:
        check_integers(1, classes=classes)
        if None in x.shape[1:3] and any(isinstance(layer, layers.Flatten) for layer in head):
            raise ValueError(
                f"The classifier of this network needs images of a fixed size. Received: "
                f"input_shape={tuple(inputs.shape[1:])}. Give height and width, or "
                f"include_top=False."
            )
        for layer in head:
            x = layer(x)
        policy = keras.config.dtype_policy()
        x = layers.Dense(
            int(classes),
            options["classifier_activation"],
            kernel_initializer=initializer,
            bias_initializer=Uniform(x.shape[-1] ** -0.5) if uniform_bias else "zeros",
            dtype="float32" if policy.compute_dtype in ("float16", "bfloat16") else policy,
            name="predictions",
        )(x)
    elif pooling is not None:
        x = POOLS[pooling](name=f"{pooling}_pool")(x)
    model = keras.Model(inputs, x, name=options["name"])
    if options["weights"] is not None:
        load_weights(model, options["weights"])
    return model


def load_weights(model: keras.Model, path: PathLike) -> None:
    """Load the weights that `model.save_weights` wrote.

    Raises:
        ValueError: if they do not fit the model.
    """
    try:
        with warnings.catch_warnings():  # Keras warns of layers that the file does not have
            warnings.simplefilter("error", UserWarning)
            model.load_weights(path)
    except (OSError, ValueError, KeyError, UserWarning) as error:  # damaged, or of another network
        raise ValueError(
            f"`weights` must be those of this very network. Received: weights={str(path)!r}. "
            f"Keras says: {error}"
        ) from error
