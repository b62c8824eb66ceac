"""Rules of residual streams: against NumPy, at their start, with mutations, and as blocks."""

import inspect

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers import reference_rules
from helpers.gradients import gradient_of
from helpers.harness import few_elsewhere, slow_elsewhere
from zoo.layers import rules
from zoo.layers.attention import CausalAttention
from zoo.layers.rules import AttentionResiduals, normalize, sinkhorn

D, STEPS, DEPTH = 16, 7, 12
CASES = [
    ("pre", {}),
    ("post", {}),
    ("scaled", {}),
    ("completep", {"base_layers": 3}),
    ("lns", {}),
    ("deepnorm", {}),
    ("keel", {}),
    ("rezero", {}),
    ("layerscale", {}),
    ("laurel", {}),
    ("laurel", {"rank": 3}),
    ("laurel", {"rank": 3, "previous": 3, "weighted": False}),
    ("laurel", {"rank": 2, "previous": 4}),
    ("ddl", {}),
    ("gru", {}),
    ("shc", {"streams": 3}),
    ("dhc", {"streams": 1}),
    ("dhc", {"streams": 2}),
    ("dhc", {"streams": 4}),
    ("dhc", {"streams": 3, "mixes": False}),
    ("mhc", {"streams": 1}),
    ("mhc", {"streams": 2}),
    ("mhc", {"streams": 3, "mixes": False}),
    ("mhc", {"streams": 4}),
    ("mhc", {"streams": 3, "exact": True}),
    ("attnres", {}),
    ("attnres", {"block": 4}),
    ("attnres", {"block": 5}),
    ("denseformer", {}),
    ("mudd", {}),
    ("x0", {}),
    ("x0", {"skips": True}),
    ("x0", {"skips": True, "lambdas": False}),
]
NAMES = ["-".join([name, *map(str, options.values())]) for name, options in CASES]
EVERYWHERE = ["keel", "dhc-4", "mhc-4", "attnres-5", "denseformer", "mudd", "x0-True"]


def cases(few=EVERYWHERE, names=NAMES, on_torch=NAMES):
    """Return cases as parameters, of which torch runs some and other backends few by default."""
    by_name = dict(zip(NAMES, CASES, strict=True))
    marks = {name: pytest.mark.slow for name in names if name not in on_torch}
    marks |= {name: slow_elsewhere for name in names if name in on_torch and name not in few}
    return [pytest.param(*by_name[name], id=name, marks=marks.get(name, ())) for name in names]


@keras.saving.register_keras_serializable("test_rules")
class OfSources(keras.layers.Dense):
    """A dense layer that also reads the inputs of keys and values, if it is given them."""

    def call(self, x, sources=None):
        if sources is not None:
            x = x + sources[0] - sources[1]
        return super().call(x)


class Network:
    """A stream of sub-layers tanh(x K + b), with random weights, and the same in NumPy."""

    def __init__(self, rule, options, depth=DEPTH, seed=0, spread=0.3, positions=(STEPS,)):
        zoo.seed_everything(seed)
        self.rule, self.options, self.depth = rule, options, depth
        dense = [OfSources(D, "tanh", name=f"f{k}") for k in range(depth)]
        x = inputs = keras.Input((*positions, D))
        x = zoo.StreamStart(rule, depth, **options, name="start")(x)
        self.sub_layers = []
        for k, inner in enumerate(dense):
            one = zoo.SubLayer(inner, rule, k, depth, **options, name=f"sub_layer{k}")
            self.sub_layers.append(one)
            x = one(x)
        self.end = zoo.StreamEnd(rule, depth, **options, name="end")
        self.model = keras.Model(inputs, self.end(x))
        random = np.random.default_rng(seed)
        if rule == "mudd":  # whose products of random shares would amplify the rounding
            spread /= 3
        for weight in self.model.weights if spread else ():
            weight.assign(ops.convert_to_numpy(weight) + spread * random.normal(size=weight.shape))

    def reference(self, x):
        functions = [self._function(one.inner) for one in self.sub_layers]
        gains = [one.norm and arrays(one.norm)["scale"] for one in self.sub_layers]
        w = [arrays(one.rule) for one in self.sub_layers]
        function = getattr(reference_rules, self.rule)
        last = arrays(self.end.rule)
        y = function(x.astype("float64"), functions, gains, w, last, **self.options)
        norm = self.end.norm
        return y if norm is None else reference_rules.rms(y, arrays(norm)["scale"])

    def _function(self, layer):
        kernel, bias = (ops.convert_to_numpy(w).astype("float64") for w in layer.weights)
        return lambda u, k=0, v=0: np.tanh((u + k - v) @ kernel + bias)

    def error(self, x):
        return np.abs(ops.convert_to_numpy(self.model(x)) - self.reference(x)).max()


def arrays(layer):
    return {w.name: ops.convert_to_numpy(w).astype("float64") for w in layer.weights}


def batch(seed=1, steps=STEPS):
    return np.random.default_rng(seed).normal(size=(2, steps, D)).astype("float32")


@pytest.mark.parametrize(("rule", "options"), cases(EVERYWHERE))
def test_a_rule_is_its_equations(rule, options):
    assert Network(rule, options).error(batch()) < 1e-5


