"""Batches prepared in advance by a thread are those prepared on access."""

import time

import numpy as np
import pytest

from helpers.harness import without_backend
from zoo.datasets.batches import Batches, MicroBatches
from zoo.datasets.prefetch import Ahead

pytestmark = without_backend
X, Y = np.arange(22.0), np.arange(22)


def noisy(x, generator):
    time.sleep(0.002)
    return x + generator.random(len(x))


def noisy_batches(seed=0):
    return Batches(X, Y, 4, seed=seed, augment=noisy)


def epochs(batches, orders):
    result = []
    for epoch, order in enumerate(orders):
        batches.set_epoch(epoch)
        result += [batches[index] for index in order]
    return result


@pytest.mark.parametrize("wrapped", [noisy_batches, lambda: MicroBatches(noisy_batches(), 1)])
def test_every_epoch_has_its_own_batches_whatever_was_prepared_before(wrapped):
    orders = [range(6), range(3), range(6), (0, 0, 5, 2, 3)]  # incomplete, and out of order
    expected, result = epochs(wrapped(), orders), epochs(Ahead(wrapped()), orders)
    for (x, y), (u, v) in zip(expected, result, strict=True):
        np.testing.assert_array_equal(x, u)
        np.testing.assert_array_equal(y, v)


def test_an_error_in_the_thread_is_raised_on_access_to_the_batch():
    ahead = Ahead(noisy_batches())
    with pytest.raises(RuntimeError, match="depend on the epoch"):
        ahead[0]
    ahead.set_epoch(0)
    assert len(ahead) == 6 and len(ahead[5][0]) == 2
    with pytest.raises(IndexError, match="There are batches 0 to 5"):
        ahead[6]
