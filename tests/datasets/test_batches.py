import keras
import numpy as np
import pytest

from zoo.callbacks.checkpoint import Resume
from zoo.callbacks.training import Epochs
from zoo.datasets.batches import Batches

X, Y = np.arange(10, dtype="float32"), np.arange(10)


def seen(batches, epoch):
    batches.set_epoch(epoch)
    return [y.tolist() for _, y in batches]


def test_seed_and_epoch_fix_the_order_which_is_a_permutation():
    batches = Batches(X, Y, 4, seed=3)
    orders = [seen(batches, epoch) for epoch in (0, 1, 0)]
    assert [len(batch) for batch in orders[0]] == [4, 4, 2]
    assert all(sorted(sum(order, [])) == list(range(10)) for order in orders)
    assert orders[0] == orders[2] != orders[1] != seen(Batches(X, Y, 4, seed=4), 1)
    assert seen(Batches(X, Y, 4, shuffle=False), 5) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(batch) for batch in seen(Batches(X, Y, 4, drop_remainder=True), 0)] == [4, 4]


def noise(x, generator):
    return x + generator.random(x.shape).astype("float32")


def test_seed_epoch_and_index_fix_the_augmentation_in_any_order_of_access():
    batches = Batches(X, Y, 4, seed=3, augment=noise)
    batches.set_epoch(7)
    first = [x for x, _ in batches]
    again = [batches[index][0] for index in (2, 1, 0)]
    for one, other in zip(first, again[::-1], strict=True):
        np.testing.assert_array_equal(one, other)
    samples = np.array([x - X[y] for x, y in list(batches)[:2]])
    batches.set_epoch(8)
    samples = np.append(samples, [x - X[y] for x, y in list(batches)[:2]], axis=0)
    assert len(np.unique(samples.round(3))) == 16  # independent from batch to batch, epoch to epoch


def test_the_first_augmentation_is_independent_of_the_order():
    drawn = []
    batches = Batches(X, Y, 10, augment=lambda x, g: drawn.append(g.permutation(10)) or x)
    batches.set_epoch(4)
    assert drawn == [] and batches[0][1].tolist() != drawn[0].tolist()


class KilledError(Exception):
    pass


class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == 7:  # in the middle of the third epoch of 3 steps
            raise KilledError


def fitted(folder, *, kill=False, bias=0.0):
    """Return the weights and losses of five epochs on ten noisy points."""
    keras.utils.clear_session(free_memory=False)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.set_weights([np.full((1, 1), bias), np.full((1,), bias)])
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
    batches = Batches(X[:, None], Y.astype("float32") ** 2, 4, seed=5, augment=noise)
    callbacks = [Resume(folder / "state.npz"), Epochs(batches), *[Kill()] * kill]
    history = model.fit(batches, epochs=5, shuffle=False, verbose=0, callbacks=callbacks).history
    return [float(weight.squeeze()) for weight in model.get_weights()], history["loss"]


def by_hand():
    """Return the weights of five epochs of `fitted`, computed in NumPy."""
    weights, velocity = np.zeros(2), np.zeros(2)
    for epoch in range(5):
        order = np.random.default_rng([5, epoch, 0]).permutation(10)
        for index, start in enumerate((0, 4, 8)):
            chosen = order[start : start + 4]
            x = X[chosen] + np.random.default_rng([5, epoch, index + 1]).random(len(chosen))
            error = weights[0] * x + weights[1] - Y[chosen] ** 2
            velocity = 0.9 * velocity - 1e-3 * 2 * np.array([(error * x).mean(), error.mean()])
            weights = weights + velocity
    return weights


def test_fit_sees_the_batches_of_its_epoch_on_every_backend(tmp_path):
    weights, _ = fitted(tmp_path)
    np.testing.assert_allclose(weights, by_hand(), rtol=1e-4)


def test_a_killed_training_resumes_with_the_data_of_its_epoch_bit_for_bit(tmp_path):
    whole = fitted(tmp_path / "whole")
    with pytest.raises(KilledError):
        fitted(tmp_path / "killed", kill=True)
    assert fitted(tmp_path / "killed", bias=9.0) == whole  # whatever it would have started from


def test_batches_must_know_the_epoch_and_an_epoch_is_one_pass():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batches = Batches(X[:, None], Y, 4)
    with pytest.raises(RuntimeError, match=r"callbacks=\[Epochs\(batches\)\]"):
        model.fit(batches, shuffle=False, verbose=0)
    with pytest.raises(ValueError, match="Received: steps_per_epoch=2"):
        model.fit(batches, shuffle=False, verbose=0, steps_per_epoch=2, callbacks=[Epochs(batches)])
    assert model.evaluate(Batches(X[:, None], Y, 4, shuffle=False), verbose=0) > 0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"y": Y[1:]}, "Received: sizes='10 and 9 examples"),
        ({"batch_size": 11, "drop_remainder": True}, "fill a batch"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"seed": -1}, "`seed` must be a non-negative integer. Received: seed=-1"),
        ({"seed": None}, "Received: seed=None"),
    ],
)
def test_invalid_arguments_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        Batches(**{"x": X, "y": Y, "batch_size": 4} | bad)
    with pytest.raises(IndexError, match="batches 0 to 2. Received: 3"):
        Batches(X, Y, 4, shuffle=False)[3]