@slow_elsewhere
@pytest.mark.parametrize(("rule", "options"), cases(["mhc-4"]))
def test_positions_are_the_steps_of_a_text_those_of_an_image_or_one(rule, options):
    x = batch(steps=6)
    text, image, single = (
        Network(rule, options, depth=6, positions=positions).model
        for positions in [(6,), (3, 2), ()]
    )
    expected = ops.convert_to_numpy(text(x))
    of_image = ops.convert_to_numpy(image(x.reshape(2, 3, 2, D)))
    np.testing.assert_allclose(of_image.reshape(2, 6, D), expected, atol=1e-5)
    of_vectors = ops.convert_to_numpy(single(x.reshape(12, D)))
    np.testing.assert_allclose(of_vectors.reshape(2, 6, D), expected, atol=1e-5)


@pytest.mark.parametrize(("rule", "options"), cases())
def test_a_rule_in_float64_is_not_rounded_to_float32(rule, options, backend):
    if backend != "tensorflow":
        pytest.skip("Keras itself rounds float64 on PyTorch, and on JAX unless a flag is set")
    keras.config.set_dtype_policy("float64")
    try:
        limit = 1e-7 if rule == "mudd" else 1e-12  # TensorFlow's gelu has a constant in float32
        assert Network(rule, options).error(batch()) < limit
    finally:
        keras.config.set_dtype_policy("float32")


FORMS = {
    "plain": lambda h, x, t, c: h,
    "residual": lambda h, x, t, c: h + x,
    "t_only": lambda h, x, t, c: h * t + x,
    "c_only": lambda h, x, t, c: h + x * c,
    "coupled": lambda h, x, t, c: h * t + x * (1 - t),
    "full": lambda h, x, t, c: h * t + x * c,
}


def randomize(layer, seed=0, spread=0.3):
    """Return a built layer, with random weights."""
    random = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(ops.convert_to_numpy(weight) + spread * random.normal(size=weight.shape))
    return layer


@slow_elsewhere
@pytest.mark.parametrize("gate", ["unit", "token"])
@pytest.mark.parametrize("variant", [*FORMS])
def test_gates_see_what_f_sees(variant, gate):
    layer = zoo.SubLayer(keras.layers.Dense(D, "tanh"), variant=variant, gate=gate)
    layer.build((None, STEPS, D))
    x = batch()
    y = ops.convert_to_numpy(randomize(layer)(x))
    u = reference_rules.rms(x.astype("float64"), arrays(layer.norm)["scale"])

    def dense(inner):
        return inner and u @ arrays(inner)["kernel"] + arrays(inner)["bias"]

    gates = [dense(one) for one in (layer.transform_gate, layer.carry_gate)]
    t, c = (v if v is None else reference_rules.sigmoid(v) for v in gates)
    np.testing.assert_allclose(y, FORMS[variant](np.tanh(dense(layer.inner)), x, t, c), atol=1e-5)


@slow_elsewhere
@pytest.mark.parametrize("variant", ["t_only", "c_only", "full", "coupled"])
def test_open_gates_are_pre_ln_and_a_coupled_one_carries_nothing(variant):
    layer = zoo.SubLayer(keras.layers.Dense(D, "tanh"), variant=variant)
    layer.build((None, STEPS, D))
    for gate in filter(None, (layer.transform_gate, layer.carry_gate)):
        gate.bias.assign(np.full(D, 60.0))
    x = batch()
    h = ops.convert_to_numpy(layer.inner(layer.norm(x)))
    expected = h if variant == "coupled" else x + h
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, atol=1e-6)


@pytest.mark.parametrize(("rule", "options"), cases(["dhc-4"], on_torch=EVERYWHERE))
def test_a_stream_is_the_same_after_saving_and_loading(rule, options, tmp_path):
    network = Network(rule, options, depth=6)
    network.model.save(tmp_path / "stream.keras")
    loaded = keras.saving.load_model(tmp_path / "stream.keras")
    np.testing.assert_array_equal(
        *[ops.convert_to_numpy(m(batch())) for m in (network.model, loaded)]
    )


