"""Identities folded into kernels: the same outputs, and reasons where it does not hold."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference
from zoo.graph.surgery import cost


def outputs(model, x):
    return ops.convert_to_numpy(model(x))


def conv(filters=2, kernel=3, **more):
    return layers.Conv2D(filters, kernel, **{"padding": "same", "name": "branch", **more})


def around(*branch):
    """A model of one sum: the input and what `branch` makes of it."""
    inputs = x = keras.Input((4, 4, 2))
    for layer in branch:
        x = layer(x)
    return reference.random_weights(keras.Model(inputs, layers.Add(name="sum")([inputs, x])))


@pytest.mark.parametrize("identity", ["pad", "duplicate"])
def test_a_simplified_residual_network_folds_into_a_plain_one(identity):
    model = zoo.simplified_residual_net(8, identity=identity)
    x = reference.images(2, 32, 32, 3)
    folded, kept = zoo.fold_identity(model)
    assert not kept and not any(isinstance(v, zoo.SimplifiedResidual) for v in folded.layers)
    np.testing.assert_allclose(outputs(folded, x), outputs(model, x), atol=1e-5)
    assert cost(folded) == cost(model)  # the sums, which it does not count, are gone


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_an_identity_around_a_convolution_folds(kernel):
    model = around(conv(kernel=kernel, use_bias=kernel > 1))
    x = reference.images(3, 4, 4, 2)
    folded, kept = zoo.fold_identity(model)
    assert [type(v).__name__ for v in folded.layers] == ["InputLayer", "Conv2D"] and not kept
    np.testing.assert_allclose(outputs(folded, x), outputs(model, x), atol=1e-5)


def test_an_identity_around_a_product_folds():
    inputs = keras.Input((3,))
    model = reference.random_weights(keras.Model(inputs, inputs + layers.Dense(3)(inputs)))
    x = reference.images(2, 3)
    folded, _ = zoo.fold_identity(model)
    assert len(folded.layers) == 2
    np.testing.assert_allclose(outputs(folded, x), outputs(model, x), atol=1e-5)


def test_what_cannot_be_folded_stays_and_is_listed():
    inputs = keras.Input((4, 4, 2))
    x = layers.Add(name="linear")([inputs, layers.Conv2D(2, 3, padding="same")(inputs)])
    x = zoo.ResidualBlock(2, name="block")(x)
    model = reference.random_weights(keras.Model(inputs, x))
    folded, kept = zoo.fold_identity(model)
    assert [*kept] == ["block"] and "between its kernel and the sum" in kept["block"]
    x = reference.images(3, 4, 4, 2)
    np.testing.assert_allclose(outputs(folded, x), outputs(model, x), rtol=1e-4, atol=1e-4)
    before = outputs(model, x)
    folded.set_weights([0 * w for w in folded.get_weights()])  # its weights are its own
    assert np.array_equal(outputs(model, x), before)


@pytest.mark.parametrize(
    "branch, reason",
    [
        ([conv(), layers.BatchNormalization()], "Conv2D - BatchNormalization, not one kernel"),
        ([conv(activation="relu")], "activation of branch lies between"),
        ([conv(kernel=2)], "no centre for the identity"),
        ([conv(groups=2)], "groups"),
        ([layers.DepthwiseConv2D(3, padding="same")], "is a DepthwiseConv2D"),
    ],
)
def test_why_a_skip_cannot_be_folded(branch, reason):
    with pytest.raises(ValueError, match=reason):
        zoo.fold_identity(around(*branch))


def test_a_shared_kernel_does_not_fold():
    inputs = keras.Input((4, 4, 2))
    shared = conv()
    x = layers.Add(name="sum")([inputs, shared(inputs)])
    with pytest.raises(ValueError, match="branch is used elsewhere too"):
        zoo.fold_identity(keras.Model(inputs, shared(x)))


def test_a_model_that_was_looked_into_folds_all_the_same():
    model = around(conv())
    zoo.trace(model)
    assert not zoo.fold_identity(model)[1]
