"""Models to export: in float32, with named inputs and outputs, after their preprocessing."""

import re
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from zoo.datasets.preprocessing import EPSILON, RECIPES, Preprocessing
from zoo.graph.calls import functional as graph_of

HALF = ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16")  # policies and dtypes


def serve(model: keras.Model) -> dict[str, keras.Model]:
    """Return the default endpoint "serve": `model` with named outputs."""
    return {"serve": named(model)}


def functional(model: keras.Model) -> keras.Model:
    """Return `model` as a Functional model, whose inputs have names.

    Raises:
        ValueError: If it is a subclass with its own `call`, or not built.
    """
    if not isinstance(model, keras.Model) or graph_of(model) is None:
        raise ValueError(
            f"`model` must be a Functional or a built Sequential keras.Model, without a `call` of "
            f"its own. Received: {model!r}. Call it on a keras.Input, and give keras.Model(x, y)."
        )
    if isinstance(model, keras.Sequential):
        return keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    return model


def named(model: keras.Model) -> keras.Model:
    """Return `model` with a dictionary of outputs: its own, or by the names of its output layers.

    Example:
    >>> x = keras.Input((2,))
    >>> model = keras.Model(x, keras.layers.Dense(3, name="logits")(x))
    >>> list(named(model).output)
    ['logits']
    """
    if isinstance(model.output, dict):
        return model
    names: list[str] = []
    for name in model.output_names:
        same = [n for n in names if re.fullmatch(rf"{re.escape(name)}(_\d+)?", n)]
        names.append(f"{name}_{len(same)}" if same else name)
    outputs = dict(zip(names, model.outputs, strict=True))
    return keras.Model(model.input, outputs, name=model.name)


def input_names(model: keras.Model) -> list[str]:
    """Return the names of a model's inputs, flat: keys of a dictionary, or the tensors' names."""
    named = keras.tree.flatten_with_path(model.input)
    names = [path[-1] if path and isinstance(path[-1], str) else x.name for path, x in named]
    return [re.sub(r"\W", "_", name) for name in names]  # as TensorFlow's signatures do


def in_float32(model: keras.Model) -> keras.Model:
    """Return a copy of `model` that computes in float32, also if it was trained in half precision.

    Args:
        model: A Functional or Sequential `keras.Model`.

    Returns:
        A new `keras.Model`, not compiled, with the same names and weights.

    Example:
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="mixed_bfloat16")])
    >>> model.layers[0].compute_dtype, in_float32(model).layers[0].compute_dtype
    ('bfloat16', 'float32')
    """
    copy = type(model).from_config(_float32_policies(model.get_config()))
    copy.set_weights(model.get_weights())
    return copy


def _float32_policies(config):
    """Return a configuration with float32 as the policy of all layers, cells, tensors, products."""
    if isinstance(config, list | tuple):
        return type(config)(map(_float32_policies, config))
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy":
        return {**config, "config": {"name": _float32_name(config["config"]["name"])}}
    config = {key: _float32_policies(value) for key, value in config.items()}
    if config.get("products"):  # of zoo.backend.layers.Dense
        config["products"] = ""
    if "dtype" in config:
        config["dtype"] = _float32_name(config["dtype"])
    return config


def _float32_name(dtype):
    return "float32" if dtype in HALF else dtype


def label_text(labels: Sequence[str] | None) -> str | None:
    """Return the labels as a text, one a line; `None` without labels.

    Raises:
        ValueError: If `labels` are not names without line breaks.
    """
    if labels is None:
        return None
    names = [] if isinstance(labels, str) else list(labels)
    if not names or not all(isinstance(n, str) and n and not {*"\r\n"} & {*n} for n in names):
        raise ValueError(
            f"`labels` must be a sequence of names, each of one line. Received: {labels!r}"
        )
    return "\n".join(names)


def with_preprocessing(preprocessing: Preprocessing | str, model: keras.Model) -> keras.Model:
    """Return a model from raw images to the named outputs of `model`.

    Args:
        preprocessing: A `zoo.datasets.preprocessing.Preprocessing`, or the name of a recipe that
            is not fitted to a training set.
        model: A Functional model of one input.

    Raises:
        ValueError: If `preprocessing` is something else, or does not fit `model`.

    Example:
    >>> x = keras.Input((2, 2, 1), name="images")
    >>> model = keras.Model(x, keras.layers.Flatten(name="pixels")(x))
    >>> raw = with_preprocessing("highway_mlp", model)
    >>> raw.input.dtype, raw(np.full((1, 2, 2, 1), 51, "uint8"))["pixels"].shape == (1, 4)
    ('uint8', True)
    """
    if isinstance(preprocessing, str):
        recipe = RECIPES.get(preprocessing)
        if recipe is None or recipe.center or recipe.scale == "std":
            raise ValueError(
                f"`preprocessing` must need no training set. Received: {preprocessing!r}. Give "
                f"highway_mlp or highway_mnist; or zoo.datasets.preprocessing.fit("
                f"{preprocessing!r}, x_train) (--data)."
            )
        preprocessing = Preprocessing(recipe, 0.0, recipe.scale)
    if not isinstance(preprocessing, Preprocessing) or len(model.inputs) != 1:
        raise ValueError(
            f"`preprocessing` must be a Preprocessing or a recipe's name, for a model of one "
            f"input. Received: {preprocessing!r}, and inputs {', '.join(input_names(model))}. "
            f"Put Keras layers into the model: keras.Model(x, model(layer(x)))."
        )
    shape = model.inputs[0].shape[1:]
    if np.shape(preprocessing.mean) not in ((), tuple(shape)):
        raise ValueError(
            f"`preprocessing` must be fitted to images of the model's shape, {tuple(shape)}. "
            f"Received: one of {np.shape(preprocessing.mean)}."
        )
    raw = keras.Input(shape, dtype="uint8", name=input_names(model)[0])
    x = _prepared(preprocessing, raw)
    y = named(model)(keras.tree.pack_sequence_as(model.input, [x]))
    return keras.Model(raw, y, name=f"raw_{model.name}")


def _prepared(prepare, images):
    """Return images after a NumPy `Preprocessing`, in Keras operations."""
    x = ops.cast(images, "float32")
    if prepare.recipe.contrast:
        x = x - ops.mean(x, axis=(1, 2, 3), keepdims=True)
        variance = ops.mean(ops.square(x), axis=(1, 2, 3), keepdims=True)
        x = x / ops.sqrt(variance + EPSILON)
    if np.any(prepare.mean):
        x = x - np.asarray(prepare.mean, "float32")
    return x / float(prepare.scale)