STARTS_AS_PRE = [
    ("layerscale", {"initial": 1.0}),
    ("completep", {"base_layers": DEPTH // 2}),
    ("laurel", {"rank": 2, "previous": 3}),
    ("shc", {"streams": 3}),
    ("dhc", {"streams": 4}),
    ("mhc", {"streams": 2}),
    ("mhc", {"streams": 4}),
    ("mhc", {"streams": 3, "exact": True}),
    ("attnres", {}),
    ("attnres", {"block": 4}),
    ("attnres", {"block": 5}),
    ("denseformer", {}),
    ("mudd", {}),
    ("x0", {}),
]
DIFFERS = ["post", "deepnorm", "keel", "lns", "ddl", "layerscale", "rezero", "gru", "scaled"]


def start(rule, options=None, depth=DEPTH):
    """Return a network with the rule's first weights, and the same kernels for every rule."""
    network = Network(rule, options or {}, depth, spread=0.0)
    for k, one in enumerate(network.sub_layers):
        kernel = np.random.default_rng(k).normal(size=(D, D)) / D**0.5
        one.inner.set_weights([kernel, np.zeros(D)])
    return network


@slow_elsewhere
@pytest.mark.parametrize(("rule", "options"), STARTS_AS_PRE)
def test_these_rules_start_as_pre_ln(rule, options):
    x = 100 * batch()  # so large that the epsilon of norms does not count
    expected, y = (
        ops.convert_to_numpy(network.model(x)) for network in (start("pre"), start(rule, options))
    )
    np.testing.assert_allclose(y, expected, atol=3e-6)


@slow_elsewhere
@pytest.mark.parametrize("rule", DIFFERS)
def test_these_rules_do_not(rule):
    x = batch()
    first, other = (ops.convert_to_numpy(start(name).model(x)) for name in ("pre", rule))
    assert np.abs(first - other).max() > 1e-3


@slow_elsewhere
def test_norms_scaled_by_layers_are_pre_ln_in_the_first_layer_alone():
    one_layer, two_layers = (
        [ops.convert_to_numpy(start(rule, depth=depth).model(batch())) for rule in ("pre", "lns")]
        for depth in (2, 4)
    )
    np.testing.assert_allclose(*one_layer, atol=1e-6)
    assert np.abs(two_layers[0] - two_layers[1]).max() > 1e-3


@slow_elsewhere
def test_streams_that_are_not_written_alike_do_not_start_as_pre_ln():
    network = start("mhc", {"streams": 2})
    for one in network.sub_layers:
        one.rule.b_post.assign([1.0, -1.0])
    expected, y = (
        ops.convert_to_numpy(model(batch())) for model in (start("pre").model, network.model)
    )
    assert np.abs(y - expected).max() > 1e-3


def test_rezero_starts_as_the_embedding():
    x = batch()
    np.testing.assert_array_equal(ops.convert_to_numpy(start("rezero").model(x)), x)


def test_a_u_net_starts_as_pre_ln_only_without_its_skips():
    network = start("x0", {"skips": True})
    x = batch()
    expected = ops.convert_to_numpy(start("pre").model(x))
    assert np.abs(ops.convert_to_numpy(network.model(x)) - expected).max() > 1e-3
    for one in network.sub_layers:
        if one.rule.pops:
            one.rule.w.assign(0.0)
    np.testing.assert_allclose(ops.convert_to_numpy(network.model(x)), expected, atol=1e-6)


STARTS = {  # of weights that the equations leave open
    "rezero": {"a": 0.0},
    "layerscale": {"g": 1e-4},
    "gru": {"b": 2.0},
    "ddl": {"w_b": 0.0, "b_b": 0.0, "w_v": 0.0, "b_v": 0.0},
    "shc": {"b": 1.0, "a_r": np.eye(3)},
    "dhc": {"b": 1.0, "a_r": np.eye(3), "s_a": 0.01, "s_b": 0.01, "w_b": 0.0, "w_r": 0.0},
    "mhc": {"a_pre": 0.01, "a_post": 0.01, "a_res": 0.01, "b_post": 0.0, "f_res": 0.0},
    "attnres": {"w": 0.0, "gain": 1.0},
}


@slow_elsewhere
@pytest.mark.parametrize("rule", [*STARTS])
def test_weights_start_where_the_papers_or_the_docstrings_say(rule):
    options = {"streams": 3} if rule in ("shc", "dhc", "mhc") else {}
    own = zoo.RULES[rule](index=4, depth=6, **options)
    own.build((None, STEPS, D))
    found = arrays(own)
    for name, value in STARTS[rule].items():
        np.testing.assert_allclose(found[name], np.broadcast_to(value, found[name].shape))


@slow_elsewhere
@pytest.mark.parametrize(
    ("rule", "kernels"),
    [("gru", ["of_y", "of_x", "w_g", "u_g"]), ("mudd", ["w_1", "last_w_1"]), ("value", ["kernel"])],
)
def test_kernels_of_rules_start_with_the_deviation_of_their_fan_in(rule, kernels):
    own = zoo.RULES[rule](index=38, depth=39)
    own.build_first((None, STEPS, 64))
    own.build((None, STEPS, 64))
    found = arrays(own)
    for name in kernels:  # of 1,280 numbers or more: 5 standard errors
        assert found[name].std() * 8 == pytest.approx(1, rel=0.1)


@slow_elsewhere
@pytest.mark.parametrize("rule", ["shc", "dhc", "mhc"])
def test_sub_layers_read_the_streams_in_turn_at_the_start(rule):
    x = np.random.default_rng(0).normal(size=(2, STEPS, 3, D)).astype("float32")
    most, least = reference_rules.sigmoid(np.array([1, -1])) if rule == "mhc" else (1, 0)
    for index in range(4):
        own = zoo.RULES[rule](index=index, depth=4, streams=3)
        own.build((None, STEPS, D))
        shares = np.where(np.arange(3) == index % 3, most, least)
        read = own.read(ops.convert_to_tensor(x), own.coefficients(ops.convert_to_tensor(x)))
        np.testing.assert_allclose(ops.convert_to_numpy(read), shares @ x, atol=1e-6)


@slow_elsewhere
@pytest.mark.parametrize("options", [{"streams": 2}, {"streams": 4}, {"streams": 3, "exact": True}])
@pytest.mark.parametrize("depth", [12, 64])
def test_all_mixings_together_halve_the_differences_of_streams_at_the_start(options, depth):
    own = zoo.RULES["mhc"](index=1, depth=depth, **options)
    own.build((None, STEPS, D))
    n = own.streams
    x = np.random.default_rng(0).normal(size=(n, D)).astype("float32")
    mixing = own.coefficients(ops.convert_to_tensor(x))["mix"]
    product = np.linalg.matrix_power(ops.convert_to_numpy(mixing).astype("float64"), depth)
    np.testing.assert_allclose(product, (np.eye(n) + 1 / n) / 2, atol=1e-4)


# Mistakes of published implementations, or easy to make: functions from the right method to a
# wrong one.
def rows_first(logits, iterations=20):
    m = ops.exp(logits)
    for _ in range(iterations):
        m = m / ops.sum(m, axis=-1, keepdims=True)
        m = m / ops.sum(m, axis=-2, keepdims=True)
    return m


def one_long_axis(logits, iterations=20):
    return ops.ones_like(logits)


def spread_again(write):
    def wrong(self, x, h, c):
        mean = ops.mean(x, axis=2, keepdims=True)
        return write(self, ops.repeat(mean, self.streams, axis=2), h, c)

    return wrong


def with_coefficients(**functions):
    def make(coefficients):
        def wrong(self, x):
            found = coefficients(self, x)
            return {**found} | {key: change(found[key]) for key, change in functions.items()}

        return wrong

    return make


def transposed(x):
    axes = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    return ops.transpose(x, axes)


def numbers(function):
    return lambda original: property(function, lambda self, value: None)


def plain_mean(reduce):
    return lambda self, x: ops.mean(x[:, :, : self.filled], axis=2)


def normed_values(reduce):
    def wrong(self, x):
        if self.filled == 1:
            return x[:, :, 0]
        return reduce(self, normalize(x, self.gain))

    return wrong


def never_reset(write):
    def wrong(self, x, h, c):
        slot = 1 + self.index // self.block
        before = x[:, :, slot - 1] if slot > 1 and self.index % self.block == 0 else 0
        return rules.put(x, slot, x[:, :, slot] + before + h)

    return wrong


def embedding_twice(write):
    def wrong(self, x, h, c):
        slot = 1 + self.index // self.block
        first = x[:, :, 0] if self.index == 0 else 0
        return rules.put(x, slot, x[:, :, slot] + first + h)

    return wrong


def stores_mean(write):
    def wrong(self, x, h, c):
        y = write(self, x, h, c)
        return rules.put(y, 1 + self.layer_number, y[:, :, 0]) if self.ends_layer else y

    return wrong


def sources_swapped(context):
    def wrong(self, x, c):
        found = context(self, x, c)
        return {"sources": found["sources"][::-1]} if found else found

    return wrong


def means_stored(write):
    def wrong(self, x, h, c):
        y = write(self, x, h, c)
        return rules.put(y, 0, c["stream"] + h) if self.index + 1 == self.depth else y

    return wrong


def in_pushing_order(coefficients):
    def wrong(self, x):
        stream = x[:, :, 0]
        if self.pops:
            first = self.layer_count - self.layer_count // 2
            stream = stream + x[:, :, 1 + self.layer_number - first] * self.w
        if self.lambdas and self.opens_layer:
            stream = stream * self.l[0] + x[:, :, 1] * self.l[1]
        return {"stream": stream}

    return wrong


def lambdas_first(coefficients):
    def wrong(self, x):
        stream = x[:, :, 0]
        if self.lambdas and self.opens_layer:
            stream = stream * self.l[0] + x[:, :, 1] * self.l[1]
        if self.pops:
            stream = stream + x[:, :, 2 + self.layer_count - self.layer_number] * self.w
        return {"stream": stream}

    return wrong


def halved(write):
    def wrong(self, x, h, c):
        factors = ops.softmax(ops.convert_to_tensor(self.z))
        return h * factors[0] + x * factors[1]

    return wrong


def plus_k(write):
    def wrong(self, x, h, c):
        return 2 * x - write(self, x, h, c)

    return wrong


def not_normalized(write):
    def wrong(self, x, h, c):
        length = ops.norm(h, axis=-1, keepdims=True)
        return x + (write(self, x, h, c) - x) * length

    return wrong


MUTATIONS = {  # the network, and the class and the attribute of it that are wrong
    "streams spread again": (("dhc", {"streams": 2}), "HyperConnections", "write", spread_again),
    "A_r not transposed": (
        ("dhc", {"streams": 3}), "HyperConnections", "coefficients",
        with_coefficients(mix=transposed),
    ),
    "stream 0 always": (
        ("dhc", {"streams": 2}), "HyperConnections", "coefficients",
        with_coefficients(read=lambda a: ops.flip(a, axis=-1)),
    ),
    "H_post without 2": (
        ("mhc", {"streams": 2}), "ManifoldHyperConnections", "coefficients",
        with_coefficients(write=lambda h: h / 2),
    ),
    "H_res transposed": (
        ("mhc", {"streams": 3}), "ManifoldHyperConnections", "coefficients",
        with_coefficients(mix=transposed),
    ),
    "rows first": (("mhc", {"streams": 4, "iterations": 1}), None, "sinkhorn", rows_first),
    "Sinkhorn over one entry": (("mhc", {"streams": 2}), None, "sinkhorn", one_long_axis),
    "mean, no softmax": (("attnres", {}), "AttentionResiduals", "reduce", plain_mean),
    "norm of values": (("attnres", {}), "AttentionResiduals", "reduce", normed_values),
    "block never reset": (("attnres", {"block": 4}), "AttentionResiduals", "write", never_reset),
    "embedding twice": (("attnres", {"block": 4}), "AttentionResiduals", "write", embedding_twice),
    "keys for values": (("mudd", {}), "DynamicDense", "context", sources_swapped),
    "no last mean": (("mudd", {}), "DynamicDense", "write", means_stored),
    "mean stored": (("denseformer", {}), "DenseFormer", "write", stores_mean),
    "scale by sub-layer": (
        ("lns", {}), "LayerNormScaling", "input_scale",
        numbers(lambda self: (self.index + 1) ** -0.5),
    ),
    "variance, not deviation": (
        ("lns", {}), "LayerNormScaling", "input_scale",
        numbers(lambda self: 1 / self.layer_number),
    ),
    "alpha of layers": (
        ("keel", {}), "Keel", "alpha",
        numbers(lambda self: 1.0 if self.index < 2 else float(self.layer_count)),
    ),
    "no exceptions": (("keel", {}), "Keel", "alpha", numbers(lambda self: float(self.depth))),
    "alpha of another depth": (("deepnorm", {}), "DeepNorm", "alpha", numbers(lambda self: 2.8284)),
    "popped in pushing order": (
        ("x0", {"skips": True}), "FirstInput", "coefficients", in_pushing_order
    ),
    "lambdas before the skip": (
        ("x0", {"skips": True}), "FirstInput", "coefficients", lambdas_first
    ),
    "factors halved": (("laurel", {}), "Laurel", "write", halved),
    "sign of the change": (("ddl", {}), "DeepDelta", "write", plus_k),
    "k not normalized": (("ddl", {}), "DeepDelta", "write", not_normalized),
}  # fmt: skip


@pytest.mark.parametrize("mistake", few_elsewhere([*MUTATIONS], []))
def test_a_mistake_is_seen(mistake, monkeypatch):
    (rule, options), kind, name, make = MUTATIONS[mistake]
    assert Network(rule, options).error(batch()) < 1e-5
    if kind is None:
        monkeypatch.setattr(rules, name, make)
    else:
        kind = getattr(rules, kind)
        monkeypatch.setattr(kind, name, make(inspect.getattr_static(kind, name)))
    assert Network(rule, options).error(batch()) > 1e-3


@pytest.mark.parametrize(("rule", "flag"), [("keel", "final_norm"), ("rezero", "pre_norm")])
def test_a_norm_too_much_is_seen(rule, flag, monkeypatch):
    x = batch()
    right = ops.convert_to_numpy(Network(rule, {}).model(x))
    monkeypatch.setattr(zoo.RULES[rule], flag, True)
    assert np.abs(ops.convert_to_numpy(Network(rule, {}).model(x)) - right).max() > 1e-3


def test_sinkhorn_has_rows_of_sum_1_and_approaches_columns_of_sum_1():
    logits = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(500, 4, 4)), "float32")
    m = ops.convert_to_numpy(sinkhorn(logits))
    np.testing.assert_allclose(m.sum(-1), 1, atol=1e-6)
    assert np.quantile(np.abs(m.sum(-2) - 1), 0.95) < 1e-5
    np.testing.assert_allclose(ops.convert_to_numpy(sinkhorn(logits, 100)).sum(-2), 1, atol=1e-6)
    wide = ops.convert_to_numpy(sinkhorn(5 * logits))
    np.testing.assert_allclose(wide.sum(-1), 1, atol=1e-6)
    assert 1e-3 < np.quantile(np.abs(wide.sum(-2) - 1), 0.95) < np.abs(wide.sum(-2) - 1).max() < 0.1


