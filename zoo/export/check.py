"""Check what an artifact computes against the outputs of the Keras model."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from zoo.export.signatures import input_names

Arrays = dict[str, np.ndarray]  # by name of an input or output
Cases = dict[str, tuple[Arrays, Arrays]]  # inputs and expected outputs by name of endpoint


class Expected(NamedTuple):
    """An example whose outputs are not left to the Keras model, which may need TensorFlow."""

    inputs: Any
    outputs: Arrays


@contextlib.contextmanager
def float32() -> Iterator[None]:
    """Compute in true float32: no mixed precision, no TF32 (a GPU then deviates by 1e-3)."""
    with contextlib.ExitStack() as stack:
        stack.callback(keras.config.set_dtype_policy, keras.config.dtype_policy())
        keras.config.set_dtype_policy("float32")
        if keras.config.backend() == "tensorflow":  # a device's scope would end up in the graph
            import tensorflow as tf

            config = tf.config.experimental
            before = config.tensor_float_32_execution_enabled()
            stack.callback(config.enable_tensor_float_32_execution, before)
            config.enable_tensor_float_32_execution(False)
        else:
            stack.enter_context(keras.device("cpu"))
        yield


def cases(models: dict[str, keras.Model], examples: Mapping[str, Any]) -> Cases:
    """Return inputs, and the Keras model's outputs for them, by endpoint.

    Args:
        models: Functional `keras.Model`s with dictionaries of outputs, by name of endpoint.
        examples: Inputs by name of endpoint, in the structure of the model's input; or an
            `Expected`, with the outputs. Inputs of other endpoints are random.

    Raises:
        ValueError: If the number of arrays is not the number of the model's inputs.
    """
    generator = np.random.default_rng(0)
    result = {}
    for endpoint, model in models.items():
        inputs = examples.get(endpoint)
        outputs = None
        if isinstance(inputs, Expected):
            inputs, outputs = inputs
        if inputs is None:
            inputs = keras.tree.map_structure(lambda x: _sample(x, generator), model.input)
        arrays = keras.tree.flatten(inputs)
        names = input_names(model)
        if len(arrays) != len(names):
            raise ValueError(
                f"`examples` must give {', '.join(names)} for {endpoint!r}. "
                f"Received: {len(arrays)} arrays."
            )
        if outputs is None:
            outputs = model.predict_on_batch(inputs)
        result[endpoint] = dict(zip(names, arrays, strict=True)), outputs
    return result


def _sample(tensor, generator):
    shape = (3, *(3 if size is None else size for size in tensor.shape[1:]))
    if "int" in tensor.dtype:
        high = 256 if tensor.dtype == "uint8" else 2
        return generator.integers(0, high, shape).astype(tensor.dtype)
    return generator.normal(size=shape).astype(tensor.dtype)


def largest(cases: Cases) -> float:
    """Return the largest absolute output of the Keras models."""
    return float(max(np.max(np.abs(y)) for _, ys in cases.values() for y in ys.values()))


def deviation(read: Callable[[str, Arrays], Arrays], cases: Cases) -> float:
    """Return the largest absolute deviation from `cases`; infinite if a shape differs.

    `read` is a function from an endpoint's name and its inputs to its outputs, by name.
    """
    deviations = []
    for endpoint, (inputs, outputs) in cases.items():
        for rows in (slice(None), slice(1)):  # all, then the first alone: any batch size
            result = read(endpoint, {name: np.asarray(x)[rows] for name, x in inputs.items()})
            for name, expected in outputs.items():
                same = np.shape(result[name]) == expected[rows].shape
                difference = np.abs(result[name] - expected[rows]) if same else np.inf
                deviations.append(np.max(difference))
    return float(np.max(deviations))
