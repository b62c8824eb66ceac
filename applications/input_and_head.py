"""Input, classifier and saved weights of the networks for images."""

import pathlib
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
from keras import layers

import zoo
from zoo import cards
from zoo.checks import check_integers, is_integer
from zoo.initializers import Uniform
from zoo.types import Initializer, PathLike, Shape, Tensor

IRRELEVANT = re.compile(  # ours: keys of configurations that change no trained network
    "name|dtype|trainable|batch_shape|rate|seed|gate_bias|max_distinct|products|build_config|"
    "inbound_nodes|.*_layers|.*(initializer|regularizer|constraint)"
)


class Top(NamedTuple):
    """The arguments that every builder for images has in common with `keras.applications`.

    Attributes:
        include_top: True ends the model in `head` and the classifier, False in the last features.
        pooling: "avg" or "max" pools the features of a model without its top over the image;
            `None` returns them as they are.
        classifier_activation: "softmax", or `None` for logits.
        weights: Path of a file that `model.save_weights` wrote, a name of `zoo.list_weights()`, or
            `None`.
        name: Name of the model.
    """

    include_top: bool = True
    pooling: str | None = None
    classifier_activation: str | None = "softmax"
    weights: PathLike | None = None
    name: str | None = None


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
    if shape[0] in (1, 3) and all(side is None or side > 4 for side in shape[1:]):
        raise ValueError(
            f"`input_shape` must be (height, width, channels), channels last. Received: "
            f"input_shape={shape}, which looks like channels first. Give "
            f"{(*shape[1:], shape[0])}, and images of that layout: np.moveaxis(images, 1, -1)."
        )
    if any(side is not None and side < smallest for side in shape[:2]):
        raise ValueError(
            f"This network downsamples its images and needs at least {smallest} x {smallest} "
            f"pixels. Received: input_shape={shape}. Enlarge the images, e.g. with "
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

    Raises:
        ValueError: if `classes` is not positive, `pooling` is unknown, images of unknown size
            meet a head that needs their size, or `weights` does not fit this network.
    """
    if top.pooling not in (None, "avg", "max"):
        raise ValueError(
            f"`pooling` must be None, 'avg' or 'max'. Received: pooling={top.pooling!r}"
        )
    if top.include_top:
        check_integers(1, classes=classes)
        if None in x.shape[1:3] and any(isinstance(layer, layers.Flatten) for layer in head):
            raise ValueError(
                f"The classifier of this network needs images of a fixed size. Received: "
                f"input_shape={tuple(inputs.shape[1:])}. Give height and width, or "
                f"include_top=False."
            )
        for layer in head:
            x = layer(x)
        bias = Uniform(x.shape[-1] ** -0.5) if uniform_bias else "zeros"
        x = predictions(classes, top.classifier_activation, initializer, bias)(x)
    elif top.pooling == "avg":
        x = layers.GlobalAveragePooling2D(name="avg_pool")(x)
    elif top.pooling == "max":
        x = layers.GlobalMaxPooling2D(name="max_pool")(x)
    model = keras.Model(inputs, x, name=top.name)
    if top.weights is not None:
        options = {"include_top": top.include_top, "pooling": top.pooling}
        options["classifier_activation"] = top.classifier_activation
        given = {k: v for k, v in options.items() if v != Top._field_defaults[k]}
        load_weights(model, top.weights, given)
    return model


def predictions(
    classes: int,
    activation: str | None,
    initializer: keras.Initializer,
    bias_initializer: Initializer = "zeros",
) -> keras.layers.Dense:
    """Return the classifier; in mixed precision it is float32, as a sum over classes follows."""
    policy = keras.config.dtype_policy()
    half = policy.compute_dtype in ("float16", "bfloat16")
    return layers.Dense(
        int(classes),
        activation,
        kernel_initializer=initializer,
        bias_initializer=bias_initializer,
        dtype="float32" if half else policy,
        name="predictions",
    )


def load_weights(
    model: keras.Model, weights: PathLike, options: Mapping[str, Any] | None = None
) -> None:
    """Load trained weights that `zoo.list_weights` names, or what `model.save_weights` wrote.

    `options` are arguments of the model's builder that trained weights permit.

    Raises:
        ValueError: if there is no such name or file, or it does not fit the model.
    """
    if isinstance(weights, str) and not weights.endswith(cards.SUFFIX):
        path = cards.path(weights)
        _check_network(model, cards.card(weights), options or {})
    elif pathlib.Path(weights).is_file() and str(weights).endswith(cards.SUFFIX):
        path = pathlib.Path(weights)
    else:
        raise ValueError(
            f"`weights` must be None, a name of `zoo.list_weights()` or the path of a "
            f"{cards.SUFFIX} file. Received: weights={str(weights)!r}, which is no such file."
        )
    try:
        with warnings.catch_warnings():  # Keras warns of layers that the file does not have
            warnings.simplefilter("error", UserWarning)
            model.load_weights(path)
    except (OSError, ValueError, KeyError, UserWarning) as error:  # damaged, or of another network
        raise ValueError(
            f"`weights` must be those of this very network. Received: weights={str(weights)!r}. "
            f"Keras says: {error}"
        ) from error


def _check_network(model, card, options):
    """Raise ValueError unless the model computes what the card's network does."""
    expected = zoo.weights.untrained(card, **options)
    if _computation(model) != _computation(expected):
        arguments = ", ".join(f"{key}={value!r}" for key, value in card.arguments.items())
        raise ValueError(
            f"`weights` must be those of this very network. Received: weights={card.name!r}, of "
            f"zoo.{card.builder}({arguments}). zoo.weights.build({card.name!r}) makes it."
        )


def _computation(model):
    """Return the layers' types and configurations, without what only training or speed needs."""
    return [(type(layer), _relevant(layer.get_config())) for layer in model.layers]


def _relevant(config):
    if isinstance(config, dict):
        return {k: _relevant(v) for k, v in config.items() if not IRRELEVANT.fullmatch(k)}
    return [*map(_relevant, config)] if isinstance(config, (list, tuple)) else config
