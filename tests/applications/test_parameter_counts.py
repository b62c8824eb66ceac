"""Every builder's network has as many parameters as its paper counts."""

import functools
import math

import pytest

import zoo
from helpers.harness import without_backend

pytestmark = without_backend

PLAIN = {"units": 71, "variant": "plain"}
# Cards A to G of the reference: trainable parameters, or all where the paper counts all.
TRAINABLE = [
    ("highway_mlp", {"depth": 10}, 85_660),
    ("highway_mlp", {"depth": 20}, 136_660),
    ("highway_mlp", {"depth": 50}, 289_660),
    ("highway_mlp", {"depth": 100, "stacked": True}, 544_660),
    ("highway_mlp", {"depth": 50, "input_shape": (32, 32, 3), "classes": 100}, 408_650),
    ("highway_mlp", {"depth": 10, **PLAIN}, 102_463),
    ("highway_mlp", {"depth": 50, **PLAIN}, 306_943),
    ("highway_mlp", {"depth": 100, "stacked": True, **PLAIN}, 562_543),
    ("highway_mnist", {}, 38_986),
    ("highway_mnist", {"width": 32}, 151_690),
    ("highway_a", {}, 236_328),
    ("highway_b", {}, 2_277_688),
    ("highway_c", {}, 1_251_798),
    ("highway_cifar", {}, 2_256_838),
    ("highway_cifar", {"classes": 100}, 2_265_928),
    ("resnet50", {}, 25_557_032),
    ("resnet50", {"batch_norm": False}, 25_530_472),
    ("highway_resnet50", {}, 25_560_216),
    ("highway_full_resnet50", {}, 25_560_216),
    ("he_resnet", {"depth": 20}, 269_722),
    ("he_resnet", {"depth": 56}, 853_018),
    ("cifar_resnet", {"depth": 32}, 467_946),
    ("cifar_resnet", {"depth": 32, "classes": 100}, 473_796),
    ("cifar_resnet", {"depth": 38}, 565_386),
    ("cifar_resnet", {"depth": 56}, 857_706),
    ("cifar_resnet", {"depth": 56, "classes": 100}, 863_556),
    ("cifar_resnet", {"depth": 110, "classes": 100}, 1_740_516),
    ("shared_resnet", {"depth": 110}, 570_762),
    ("shared_resnet", {"depth": 110, "classes": 100}, 576_612),
    ("shared_resnet", {"depth": 110, "batch_norm": "shared"}, 565_386),
    ("shared_resnet", {"depth": 110, "batch_norm": "unshared_statistics"}, 565_386),
    ("shared_resnet", {"depth": 110, "batch_norm": "unshared_affine"}, 570_762),
    ("simplified_plain_net", {"depth": 20}, 269_034),
    ("simplified_residual_net", {"depth": 44}, 657_002),
    ("simplified_dominant_net", {"depth": 20}, 7_818),
    ("simplified_dominant_net", {"depth": 44}, 16_778),
    ("simplified_plain_net", {"widths": (8, 16, 32), "input_shape": (16, 16, 1)}, 67_562),
]
ALL = [
    ("cifar_resnet", {}, 1_742_762),
    ("cifar_resnet", {"classes": 100}, 1_748_612),
    ("single_representation_resnet", {}, 1_829_210),
    ("single_representation_resnet", {"classes": 100}, 1_973_300),
    ("avg_pooling_resnet", {}, 12_201_310),
    ("wide_resnet", {}, 45_732_842),
]


def size(weights):
    return sum(math.prod(weight.shape) for weight in weights)


def name_only(value):
    return value if isinstance(value, str) else None


@functools.cache
def counts(name, arguments):
    model = zoo.create_model(name, **dict(arguments))
    return size(model.trainable_weights), model.count_params()


@pytest.mark.parametrize(("name", "arguments", "count"), TRAINABLE, ids=name_only)
def test_trainable_parameters_are_those_of_the_reference(name, arguments, count):
    assert counts(name, tuple(arguments.items()))[0] == count


@pytest.mark.parametrize(("name", "arguments", "count"), ALL, ids=name_only)
def test_parameters_with_moving_averages_are_those_of_the_paper(name, arguments, count):
    assert counts(name, tuple(arguments.items()))[1] == count


def test_highway_resnet50_costs_what_resnet50_costs():  # Greff et al., 5.1: "close"
    highway, residual = (counts(f"{kind}50", ())[0] for kind in ("highway_resnet", "resnet"))
    assert abs(highway / residual - 1) < 2e-4


def test_every_builder_is_counted():
    counted = {name for name, *_ in TRAINABLE + ALL} | {
        "char_lm",
        "transformer_lm",
    }  # their own: test_char_lm.py and so on
    assert counted == set(zoo.list_models())
