"""HighwayConv2D computes the six forms with gates that see what H sees."""

import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import assert_close, gradients
from helpers.harness import run_layer_test
from helpers.reference import TC, conv, images, random_weights, relu, sigmoid


def spelled(layer, x):
    """y = H·T + x·C, the other spelling of Table 1a."""
    h = relu(conv(x, *layer.transform.weights))
    gates = {"1": 1.0, "0": 0.0}
    if layer.transform_gate:
        gates["T"] = sigmoid(conv(x, *layer.transform_gate.weights))
        gates["t"] = 1 - gates["T"]
    if layer.carry_gate:
        gates["C"] = sigmoid(conv(x, *layer.carry_gate.weights))
    t, c = (gates[letter] for letter in TC[layer.variant])
    return h * t + x * c


@pytest.mark.parametrize(("kernel_size", "size"), [(3, 5), (2, 4), (1, 3)])
@pytest.mark.parametrize("variant", TC)
def test_every_form_equals_its_numpy_spelling(variant, kernel_size, size):
    layer, x = zoo.HighwayConv2D(3, kernel_size, variant=variant), images(2, size, size, 3)
    layer.build(x.shape)
    y = random_weights(layer)(x)
    assert_close(y, spelled(layer, x), 2e-5)  # float32 sums of 27 products, values up to 20


@pytest.mark.parametrize("variant", TC)
def test_every_form_is_a_keras_layer(variant):
    run_layer_test(
        zoo.HighwayConv2D,
        {"filters": 3, "kernel_size": 3, "variant": variant, "activation": "tanh", "stage": 2},
        input_shape=(2, 4, 4, 3),
        expected_output_shape=(2, 4, 4, 3),
        expected_num_trainable_weights=2 + 2 * len(zoo.FORMS[variant].gates),
        expected_num_non_trainable_weights=0,
        expected_num_seed_generators=0,
        expected_num_losses=0,
    )


def test_coupled_gradients_are_those_of_the_appendix():
    # TVDN appendix A: dL/dh = T dy, dL/dT = (h - x) dy, and the direct path carries (1 - T) dy.
    h, x, t, dy = (images(2, 3, 3, 4, seed=seed) for seed in range(4))
    combine = zoo.FORMS["coupled"].combine
    found = gradients(lambda h, x, t: ops.sum(ops.multiply(combine(h, x, t, None), dy)), [h, x, t])
    assert_close(found, [t * dy, (1 - t) * dy, (h - x) * dy], 1e-6)  # one product in float32


def test_gates_have_the_receptive_field_of_what_they_gate():
    layer = zoo.HighwayConv2D(kernel_size=5, variant="full")
    layer.build((None, 8, 8, 2))
    for gate in (layer.transform_gate, layer.carry_gate):
        assert [w.shape for w in gate.weights] == [w.shape for w in layer.transform.weights]
        assert gate.activation is zoo.layers.gating.gate
    biases = (layer.transform_gate.bias, layer.carry_gate.bias)
    assert [set(ops.convert_to_numpy(bias)) for bias in biases] == [{-2.0}, {2.0}]


def test_a_residual_layer_of_highway_form_is_the_coupled_one():
    # Greff et al., section 3.1: F(x) = T(x) (H(x) - x) makes h + x the coupled highway.
    layer, x = zoo.HighwayConv2D(4), images(2, 4, 4, 4)
    layer.build(x.shape)
    parts = random_weights(layer).parts(ops.convert_to_tensor(x))
    h, t, y = (ops.convert_to_numpy(parts[letter]) for letter in "hty")
    assert_close(zoo.FORMS["residual"].combine(t * (h - x), x, None, None), y, 1e-5)  # values of 20


def test_the_depth_guideline_is_the_papers():
    assert [zoo.gate_bias(depth) for depth in (1, 10, 11, 19, 20, 30, 32)] == [
        *(-1.0, -1.0, -1.0),
        *(-2.0, -2.0),
        *(-3.0, -3.0),
    ]
    with pytest.raises(ValueError, match="`depth` must be at least 1. Received: depth=0"):
        zoo.gate_bias(0)


def test_bad_arguments_say_what_to_do():
    with pytest.raises(ValueError, match=r"filters=5, input shape=\(2, 4, 4, 3\).*Put a Conv2D\(5"):
        zoo.HighwayConv2D(5)(images(2, 4, 4, 3))
    with pytest.raises(ValueError, match="`kernel_size` must be a positive integer"):
        zoo.HighwayConv2D(kernel_size=(3, 1))
    with pytest.raises(ValueError, match="`filters` must be a positive integer"):
        zoo.HighwayConv2D(0)
    with pytest.raises(ValueError, match="`variant` must be one of.*'coupled'"):
        zoo.HighwayConv2D(variant="gated")


def test_initial_kernels_are_the_stream_of_kaiming_draws():
    zoo.seed_everything(4)
    layer = zoo.HighwayConv2D()
    layer.build((None, 8, 8, 4))
    rng = np.random.default_rng(4)
    for branch in (layer.transform, layer.transform_gate):  # sqrt(2 / (9 · 4))
        assert_close(branch.kernel, rng.normal(0, np.sqrt(2 / 36), (3, 3, 4, 4)), 1e-7)  # float32