@slow_elsewhere
def test_a_product_of_mixings_is_doubly_stochastic_and_soon_the_mean():
    logits = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(24, 4, 4)), "float32")
    mixings = ops.convert_to_numpy(sinkhorn(logits, 100))
    few = np.linalg.multi_dot(mixings[:3])
    for axis in (-1, -2):
        np.testing.assert_allclose(few.sum(axis), 1, atol=1e-5)
    assert np.abs(few - 1 / 4).max() > 1e-3
    np.testing.assert_allclose(np.linalg.multi_dot(mixings), 1 / 4, atol=1e-5)


@slow_elsewhere
@pytest.mark.parametrize(
    "options", [{"streams": 4, "iterations": 100}, {"streams": 3, "exact": True}]
)
def test_mixing_keeps_the_mean_over_streams(options):
    layer = zoo.SubLayer(keras.layers.Dense(D), "mhc", 1, 4, **options)
    n = layer.rule.streams
    layer.build((None, STEPS, n, D))
    x = np.random.default_rng(0).normal(size=(2, STEPS, n, D)).astype("float32")
    y = ops.convert_to_numpy(randomize(layer).closed(ops.convert_to_tensor(x)))
    np.testing.assert_allclose(y.mean(2), x.mean(2), atol=1e-5)
    assert np.abs(y - x).max() > 0.1
    mixing = layer.rule.coefficients(ops.convert_to_tensor(x))["mix"]
    np.testing.assert_allclose(ops.convert_to_numpy(mixing).sum(-1), 1, atol=1e-6)


