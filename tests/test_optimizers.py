"""CaffeSGD steps as Caffe's Nesterov solver does, computed in NumPy."""

import contextlib
import json

import keras
import numpy as np
import pytest

from helpers.gradients import assert_close
from zoo.optimizers import CaffeSGD

SETTINGS = {"learning_rate": 0.1, "momentum": 0.9, "decay": 0.5, "last_decay": 5.0}


def caffe(w, gradients, rate, decay, momentum=0.9):
    """SGDSolver and NesterovSolver of Caffe: history v, update (1 + m) v' - m v."""
    v = np.zeros_like(w)
    for gradient in gradients:
        new = momentum * v + rate * (gradient + decay * w)
        w = w - ((1 + momentum) * new - momentum * v)
        v = new
    return w


@pytest.mark.parametrize(
    ("path", "rate", "decay"),
    [
        ("stage1_block00/transform_gate/kernel", 0.1, 0.5),
        ("predictions/kernel", 0.1, 5.0),
        ("stage1_block00/transform_gate/bias", 0.2, 0.0),
        ("predictions/bias", 0.2, 0.0),
        ("stack/attention_query_kernel", 0.1, 0.5),
        ("stack/attention_query_bias", 0.2, 0.0),
    ],
)
def test_three_steps_equal_caffe_s_nesterov_solver(path, rate, decay):
    rng = np.random.default_rng(0)
    w, gradients = rng.normal(size=(3, 2)), rng.normal(size=(3, 3, 2))
    *layers, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(keras.name_scope(layer))
        variable = keras.Variable(w.astype("float32"), name=name)
    assert variable.path == path
    optimizer = CaffeSGD(**SETTINGS)
    for gradient in gradients.astype("float32"):
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    assert_close(variable, caffe(w, gradients, rate, decay), 1e-5)  # float32, values of 10


def test_biases_and_normalizations_decay_as_in_torch_with_decay_all():
    variables = [keras.Variable([2.0], name=name) for name in ("bias", "gamma", "kernel")]
    options = {"momentum": 0.0, "decay": 0.5, "bias_rate": 1.0, "decay_all": True}
    optimizer = CaffeSGD(0.1, nesterov=False, **options)
    optimizer.apply([keras.ops.array([1.0])] * 3, variables)
    for variable in variables:
        assert_close(variable, np.array([2 - 0.1 * (1 + 0.5 * 2)]), 1e-6)
    assert CaffeSGD.from_config(optimizer.get_config()).decay_all is True


def test_an_optimizer_made_from_its_config_is_the_same():
    optimizer = CaffeSGD(0.3, decay=0.25, bias_rate=3.0)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
    again = keras.saving.deserialize_keras_object(config)
    assert isinstance(again, CaffeSGD) and again.get_config() == optimizer.get_config()
    assert (again.decay, again.last_decay, again.bias_rate) == (0.25, 0.01, 3.0)
