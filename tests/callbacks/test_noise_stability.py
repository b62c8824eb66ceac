"""Cushions and dominance against Jacobians computed in NumPy."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference
from helpers.harness import few_elsewhere, slow_elsewhere
from helpers.reference_highway import norms
from zoo import callbacks

X = reference.images(3, 4, 4, 3)
Y = np.array([0, 1, 1])


@pytest.fixture(scope="module", params=few_elsewhere(["residual", "plain"], ["residual"]))
def model(request):
    """Two simplified blocks between a stem and a classifier."""
    block = zoo.SimplifiedResidual if request.param == "residual" else zoo.SimplifiedPlain
    inputs = keras.Input((4, 4, 3))
    x = layers.Conv2D(4, 1, activation="relu", name="stem")(inputs)
    for i in range(2):
        x = block(4, name=f"block{i}")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    top = layers.Dense(2, activation="softmax", name="top")(x)
    return reference.random_weights(keras.Model(inputs, top), scale=0.5)


def reference_run(model):
    """Return the blocks' inputs and the last output in NumPy, the weights, and True if residual."""
    w = {v.path: reference.as_float64(v)[0] for v in model.variables}
    x = reference.relu(reference.conv(X, w["stem/kernel"], w["stem/bias"]))
    states = [x]
    for i in range(2):
        h = reference.conv(x, w[f"block{i}/transform/kernel"], w[f"block{i}/transform/bias"])
        residual = isinstance(model.get_layer("block0"), zoo.SimplifiedResidual)
        x = reference.relu(h + x * residual)
        states.append(x)
    return states, w, residual


def test_the_layer_cushion_is_the_signal_s_gain_over_the_kernel_s_norm(model):
    states, w, residual = reference_run(model)
    table = callbacks.run([callbacks.LayerCushion(bins=20, largest=1.0)], model, X, batch_size=2)
    for i in range(2):
        kernel = w[f"block{i}/transform/kernel"]
        passed = reference.conv(states[i], kernel) + states[i] * residual
        cushion = norms(passed) / np.linalg.norm(kernel) / norms(states[i])
        value = table.values("layer_cushion")[f"block{i}"]
        np.testing.assert_allclose(value, cushion.mean(), rtol=1e-4)
        share = np.histogram(np.minimum(cushion, 0.999), 20, (0, 1))[0] / 3
        np.testing.assert_allclose(table.array("layer_cushion_histogram")[i], share, atol=1e-6)


@pytest.mark.parametrize("variant", ["residual", "plain"])
def test_a_fully_fledged_block_has_a_cushion_for_each_convolution(variant):
    inputs = keras.Input((4, 4, 8))
    x = zoo.ResidualBlock(8, variant=variant, use_bias=True, name="block")(inputs)
    top = layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    model = reference.random_weights(keras.Model(inputs, top), scale=0.5)
    w = {v.path.removeprefix("block/"): reference.as_float64(v)[0] for v in model.variables}
    images = reference.images(3, 4, 4, 8)
    x, cushions = images, []
    for i in (1, 2):
        scale, shift, mean, variance = (
            w[f"transform/norm{i}/{key}"]
            for key in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        z = (x - mean) / np.sqrt(variance + 1e-3) * scale + shift
        kernel, z = w[f"transform/conv{i}/kernel"], reference.relu(z)
        x = reference.conv(z, kernel)
        cushions.append(norms(x) / np.linalg.norm(kernel) / norms(z))
        x = x + w[f"transform/conv{i}/bias"]
    table = callbacks.run([callbacks.LayerCushion(5, 1.0)], model, images, batch_size=2)
    cushions = np.array(cushions)
    np.testing.assert_allclose(table.values("layer_cushion")["block"], cushions.mean(), rtol=1e-4)
    np.testing.assert_allclose(
        table.values("layer_cushion_std")["block"], cushions.std(), rtol=1e-3
    )
    share = np.histogram(np.minimum(cushions, 0.999), 5, (0, 1))[0] / cushions.size
    np.testing.assert_allclose(table.array("layer_cushion_histogram")[0], share, atol=1e-6)


@slow_elsewhere
def test_images_without_a_signal_bound_no_cushion_and_are_counted():
    inputs = keras.Input((4, 4, 4))
    x = zoo.SimplifiedPlain(4, name="block")(inputs)
    top = layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, top)
    lit = reference.images(3, 4, 4, 4)
    dark = np.concatenate([lit, np.zeros_like(lit[:1])])
    probes = [callbacks.LayerCushion(bins=5, largest=1.0)]

    def measured(x):
        cushions = callbacks.interlayer_cushions(model, x, projections=4)
        return callbacks.run(probes, model, x, batch_size=2) + cushions

    alone, mixed, nothing = (measured(x) for x in (lit, dark, dark[3:]))
    for probe in ("layer_cushion", "layer_cushion_std"):
        value = alone.values(probe)["block"]
        np.testing.assert_allclose(mixed.values(probe)["block"], value, rtol=1e-4)
        assert np.isnan(nothing.values(probe)["block"])
    shares = [table.array("layer_cushion_histogram") for table in (alone, mixed)]
    np.testing.assert_allclose(*shares, atol=1e-6)
    cushion = mixed.values("interlayer_cushion")["block"]
    assert np.isfinite(cushion) and np.isnan(nothing.values("interlayer_cushion")["block"])
    dead = [t.values("layer_cushion_dead")["block"] for t in (mixed, nothing)]
    assert dead == [0.25, 1]
    assert "layer_cushion_dead" not in alone.probes()


