"""Masks reach the layers behind blocks, also in lesions, unrolled networks, traces and probes."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference
from helpers.reference_highway import cosines
from zoo import callbacks
from zoo.io import load_model

IDS = np.array([[1, 2, 0, 0, 0], [3, 4, 5, 6, 0]])  # 0 is padding
MASK = (IDS != 0)[..., None]
LABELS = np.array([1, 2])


@pytest.fixture
def model():
    """An embedding with a mask, two highway layers and the mean over the words."""
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(7, 4, mask_zero=True, name="words")(inputs)
    for i in range(2):
        x = zoo.HighwayDense(variant="full", name=f"block{i}")(x)
    x = layers.GlobalAveragePooling1D()(x)
    outputs = layers.Dense(3, "softmax", name="top")(x)
    return reference.random_weights(keras.Model(inputs, outputs))


def array(x):
    return np.array(ops.convert_to_numpy(x))


def end(model, x):
    """Return the probabilities from the last block's output: a mean without the padding."""
    return array(model.get_layer("top")((array(x) * MASK).sum(1) / MASK.sum(1)))


def loss(probabilities):
    return -np.log(probabilities[np.arange(2), LABELS]).mean()


def states(model):
    """Return the blocks, the first one's input and its output."""
    block0, block1 = model.get_layer("block0"), model.get_layer("block1")
    x = array(model.get_layer("words")(IDS))
    return block0, block1, x, array(block0(x))


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", [zoo.HighwayDense(), zoo.HighwayDenseStack(3)])
def test_a_mask_passes_a_highway_layer(layer):
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, layers.LSTM(2)(layer(layers.Masking()(inputs))))
    x = reference.images(2, 5, 4)
    x[:, 3:] = 0  # masked
    close(array(model(x)), array(model(x[:, :3])))


def test_changed_networks_keep_the_mask(model, tmp_path):
    _, block1, _, y = states(model)
    z = array(block1(y))
    closed = zoo.graph.lesion(model, "block1", mode="closed")
    close(array(closed(IDS)), end(model, y * array(block1.carry_gate(y))))
    close(array(zoo.graph.lesion(model, "block1")(IDS)), end(model, y))
    twice = z + 0.5 * (array(block1(z)) - z)
    close(array(zoo.graph.loop(model, "block1", times=2, scale=0.5)(IDS)), end(model, twice))
    close(array(zoo.graph.rewire(model)(IDS)), array(model(IDS)))
    closed.save(tmp_path / "closed.keras")
    close(array(load_model(tmp_path / "closed.keras")(IDS)), array(closed(IDS)))


def test_lesions_are_measured_with_the_mask(model):
    block0, block1, x, y = states(model)
    data = IDS, LABELS
    expected = [end(model, block1(y)), end(model, block1(x)), end(model, y)]
    actual = callbacks.lesions(model, data).values("lesion_loss")
    close([*actual.values()], [*map(loss, expected)])


def test_gradients_are_measured_with_the_mask(model):
    block0, block1, x, y = states(model)
    gradient = np.zeros_like(y)
    for index in np.ndindex(*y.shape):
        step = np.zeros_like(y)
        step[index] = 1e-2
        ends = [end(model, block1(y + sign * step)) for sign in (1, -1)]
        gradient[index] = (loss(ends[0]) - loss(ends[1])) / 2e-2
    f = array(block1(y)) - y
    f[IDS == 0] = gradient[IDS == 0] = 0  # hidden
    expected = cosines(f.reshape(2, -1), gradient.reshape(2, -1)).mean()
    actual = callbacks.run([callbacks.CosineLoss()], model, (IDS, LABELS)).values("cosine_loss")
    np.testing.assert_allclose(actual["block1"], expected, atol=2e-3)  # finite differences


def test_attention_and_recurrent_layers_see_the_mask_in_changed_networks_and_exits():
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(7, 4, mask_zero=True)(inputs)
    x = layers.Add(name="sum0")([x, layers.Dense(4)(x)])
    x = layers.Add(name="sum1")([x, layers.MultiHeadAttention(2, 2)(x, x)])  # takes x's mask off
    model = keras.Model(inputs, layers.Dense(3, "softmax")(layers.LSTM(4)(x)))
    reference.random_weights(model)
    expected = array(model(IDS))
    close(array(zoo.graph.loop(model, times=1)(IDS)), expected)
    close(array(zoo.graph.add_exits(model, ["sum0"])(IDS)["last"]), expected)
    graph = zoo.graph.calls.Graph(model)
    close(array(graph.run(graph.start(IDS))[graph.outputs[0]]), expected)


@pytest.mark.parametrize("is_layer", [True, False])
def test_a_block_without_effect_leaves_the_masks_behind_it_as_they_were(is_layer, tmp_path):
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(7, 4, mask_zero=True)(inputs)
    f = layers.Dense(4, kernel_initializer="zeros", name="f")(x)
    y = layers.LSTM(4)(layers.Add(name="sum")([x, f]) if is_layer else x + f)  # + has no mask
    model = keras.Model(inputs, layers.Dense(3, "softmax")(y))
    lesioned = zoo.graph.lesion(model, "sum" if is_layer else "f_sum")
    close(lesioned.predict(IDS, verbose=0), model.predict(IDS, verbose=0))
    lesioned.save(tmp_path / "lesioned.keras")
    close(array(load_model(tmp_path / "lesioned.keras")(IDS)), model.predict(IDS, verbose=0))
    assert callbacks.lesions(model, (IDS, LABELS)).values("lesion_kl").popitem()[1] < 1e-12


class Masked(layers.Layer):
    """A layer with a sum inside, which passes its mask on."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, shape):
        self.dense = layers.Dense(shape[-1], kernel_initializer="zeros", dtype="float32")
        self.dense.build(shape)

    def call(self, x):
        return x + self.dense(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: zoo.graph.lesion(m, "f_sum"),
        lambda m: zoo.graph.loop(m, "f_sum", scale=0.5),
        lambda m: zoo.graph.drop_blocks(m, {"f_sum": 0.5}),
        zoo.graph.inline,
    ],
    ids=["lesion", "loop", "drop_blocks", "inline"],
)
def test_changed_networks_keep_their_precision_whatever_the_global_policy(change):
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(7, 4, "uniform", mask_zero=True, dtype="float32", name="words")(inputs)
    x = x + layers.Dense(4, kernel_initializer="zeros", dtype="float32", name="f")(x)
    y = layers.Embedding(7, 4, mask_zero=True, dtype="float32")(inputs)
    model = keras.Model(inputs, [x, Masked(dtype="float32")(y)])
    model.get_layer("words").set_weights([np.full((7, 4), 1e5)])  # more than float16 holds
    expected = [*map(array, model(IDS))]
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        changed = [*map(array, change(model)(IDS))]
    finally:
        keras.config.set_dtype_policy(policy)
    for new, old in zip(changed, expected, strict=True):
        assert new.dtype == np.float32
        np.testing.assert_allclose(new, old)


def test_a_sweep_refuses_examples_of_padding_alone():
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(7, 4, mask_zero=True)(inputs)
    x = layers.Add(name="sum")([x, layers.Dense(4)(x)])
    model = keras.Model(inputs, layers.Dense(3, "softmax")(x))
    with pytest.raises(ValueError, match="Leave out examples of padding alone"):
        callbacks.lesions(model, np.concatenate([IDS, 0 * IDS[:1]]))
