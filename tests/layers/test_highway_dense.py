"""HighwayDense computes the six forms, starts where the papers say, and gates as H sees."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import assert_close, gradients
from helpers.harness import run_layer_test
from helpers.reference import TC
from zoo.initializers import Uniform
from zoo.layers.skip import GateBias

NUM_WEIGHTS = {"plain": 2, "residual": 2, "t_only": 4, "c_only": 4, "coupled": 4, "full": 6}


def inputs(*shape):
    return np.random.default_rng(1).normal(size=shape).astype("float32")


def random_weights(layer):
    rng = np.random.default_rng(2)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    return layer


def spelled(layer, x):
    """The layer's output in NumPy, float64, from the table `TC`."""

    def affine(branch):
        kernel, bias = (ops.convert_to_numpy(w).astype("float64") for w in branch.weights)
        return x.astype("float64") @ kernel + bias

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    value = {"1": lambda: 1.0, "0": lambda: 0.0}
    value["T"] = lambda: sigmoid(affine(layer.transform_gate))
    value["t"] = lambda: 1 - sigmoid(affine(layer.transform_gate))
    value["C"] = lambda: sigmoid(affine(layer.carry_gate))
    t, c = (value[letter]() for letter in TC[layer.variant])
    return np.maximum(affine(layer.transform), 0) * t + x * c


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 3, 2, 4)], ids=len)
@pytest.mark.parametrize("variant", TC)
def test_every_form_equals_its_numpy_spelling_at_rank_2_3_and_4(variant, shape):
    layer = zoo.HighwayDense(variant=variant)
    layer.build(shape)
    x = inputs(*shape)
    y = random_weights(layer)(x)
    assert tuple(y.shape) == shape
    assert_close(y, spelled(layer, x), 5e-6)  # float32 sums of 4 products, values up to 20


@pytest.mark.parametrize("variant", TC)
def test_every_form_is_a_keras_layer(variant):
    run_layer_test(
        zoo.HighwayDense,
        {"units": 4, "variant": variant, "activation": "tanh", "stage": 2},
        input_shape=(2, 3, 4),
        expected_output_shape=(2, 3, 4),
        expected_num_trainable_weights=NUM_WEIGHTS[variant],
        expected_num_non_trainable_weights=0,
        expected_num_seed_generators=0,
        expected_num_losses=0,
    )


def test_a_highway_layer_of_50_costs_what_a_plain_layer_of_71_costs():
    # TVDN section 3.1: 50 blocks against 71 units, about 5000 parameters; 2 (50² + 50), 71² + 71.
    counts = []
    for variant, width in (("coupled", 50), ("plain", 71)):
        layer = zoo.HighwayDense(variant=variant)
        layer.build((None, width))
        counts.append(layer.count_params())
    assert counts == [5100, 5112]


# sigmoid(-100) is 4e-44: nothing beside 1, and its products vanish in float32.
@pytest.mark.parametrize("variant", ["coupled", "full", "t_only"])
def test_a_highway_layer_with_closed_gates_is_the_identity_with_identity_jacobian(variant):
    layer = zoo.HighwayDense(variant=variant, gate_bias=-100.0)
    x, dy = inputs(3, 4), inputs(7, 4)[:3]
    assert_close(layer(x), x, 0)
    (dx,) = gradients(lambda x: ops.sum(ops.multiply(layer(x), dy)), [x])
    assert_close(dx, dy, 0)  # Jᵀ dy = dy for an arbitrary dy


@pytest.mark.parametrize(
    ("variant", "gate_bias", "carried"),
    [("coupled", 100.0, 0), ("full", 100.0, 0), ("c_only", 100.0, 0), ("t_only", 100.0, 1)],
)
def test_a_highway_layer_with_open_gates_rewrites(variant, gate_bias, carried):
    layer = zoo.HighwayDense(variant=variant, gate_bias=gate_bias)
    x = inputs(3, 4)
    y = layer(x)
    assert_close(y, ops.convert_to_numpy(layer.transform(x)) + carried * x, 0)


@pytest.mark.parametrize("variant", ["t_only", "c_only", "coupled", "full"])
def test_gates_are_as_expressive_as_what_they_gate(variant):
    # Greff et al. (2017), section 5.1: less expressive gates stall training.
    layer = zoo.HighwayDense(variant=variant)
    layer.build((None, 6))
    for gate in filter(None, (layer.transform_gate, layer.carry_gate)):
        assert [w.shape for w in gate.weights] == [w.shape for w in layer.transform.weights]
        assert gate.activation is zoo.layers.gating.gate


def biases(layer, width=400):
    layer.build((None, width))
    branches = layer.transform, layer.transform_gate, layer.carry_gate
    return [ops.convert_to_numpy(branch.bias) for branch in branches]


