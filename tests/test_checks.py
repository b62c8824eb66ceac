"""Sizes may be NumPy's integers; True and False are no sizes."""

import keras
import numpy as np
import pytest

import zoo
from helpers.harness import slow_elsewhere
from zoo import checks
from zoo.datasets.batches import Batches

EIGHT = np.int64(8)


@slow_elsewhere
@pytest.mark.parametrize(
    "build",
    [
        lambda: zoo.highway_mlp(EIGHT, EIGHT, classes=EIGHT, input_shape=(EIGHT,)),
        lambda: zoo.highway_mlp(EIGHT, EIGHT, input_shape=(EIGHT,), stacked=True),
        lambda: zoo.simplified_residual_net(EIGHT, widths=[EIGHT] * 3, input_shape=(EIGHT, 8, 1)),
        lambda: zoo.highway_mnist(EIGHT),
        lambda: zoo.cifar_resnet(EIGHT, input_shape=(32, np.int16(32), np.int8(1))),
    ],
)
def test_networks_of_numpy_s_sizes_are_built_and_have_a_json_configuration(build):
    model = build()
    loaded = keras.models.model_from_json(model.to_json())
    assert model(np.ones((2, *model.input_shape[1:]))).shape == (2, *model.output_shape[1:])
    assert loaded.count_params() == model.count_params()


@pytest.mark.parametrize("kind", [float, np.float32, np.array, keras.ops.convert_to_tensor])
def test_numbers_may_be_numpy_s_and_tensors(kind):
    assert float(zoo.layers.skip.DropBlock(kind(0.5)).rate) == 0.5


def test_one_integer_stands_for_a_sequence_of_one():
    assert checks.as_integers(0, swaps=1) == checks.as_integers(0, swaps=EIGHT - [7]) == [1]


@pytest.mark.parametrize("seed", [[1, 2], (1, 2), np.array([1, 2]), np.random.SeedSequence([1, 2])])
def test_seeds_are_those_of_numpy(seed):
    assert checks.generator(seed).random() == np.random.default_rng([1, 2]).random()
    assert checks.generator(3).random() == np.random.default_rng(3).random()


def test_a_shape_may_be_any_sequence():
    assert zoo.highway_mnist(8, input_shape=np.array([28, 28, 1])).input_shape == (None, 28, 28, 1)


@pytest.mark.parametrize(
    "call, argument",
    [
        (lambda: zoo.HighwayDense(True), "units=True"),
        (lambda: zoo.HighwayConv2D(4, kernel_size=True), "kernel_size=True"),
        (lambda: zoo.highway_mnist(classes=True), "classes=True"),
        (lambda: zoo.seed_everything(True), "seed=True"),
        (lambda: Batches(np.ones((2, 1)), np.ones(2), batch_size=True), "batch_size=True"),
        (lambda: zoo.highway_mnist(input_shape=(28, 28, True)), "input_shape"),
    ],
)
def test_true_is_no_integer(call, argument):
    with pytest.raises(ValueError, match=f"Received: {argument}"):
        call()
