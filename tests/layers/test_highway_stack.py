"""A stack equals its layers: same outputs, gradients and training steps."""

import keras
import numpy as np
import pytest
from keras import ops

from helpers.gradients import assert_close, gradients, numpy_of
from helpers.harness import run_layer_test
from helpers.reference import TC, as_float64, images, random_weights, relu, sigmoid, skip_sum
from zoo.initializers import GlorotUniform
from zoo.layers.highway_stack import HighwayDenseStack

DEPTH, WIDTH = 3, 4


def random_stack(depth=DEPTH, width=WIDTH, **kwargs):
    stack = HighwayDenseStack(depth, **kwargs)
    stack.build((None, width))
    return random_weights(stack, scale=0.5)


def reference_output(stack, x):
    """Return the last layer's output, from a loop in NumPy, float64."""

    def affine(branch, x, layer):
        kernel, bias = as_float64(*branch.weights)
        return x @ kernel[layer] + bias[layer]

    x = x.astype("float64")
    for i in range(stack.depth):
        gates = stack.transform_gate, stack.carry_gate
        t, c = (sigmoid(affine(gate, x, i)) if gate else None for gate in gates)
        x = skip_sum(stack.variant, relu(affine(stack.transform, x, i)), x, t, c)
    return x


def chained(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def compiled(layers, shape):
    """Return `predict` of a model of `layers`, which the backend compiles."""
    x = keras.Input(shape)
    return lambda v: keras.Model(x, chained(layers, x)).predict(v, verbose=0)


@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (2, 3, 2, 4)], ids=len)
@pytest.mark.parametrize("variant", TC)
def test_every_form_equals_the_reference_and_bit_for_bit_its_layers(variant, shape):
    stack, x = random_stack(variant=variant), images(*shape)
    y = stack(x)
    assert tuple(y.shape) == shape
    assert_close(y, reference_output(stack, x), 1e-5)  # float32, three layers, values up to 30
    assert_close(chained(stack.to_layers(), ops.convert_to_tensor(x)), y, 0)


@pytest.mark.parametrize("variant", TC)
def test_every_form_compiled_equals_the_reference(variant):
    stack, x = random_stack(variant=variant), images(5, 4)
    assert_close(compiled([stack], (4,))(x), reference_output(stack, x), 1e-5)  # as above
    x = images(2, 3, 4)
    y = compiled([stack], (None, 4))(x)  # the length is unknown
    assert_close(y, reference_output(stack, x), 1e-5)


@pytest.mark.parametrize("variant", TC)
def test_gradients_are_those_of_single_layers(variant):
    stack, x, dy = random_stack(variant=variant), images(5, 4), images(5, 4, seed=3)
    layers = stack.to_layers()
    weights = [w for layer in layers for w in layer.weights]

    def loss(layers):
        return lambda x: ops.sum(ops.multiply(chained(layers, x), dy))

    dx, *actual = gradients(loss([stack]), [x], stack.weights)
    expected_dx, *expected = gradients(loss(layers), [x], weights)
    count = len(stack.weights)
    expected = [np.stack(expected[i::count]) for i in range(count)]
    assert_close([dx, *actual], [expected_dx, *expected], 1e-5)  # sums of 5 rows, values up to 50
    assert all(np.abs(g).max() > 0.01 for g in actual)


