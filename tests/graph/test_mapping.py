"""Plain and residual blocks and networks map onto each other exactly, and back, and train alike."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import assert_close, gradients
from helpers.harness import slow_elsewhere
from helpers.reference import images, random_weights
from zoo import mapping
from zoo.initializers import HardtMa, KaimingNormal
from zoo.layers.simplified import SimplifiedPlain, SimplifiedResidual, id_entries
from zoo.regularizers import penalize, penalty

SHAPES = [(4, 1, "pad"), (8, 2, "pad"), (8, 2, "duplicate"), (6, 1, "pad")]


@pytest.fixture
def float64(backend):
    """Keras in double precision, where what is exact shows; JAX has to be told, too."""

    def use(precision):
        keras.config.set_floatx(precision)
        keras.config.set_dtype_policy(precision)
        if backend == "jax":
            import jax

            jax.config.update("jax_enable_x64", precision == "float64")

    use("float64")
    yield
    use("float32")


@pytest.mark.parametrize(
    ("depth", "identity", "count"),
    [(20, "pad", 624), (32, "pad", 1072), (44, "pad", 1520)]
    + [(20, "duplicate", 672), (32, "duplicate", 1120), (44, "duplicate", 1568)],
)
def test_a_network_has_as_many_id_entries_as_the_card_counts(depth, identity, count):
    model = zoo.simplified_plain_net(depth, identity=identity)
    kernels = [v.transform.kernel for v in model.layers if isinstance(v, SimplifiedPlain)]
    assert sum(len(id_entries(k.shape, identity)[0]) for k in kernels) == count


@pytest.mark.parametrize(("filters", "strides", "identity"), SHAPES)
def test_a_mapped_block_has_the_same_outputs_and_gradients(float64, filters, strides, identity):
    residual = SimplifiedResidual(filters, strides=strides, identity=identity, stage=2)
    x = images(2, 6, 6, 4).astype("float64")
    residual.build(x.shape)
    plain = mapping.to_plain(random_weights(residual, scale=0.3))
    assert isinstance(plain, SimplifiedPlain) and (plain.stage, plain.name) == (2, residual.name)
    assert_close(plain(x), residual(x), 1e-12)  # values of 10, sums of 36 products in float64
    dy = images(*plain(x).shape, seed=5).astype("float64")
    found = [
        gradients(
            lambda x, block=block: ops.sum(ops.multiply(block(x), dy)),
            [x],
            block.trainable_weights,
        )
        for block in (plain, residual)
    ]
    assert_close(*found, 1e-12)


@pytest.mark.parametrize("identity", ["pad", "duplicate"])
def test_a_mapped_network_has_the_same_outputs_and_maps_back(float64, identity):
    residual = zoo.simplified_residual_net(11, identity=identity)
    plain = mapping.to_plain(residual)
    x = images(2, 32, 32, 3).astype("float64")
    assert not [v for v in plain.layers if isinstance(v, SimplifiedResidual)]
    assert_close(plain(x), residual(x), 1e-12)
    again = mapping.to_residual(plain)
    assert_close(again.get_weights(), residual.get_weights(), 1e-15)  # 1 + w - 1: half an ulp of 1
    assert [layer.name for layer in again.layers] == [layer.name for layer in residual.layers]
    with pytest.raises(ValueError, match="plain already"):
        mapping.to_plain(plain)


def test_any_convolution_beside_an_identity_maps_and_maps_back(float64):
    conv = keras.layers.Conv2D(3, 3, padding="same")
    conv.build((None, 5, 5, 3))
    random_weights(conv, scale=0.3)
    residual = mapping.to_residual(conv)
    plain = mapping.to_plain(residual)
    x = images(2, 5, 5, 3).astype("float64")
    for model in (residual, plain):
        assert_close(model(x), conv(x), 1e-12)
    assert not [v for v in plain.layers if isinstance(v, keras.layers.Add)]
    assert_close(plain.get_weights(), conv.get_weights(), 1e-15)
    dy = images(2, 5, 5, 3, seed=5).astype("float64")
    found = [
        gradients(lambda x, f=f: ops.sum(ops.multiply(f(x), dy)), [x], f.trainable_weights)
        for f in (residual, plain)
    ]
    assert_close(*found, 1e-12)


def test_what_has_no_mapping_says_why():
    inputs = keras.Input((6, 6, 4))
    x = SimplifiedResidual(4, name="first")(inputs)
    gated = zoo.ResidualBlock(4, name="second")(x)
    with pytest.raises(ValueError, match="second: the branch of a ResidualBlock has a normalisa"):
        mapping.to_plain(keras.Model(inputs, gated))
    strided = keras.layers.Conv2D(4, 3, 2, padding="same")(inputs)
    short = keras.layers.AveragePooling2D(1, 2)(inputs)
    model = keras.Model(inputs, keras.layers.Add(name="sum")([short, strided]))
    with pytest.raises(ValueError, match="sum: strides .* centre the kernel beside the pixels"):
        mapping.to_plain(model)
    valid = keras.layers.Conv2D(4, 3)
    valid.build((None, 6, 6, 4))
    with pytest.raises(ValueError, match="keeps shape and channels"):
        mapping.to_residual(valid)
    even = keras.layers.Conv2D(4, 2, padding="same")
    even.build((None, 6, 6, 4))
    with pytest.raises(ValueError, match="centre|odd"):
        mapping.to_residual(even)


@pytest.mark.parametrize(
    "initializer", [HardtMa, pytest.param(KaimingNormal, marks=slow_elsewhere)]
)
def test_equivalent_networks_train_alike_for_200_steps(float64, initializer):
    # Card G.4: the same batches, a penalty of phi(theta_r), any optimizer that sees gradients
    # only; theta_p(t) stays phi(theta_r(t)), in float64 up to rounding.
    zoo.seed_everything(0)
    residual = zoo.simplified_residual_net(5, initializer=initializer())
    plain = mapping.to_plain(residual)
    x, y = images(16, 32, 32, 3).astype("float64"), np.arange(16) % 10
    start = plain.get_weights()
    for model in (residual, plain):
        penalize(model, 1e-3, transferred=True)
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
        model.compile(optimizer, "sparse_categorical_crossentropy")
        model.fit(x, y, batch_size=4, epochs=50, shuffle=False, verbose=0)
    moved = max(np.abs(a - b).max() for a, b in zip(start, plain.get_weights(), strict=True))
    assert moved > 0.05
    assert_close(mapping.to_plain(residual).get_weights(), plain.get_weights(), 1e-9)


def test_without_the_transferred_penalty_they_part(float64):
    residual = zoo.simplified_residual_net(5)
    plain = mapping.to_plain(residual)
    costs = [penalty(penalize(model, 1e-3, moved))
             for model, moved in ((plain, True), (residual, True), (residual, False))]  # fmt: skip
    assert costs[0] == pytest.approx(costs[1], rel=1e-12) and costs[2] < 0.5 * costs[1]


@pytest.mark.parametrize(
    ("depth", "expected", "printed"),
    [(20, 5.388e-4, 5.393e-4), (32, 8.888e-4, 8.878e-4), (44, 1.2388e-3, 1.238e-3)],
)
def test_penalties_at_the_start_are_those_of_table_4(depth, expected, printed):
    costs = []
    for seed in range(3):
        zoo.seed_everything(seed)
        model = zoo.simplified_plain_net(depth)
        top = model.get_layer("predictions").kernel  # the framework's default there, U(-1/8, 1/8)
        top.assign(np.random.default_rng(seed).uniform(-1 / 8, 1 / 8, top.shape))
        costs.append(penalty(penalize(model)))
    assert np.mean(costs) == pytest.approx(expected, rel=0.006)  # a draw's deviation: 0.004
    assert expected == pytest.approx(printed, rel=0.002)


@pytest.mark.parametrize(
    ("shape", "identity", "message"),
    [
        ((2, 2, 4, 4), "pad", "an odd side. Received: shape .2, 2, 4, 4"),
        ((3, 1, 4, 4), "pad", "an odd side"),
        ((3, 3, 4, 2), "pad", "from 4 channels to 2 filters holds no identity"),
        ((3, 3, 4, 6), "duplicate", "'duplicate' a multiple"),
        ((3, 3, 4, 4), "project", "`identity` must be one of"),
    ],
)
def test_a_kernel_without_an_identity_is_an_error(shape, identity, message):
    with pytest.raises(ValueError, match=message):
        id_entries(shape, identity)


def test_a_network_with_normalisation_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="stage1_block00: .* normalisation"):
        mapping.to_plain(zoo.cifar_resnet(8))