def jacobian(model, block, x):
    """d(output of a block)/d(its input) of an example, by central differences."""
    _, w, residual = reference_run(model)
    kernel, bias = (w[f"block{block}/transform/{key}"] for key in ("kernel", "bias"))

    def forward(v):
        v = reference.relu(reference.conv(v, kernel, bias) + v * residual)
        return v.reshape(len(v), -1)

    steps = 1e-6 * np.eye(x.size).reshape(-1, *x.shape[1:])
    return (forward(x + steps) - forward(x - steps)).T / 2e-6


def test_the_interlayer_cushion_agrees_with_the_exact_jacobian(model):
    states, _, _ = reference_run(model)
    table = callbacks.interlayer_cushions(model, X, projections=400, batch_size=2)
    for i in range(2):
        values = []
        for x in states[i]:
            j = jacobian(model, i, x[None])
            values.append(4 * np.linalg.norm(j @ x.ravel()) / np.linalg.norm(j) / np.linalg.norm(x))
        mean = table.values("interlayer_cushion")[f"block{i}"]
        assert abs(mean / np.mean(values) - 1) < 0.04


def test_few_projections_do_not_bias_the_interlayer_cushion():
    """A diagonal map of rank two; its cushion is known, and 2,000 examples share it."""
    inputs = keras.Input((2, 2, 4))
    scale = layers.Conv2D(4, 1, use_bias=False, name="f")
    model = keras.Model(inputs, layers.Add(name="sum")([inputs, scale(inputs)]))
    scale.set_weights([np.diag([0.0, 0.0, -1.0, -1.0]).reshape(1, 1, 4, 4)])
    x = np.zeros((2000, 2, 2, 4), "float32")
    x[:, 0, 0, 0] = 1.0  # |J x| / |x| = 1, |J|_F^2 = 2 * 4, n1 n2 = 4
    table = callbacks.interlayer_cushions(model, x, projections=8, batch_size=500)
    exact = np.sqrt(4 / 8)
    assert abs(table.values("interlayer_cushion")["sum"] / exact - 1) < 0.02


def test_dominance_compares_a_channel_s_own_feature_with_all_others(model):
    states, w, residual = reference_run(model)
    table = callbacks.dominant_flow(model, (X, Y), batch_size=2)
    features = states[2].mean((1, 2))
    z = features @ w["top/kernel"] + w["top/bias"]
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    c = (p - np.eye(2)[Y]) @ w["top/kernel"].T  # dL/df, (examples, features)
    shares = []
    for n, x in enumerate(states[1]):
        j = jacobian(model, 1, x[None]).reshape(16, 4, 16, 4).mean(0)  # feature, place, channel
        g = c[n][:, None, None] * j
        own = np.abs(g[np.arange(4), :, np.arange(4)])  # (channel, place)
        rest = np.abs(g.sum(0).T - g[np.arange(4), :, np.arange(4)])
        with np.errstate(divide="ignore", invalid="ignore"):
            r = np.where(own < 1e-9, 0.0, own / np.maximum(rest, 1e-30)).mean(1)
        shares.append((r > 1).mean())
    np.testing.assert_allclose(table.values("dominant_flow")["block0"], np.mean(shares), atol=1e-6)
    assert [*table.values("dominant_flow")] == ["block0"]  # after the last, channels are features
    auxiliary = layers.Dense(3)(layers.Dense(2)(layers.Dense(2)(model.output)))  # a later output
    both = keras.Model(model.input, [model.output, auxiliary])
    again = callbacks.dominant_flow(both, (X, Y), loss="sparse_categorical_crossentropy")
    assert again.values("dominant_flow") == table.values("dominant_flow")