def mlp(layers, width=WIDTH, jit="auto"):
    x = keras.Input((7,))
    z = keras.layers.Dense(width, activation="tanh", name="in")(x)
    model = keras.Model(x, keras.layers.Dense(3, name="out")(chained(layers, z)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, jit_compile=jit)
    return model


@pytest.mark.parametrize("jit", ["auto", True])
def test_a_compiled_step_moves_the_weights_as_it_moves_those_of_single_layers(jit, backend):
    if jit is True and backend != "tensorflow":
        pytest.skip("XLA is JAX's automatic choice, and never torch's")
    stack = random_stack()
    singles = stack.to_layers()
    ours = mlp([stack], jit=jit)
    theirs = mlp(singles)
    for name in ("in", "out"):
        theirs.get_layer(name).set_weights(ours.get_layer(name).get_weights())
    before = ours.get_weights()
    x, y = images(6, 7), np.arange(6) % 3
    losses = [model.train_on_batch(x, y) for model in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    by_weight = zip(*(layer.get_weights() for layer in singles), strict=True)
    restacked = [np.stack(weights) for weights in by_weight]
    assert_close(restacked, stack.get_weights(), 1e-6)  # a step of values up to 1
    moved = zip(before, ours.get_weights(), strict=True)
    assert all(np.abs(a - b).max() > 1e-3 for a, b in moved)


@pytest.mark.parametrize("variant", ["plain", "full"])
def test_a_stack_is_a_keras_layer(variant):
    run_layer_test(
        HighwayDenseStack,
        {"depth": 3, "units": 4, "variant": variant, "activation": "tanh", "stage": 2},
        input_shape=(2, 3, 4),
        expected_output_shape=(2, 3, 4),
        expected_num_trainable_weights={"plain": 2, "full": 6}[variant],
        expected_num_non_trainable_weights=0,
        expected_num_seed_generators=0,
        expected_num_losses=0,
    )


@pytest.mark.parametrize("initializer", ["glorot_uniform", GlorotUniform()], ids=["keras", "zoo"])
def test_each_layer_is_initialized_separately_with_the_fan_of_one_layer(initializer):
    stack = HighwayDenseStack(40, 10, variant="full", kernel_initializer=initializer)
    stack.build((None, 10))
    limit = np.sqrt(6 / (10 + 10))  # with the fan of (40, 10, 10): a sixth
    for branch in (stack.transform, stack.transform_gate, stack.carry_gate):
        kernel = ops.convert_to_numpy(branch.kernel)
        assert 0.95 * limit < np.abs(kernel).max() <= limit
        assert len(np.unique(kernel)) > 3900  # of 4000: no slice repeats another
    assert set(stack.transform_gate.bias.numpy().ravel()) == {-2.0}
    assert set(stack.carry_gate.bias.numpy().ravel()) == {2.0}


def test_weight_paths_are_those_of_a_single_layer_and_a_saved_stack_is_the_same(tmp_path):
    x = keras.Input((4,))
    model = keras.Model(x, HighwayDenseStack(3, variant="full", name="blocks")(x))
    branches = "transform", "transform_gate", "carry_gate"
    expected = [f"blocks/{b}/{w}" for b in branches for w in ("kernel", "bias")]
    assert [w.path for w in model.weights] == expected
    random_weights(model, scale=0.5).save(tmp_path / "stack.keras")
    loaded = keras.saving.load_model(tmp_path / "stack.keras")
    assert_close(loaded(images(3, 4)), model(images(3, 4)), 0)


@pytest.mark.parametrize("depth", [0, 2.0])
def test_a_depth_that_is_no_positive_integer_is_an_error(depth):
    with pytest.raises(ValueError, match="`depth` must be a positive integer"):
        HighwayDenseStack(depth)


def test_a_stack_without_weights_has_no_layers():
    with pytest.raises(ValueError, match="as `to_layers` copies weights"):
        HighwayDenseStack(2).to_layers()


def deep(depth):
    """Return a network with gates at 1/depth, which carries (1 - 1/depth)^depth = 1/e of x."""
    return mlp([HighwayDenseStack(depth, gate_bias=-np.log(depth), activation="tanh")], 8)


def test_two_hundred_layers_take_a_step_that_moves_each_of_them():
    model = deep(200)
    stack = model.layers[2]
    before = numpy_of(stack.weights)
    assert np.isfinite(model.train_on_batch(images(6, 7), np.arange(6) % 3))
    for weight, old in zip(numpy_of(stack.weights), before, strict=True):
        assert (weight != old).reshape(200, -1).any(axis=1).all()


@pytest.mark.slow
def test_a_thousand_layers_train_with_plain_sgd():
    model = deep(1000)
    for name in ("in", "out"):  # so that the layers between have to learn
        model.get_layer(name).trainable = False
    # A gate open to 1/1000 passes that much of the gradient: a rate in proportion.
    model.compile(keras.optimizers.SGD(0.1 * 1000), model.loss)
    x, y = images(6, 7), np.arange(6) % 3
    losses = [float(model.train_on_batch(x, y)) for _ in range(40)]
    assert losses[-1] < 0.8 * losses[0], losses  # two seeds on JAX: 0.39 and 0.63
