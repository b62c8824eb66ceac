"""Rematerialization gives the numbers of a plain training step."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference
from helpers.gradients import assert_close
from helpers.harness import few_elsewhere, slow_elsewhere
from zoo.layers.residual_block import Branch
from zoo.optimizers import CaffeSGD


class Dropping(zoo.HighwayDense):
    """A highway layer with dropout of half of H."""

    def branch(self, name, bias):
        drop = [layers.Dropout(0.5, seed=3)] if name == "transform" else []
        return Branch([super().branch(name, bias), *drop], name=name)


def dense(x):
    for i in range(3):
        x = Dropping(name=f"block{i}")(x)
    return x


def convolutions(x):
    x = layers.Reshape((4, 4, 2))(x)
    x = zoo.HighwayConv2D(variant="full", name="conv")(x)
    x = zoo.ResidualBlock(4, 2, variant="coupled", name="opens")(x)
    block = zoo.ResidualBlock(4, uses=2, name="twice")
    return layers.Flatten()(block(block(x, use=0), use=1))


def stack(x):
    return zoo.HighwayDenseStack(5, variant="full")(x)


NETWORKS = {"dense": dense, "convolutions": convolutions, "stack": stack}


def network(name, remat):
    zoo.seed_everything(0)
    inputs = keras.Input((32,))
    model = keras.Model(inputs, layers.Dense(3, "softmax")(NETWORKS[name](inputs)))
    return zoo.graph.remat(model) if remat else model


def data(count=24):
    x = np.random.default_rng(0).normal(size=(count, 32)).astype("float32")
    return x, np.arange(count) % 3


def state(model):
    return [ops.convert_to_numpy(v) for v in (*model.variables, *model.optimizer.variables)]


@pytest.mark.parametrize("name", ["dense", *few_elsewhere(["convolutions", "stack"], [])])
def test_rematerialized_blocks_train_as_others_do(name):
    # All variables: weights, averages of normalisations (moved once a step), seeds of dropout.
    results = []
    for remat in (False, True):
        model = network(name, remat)
        model.compile(CaffeSGD(0.05), "sparse_categorical_crossentropy")
        history = model.fit(*data(), 8, 2, verbose=0, shuffle=False).history
        results.append([np.array(history["loss"]), *state(model)])
    # measured: the same bits, except under XLA on TensorFlow
    assert_close(results[1], results[0], 1e-6)
    assert not any(np.isnan(v).any() for v in results[0])


@slow_elsewhere
def test_a_rematerialized_block_can_be_observed_saved_and_rewired(tmp_path):
    model, x = network("convolutions", True), data(4)[0]
    y = ops.convert_to_numpy(model(x))
    assert {*reference.block_parts(model, x)[1]} == {"conv", "opens", "twice", "twice#1"}
    assert zoo.graph.lesion(model, "conv")(x).shape == (4, 3)
    model.save(tmp_path / "model.keras")
    assert_close(keras.models.load_model(tmp_path / "model.keras")(x), y, 1e-6)


def test_a_model_to_rematerialize_has_blocks():
    with pytest.raises(ValueError, match="must be one with skip layers"):
        zoo.graph.remat(keras.Sequential([keras.Input((3,)), layers.Dense(2)]))
