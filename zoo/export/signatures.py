"""What is exported: a Keras model in float32, with names, behind its preprocessing."""

import json
import re

import keras
import numpy as np
from keras import ops

from zoo.datasets import preprocessing as papers


def serve(model):
    """The usual endpoint: `model` itself, as "serve", its outputs named."""
    return {"serve": named(model)}


def functional(model):
    """`model` as a Functional one, whose inputs have names.

    Raises:
        ValueError: if it is a subclass with a `call` of its own, or not built.
    """
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        raise ValueError(
            f"`model` must be a Functional or a built Sequential keras.Model, whose inputs are "
            f"known. Received: {model!r}. Call it on a keras.Input, and give keras.Model(x, y)."
        )
    if isinstance(model, keras.Sequential):
        return keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    return model


def named(model):
    """`model` with a dictionary of outputs: its own, or by the names of its output layers.

    Example:

    >>> x = keras.Input((2,))
    >>> model = keras.Model(x, keras.layers.Dense(3, name="logits")(x))
    >>> list(named(model).output)
    ['logits']
    """
    if isinstance(model.output, dict):
        return model
    names = []
    for name in model.output_names:
        same = [n for n in names if re.fullmatch(rf"{re.escape(name)}(_\d+)?", n)]
        names.append(f"{name}_{len(same)}" if same else name)
    outputs = dict(zip(names, model.outputs, strict=True))
    return keras.Model(model.input, outputs, name=model.name)


def input_names(model):
    """The names of a model's inputs, flat: keys of a dictionary, or the tensors' own."""
    named = keras.tree.flatten_with_path(model.input)
    names = [path[-1] if path and isinstance(path[-1], str) else x.name for path, x in named]
    return [re.sub(r"\W", "_", name) for name in names]  # as TensorFlow's signatures do


def in_float32(model):
    """A copy of `model` that computes in float32, whatever precision it was trained in.

    Args:
        model: A Functional or Sequential `keras.Model`.

    Returns:
        A new `keras.Model`, not compiled, with the same names and weights.

    Example:

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="mixed_bfloat16")])
    >>> model.layers[0].compute_dtype, in_float32(model).layers[0].compute_dtype
    ('bfloat16', 'float32')
    """
    config = json.dumps(model.get_config())
    for policy in ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16"):
        config = config.replace(json.dumps(policy), json.dumps("float32"))
    copy = type(model).from_config(json.loads(config))
    copy.set_weights(model.get_weights())
    return copy


def texts(labels):
    """The file of an artifact that holds the labels, a line each; none if there are none.

    Raises:
        ValueError: if `labels` are not names without line breaks.
    """
    if labels is None:
        return {}
    names = [] if isinstance(labels, str) else list(labels)
    if not names or not all(isinstance(n, str) and n and not {*"\r\n"} & {*n} for n in names):
        raise ValueError(
            f"`labels` must be a sequence of names, each of one line. Received: {labels!r}"
        )
    return {"labels.txt": "".join(f"{name}\n" for name in names)}


def behind(preprocessing, model):
    """`model` behind its preprocessing: raw images in, named outputs out.

    Args:
        preprocessing: A Keras layer or model, a `zoo.datasets.preprocessing.Preprocessing`, or
            the name of a recipe that takes nothing from its training set.
        model: A Functional model of one input.

    Raises:
        ValueError: if `preprocessing` is none of these, or does not give what `model` takes.

    Example:

    >>> x = keras.Input((2, 2, 1), name="images")
    >>> model = keras.Model(x, keras.layers.Flatten(name="pixels")(x))
    >>> raw = behind("highway_mlp", model)
    >>> raw.input.dtype, raw(np.full((1, 2, 2, 1), 51, "uint8"))["pixels"].shape == (1, 4)
    ('uint8', True)
    """
    if len(model.inputs) != 1:
        raise ValueError(
            f"`preprocessing` is of one input. Received: a model of {len(model.inputs)}, "
            f"{', '.join(input_names(model))}."
        )
    (taken,) = model.inputs
    before = _as_model(preprocessing, taken.shape[1:])
    if len(before.inputs) != 1 or len(before.outputs) != 1 or not _fits(before.outputs[0], taken):
        raise ValueError(
            f"`preprocessing` must turn one image into what the model takes, {taken.shape}. "
            f"Received: {preprocessing!r}, which gives {[x.shape for x in before.outputs]}."
        )
    (given,), (prepared,) = before.inputs, before.outputs
    before = keras.Model(given, prepared, name=f"before_{model.name}")  # no name twice in a graph
    x = keras.Input(given.shape[1:], dtype=given.dtype, name=input_names(model)[0])
    y = named(model)(keras.tree.pack_sequence_as(model.input, [before(x)]))
    return keras.Model(x, y, name=f"raw_{model.name}")


def _fits(given, taken):
    sides = zip(given.shape, taken.shape, strict=False)
    return len(given.shape) == len(taken.shape) and all(None in s or s[0] == s[1] for s in sides)


def _as_model(preprocessing, shape):
    if isinstance(preprocessing, str):
        recipe = papers.RECIPES.get(preprocessing)
        if recipe is None or recipe.center or recipe.scale == "std":
            raise ValueError(
                f"`preprocessing` must be known without a training set. Received: "
                f"{preprocessing!r}. Known are highway_mlp and highway_mnist; for others, give "
                f"zoo.datasets.preprocessing.fit({preprocessing!r}, x_train) (--data)."
            )
        preprocessing = papers.Preprocessing(recipe, 0.0, recipe.scale)
    if isinstance(preprocessing, papers.Preprocessing):
        return _spelled(preprocessing, shape)
    if isinstance(preprocessing, keras.Model) and getattr(preprocessing, "inputs", None):
        return functional(preprocessing)
    if isinstance(preprocessing, keras.layers.Layer):
        x = keras.Input(shape, dtype="uint8")
        return keras.Model(x, preprocessing(x))
    raise ValueError(
        "`preprocessing` must be a Keras layer or model, a Preprocessing, or a recipe's name. "
        f"Received: {preprocessing!r}"
    )


def _spelled(prepare, shape):
    """`prepare`, which is NumPy's, in operations of Keras."""
    if np.shape(prepare.mean) not in ((), tuple(shape)):
        raise ValueError(
            f"`preprocessing` must be fitted to images of the model's shape, {tuple(shape)}. "
            f"Received: one of {np.shape(prepare.mean)}."
        )
    images = keras.Input(shape, dtype="uint8")
    x = ops.cast(images, "float32")
    if prepare.recipe.contrast:
        x = x - ops.mean(x, axis=(1, 2, 3), keepdims=True)
        variance = ops.mean(ops.square(x), axis=(1, 2, 3), keepdims=True)
        x = x / ops.sqrt(variance + papers.EPSILON)
    if np.any(prepare.mean):
        x = x - np.asarray(prepare.mean, "float32")
    return keras.Model(images, x / float(prepare.scale))