def test_sinkhorn_of_logits_whose_exponentials_vanish_is_finite():
    logits = ops.convert_to_tensor([[[0.0, -300.0], [0.0, -250.0]], [[-200.0, -300.0], [0.0, 0.0]]])
    m = ops.convert_to_numpy(sinkhorn(logits, 1000))
    np.testing.assert_allclose(m, np.stack([np.eye(2)] * 2), atol=1e-3)


def test_sinkhorn_of_two_streams_is_a_sigmoid():
    z = np.random.default_rng(0).normal(size=(50, 2, 2))
    p = reference_rules.sigmoid((z[:, 0, 0] + z[:, 1, 1] - z[:, 0, 1] - z[:, 1, 0]) / 2)
    expected = np.stack([np.stack([p, 1 - p], -1), np.stack([1 - p, p], -1)], -2)
    found = ops.convert_to_numpy(sinkhorn(ops.convert_to_tensor(z), 100))
    np.testing.assert_allclose(found, expected, atol=1e-6)


PERMUTED = {  # axes of streams: "n", of a vector of streams and features "nd", of pairs "nn"
    "shc": {"b": ["n"], "a_m": ["n"], "a_r": ["n", "n"]},
    "dhc": {"b": ["n"], "a_m": ["n"], "a_r": ["n", "n"], "w_r": ["d", "n"]},
    "mhc": {
        "f_pre": ["nd", "n"], "f_post": ["nd", "n"], "f_res": ["nd", "nn"],
        "b_pre": ["n"], "b_post": ["n"], "b_res": ["n", "n"],
    },
}  # fmt: skip


