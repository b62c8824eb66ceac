"""Propositions that the papers prove, tested on the zoo's own layers."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import zoo
from helpers import reference
from helpers.gradients import gradients


def combination(sigma_a, sigma_b, covariance):
    """Return the optimal weights of A and B: Greff et al., appendix A, equations 16 and 17."""
    total = sigma_a**2 - 2 * covariance + sigma_b**2
    return (sigma_b**2 - covariance) / total, (sigma_a**2 - covariance) / total


@pytest.mark.parametrize(
    ("sigma_x", "sigma_h", "covariance"), [(1.0, 0.5, 0.0), (0.3, 0.9, 0.05), (1.0, 1.0, 0.6)]
)
def test_a_coupled_gate_can_be_the_optimal_linear_estimator(sigma_x, sigma_h, covariance):
    # x and H(x) estimate the same value; T = sigmoid(log(a1 / a2)), section 3.3, equation 12.
    alpha = sigma_x**2 - covariance, sigma_h**2 - covariance
    random = np.random.default_rng(0)
    covariances = [[sigma_x**2, covariance], [covariance, sigma_h**2]]
    x, h = 3.0 + random.multivariate_normal([0, 0], covariances, 20_000).T  # both estimate 3
    pair = np.stack([x, h], axis=1).astype("float32")

    def estimate(logit):
        """Return the output of unit 0, which carries x and whose H reads unit 1."""
        layer = zoo.HighwayDense(2, activation="linear", variant="coupled", gate_bias=logit)
        layer.build((None, 2))
        layer.transform.kernel.assign([[0.0, 0.0], [1.0, 1.0]])
        layer.transform_gate.kernel.assign(np.zeros((2, 2)))
        return reference.as_float64(layer(pair))[0][:, 0]

    best = np.log(alpha[0] / alpha[1])
    optimal = estimate(best)
    of_x, of_h = combination(sigma_x, sigma_h, covariance)
    np.testing.assert_allclose(optimal, of_x * x + of_h * h, rtol=1e-4)  # equation 17
    assert abs(optimal.mean() - 3.0) < 0.03  # unbiased
    error = optimal.var()
    assert error < min(x.var(), h.var())
    assert all(error < estimate(best + step).var() for step in (-1.0, -0.3, 0.3, 1.0))


def test_a_step_on_the_first_layer_moves_the_representation_against_its_gradient():
    # Jastrzebski et al., appendix A.1: by -rate (|x|^2 + 1) dL/dh_0, for one example.
    inputs, rate = keras.Input((5,)), 1e-3
    first = layers.Dense(4, name="first")
    h = first(inputs)
    for i in range(2):
        h = zoo.HighwayDense(4, variant="residual", name=f"block{i}")(h)
    outputs = layers.Dense(3, activation="softmax", name="top")(h)
    model = reference.random_weights(keras.Model(inputs, outputs), scale=0.5)
    x, y = reference.images(1, 5), np.array([1])
    after = keras.Model(model.get_layer("first").output, outputs)

    def loss(h):
        return ops.sum(keras.losses.sparse_categorical_crossentropy(y, after(h)))

    before = reference.as_float64(first(x))[0]
    (gradient,) = gradients(loss, [before.astype("float32")])
    model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
    model.train_on_batch(x, y)
    moved = (reference.as_float64(first(x))[0] - before) / rate
    expected = -((x**2).sum() + 1) * gradient
    np.testing.assert_allclose(moved, expected, atol=2e-3 * np.abs(expected).max())