@pytest.mark.parametrize("relu", [layers.ReLU, lambda: layers.Activation("relu"), lambda: ops.relu])
def test_dominance_is_of_the_activation_after_the_sum_s_relu(relu):
    inputs = keras.Input((4, 4, 3))
    x = y = inputs
    for index in range(2):
        x = zoo.SimplifiedResidual(3, name=f"block{index}")(x)
        y = relu()(layers.Add(name=f"block{index}")([y, layers.Conv2D(3, 3, padding="same")(y)]))
    inside, after = (
        keras.Model(inputs, layers.Dense(2, "softmax")(layers.GlobalAveragePooling2D()(end)))
        for end in (x, y)
    )
    reference.random_weights(inside)
    after.set_weights(inside.get_weights())
    data = reference.images(5, 4, 4, 3), np.arange(5) % 2
    tables = [callbacks.dominant_flow(model, data) for model in (inside, after)]
    pair = [[row.value for row in table] for table in tables]
    np.testing.assert_allclose(*pair, rtol=1e-3)


def test_cushions_and_dominance_of_channels_first_are_refused():
    inputs = keras.Input((3, 4, 4))
    x = keras.layers.Conv2D(3, 3, padding="same", data_format="channels_first")(inputs)
    first = keras.Model(inputs, keras.layers.Add()([inputs, x]))
    top = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(first.output)))
    with pytest.raises(ValueError, match="channels_last in conv2d"):
        callbacks.dominant_flow(top, (np.zeros((1, 3, 4, 4), "float32"), np.zeros(1)))
    data = np.zeros((1, 3, 4, 4), "float32")
    with pytest.raises(ValueError, match="channels_last in conv2d"):
        callbacks.interlayer_cushions(first, data)
    with pytest.raises(ValueError, match="channels_last in conv2d"):
        callbacks.run([callbacks.LayerCushion()], first, data)


def test_the_layer_cushion_of_a_quantized_kernel_is_refused():
    inputs = keras.Input((4,))
    x = layers.Dense(4, name="branch")(inputs)
    model = keras.Model(inputs, layers.Add()([inputs, x]))
    model.get_layer("branch").quantize("int8")
    with pytest.raises(ValueError, match="float kernel in branch"):
        callbacks.run([callbacks.LayerCushion()], model, np.ones((2, 4), "float32"))


def test_images_of_an_unknown_size_have_the_interlayer_cushion_of_a_known_one():
    kernel = np.random.default_rng(0).normal(size=(3, 3, 2, 2)).astype("float32")
    tables = []
    for side in (4, None):
        inputs = keras.Input((side, side, 2))
        x = keras.layers.Conv2D(2, 3, padding="same", name="conv")(inputs)
        model = keras.Model(inputs, keras.layers.Add(name="sum")([inputs, x]))
        model.set_weights([kernel, np.zeros(2)])
        tables.append(callbacks.interlayer_cushions(model, reference.images(3, 4, 4, 2)))
    known, unknown = (table.values("interlayer_cushion") for table in tables)
    assert known == pytest.approx(unknown, rel=1e-5)


def test_bad_input_of_noise_probes(model):
    with pytest.raises(ValueError, match="2 or more"):
        callbacks.interlayer_cushions(model, X, projections=1)
    with pytest.raises(ValueError, match="without labels"):
        callbacks.dominant_flow(model, X)
    with pytest.raises(ValueError, match="Expected at least one example"):
        callbacks.interlayer_cushions(model, X[:0])
    with pytest.raises(ValueError, match="defined for convolutions"):
        deep = zoo.highway_mlp(3, 4, input_shape=(5,))
        callbacks.run([callbacks.LayerCushion()], deep, reference.images(2, 5))
