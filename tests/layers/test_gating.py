"""The table of six forms is Table 1a of Greff et al. (2017); its derivatives are TVDN's."""

import numpy as np
import pytest
from keras import ops

import zoo
from helpers.gradients import gradients
from zoo.layers import gating

H, X, T, C = 4.0, 2.0, 0.25, 0.5

# By hand, from the formulas of Greff et al. (2017), equations 3 to 5 and Table 1a.
BY_HAND = {
    "plain": 4.0,  # H
    "residual": 6.0,  # H + x
    "t_only": 3.0,  # H T + x = 1 + 2
    "c_only": 5.0,  # H + x C = 4 + 1
    "coupled": 2.5,  # H T + x (1 - T) = 1 + 1.5
    "full": 2.0,  # H T + x C = 1 + 1
}
GATES = {"plain": "", "residual": "", "t_only": "t", "c_only": "c", "coupled": "t", "full": "tc"}


@pytest.mark.parametrize("variant", BY_HAND)
def test_a_form_is_the_papers_formula_of_exactly_the_gates_it_names(variant):
    letters = gating.FORMS[variant].gates
    assert letters == GATES[variant]
    gates = {"t": T, "c": C}
    only = {name: gates[name] if name in letters else None for name in gates}
    assert gating.FORMS[variant].combine(H, X, **only) == BY_HAND[variant]
    for name in letters:  # and each gate it names matters
        changed = {**gates, name: gates[name] / 2}
        assert gating.FORMS[variant].combine(H, X, **changed) != BY_HAND[variant]


def test_an_unknown_form_is_an_error_that_lists_the_six():
    assert list(zoo.FORMS) == list(BY_HAND)
    with pytest.raises(ValueError, match=r"`variant`.*'plain'.*'full'.*variant='highway'"):
        zoo.HighwayDense(variant="highway")


def samples(*names, shape=(3, 5)):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype("float32") for _ in names]


def test_coupled_derivatives_are_those_of_the_appendix():
    # TVDN (Srivastava et al. 2015), appendix A: dH = T dy, dT = (H - x) dy, dx = (1 - T) dy.
    h, x, t, dy = samples("h", "x", "t", "dy")
    coupled = gating.FORMS["coupled"].combine

    def projected(h, x, t):
        return ops.sum(ops.multiply(coupled(h, x, t, None), dy))

    dh, dx, dt = gradients(projected, (h, x, t))
    for actual, expected in ((dh, t * dy), (dt, (h - x) * dy), (dx, (1 - t) * dy)):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)  # float32, values of 10


@pytest.mark.parametrize("is_open", [False, True])
def test_half_precision_is_rounded_once_after_the_formula(is_open):
    h, x, t, dy = (ops.cast(ops.cast(v, "bfloat16"), "float32") for v in samples(*"hxty"))
    t = ops.abs(t) * 0.001  # 1 - t is 1 in bfloat16
    t = 1 - t if is_open else t  # t is 1 in bfloat16
    x = 100 * x if is_open else x
    form = gating.FORMS["coupled"]

    def formula(h, x, t):
        return ops.sum(form.combine(h, x, t, None) * dy)

    def rounded(h, x, t):
        h, x = ops.cast(h, "bfloat16"), ops.cast(x, "bfloat16")
        return ops.sum(ops.cast(form.mix(h, x, t, dtype="bfloat16"), "float32") * dy)

    rounding = 2**-8
    np.testing.assert_allclose(formula(h, x, t), rounded(h, x, t), rtol=0, atol=15 * rounding)
    for one, other in zip(*(gradients(f, (h, x, t)) for f in (formula, rounded)), strict=True):
        np.testing.assert_allclose(one, other, rtol=rounding, atol=rounding)


def test_the_depth_guideline_is_the_papers():
    assert [zoo.gate_bias(depth) for depth in (1, 10, 11)] == [-1.0] * 3
    assert [zoo.gate_bias(depth) for depth in (19, 20)] == [-2.0] * 2
    assert [zoo.gate_bias(depth) for depth in (30, 32)] == [-3.0] * 2
    with pytest.raises(ValueError, match="`depth` must be a positive integer. Received: depth=0"):
        zoo.gate_bias(0)