@pytest.mark.parametrize("rule", few_elsewhere([*PERMUTED], ["mhc"]))
def test_permuted_streams_give_the_same_output(rule):
    network = Network(rule, {"streams": 3}, depth=4)
    x = batch()
    before = ops.convert_to_numpy(network.model(x))
    order = np.array([2, 0, 1])
    positions = {
        "d": np.arange(D),
        "n": order,
        "nd": (order[:, None] * D + np.arange(D)).ravel(),
        "nn": (order[:, None] * 3 + order).ravel(),
    }
    for one in network.sub_layers:
        w = arrays(one.rule)
        for name, axes in PERMUTED[rule].items():
            new = w[name][np.ix_(*[positions[axis] for axis in axes])]
            getattr(one.rule, name).assign(new.astype("float32"))
    np.testing.assert_allclose(ops.convert_to_numpy(network.model(x)), before, atol=1e-5)


@slow_elsewhere
@pytest.mark.parametrize("rule", ["post", "deepnorm", "keel"])
def test_an_outer_norm_leaves_a_root_mean_square_of_1_and_the_ratio_of_its_parts(rule):
    inner = keras.Sequential([keras.layers.Dense(D, "tanh"), keras.layers.Dense(D)])
    layer = zoo.SubLayer(inner, rule, 3, DEPTH)
    layer.build((None, STEPS, D))
    x = batch()
    y = ops.convert_to_numpy(layer(x))
    np.testing.assert_allclose(np.sqrt((y**2).mean(-1)), 1, atol=1e-4)
    layer.rule.alpha *= 3
    assert np.abs(ops.convert_to_numpy(layer(x)) - y).max() > 1e-3
    last = inner.layers[-1].kernel
    last.assign(3 * ops.convert_to_numpy(last))
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), y, atol=1e-5)


@slow_elsewhere
def test_weights_of_earlier_outputs_sum_to_1_and_a_constant_in_their_logits_has_no_effect():
    random = np.random.default_rng(0)
    x = random.normal(size=(2, STEPS, 5, D)).astype("float32")
    x[..., 1:] *= 4 / np.linalg.norm(x[..., 1:], axis=-1, keepdims=True)
    x[..., 0] = 1  # feature 0 is the same in all sources, normalized, too
    own = AttentionResiduals(index=4, depth=4)
    own.build((None, STEPS, D))
    own.w.assign(random.normal(size=D))
    read = ops.convert_to_numpy(own.read(ops.convert_to_tensor(x), {}))
    np.testing.assert_allclose(read[..., 0], 1, atol=1e-6)
    own.w.assign(ops.convert_to_numpy(own.w) + 3 * np.eye(D)[0])
    again = ops.convert_to_numpy(own.read(ops.convert_to_tensor(x), {}))
    np.testing.assert_allclose(again, read, atol=1e-5)


@pytest.mark.parametrize(("rule", "options"), cases([], on_torch=EVERYWHERE))
def test_no_position_sees_another(rule, options):
    network = Network(rule, options, depth=4)
    x = batch()
    changed_x = x.copy()
    changed_x[:, 3] += 1
    pair = [ops.convert_to_numpy(network.model(v)) for v in (x, changed_x)]
    same = np.delete(np.arange(STEPS), 3)
    np.testing.assert_allclose(pair[0][:, same], pair[1][:, same], atol=1e-6)
    assert np.abs(pair[0][:, 3] - pair[1][:, 3]).max() > 1e-3


# Weights without a gradient at the start, by the end of their names: behind a factor of 0, or only
# a factor of what is normalized, or mixings of equal streams.
WITHOUT_GRADIENT = {
    "rezero": ("kernel", "bias"),
    "laurel": ("_a", "_g"),
    "shc": ("_a_m",),
    "dhc": ("_a_m", "_w_m", "_gain", "_s_a", "_s_b"),
    "mhc": ("_f_pre", "_a_pre", "_b_pre", "_a_post", "_f_res", "_a_res", "_b_res"),
    "attnres": ("rule_gain",),
    "mudd": ("_w_1",),
}
AT_START = [
    *("keel", "rezero", "layerscale", "laurel-2-4", "ddl", "gru", "shc-3", "dhc-2", "mhc-2"),
    *("mhc-3-True", "attnres-5", "denseformer", "mudd", "x0-True"),
]
DIFFERENTIATED = ["dhc-4", "mhc-4", "mhc-3-True", "attnres-5", "mudd", "ddl", "gru"]
PAIRS = [  # whose layers after the first are alike, as in a stack
    *("pre", "post", "scaled", "completep-3", "deepnorm", "keel", "rezero", "layerscale"),
    *("laurel", "laurel-2-4", "ddl", "gru", "dhc-2", "mhc-2", "x0"),
]
UNROLLED = ["lns", "shc-3", "mhc-3-True", "attnres-5", "x0-True"]  # other layers than `PAIRS`