def test_gates_start_at_their_logit_and_the_carry_gate_at_its_opposite():
    # Card E: T at -2; C at +2, so that it carries what coupled's 1 - sigmoid(-2) would.
    for logit in (-2.0, -1.0, -3.0):
        h, t, c = biases(zoo.HighwayDense(variant="full", gate_bias=logit))
        assert set(h) == {0.0} and set(t) == {logit} and set(c) == {-logit}
    _, t, c = biases(zoo.HighwayDense(variant="full"))
    assert set(t) == {-2.0} and set(c) == {2.0}  # the default


@pytest.mark.parametrize("variant", TC)
def test_the_parts_are_the_papers_letters_and_combine_to_the_output(variant):
    layer, x = zoo.HighwayDense(variant=variant, activation="tanh"), inputs(3, 4)
    layer.build((None, 4))
    parts = random_weights(layer).parts(ops.convert_to_tensor(x))
    assert "".join(parts) == "xh" + zoo.FORMS[variant].gates + "y"
    assert_close(parts["y"], layer(x), 0)
    x, h, y = (ops.convert_to_numpy(parts[letter]) for letter in "xhy")
    t, c = (ops.convert_to_numpy(parts[g]) if g in parts else None for g in "tc")
    # two evaluations of the same float32 formula, values of 10
    assert_close(y, zoo.FORMS[variant].combine(h, x, t, c), 2e-6)


def test_a_gate_starts_at_its_logit_plus_a_draw_as_kims_does():
    draw = Uniform(0.05)
    h, t, c = biases(zoo.HighwayDense(variant="full", bias_initializer=draw))
    for bias, logit in ((h, 0), (t, -2), (c, 2)):
        assert np.abs(bias - logit).max() < 0.05
        assert np.std(bias) > 0.02  # of U(-.05, .05): .0289
    assert np.abs(t + 2 - h).max() > 0.01 and np.abs(t + 2 - (c - 2)).max() > 0.01  # own draws


def test_a_gate_bias_is_a_logit_plus_a_draw():
    seeded = Uniform(0.05, seed=3)
    assert_close(GateBias(-2.0, seeded)((50,)), seeded((50,)) - 2.0, 0)
    assert_close(GateBias(1.5)((3,)), np.full(3, 1.5), 0)
    again = GateBias.from_config(json.loads(json.dumps(GateBias(-2.0, seeded).get_config())))
    assert_close(again((50,)), GateBias(-2.0, seeded)((50,)), 0)


def test_another_width_is_an_error_that_says_what_to_put_before():
    with pytest.raises(ValueError, match=r"units=5, input shape=\(2, 4\).*Put a Dense\(5\)"):
        zoo.HighwayDense(5)(inputs(2, 4))
    for units in (0, -1, 2.5, "4"):
        with pytest.raises(ValueError, match="`units` must be a positive integer"):
            zoo.HighwayDense(units)


def test_an_unknown_variant_is_an_error_at_construction():
    with pytest.raises(ValueError, match="`variant` must be one of.*'coupled'"):
        zoo.HighwayDense(variant="gated")


def test_a_layer_made_from_its_config_computes_the_same():
    layer = zoo.HighwayDense(
        4,
        "tanh",
        "full",
        -3.0,
        kernel_initializer="he_normal",
        bias_initializer=Uniform(0.05),
        stage=2,
        name="block03",
    )
    layer.build((None, 4))
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == layer.get_config()
    assert (again.stage, again.gate_bias, again.name) == (2, -3.0, "block03")
    again.set_weights(random_weights(layer).get_weights())
    x = inputs(3, 4)
    assert_close(again(x), layer(x), 0)


def test_two_layers_live_in_one_model_and_weight_paths_name_the_gates(tmp_path):
    x = keras.Input((4,))
    y = zoo.HighwayDense(variant="full", name="block01")(x)
    y = zoo.HighwayDense(variant="full", name="block02")(y)
    model = keras.Model(x, zoo.HighwayDense()(zoo.HighwayDense()(y)))
    paths = [w.path for w in model.weights]
    assert len(set(paths)) == len(paths) == 6 + 6 + 4 + 4
    branches = "transform", "transform_gate", "carry_gate"
    assert paths[:6] == [f"block01/{b}/{w}" for b in branches for w in ("kernel", "bias")]
    assert "block02/transform_gate/kernel" in paths
    random_weights(model)
    model.save(tmp_path / "two.keras")
    again = keras.saving.load_model(tmp_path / "two.keras")
    assert_close(again(inputs(3, 4)), model(inputs(3, 4)), 0)


def test_branches_follow_the_layers_dtype_policy():
    layer = zoo.HighwayDense(variant="full", dtype="mixed_bfloat16")
    y = layer(inputs(3, 4))
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert {w.dtype for w in layer.weights} == {"float32"}
