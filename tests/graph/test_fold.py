"""Identity skips folded into kernels: equivalent plain and residual networks, and exceptions."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference
from helpers.gradients import assert_close, gradients
from helpers.harness import few_elsewhere, slow_elsewhere, without_backend
from helpers.reference import penalty
from zoo.graph.cost import cost
from zoo.graph.surgery import fold_identity
from zoo.initializers import HardtMa, KaimingNormal
from zoo.layers.simplified import SimplifiedPlain, SimplifiedResidual, id_entries
from zoo.regularizers import penalize

SHAPES = [(4, 1, "pad"), (8, 2, "pad"), (8, 2, "duplicate"), (6, 1, "pad")]


@pytest.fixture
def float64(backend):
    """Set Keras and JAX to double precision, in which exact mappings differ by 1e-12 only."""

    def use(precision):
        keras.config.set_floatx(precision)
        keras.config.set_dtype_policy(precision)
        if backend == "jax":
            import jax

            jax.config.update("jax_enable_x64", precision == "float64")

    use("float64")
    yield
    use("float32")


def small_network(initializer):
    """Return two simplified residual blocks, one of which changes the shape, and a classifier."""
    inputs = x = keras.Input((8, 8, 3))
    for filters, strides in [(6, 2), (6, 1)]:
        block = SimplifiedResidual(filters, strides=strides, kernel_initializer=initializer())
        x = block(x)
    x = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, x)


@without_backend
@pytest.mark.parametrize(
    ("depth", "identity", "count"),
    [(20, "pad", 624), (32, "pad", 1072), (44, "pad", 1520)]
    + [(20, "duplicate", 672), (32, "duplicate", 1120), (44, "duplicate", 1568)],
)
def test_a_network_has_as_many_id_entries_as_the_reference_counts(depth, identity, count):
    model = zoo.simplified_plain_net(depth, identity=identity)
    kernels = [v.transform.kernel for v in model.layers if isinstance(v, SimplifiedPlain)]
    assert sum(len(id_entries(k.shape, identity)[0]) for k in kernels) == count


@pytest.mark.parametrize(("filters", "strides", "identity"), SHAPES)
def test_a_mapped_block_has_the_same_outputs_and_gradients(float64, filters, strides, identity):
    residual = SimplifiedResidual(filters, strides=strides, identity=identity, stage=2)
    x = reference.images(2, 6, 6, 4).astype("float64")
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, residual(inputs))
    plain = fold_identity(reference.random_weights(model, scale=0.3)).layers[1]
    assert isinstance(plain, SimplifiedPlain) and (plain.stage, plain.name) == (2, residual.name)
    assert_close(plain(x), residual(x), 1e-12)  # values of 10, sums of 36 products in float64
    dy = reference.images(*plain(x).shape, seed=5).astype("float64")
    both = [
        gradients(
            lambda x, block=block: ops.sum(ops.multiply(block(x), dy)), [x], block.trainable_weights
        )
        for block in (plain, residual)
    ]
    assert_close(*both, 1e-12)


@pytest.mark.parametrize("identity", few_elsewhere(["pad", "duplicate"], ["pad"]))
def test_a_mapped_network_has_the_same_outputs(float64, identity):
    residual = zoo.simplified_residual_net(11, identity=identity)
    plain = fold_identity(residual)
    x = reference.images(2, 32, 32, 3).astype("float64")
    assert not [v for v in plain.layers if isinstance(v, SimplifiedResidual)]
    assert_close(plain(x), residual(x), 1e-12)
    assert cost(plain).operations == cost(residual).operations  # the sums cost nothing
    assert [layer.name for layer in plain.layers] == [layer.name for layer in residual.layers]
    with pytest.raises(ValueError, match="must be one with a `SimplifiedResidual`"):
        fold_identity(plain)


@slow_elsewhere
@pytest.mark.parametrize("initializer", [HardtMa, KaimingNormal])
def test_equivalent_networks_train_alike_for_200_steps(float64, initializer):
    # Card G.4: the same batches, a penalty of phi(theta_r), any optimizer that sees gradients
    # only; theta_p(t) stays phi(theta_r(t)), in float64 up to rounding.
    residual = small_network(initializer)
    plain = fold_identity(residual)
    x = reference.images(16, 8, 8, 3).astype("float64")
    y = np.arange(16) % 10
    start = plain.get_weights()
    for model in (residual, plain):
        penalize(model, 1e-3, transferred=True)
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
        model.compile(optimizer, "sparse_categorical_crossentropy")
        model.fit(x, y, batch_size=4, epochs=50, shuffle=False, verbose=0)
    changes = [np.abs(a - b).max() for a, b in zip(start, plain.get_weights(), strict=True)]
    assert max(changes) > 0.05
    assert_close(fold_identity(residual).get_weights(), plain.get_weights(), 1e-9)


def test_the_kernels_of_a_stack_are_penalized_as_those_of_its_layers():
    models = [zoo.transformer_lm(11, 6, 8, 3, 2, seed=0, stacked=v) for v in (False, True)]
    single, stacked = (penalty(penalize(model)) for model in models)
    assert stacked == pytest.approx(single, rel=1e-5) and single > 0


def test_only_the_transferred_penalty_is_that_of_the_equivalent_network(float64):
    residual = small_network(HardtMa)
    expected = penalty(penalize(fold_identity(residual), 1e-3, transferred=True))
    assert penalty(penalize(residual, 1e-3, transferred=True)) == pytest.approx(expected, rel=1e-12)
    assert penalty(penalize(residual, 1e-3, transferred=False)) < 0.5 * expected


@without_backend
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
    assert np.mean(costs) == pytest.approx(expected, rel=0.006)  # one sample's deviation: 0.004
    assert expected == pytest.approx(printed, rel=0.002)


@without_backend
@pytest.mark.parametrize(
    ("shape", "identity", "message"),
    [
        ((2, 2, 4, 4), "pad", "an odd side, .* Received: kernel=.2, 2, 4, 4"),
        ((3, 1, 4, 4), "pad", "an odd side"),
        ((3, 3, 4, 2), "pad", "as the 4 channels or more.*'pad'. Received: filters=2"),
        ((3, 3, 4, 6), "duplicate", "'duplicate' a multiple"),
        ((3, 3, 4, 4), "project", "`identity` must be one of"),
    ],
)
def test_a_kernel_without_an_identity_is_an_error(shape, identity, message):
    with pytest.raises(ValueError, match=message):
        id_entries(shape, identity)


def outputs(model, x):
    return ops.convert_to_numpy(model(x))


def test_what_cannot_be_folded_stays():
    x = inputs = keras.Input((4, 4, 2))
    x = SimplifiedResidual(2, name="simple")(x)
    x = zoo.ResidualBlock(2, name="block")(x)
    x = layers.Add(name="sum")([x, layers.Conv2D(2, 3, padding="same")(x)])
    model = reference.random_weights(keras.Model(inputs, x))
    folded = fold_identity(model)
    x = reference.images(3, 4, 4, 2)
    np.testing.assert_allclose(outputs(folded, x), outputs(model, x), rtol=1e-4, atol=1e-4)
    before = outputs(model, x)
    folded.set_weights([0 * w for w in folded.get_weights()])  # its weights are its own
    assert np.array_equal(outputs(model, x), before)