def check_gradients(rule, options, depth, stacked=False):
    """Check the gradients of a network at its start, each sub-layer's by itself."""

    def pair(first):
        inner = [OfSources(D, "tanh") for _ in range(2)]
        return [zoo.SubLayer(f, rule, first + i, depth, **options) for i, f in enumerate(inner)]

    layers = [zoo.StreamStart(rule, depth, **options), *pair(0)]
    if stacked:
        layers.append(zoo.SubLayerStack([pair(2)], depth // 2 - 1))
    else:
        layers += [layer for first in range(2, depth, 2) for layer in pair(first)]
    layers.append(zoo.StreamEnd(rule, depth, **options))
    random = np.random.default_rng(0)
    x, target = (random.normal(size=(2, STEPS, D)).astype("float32") for _ in range(2))

    def loss(x):
        for layer in layers:
            x = layer(x)
        return ops.sum(x * ops.convert_to_tensor(target))

    shape = layers[0](x).shape
    for layer in layers[1:]:
        layer.build(shape)
    weights = [(w, layer) for layer in layers for w in layer.trainable_weights]
    for weight, _ in weights:
        if weight.path.endswith("kernel"):  # one group's are those of all groups, else
            weight.assign(random.normal(size=weight.shape) / D**0.5)
    gradients = gradient_of(loss, [w for w, _ in weights])(x)[1:]
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    largest = max(np.abs(gradient).max() for gradient in gradients)
    for (weight, layer), gradient in zip(weights, gradients, strict=True):
        parts = depth // 2 - 1 if layer is layers[3] and stacked else 1
        size = np.abs(gradient).reshape(parts, -1).max(-1)
        if weight.path.replace("/", "_").endswith(WITHOUT_GRADIENT.get(rule, "none")):
            assert size.max() < 1e-5 * largest, weight.path
        else:
            assert size.min() > 1e-10, weight.path


@pytest.mark.parametrize(("rule", "options"), cases([], on_torch=AT_START))
def test_every_weight_but_these_has_a_gradient_at_the_start(rule, options):
    check_gradients(rule, options, 6)


@pytest.mark.parametrize(("rule", "options"), cases([], PAIRS, ["post", "keel", "mhc-2"]))
def test_gradients_of_256_stacked_sub_layers_are_finite_and_reach_the_first(rule, options):
    check_gradients(rule, options, 256, stacked=True)


@pytest.mark.parametrize(("rule", "options"), cases([], UNROLLED, ["lns"]))
def test_gradients_of_256_sub_layers_are_finite_and_reach_the_first(rule, options):
    check_gradients(rule, options, 256)


@pytest.mark.parametrize(("rule", "options"), cases(DIFFERENTIATED, on_torch=DIFFERENTIATED))
def test_gradients_are_central_differences(rule, options, backend):
    if backend != "tensorflow":
        pytest.skip("Keras itself rounds float64 on PyTorch, and on JAX unless a flag is set")
    keras.config.set_dtype_policy("float64")
    try:
        model = Network(rule, options, depth=4).model
        weights = model.trainable_weights
        random = np.random.default_rng(2)
        target = random.normal(size=(2, STEPS, D))
        direction = [random.normal(size=w.shape) for w in weights]
        length = np.sqrt(sum((v**2).sum() for v in direction))

        def loss(x):
            return ops.sum(model(x) * target)

        gradients = gradient_of(loss, weights)(batch())[1:]
        slope = sum((g * v).sum() for g, v in zip(gradients, direction, strict=True)) / length
        starts, losses = [ops.convert_to_numpy(w) for w in weights], []
        for step in (1e-5, -1e-5):
            for weight, value, v in zip(weights, starts, direction, strict=True):
                weight.assign(value + step / length * v)
            losses.append(float(loss(ops.convert_to_tensor(batch()))))
    finally:
        keras.config.set_dtype_policy("float32")
    assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(slope, rel=1e-6)


def test_gradients_of_ddl_are_finite_where_f_returns_zeros():
    inner = keras.layers.Dense(4, kernel_initializer="zeros")
    layer = zoo.SubLayer(inner, "ddl")
    x = np.ones((2, 3, 4), "float32")
    layer.build(x.shape)
    (gradient,) = gradient_of(lambda x: ops.sum(layer(x)))(x)
    assert np.isfinite(gradient).all()


TRAINED = [
    *("laurel-3-3-False", "dhc-2", "mhc-2", "attnres-4", "rezero", "ddl", "gru", "mhc-4"),
    *("mhc-3-True", "shc-3", "keel", "denseformer", "mudd", "x0-True"),
]
# Without effect: which of equal streams the first sub-layer reads, and how it mixes them; and how
# the last one mixes streams of which the mean is read.
IDLE = {
    "dhc": {0: ["a_m"]},
    "shc": {0: ["a_m"]},
    "mhc": {0: ["f_pre", "a_pre", "b_pre", "f_res", "a_res", "b_res"], -1: ["a_res", "f_res"]},
}


@pytest.mark.parametrize(
    ("rule", "options"),
    cases([], TRAINED, [*TRAINED[:5], "mhc-3-True", "mudd"]),
)
def test_every_weight_has_moved_after_20_updates(rule, options):
    network = start(rule, options, depth=6)
    idle = set()
    for position, names in IDLE.get(rule, {}).items():
        own = network.sub_layers[position].rule
        idle |= {id(getattr(own, name)) for name in names}
    weights = [w for w in network.model.trainable_weights if id(w) not in idle]
    before = {w.path: ops.convert_to_numpy(w) for w in weights}
    target = batch(seed=5)
    network.model.compile(keras.optimizers.Adam(0.01), "mse")
    network.model.fit(
        np.tile(batch(), (20, 1, 1)), np.tile(target, (20, 1, 1)), batch_size=2, verbose=0,
        shuffle=False,
    )  # fmt: skip
    still = [
        w.path for w in weights if np.abs(ops.convert_to_numpy(w) - before[w.path]).max() < 1e-4
    ]
    assert not still
    assert all(np.isfinite(ops.convert_to_numpy(w)).all() for w in network.model.weights)


def test_a_source_that_was_not_written_has_no_share():
    network = Network("attnres", {}, depth=4)
    x = ops.convert_to_tensor(batch())
    end = AttentionResiduals(index=4, depth=4)
    end.build_last((None, STEPS, D))
    state = network.model.get_layer("start")(x)
    np.testing.assert_allclose(ops.convert_to_numpy(end.reduce(state)), batch(), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "none"}, "must be one of 'pre'"),
        ({"rule": "post", "variant": "coupled"}, "only the rule 'pre' has variants"),
        ({"gate": "row"}, "must be one of"),
        ({"rule": "laurel", "previous": 2}, "`rank` above 0"),
        ({"rule": "mhc", "streams": 0}, "streams"),
        ({"rule": "mhc", "streams": 7, "exact": True}, "`streams` must be at most 6"),
        ({"index": 3, "depth": 2}, "at most depth=2"),
        ({"rule": "attnres", "index": 2, "depth": 2}, "below depth=2"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        zoo.SubLayer(keras.layers.Dense(4), **arguments)


ATTENTION = CausalAttention(1, *[keras.layers.Dense(units) for units in (4, 4, 1, 4)])


@pytest.mark.parametrize("inner", [keras.layers.Conv1D(D, 2), keras.layers.Dense(1), ATTENTION])
def test_a_layer_that_changes_the_shape_is_refused(inner):
    with pytest.raises(ValueError, match="keeps the shape of its input.*one that returns"):
        zoo.SubLayer(inner)(batch())


class SelfAttention(keras.layers.MultiHeadAttention):
    """Attention whose `compute_output_shape` wants more than one shape."""

    def build(self, shape):
        super().build(shape, shape)

    def call(self, x):
        return super().call(x, x)


def test_a_layer_that_does_not_say_its_shape_is_taken():
    assert tuple(zoo.SubLayer(SelfAttention(2, 2))(batch()).shape) == batch().shape


def test_exact_mixings_of_a_block_in_float64(backend):
    if backend == "jax":
        pytest.skip("it has float64 with a flag only")
    layer = zoo.SubLayer(keras.layers.Dense(4), "mhc", streams=2, exact=True, dtype="float64")
    assert tuple(layer(np.ones((1, 2, 4))).shape) == (1, 2, 4)


@pytest.mark.parametrize("rule", ["pre", "dhc", "attnres"])
def test_the_shapes_at_both_ends_of_a_stream_are_known_without_a_call(rule):
    shape = None, STEPS, D
    for end in (zoo.StreamStart(rule, depth=2), zoo.StreamEnd(rule, depth=2)):
        inputs = keras.Input(batch_shape=shape)
        expected = keras.ops.convert_to_numpy(end(np.ones((1, *shape[1:])))).shape
        shape = end.compute_output_shape(shape)
        assert shape == end(inputs).shape == (None, *expected[1:])


def test_a_state_of_the_wrong_shape():
    layer = zoo.SubLayer(keras.layers.Dense(4), "dhc", depth=2)
    for x in (batch(), np.ones((2, 3, 3, D))):  # without streams; with three of them
        with pytest.raises(ValueError, match="zoo.StreamStart"):
            layer(x)
        with pytest.raises(ValueError, match="expected axis -2 of input shape to have value 2"):
            zoo.StreamEnd("dhc", depth=2)(x)
    with pytest.raises(ValueError, match="expected min_ndim=3"):
        zoo.StreamEnd("dhc", depth=2)(np.ones((2, D)))


@pytest.mark.parametrize("end", [False, True])
def test_a_state_of_another_shape_than_the_first(end):
    layer = zoo.SubLayer(keras.layers.Dense(D), "attnres", depth=2)
    layer = zoo.StreamEnd("attnres", depth=2) if end else layer
    state = np.ones((2, STEPS, 3, D), "float32")
    layer(state)
    for wrong in (state[:, :, :2], np.ones((2, STEPS, 4, D)), state[..., :1]):
        with pytest.raises(ValueError, match="incompatible with the layer"):
            layer(wrong)


@pytest.mark.parametrize("rule", ["value", "mudd"])
def test_a_layer_that_ignores_what_its_rule_hands_it_is_refused(rule):
    x = zoo.StreamStart(rule, depth=2)(keras.Input((5, 6)))
    with pytest.raises(ValueError, match="`zoo.layers.attention.CausalAttention`"):
        zoo.SubLayer(keras.layers.Dense(6), rule, index=0, depth=2)(x)


def test_a_frozen_sub_layer_has_no_trainable_weights(tmp_path):
    for rule in ("layerscale", "mhc"):
        frozen = zoo.SubLayer(keras.layers.Dense(D), rule, depth=2, trainable=False)
        frozen(zoo.StreamStart(rule, depth=2)(batch()))
        assert not frozen.trainable_weights
    network = Network("attnres", {}, depth=2)
    network.model.trainable = False
    network.model.save(tmp_path / "frozen.keras")
    assert not keras.saving.load_model(tmp_path / "frozen.keras").trainable_weights


def test_a_probe_sees_the_change_of_a_rule_without_cancellation():
    layer = zoo.SubLayer(keras.layers.Dense(D), "scaled", depth=10_000, dtype="mixed_bfloat16")
    layer.build((None, STEPS, D))
    parts = layer.parts(ops.cast(batch(), "bfloat16"))
    h = ops.convert_to_numpy(ops.cast(parts["h"], "float32"))
    np.testing.assert_allclose(ops.convert_to_numpy(layer.change(parts)), h / 10_000, atol=1e-6)
