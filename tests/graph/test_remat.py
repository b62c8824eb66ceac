"""Rematerialization and gradient accumulation give the numbers of a plain training step."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference
from helpers.gradients import assert_close, gradients
from helpers.harness import few_elsewhere, slow_elsewhere
from zoo.callbacks.checkpoint import Resume
from zoo.callbacks.training import Epochs
from zoo.datasets.batches import Batches, MicroBatches
from zoo.layers.residual_block import Branch
from zoo.optimizers import CaffeSGD, accumulating


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
    return zoo.remat(model) if remat else model


def data(count=24):
    x = np.random.default_rng(0).normal(size=(count, 32)).astype("float32")
    return x, np.arange(count) % 3


def state(model):
    return [ops.convert_to_numpy(v) for v in (*model.variables, *model.optimizer.variables)]


SLOW = pytest.param("convolutions", marks=slow_elsewhere)


@pytest.mark.parametrize("name", ["dense", SLOW, "stack"])
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


@pytest.mark.parametrize("name", ["dense", SLOW, "stack"])
def test_rematerialization_does_not_change_gradients(name):
    results = []
    x = data(4)[0]
    for remat in (False, True):
        model = network(name, remat)

        def loss(x, model=model):
            return ops.sum(ops.square(model(x, training=False)))

        results.append(gradients(loss, [x], model.trainable_variables))
    assert_close(results[1], results[0], 1e-6)
    assert all(gradient.any() for gradient in results[1])


@slow_elsewhere
def test_a_rematerialized_block_can_be_observed_saved_and_rewired(tmp_path):
    model, x = network("convolutions", True), data(4)[0]
    y = ops.convert_to_numpy(model(x))
    assert {*reference.block_parts(model, x)[1]} == {"conv", "opens", "twice", "twice#1"}
    assert zoo.lesion(model, "conv")(x).shape == (4, 3)
    model.save(tmp_path / "model.keras")
    assert_close(keras.models.load_model(tmp_path / "model.keras")(x), y, 1e-6)


def test_a_model_to_rematerialize_has_blocks():
    with pytest.raises(ValueError, match="which has none"):
        zoo.remat(keras.Sequential([keras.Input((3,)), layers.Dense(2)]))


PARTS, BATCH = 3, 12


def test_accumulated_updates_equal_whole_batch_updates_by_hand():
    # y = x w, loss |x w - y|^2 / n: the gradient is 2 x' (x w - y) / n. Clipped to a norm of 1,
    # with momentum 0.9 and a rate that drops after two updates, which are six micro-batches.
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(4 * BATCH, n)).astype("float32") for n in (5, 1))
    w = np.full((5, 1), 0.1)
    step = 0.0
    for i, rate in enumerate((0.5, 0.5, 0.5, 0.125)):
        xs, ys = (v[i * BATCH : (i + 1) * BATCH].astype("float64") for v in (x, y))
        gradient = 2 * xs.T @ (xs @ w - ys) / BATCH
        gradient /= max(1.0, np.linalg.norm(gradient))
        step = 0.9 * step - rate * gradient
        w = w + step
    start = keras.initializers.Constant(0.1)
    single = layers.Dense(1, use_bias=False, kernel_initializer=start)
    model = keras.Sequential([keras.Input((5,)), single])
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.5, 0.125])
    optimizer = keras.optimizers.SGD(schedule, 0.9, global_clipnorm=1.0)
    model.compile(accumulating(optimizer, PARTS), "mse")
    micro_batches = MicroBatches(Batches(x, y, BATCH, shuffle=False), PARTS)
    model.fit(micro_batches, verbose=0, shuffle=False)
    assert_close(model.get_weights()[0], w, 1e-6)


@pytest.mark.parametrize("name", few_elsewhere(["stack", "dense"], ["stack"]))
def test_a_highway_network_learns_the_same_from_micro_batches(name, monkeypatch):
    monkeypatch.setattr(layers.Dropout, "call", lambda self, x, training=False: x)
    jit = False if keras.backend.backend() == "tensorflow" else "auto"  # XLA takes long to compile
    results = []
    x, y = data(2 * BATCH)
    for parts in (1, PARTS):
        model = network(name, remat=parts > 1)
        optimizer = accumulating(CaffeSGD(0.05, last_decay=0.1), parts)
        model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=jit)
        batches = MicroBatches(Batches(x, y, BATCH, augment=jitter), parts)
        same_jitter = Epochs(batches)
        model.fit(batches, epochs=2, verbose=0, shuffle=False, callbacks=[same_jitter])
        results.append(model.get_weights())
    assert_close(results[1], results[0], 1e-6)


def jitter(x, generator):
    return x + generator.normal(size=x.shape).astype("float32") / 10


def test_micro_batches_are_equal_parts_of_the_whole_batch():
    x = np.arange(20.0)
    whole = Batches(x, x, 8, augment=lambda x, generator: x + generator.random(), seed=2)
    for parts in (1, 2, 8):
        micro_batches = MicroBatches(whole, parts)
        micro_batches.set_epoch(3)
        for i in (0, 1):
            batch = [micro_batches[i * parts + j][0] for j in range(parts)]
            np.testing.assert_equal(np.concatenate(batch), whole[i][0])
        assert len(micro_batches) == 3 * parts
    with pytest.raises(ValueError, match="parts=8, a batch of 4"):
        micro_batches[16]
    with pytest.raises(ValueError, match="positive integer"):
        MicroBatches(whole, 0)
    with pytest.raises(ValueError, match="does not accumulate"):
        accumulating(accumulating(CaffeSGD(), 2), 2)


@slow_elsewhere
def test_a_training_resumed_in_the_middle_of_an_update_ends_with_the_same_bits(tmp_path):
    def fit(epochs, path):  # three batches an epoch, two an update
        model = network("dense", remat=True)
        optimizer = accumulating(CaffeSGD(0.05), 2)
        model.compile(optimizer, "sparse_categorical_crossentropy")
        resume = Resume(tmp_path / path)
        model.fit(*data(), 8, epochs, verbose=0, shuffle=False, callbacks=[resume])
        return model

    whole = fit(4, "whole.npz")
    half = fit(1, "parts.npz")
    assert any(v.path.endswith("accumulator") for v in half.optimizer.variables)
    assert np.concatenate([np.ravel(a) for a in accumulators(half)]).any()
    np.testing.assert_equal(state(fit(4, "parts.npz")), state(whole))


def accumulators(model):
    variables = [v for v in model.optimizer.variables if "accumulator" in v.path]
    return [ops.convert_to_numpy(v) for v in variables]
