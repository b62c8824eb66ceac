"""Where the networks for images begin and end: the input, the classifier, saved weights."""

import pathlib

import keras
from keras import layers

from zoo.io import DAMAGED


def image_input(input_shape, smallest):
    """The input of a network whose last features need an image of `smallest` pixels a side.

    Args:
        input_shape: `(height, width, channels)`; `None` for a side that may vary.
        smallest: In pixels.

    Raises:
        ValueError: if `input_shape` is no such shape or an image is too small.
    """
    shape = tuple(input_shape)
    fits = len(shape) == 3 and isinstance(shape[2], int) and shape[2] > 0
    if not fits or not all(side is None or isinstance(side, int) for side in shape):
        raise ValueError(
            f"`input_shape` must be (height, width, channels), channels last and known. "
            f"Received: input_shape={input_shape!r}"
        )
    if any(side is not None and side < smallest for side in shape[:2]):
        raise ValueError(
            f"This network halves its images until one of {smallest} x {smallest} pixels has no "
            f"more to halve. Received: input_shape={shape}. Enlarge the images, e.g. with "
            f"keras.layers.Resizing({smallest}, {smallest})."
        )
    return keras.Input(shape, name="images")


def classifier(
    inputs,
    x,
    head,
    classes,
    initializer,
    include_top=True,
    pooling=None,
    classifier_activation="softmax",
    weights=None,
    name=None,
):
    """The model from `inputs` to class probabilities, or to features.

    Args:
        inputs: The network's input.
        x: Its last features, `(batch, height, width, channels)`.
        head: Layers between them and the classifier.
        classes: How many the classifier tells apart.
        initializer: Of its kernel.
        include_top: Whether `head` and the classifier belong to the model.
        pooling: Without them: `None` leaves the features as they are, "avg" and "max" pool them
            over the image.
        classifier_activation: "softmax", or `None` for logits.
        weights: `None`, or the path of weights that `model.save_weights` wrote.
        name: Of the model.

    Raises:
        ValueError: if `classes` is not positive, `pooling` is unknown, images of unknown size
            meet a head that counts pixels, or `weights` is no file of this network's.
    """
    if pooling not in (None, "avg", "max"):
        raise ValueError(f"`pooling` must be None, 'avg' or 'max'. Received: pooling={pooling!r}")
    if include_top:
        if not isinstance(classes, int) or classes < 1:
            raise ValueError(f"`classes` must be a positive integer. Received: classes={classes!r}")
        if None in x.shape[1:3] and any(isinstance(layer, layers.Flatten) for layer in head):
            raise ValueError(
                f"With include_top=True this network's classifier counts pixels. Received: "
                f"input_shape={tuple(inputs.shape[1:])}. Say height and width, or "
                f"include_top=False."
            )
        for layer in head:
            x = layer(x)
        x = predictions(classes, classifier_activation, initializer)(x)
    elif pooling is not None:
        pool = {"avg": layers.GlobalAveragePooling2D, "max": layers.GlobalMaxPooling2D}[pooling]
        x = pool(name=f"{pooling}_pool")(x)
    model = keras.Model(inputs, x, name=name)
    if weights is not None:
        if not pathlib.Path(weights).is_file() or not str(weights).endswith(".weights.h5"):
            raise ValueError(
                f"`weights` must be None or the path of a .weights.h5 file. "
                f"Received: weights={str(weights)!r}, which is no such file."
            )
        try:
            model.load_weights(weights)
        except DAMAGED as error:
            raise ValueError(
                f"`weights` must be the path of weights of this very network. "
                f"Received: weights={str(weights)!r}, of which Keras says: {error}"
            ) from error
    return model


def predictions(classes, activation, initializer):
    """The classifier; in mixed precision it is float32, as a sum over classes follows."""
    policy = keras.config.dtype_policy()
    half = policy.compute_dtype in ("float16", "bfloat16")
    return layers.Dense(
        classes,
        activation,
        kernel_initializer=initializer,
        dtype="float32" if half else policy,
        name="predictions",
    )
