"""Cushions of maps that are known, and of images without a signal."""

import keras
import numpy as np
from keras import layers

import zoo
from helpers import reference
from zoo import callbacks


def test_images_without_a_signal_bound_no_cushion_and_are_counted():
    inputs = keras.Input((4, 4, 4))
    x = zoo.SimplifiedPlain(4, name="block")(inputs)
    top = layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, top)
    lit = reference.images(3, 4, 4, 4)
    dark = np.concatenate([lit, np.zeros_like(lit[:1])])
    probes = [callbacks.LayerCushion(bins=5, largest=1.0), callbacks.ActivationContraction()]

    def measured(x):
        cushions = callbacks.interlayer_cushions(model, x, projections=4)
        return callbacks.run(probes, model, x, batch_size=2) + cushions

    alone, mixed, nothing = (measured(x) for x in (lit, dark, dark[3:]))
    for probe in ("layer_cushion", "layer_cushion_std", "activation_contraction"):
        value = alone.values(probe)["block"]
        np.testing.assert_allclose(mixed.values(probe)["block"], value, rtol=1e-4)
        assert np.isnan(nothing.values(probe)["block"])
    shares = [table.array("layer_cushion_histogram") for table in (alone, mixed)]
    np.testing.assert_allclose(*shares, atol=1e-6)
    cushion = mixed.values("interlayer_cushion")["block"]
    assert np.isfinite(cushion) and np.isnan(nothing.values("interlayer_cushion")["block"])
    for probe in ("layer_cushion", "activation_contraction", "interlayer_cushion"):
        dead = [t.values(f"{probe}_dead")["block"] for t in (alone, mixed, nothing)]
        assert dead == [0, 0.25, 1]


def test_few_projections_do_not_bias_the_interlayer_cushion():
    """A diagonal map of rank two; its cushion is known, and 2,000 examples share it."""
    inputs = keras.Input((2, 2, 4))
    scale = layers.Conv2D(4, 1, use_bias=False, name="f")
    model = keras.Model(inputs, layers.Add(name="sum")([inputs, scale(inputs)]))
    scale.set_weights([np.diag([0.0, 0.0, -1.0, -1.0]).reshape(1, 1, 4, 4)])
    x = np.zeros((2000, 2, 2, 4), "float32")
    x[:, 0, 0, 0] = 1.0  # |J x| / |x| = 1, |J|_F^2 = 2 * 4, n1 n2 = 4
    table = callbacks.interlayer_cushions(model, x, projections=8, batch_size=500)
    value, error, deviation = (
        table.values(f"interlayer_cushion{key}")["sum"] for key in ("", "_error", "_std")
    )
    exact = np.sqrt(4 / 8)
    assert abs(value / exact - 1) < 0.02 and 0 < error < 0.02
    assert deviation < 0.06 * exact  # the estimates' own, of 0.125, taken off


def test_the_identity_s_cushion_is_one_over_the_root_of_its_channels():
    inputs = keras.Input((5, 5, 16))
    x = layers.Conv2D(16, 1, kernel_initializer="zeros", name="f")(inputs)
    model = keras.Model(inputs, layers.Add(name="sum")([inputs, x]))
    table = callbacks.interlayer_cushions(model, reference.images(4, 5, 5, 16), projections=50)
    np.testing.assert_allclose(table.values("interlayer_cushion")["sum"], 0.25, rtol=0.02)
