"""What an artifact must compute, and how far it is from it."""

import contextlib

import keras
import numpy as np

from zoo.export.signatures import input_names


@contextlib.contextmanager
def float32():
    """True float32: no mixed precision, and no TF32, with which a GPU deviates by 1e-3."""
    with contextlib.ExitStack() as stack:
        stack.callback(keras.config.set_dtype_policy, keras.config.dtype_policy())
        keras.config.set_dtype_policy("float32")
        if keras.config.backend() == "tensorflow":  # a device's scope would end up in the graph
            import tensorflow as tf

            mode = tf.config.experimental
            before = mode.tensor_float_32_execution_enabled()
            stack.callback(mode.enable_tensor_float_32_execution, before)
            mode.enable_tensor_float_32_execution(False)
        else:
            stack.enter_context(keras.device("cpu"))
        yield


def cases(models, examples):
    """By endpoint: inputs, and the outputs that the Keras model has for them, both by name.

    Args:
        models: Functional `keras.Model`s with dictionaries of outputs, by name of endpoint.
        examples: Inputs by name of endpoint, in the structure of the model's; others are drawn.

    Raises:
        ValueError: if examples are not as many as the model's inputs.
    """
    random, found = np.random.default_rng(0), {}
    for name, model in models.items():
        inputs = examples.get(name)
        if inputs is None:
            inputs = keras.tree.map_structure(lambda t: _draw(t, random), model.input)
        arrays, names = keras.tree.flatten(inputs), input_names(model)
        if len(arrays) != len(names):
            raise ValueError(
                f"`examples` must give {', '.join(names)} for {name!r}. "
                f"Received: {len(arrays)} arrays."
            )
        outputs = model.predict_on_batch(inputs)
        found[name] = dict(zip(names, arrays, strict=True)), outputs
    return found


def _draw(tensor, random):
    shape = [3 if size is None else size for size in (None, *tensor.shape[1:])]
    if "int" in tensor.dtype:
        return random.integers(0, 256 if tensor.dtype == "uint8" else 2, shape).astype(tensor.dtype)
    return random.normal(size=shape).astype(tensor.dtype)


def largest(cases):
    """The largest absolute output of the Keras models."""
    return float(max(np.max(np.abs(y)) for _, ys in cases.values() for y in ys.values()))


def deviation(read, cases):
    """The largest absolute deviation from `cases`; infinite if an output has another shape.

    Args:
        read: A function from an endpoint's name and its inputs to its outputs, by name.
        cases: What `cases` made of the Keras models.
    """
    deviations = []
    for endpoint, (inputs, outputs) in cases.items():
        for rows in (slice(None), slice(1)):  # all together, then the first alone: any batch size
            found = read(endpoint, {name: np.asarray(x)[rows] for name, x in inputs.items()})
            for name, expected in outputs.items():
                same = np.shape(found[name]) == expected[rows].shape
                difference = np.abs(found[name] - expected[rows]) if same else np.inf
                deviations.append(np.max(difference))
    return float(np.max(deviations))
