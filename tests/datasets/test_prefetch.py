"""Batches that a thread makes ahead are those that would be made when they are asked for."""

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


def made(seed=0):
    return Batches(X, Y, 4, seed=seed, augment=noisy)


def epochs(batches, orders):
    found = []
    for epoch, order in enumerate(orders):
        batches.set_epoch(epoch)
        found += [batches[index] for index in order]
    return found


@pytest.mark.parametrize("wrapped", [made, lambda: MicroBatches(made(), 1)])
def test_every_epoch_has_its_own_batches_whatever_was_made_ahead(wrapped):
    orders = [range(6), range(3), range(6), (0, 0, 5, 2, 3)]  # broken off, and out of order
    expected, found = epochs(wrapped(), orders), epochs(Ahead(wrapped()), orders)
    for (x, y), (u, v) in zip(expected, found, strict=True):
        np.testing.assert_array_equal(x, u)
        np.testing.assert_array_equal(y, v)


def test_what_fails_in_the_thread_fails_where_the_batch_is_asked_for():
    ahead = Ahead(made())
    with pytest.raises(RuntimeError, match="depend on the epoch"):
        ahead[0]
    ahead.set_epoch(0)
    assert len(ahead) == 6 and len(ahead[5][0]) == 2
    with pytest.raises(IndexError, match="There are batches 0 to 5"):
        ahead[6]
