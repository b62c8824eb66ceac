"""ResidualBlock and its normalization equal their NumPy reference, in every order and form."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import assert_close, gradients
from helpers.harness import run_layer_test
from helpers.reference import (
    as_float64,
    conv,
    images,
    normalized,
    random_weights,
    relu,
    sigmoid,
    skip_sum,
)
from zoo.layers.batch_norm import batch_statistics

BLOCKS = {
    "basic": {"filters": 3},
    "opening": {"filters": 4, "strides": 2, "use_bias": True},
    "plain": {"filters": 4, "strides": 2, "variant": "plain"},
    "v1": {"filters": 2, "strides": 2, "bottleneck": True, "preactivation": False},
    "v1_basic": {"filters": 3, "preactivation": False},  # Yu & Tomasi, section 5
    "v1_opening": {"filters": 4, "strides": 2, "preactivation": False},
    "v1_plain": {"filters": 4, "strides": 2, "preactivation": False, "variant": "plain"},
    "v1_bare": {"filters": 2, "bottleneck": True, "preactivation": False, "batch_norm": False},
    "highway": {"filters": 1, "bottleneck": True, "preactivation": False, "variant": "coupled"},
    "highway_full": {
        "filters": 2,
        "bottleneck": True,
        "preactivation": False,
        "variant": "full",
        "closing_relu": True,
    },
    "gated_preactivation": {"filters": 3, "variant": "full"},
}


def reference_branch(block, branch, x, closes):
    """Return H, T or C: two or three convolutions, normalized and rectified; inference."""
    convs = [layer for layer in branch.layers if isinstance(layer, keras.layers.Conv2D)]
    norms = [v for v in branch.layers if isinstance(v, keras.layers.BatchNormalization)]
    for i, layer in enumerate(convs):
        weights = [*layer.weights, 0.0][:2]
        strides = block.strides if i == 0 else 1

        def normalize(x, i=i):
            return normalized(x, *as_float64(*norms[i].weights)) if norms else x

        if block.preactivation:
            x = conv(relu(normalize(x)), *weights, strides)
        else:
            x = normalize(conv(x, *weights, strides))
            x = relu(x) if i < len(convs) - 1 or closes else x
    return x


def reference_output(block, x):
    h = reference_branch(block, block.transform, x, block.closing_relu)
    t, c = (
        sigmoid(reference_branch(block, gate, x, False)) if gate else None
        for gate in (block.transform_gate, block.carry_gate)
    )
    if block.shortcut:
        projection, *norm = block.shortcut.layers
        x = conv(x, *[*projection.weights, 0.0][:2], block.strides)
        x = normalized(x, *as_float64(*norm[0].weights)) if norm else x
    elif block.variant == "plain":
        x = 0.0
    return skip_sum(block.variant, h, x, t, c)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_equals_its_numpy_reference(name):
    block, x = zoo.ResidualBlock(**BLOCKS[name]), images(2, 4, 4, 3 if name != "highway" else 4)
    block.build(x.shape)
    y = random_weights(block, scale=0.5)(x)
    assert tuple(y.shape) == block.compute_output_shape(x.shape)
    assert_close(y, reference_output(block, x), 2e-5)  # float32 sums of 36 products, values of 10


@pytest.mark.parametrize("name", ["opening", "plain", "v1_bare", "highway_full"])  # each argument
def test_a_block_is_a_keras_layer(name):
    run_layer_test(
        zoo.ResidualBlock,
        {**BLOCKS[name], "stage": 3},
        input_shape=(2, 4, 4, 3),
        expected_num_seed_generators=0,
        expected_num_losses=0,
    )


def test_a_block_that_keeps_its_shape_carries_its_input_itself():
    block, x = zoo.ResidualBlock(3), ops.convert_to_tensor(images(2, 4, 4, 3))
    block.build(x.shape)
    assert block.parts(x, training=False)["x"] is x
    assert block.shortcut is None and not block.opens_stage
    opening = zoo.ResidualBlock(4, strides=2)
    opening.build(x.shape)
    parts = opening.parts(x, training=False)
    assert opening.opens_stage and tuple(parts["x"].shape) == (2, 2, 2, 4)
    assert_close(opening(x, training=False), parts["h"] + parts["x"], 1e-6)


def test_a_projection_is_normalized_only_after_activation_blocks():
    for preactivation, names in ((True, ["conv"]), (False, ["conv", "norm"])):
        block = zoo.ResidualBlock(4, 2, preactivation=preactivation)
        block.build((None, 8, 8, 3))
        assert [layer.name for layer in block.shortcut.layers] == names


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"preactivation": False}, "norm2/beta"),
        ({"preactivation": False, "batch_norm": False}, "conv2/bias"),
        ({"preactivation": True}, "conv2/bias"),
    ],
)
def test_a_gate_starts_at_its_logit_where_nothing_normalizes_it_away(settings, where):
    block = zoo.ResidualBlock(4, variant="full", gate_bias=-1.0, **settings)
    block.build((None, 8, 8, 4))
    start = {f"{gate}/{where}": b for gate, b in (("transform_gate", -1.0), ("carry_gate", 1.0))}
    actual = {}
    for weight in block.weights:
        name = weight.path.split("/", 1)[1]
        values = set(ops.convert_to_numpy(weight).ravel())
        if name.endswith(("bias", "beta")) and values != {0.0}:
            actual[name] = values.pop()
    assert actual == start


def test_closed_gates_carry_through_a_whole_bottleneck():
    block = zoo.ResidualBlock(
        2, bottleneck=True, preactivation=False, variant="coupled", gate_bias=-100.0
    )
    x, dy = images(2, 4, 4, 8), images(2, 4, 4, 8, seed=7)
    assert_close(block(x), x, 0)  # sigmoid(-100) is 4e-44
    (dx,) = gradients(lambda x: ops.sum(ops.multiply(block(x), dy)), [x])
    assert_close(dx, dy, 0)


def test_a_frozen_normalization_keeps_its_averages():
    layer, x = zoo.UnsharedBatchNormalization(uses=2, trainable=False), images(4, 3, 3, 2)
    assert_close(layer(x, training=True, use=1), layer(x, use=1), 0)
    for statistics in layer.statistics:
        assert_close(as_float64(*statistics.weights), [np.zeros(2), np.ones(2)], 0)


def test_training_normalizes_by_the_batch_and_moves_the_averages():
    layer, x = zoo.UnsharedBatchNormalization(uses=2, gamma=0.1), images(4, 3, 3, 2)
    layer.build(x.shape)
    ours = layer(x, training=True, use=1)
    assert_close(ours, normalized(x.astype("float64"), 0.1, 0.0), 1e-6)  # values below 1
    keras_layer = keras.layers.BatchNormalization(
        gamma_initializer=keras.initializers.Constant(0.1)
    )
    assert_close(ours, keras_layer(x, training=True), 1e-6)
    first, second = (as_float64(*statistics.weights) for statistics in layer.statistics)
    assert_close(first, [np.zeros(2), np.ones(2)], 0)  # the other use saw nothing
    assert_close(second, as_float64(*keras_layer.non_trainable_variables), 1e-6)
    assert_close(layer(x, use=1), keras_layer(x), 1e-6)


@pytest.mark.parametrize(
    ("share", "num_statistics", "num_affine"),
    [((), 3, 3), (("statistics",), 1, 3), (("affine",), 3, 1), (("statistics", "affine"), 1, 1)],
)
def test_each_part_of_unshared_normalization_can_be_shared(share, num_statistics, num_affine):
    layer = zoo.UnsharedBatchNormalization(3, share, gamma=0.1)
    layer.build((None, 2, 2, 5))
    assert len(layer.trainable_variables) == 2 * num_affine
    assert len(layer.non_trainable_variables) == 2 * num_statistics
    x = images(2, 2, 2, 5)
    layer(x, training=True, use=2)
    moved = [np.abs(as_float64(v.weights[0])[0]).max() > 0 for v in layer.statistics]
    assert moved == [False] * (num_statistics - 1) + [True]
    layer.gammas[-1].assign(np.full(5, 7.0))
    scales = [np.abs(ops.convert_to_numpy(layer(x, use=use))).max() > 2 for use in range(3)]
    assert scales == ([False, False, True] if num_affine == 3 else [True] * 3)


@pytest.mark.parametrize("share", [(), ("statistics",)])
def test_batch_statistics_are_the_averages_within_the_context(share):
    inputs, x = keras.Input((3, 3, 2)), 5 + 2 * images(4, 3, 3, 2)
    layer = zoo.UnsharedBatchNormalization(2, share, gamma=0.5)
    first = layer(keras.layers.BatchNormalization()(inputs), use=0)
    model = keras.Model(inputs, layer(first, use=1))
    start, training = model.get_weights(), model(x, training=True)
    model.set_weights(start)
    with batch_statistics(model, x):
        mean, variance = as_float64(*model.layers[1].non_trainable_variables)
        assert_close(mean, x.mean((0, 1, 2)), 1e-4)  # of 5: float32, magnified by 1 / (1 - 0.99)
        if not share:
            assert_close(model(x), training, 1e-3)
        else:  # variances 1 and 0.25, the earlier weighing 0.99 of the later
            (statistics,) = layer.statistics
            mean, variance = as_float64(*statistics.non_trainable_variables)
            assert_close(variance, np.full(2, (0.99 * 1 + 0.25) / 1.99), 2e-2)
    assert all(map(np.array_equal, model.get_weights(), start))


def test_batch_statistics_are_the_mean_over_all_uses_of_a_normalization():
    inputs, x = keras.Input((2,)), 5 + 2 * images(64, 2)
    shared = keras.layers.BatchNormalization(momentum=0.5)
    model = keras.Model(inputs, shared(3 * shared(inputs) + 1))
    with batch_statistics(model, x):
        (mean, _) = as_float64(*shared.non_trainable_variables)
        assert_close(mean, (0.5 * x.mean(0) + 1) / 1.5, 1e-3)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="other random states are variables")
def test_batch_statistics_leave_the_masks_of_dropout_as_they_would_be():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    x = images(4, 8)
    zoo.seed_everything(1)
    expected = model(x, training=True)
    zoo.seed_everything(1)
    with batch_statistics(model, x):
        pass
    assert_close(model(x, training=True), expected, 1e-6)


def test_unshared_normalization_is_a_keras_layer():
    run_layer_test(
        zoo.UnsharedBatchNormalization,
        {"uses": 2, "share": ("affine",), "gamma": 0.1, "beta": -1.0},
        input_shape=(2, 3, 3, 4),
        expected_output_shape=(2, 3, 3, 4),
        expected_num_trainable_weights=2,
        expected_num_non_trainable_weights=4,
    )


def test_uses_share_convolutions_and_nothing_else():
    block, x = zoo.ResidualBlock(3, uses=2), images(2, 4, 4, 3)
    y = [ops.convert_to_numpy(block(x, use=use)).copy() for use in range(2)]
    assert_close(y[0], y[1], 0)  # they start alike
    for norm in (v for v in block.transform.layers if "norm" in v.name):
        norm.betas[1].assign(np.full(3, 1.0))
    assert_close(block(x, use=0), y[0], 0)
    assert np.abs(ops.convert_to_numpy(block(x, use=1)) - y[1]).max() > 0.1
    names = [w.path.split("/", 2)[2] for w in block.weights if "conv" in w.path]
    assert names == ["conv1/kernel", "conv2/kernel"]


def test_bad_arguments_say_what_to_do():
    with pytest.raises(ValueError, match="`strides` must be a positive integer.*strides=0"):
        zoo.ResidualBlock(4, strides=0)
    with pytest.raises(ValueError, match="used 2 times: put a block with uses=1 before"):
        zoo.ResidualBlock(4, uses=2)(images(2, 4, 4, 3))
    with pytest.raises(ValueError, match="one of 2 uses.*use=2"):
        zoo.ResidualBlock(3, uses=2)(images(2, 4, 4, 3), use=2)
    with pytest.raises(ValueError, match=r"that of images.*input_shape=\(2, 3\)"):
        zoo.ResidualBlock(3)(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="`variant` must be one of"):
        zoo.ResidualBlock(3, variant="gated")
    with pytest.raises(ValueError, match="any of .'statistics', 'affine'.*share='affine'"):
        zoo.UnsharedBatchNormalization(2, "affine")
    zoo.ResidualBlock(3, uses=2, share=frozenset({"affine"})).build((None, 4, 4, 3))
    with pytest.raises(ValueError, match="`uses` must be a positive integer"):
        zoo.UnsharedBatchNormalization(0)
    with pytest.raises(ValueError, match="2 uses, from 0. Make .* Received: use=2"):
        zoo.UnsharedBatchNormalization(2)(images(2, 2, 2, 3), use=2)


@pytest.mark.parametrize("uses", [1, 2])
def test_moving_averages_keep_the_share_that_momentum_says(uses):
    block = zoo.ResidualBlock(3, uses=uses, momentum=0.75)
    block.build((None, 4, 4, 3))
    x = images(8, 4, 4, 3) + 2
    block(x, training=True)
    (mean, *_) = [w for w in block.transform.layers[0].weights if "moving_mean" in w.path]
    expected = 0.25 * x.mean((0, 1, 2))
    np.testing.assert_allclose(ops.convert_to_numpy(mean), expected, rtol=1e-5)
    again = zoo.ResidualBlock.from_config(block.get_config())
    assert again.momentum == 0.75
