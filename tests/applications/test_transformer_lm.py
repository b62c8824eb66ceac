"""The language model with any rule: counts, probes, lesions, files, and its start."""

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from helpers.harness import few_elsewhere, slow_elsewhere
from zoo import callbacks
from zoo.applications.transformer_lm import PositionEmbedding

SMALL = {"vocabulary": 11, "steps": 6, "width": 8, "depth": 2, "heads": 2, "seed": 3}
RULES = [*zoo.RULES]
FEW = ["keel", "mhc", "attnres", "value"]
D, L, M = 64, 12, 6
COUNTS = {  # parameters and multiply-adds of a symbol more than those of "pre", at the defaults
    "post": (-D, 0),
    "scaled": (0, 0),
    "completep": (0, 0),
    "lns": (0, 0),
    "deepnorm": (-D, 0),
    "keel": ((L - 2) * D, 0),
    "rezero": (M - (L + 1) * D, 0),
    "layerscale": (L * D, 0),
    "laurel": (2 * L, 0),
    "ddl": (2 * (D + 1) * L, 2 * D * L),
    "gru": ((6 * D**2 + D) * L, 6 * D**2 * L),
    "shc": (2 * 4 * L, D * 8 * L),
    "dhc": ((2 * 4 + D + D * 4 + 2) * L, (D * 8 + D * 2 * 4) * L),
    "mhc": ((2 * D * 8 + 4 + 4 + 3) * L, (2 * D * 8 + D * 8) * L),
    # less than the paper's 2 d (L + 1), d (L + 1) (L + 2): the first sub-layer has one source
    "attnres": (2 * D * L, D * (L + 1) * (L + 2) - 2 * D),
    "denseformer": (M * (M + 3) // 2, D * M * (M + 3) // 2),
    "mudd": (
        sum(4 * i * (D + 4 * i + 1) for i in range(2, M + 1)) + (M + 1) * (D + M + 2) + 2 * D * M,
        sum(4 * i * (D + 4 * i + D) for i in range(2, M + 1)) + (M + 1) * (D + M + 1 + D),
    ),
    "value": (0, 0),
    "x0": (2 * M, 0),
}


def some(few, on_torch=RULES):
    """Return rules as parameters, of which torch runs some and other backends few by default."""
    marks = {name: pytest.mark.slow for name in RULES if name not in on_torch}
    marks |= {name: slow_elsewhere for name in on_torch if name not in few}
    return [pytest.param(name, marks=marks.get(name, ())) for name in RULES]


def tokens(seed=0, count=3):
    return np.random.default_rng(seed).integers(0, 11, (count, 6))


def numpy(model, x):
    return ops.convert_to_numpy(model(x))


def test_the_defaults_have_the_size_of_the_league():
    found = zoo.graph.cost(zoo.transformer_lm())
    assert (found.parameters, found.operations / 64) == (309_746, 347_264)
    assert set(COUNTS) == set(RULES) - {"pre"}


@pytest.mark.parametrize("rule", few_elsewhere([*COUNTS], ["dhc", "attnres"]))
def test_a_rule_costs_what_its_equations_say(rule):
    model = zoo.transformer_lm(rule=rule)
    found = zoo.graph.cost(model)
    assert (found.parameters - 309_746, found.operations / 64 - 347_264) == COUNTS[rule]
    assert found.parameters == model.count_params()


@pytest.mark.parametrize(("gate", "more"), [("unit", 12 * (64**2 + 64)), ("token", 12 * 65)])
def test_a_gate_costs_a_dense_layer(gate, more):
    model = zoo.transformer_lm(variant="coupled", options={"gate": gate})
    assert model.count_params() == 309_746 + more


@slow_elsewhere
def test_a_seed_gives_networks_the_same_kernels():
    zoo.seed_everything(0)
    pair = [
        zoo.transformer_lm(**SMALL, hidden=hidden, rule=rule)
        for hidden, rule in [(32, "pre"), (20, "dhc")]
    ]
    for name in ("attention2", "attention1"):
        one, other = (ops.convert_to_numpy(m.get_layer(name).inner.query.kernel) for m in pair)
        np.testing.assert_array_equal(one, other)
    same = [numpy(zoo.transformer_lm(**SMALL, rule=rule), tokens()) for rule in ("pre", "dhc")]
    np.testing.assert_allclose(*same, atol=1e-6)


BOUNDED = {  # rules that themselves bound the sum of branches
    *("post", "scaled", "completep", "lns", "deepnorm", "keel", "rezero", "layerscale"),
    *("ddl", "gru"),
}


@slow_elsewhere
@pytest.mark.parametrize("rule", RULES)
def test_kernels_start_with_the_deviation_of_their_fan_in_depth_and_rule(rule):
    model = zoo.transformer_lm(**{**SMALL, "width": 32}, rule=rule)
    beta = (8 * 2) ** -0.25 if rule == "deepnorm" else 1.0  # of two layers
    last = beta if rule in BOUNDED else beta * 4**-0.5  # of four sub-layers
    for number in (1, 2):
        inner = model.get_layer(f"attention{number}").inner
        hidden, output = model.get_layer(f"feed_forward{number}").inner.layers
        expected = [(inner.query, 1), (inner.key, 1), (inner.projection, last)]
        expected += [(hidden, beta), (output, last)]
        if rule != "value" or number == 2:
            expected.append((inner.value, beta))
        else:
            expected.append((model.get_layer("stream").rule, 1))
        for layer, factor in expected:
            kernel = ops.convert_to_numpy(layer.kernel)
            # 4 standard errors of 1,024 numbers
            assert kernel.std() * len(kernel) ** 0.5 == pytest.approx(factor, rel=0.09)
            assert not ops.convert_to_numpy(layer.bias).any()


def test_the_stream_starts_with_a_root_mean_square_of_1():
    model = zoo.transformer_lm(seed=0)
    start = keras.Model(model.input, model.get_layer("stream").output)
    x = numpy(start, np.random.default_rng(0).integers(0, 50, (8, 64)))
    assert abs(np.sqrt((x**2).mean()) - 1) < 0.05


@pytest.mark.parametrize("rule", some(["value"]))
def test_no_symbol_sees_a_later_one(rule):
    model = zoo.transformer_lm(**SMALL, rule=rule)
    x = tokens()
    other = x.copy()
    other[:, 4] = (other[:, 4] + 1) % 11
    one, changed = numpy(model, x), numpy(model, other)
    np.testing.assert_allclose(one[:, :4], changed[:, :4], atol=1e-6)
    assert np.abs(one[:, 4:] - changed[:, 4:]).max() > 1e-4


@slow_elsewhere
def test_probes_of_a_rule_in_half_precision_are_those_of_single_precision():
    ratios = []
    for policy in ("float32", "bfloat16"):
        keras.config.set_dtype_policy(policy)
        try:
            model = zoo.transformer_lm(**SMALL, rule="ddl")
        finally:
            keras.config.set_dtype_policy("float32")
        table = callbacks.run([callbacks.L2Ratio()], model, tokens())
        ratios.append(table.values("l2_ratio"))
    assert ratios[1] == pytest.approx(ratios[0], rel=0.05)  # bfloat16 has 8 bits


@pytest.mark.parametrize("rule", some([], FEW))
def test_probes_lesions_and_files(rule, tmp_path):
    model = zoo.transformer_lm(**SMALL, rule=rule)
    for layer in model.layers:  # off their start, where some rules change nothing
        for weight in layer.rule.weights if isinstance(layer, zoo.SubLayer) else ():
            weight.assign(ops.convert_to_numpy(weight) + 0.1)
    x = tokens()
    data = x, tokens(seed=1)
    probes = [callbacks.BlockInfluence(), callbacks.GradientNorm(), callbacks.L2Ratio()]
    table = callbacks.run(probes, model, data)
    assert {len(table.values(p.name)) for p in probes} == {4}
    lesions = callbacks.lesions(model, data).values("lesion_kl")
    assert len(lesions) == 5
    for mode in ("removed", "closed"):
        cut = zoo.graph.lesion(model, "feed_forward1", mode=mode)
        cut.save(tmp_path / "cut.keras")
        loaded = keras.saving.load_model(tmp_path / "cut.keras")
        np.testing.assert_array_equal(numpy(cut, x), numpy(loaded, x))
        assert np.abs(numpy(cut, x) - numpy(model, x)).max() > 1e-4
    log_p = [ops.log_softmax(numpy(m, x)) for m in (model, zoo.graph.lesion(model, "attention2"))]
    p, q = (ops.convert_to_numpy(v) for v in log_p)
    kl = (np.exp(p) * (p - q)).sum(-1).mean()
    assert lesions["attention2"] == pytest.approx(kl, rel=1e-3, abs=1e-6)


def without_blocks(model):
    return zoo.graph.lesion(model, *[block.name for block in zoo.graph.find_blocks(model)[0]])


@slow_elsewhere
@pytest.mark.parametrize("rule", RULES)
def test_a_network_without_blocks_is_its_embedding_and_its_head(rule):
    model = zoo.transformer_lm(**SMALL, rule=rule)
    x = ops.convert_to_numpy(model.get_layer("embedding")(tokens()))
    x = x + ops.convert_to_numpy(model.get_layer("positions").embeddings)
    if rule not in ("post", "deepnorm", "keel", "rezero"):
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    head = model.get_layer("logits")
    expected = x @ ops.convert_to_numpy(head.kernel) + ops.convert_to_numpy(head.bias)
    np.testing.assert_allclose(numpy(without_blocks(model), tokens()), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "closed"),
    [
        ("coupled", lambda x, c: x),
        ("full", lambda x, c: x * c),
        ("keel", lambda x, c: x / np.sqrt((x**2).mean(-1, keepdims=True))),
        ("mhc", None),
    ],
)
def test_a_closed_sub_layer_writes_nothing(rule, closed):
    arguments = {"rule": rule} if rule in zoo.RULES else {"variant": rule}
    model = zoo.transformer_lm(**SMALL, **arguments)
    block = model.get_layer("attention2")
    shape = (3, 6, 2, 8) if rule == "mhc" else (3, 6, 8)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    y = ops.convert_to_numpy(block.closed(ops.convert_to_tensor(x)))
    if closed is None:  # H_res keeps the mean over the streams
        expected, y = x.mean(2), y.mean(2)
    else:
        c = block.carry_gate and ops.convert_to_numpy(block.carry_gate(block.norm(x)))
        expected = closed(x, c)
    np.testing.assert_allclose(y, expected, atol=1e-4)


def test_attention_residuals_without_a_sub_layer_have_one_source_less():
    model = zoo.transformer_lm(**SMALL, rule="attnres")
    state = np.random.default_rng(0).normal(size=(1, 1, 5, 8)).astype("float32")
    state[:, :, 2] = 0
    rule = model.get_layer("stream_end").rule
    rule.w.assign(np.random.default_rng(1).normal(size=8))
    sources = np.delete(state[0, 0], 2, axis=0)
    keys = sources / np.sqrt((sources**2).mean(-1, keepdims=True) + 1e-6)
    shares = np.exp(keys @ ops.convert_to_numpy(rule.w))
    expected = (shares[:, None] * sources).sum(0) / shares.sum()
    found = rule.reduce(ops.convert_to_tensor(state))
    np.testing.assert_allclose(ops.convert_to_numpy(found)[0, 0], expected, atol=1e-5)


@pytest.mark.parametrize("rule", ["attnres", "denseformer", "mudd"])
def test_a_sub_layer_with_a_slot_cannot_be_moved(rule):
    model = zoo.transformer_lm(**SMALL, rule=rule)
    with pytest.raises(ValueError, match="rule has no slots for sub-layers"):
        callbacks.shuffles(model, (tokens(), tokens(1)), swaps=(1,))


@pytest.mark.parametrize("learned", [True, False])
def test_values_of_the_first_layer_reach_the_second(learned):
    model = zoo.transformer_lm(**SMALL, rule="value", options={"learned": learned})
    attention = model.get_layer("attention2")
    assert model.get_layer("attention1").inner.value is None
    x = np.random.default_rng(0).normal(size=(1, 6, 2, 8)).astype("float32")
    u = ops.convert_to_numpy(attention.norm(x[:, :, 0]))
    values = 0.5 * x[:, :, 1] + 0.5 * ops.convert_to_numpy(attention.inner.value(u))
    q, k = (ops.convert_to_numpy(f(u)) for f in (attention.inner.query, attention.inner.key))
    heads = []
    for h in (slice(0, 4), slice(4, 8)):
        scores = q[0, :, h] @ k[0, :, h].T / 2
        scores = np.where(np.tri(6, dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        heads.append(shares / shares.sum(-1, keepdims=True) @ values[0, :, h])
    kernel, bias = map(ops.convert_to_numpy, attention.inner.projection.weights)
    expected = x[0, :, 0] + np.concatenate(heads, -1) @ kernel + bias
    np.testing.assert_allclose(ops.convert_to_numpy(attention(x))[0, :, 0], expected, atol=1e-5)


def test_a_network_whose_layers_have_no_share_of_the_first_values_is_pre_ln():
    model = zoo.transformer_lm(**SMALL, rule="value", options={"learned": True})
    pre = zoo.transformer_lm(**SMALL)
    for layer in (model.get_layer("stream").rule, pre.get_layer("attention1").inner.value):
        layer.bias.assign(np.random.default_rng(0).normal(size=8))
    expected = numpy(pre, tokens())
    assert np.abs(numpy(model, tokens()) - expected).max() > 1e-3
    model.get_layer("attention2").rule.shares.assign([0.0, 1.0])
    np.testing.assert_allclose(numpy(model, tokens()), expected, atol=1e-6)


def test_a_closed_sub_layer_of_rezero_has_no_influence():
    model = zoo.transformer_lm(**SMALL, rule="rezero")
    model.get_layer("attention2").rule.scale.assign(0.5)
    table = callbacks.run([callbacks.BlockInfluence()], model, tokens())
    found = table.values("block_influence")
    assert max(found["attention1"], found["feed_forward1"]) < 1e-6
    assert min(found["attention2"], found["feed_forward2"]) > 1e-4


def test_rezero_has_one_factor_for_a_layer(tmp_path):
    model = zoo.transformer_lm(**SMALL, rule="rezero")
    model.get_layer("feed_forward2").rule.scale.assign(0.5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for one in (model, loaded):
        assert one.get_layer("attention2").rule is one.get_layer("feed_forward2").rule
        assert ops.convert_to_numpy(one.get_layer("attention2").rule.scale) == 0.5
    np.testing.assert_array_equal(numpy(model, tokens()), numpy(loaded, tokens()))


@slow_elsewhere
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_it_quantizes_and_trains_and_counts_in_mixed_precision(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = zoo.transformer_lm(**SMALL, rule="mhc")
        assert model.output.dtype == "float32" and model.layers[1].compute_dtype == "bfloat16"
    finally:
        keras.config.set_dtype_policy("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    model.fit(tokens(), tokens(1), verbose=0)
    assert np.isfinite(np.asarray(numpy(model, tokens()), "float32")).all()
    model = zoo.transformer_lm(**SMALL, rule="dhc")
    before = numpy(model, tokens())
    model.quantize("int8")
    model.save(tmp_path / "int8.keras")
    loaded = keras.saving.load_model(tmp_path / "int8.keras")
    np.testing.assert_array_equal(numpy(model, tokens()), numpy(loaded, tokens()))
    assert 0 < np.abs(numpy(model, tokens()) - before).max() < 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "none"}, "must be one of 'pre'"),
        ({"heads": 3}, "a divisor of"),
        ({"rule": "keel", "options": {"streams": 2}}, "some of those of 'keel'"),
        ({"hidden": 0}, "hidden"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        zoo.transformer_lm(**{**SMALL, **arguments})


def with_random_rules(rule, **options):
    model = zoo.transformer_lm(**SMALL, rule=rule, **options)
    random = np.random.default_rng(0)
    for layer in model.layers:
        for weight in layer.rule.weights if isinstance(layer, zoo.SubLayer) else ():
            weight.assign(ops.convert_to_numpy(weight) + 0.3 * random.normal(size=weight.shape))
    return model


@pytest.mark.parametrize("rule", some([], ["post", "dhc", "attnres", "x0"]))
def test_views_are_what_sub_layers_read_and_what_the_network_would_return(rule):
    model = with_random_rules(rule)
    blocks = [layer for layer in model.layers if isinstance(layer, zoo.SubLayer)]
    end = model.get_layer("stream_end")
    states = keras.Model(model.input, [layer.input for layer in (*blocks, end)])(tokens())
    rules = [layer.rule for layer in blocks]
    read = [rule.read(x, rule.coefficients(x)) for rule, x in zip(rules, states, strict=False)]
    expected = {"read": [*read, end.rule.reduce(states[-1])], "readout": [*map(end, states)]}
    probes = [callbacks.BlockInfluence(), callbacks.L2Ratio()]
    for view, tensors in expected.items():
        table = callbacks.run(probes, model, tokens(), view=view)
        arrays = [ops.convert_to_numpy(v).astype("float64") for v in tensors]
        unit = [v / np.linalg.norm(v, axis=-1, keepdims=True) for v in arrays]
        for i, block in enumerate(blocks):
            influence = 1 - (unit[i] * unit[i + 1]).sum(-1).mean()
            found = table.values("block_influence")[block.name]
            assert found == pytest.approx(influence, rel=1e-3, abs=1e-6)
            assert np.isfinite(table.values("l2_ratio")[block.name])


@slow_elsewhere
@pytest.mark.parametrize(("rule", "factor"), [("pre", 1.0), ("scaled", 0.25)])
def test_the_gradient_at_h_is_that_of_the_next_state_times_the_scale(rule, factor):
    model = zoo.transformer_lm(**SMALL, rule=rule)
    probes = [callbacks.GradientNorm("h", "at_h"), callbacks.GradientNorm()]
    table = callbacks.run(probes, model, (tokens(), tokens(1)))
    at_h, at_input = ([*table.values(p.name).values()] for p in probes)
    np.testing.assert_allclose(at_h[:-2], np.multiply(factor, at_input[1:-1]), rtol=1e-4)


@slow_elsewhere
def test_unknown_views_and_networks_without_them_are_refused():
    model = zoo.transformer_lm(**SMALL)
    probes = [callbacks.BlockInfluence()]
    with pytest.raises(ValueError, match="must be one of"):
        callbacks.run(probes, model, tokens(), view="stream")
    of_all = callbacks.run(probes, model, tokens(), view="read").values("block_influence")
    of_one = callbacks.run(probes, model, tokens(), view="read", blocks=["attention2"])
    assert of_one.values("block_influence") == {"attention2": of_all["attention2"]}
    inputs = keras.Input((4,))
    other = keras.Model(inputs, keras.layers.Add()([inputs, keras.layers.Dense(4)(inputs)]))
    with pytest.raises(ValueError, match="of all blocks of a network"):
        callbacks.run(probes, other, np.ones((2, 4)), view="read")
    with pytest.raises(ValueError, match="needs \\('dinput',\\)"):
        callbacks.run([callbacks.GradientNorm()], model, (tokens(), tokens(1)), view="readout")
    with pytest.raises(ValueError, match="dx_classifier"):
        callbacks.run([callbacks.CosineLoss("block")], model, (tokens(), tokens(1)), view="readout")
    with pytest.raises(ValueError, match="must be one of 'input', 'h'"):
        callbacks.GradientNorm("x")


def test_an_input_of_other_steps_than_the_positions_is_refused():
    positions = PositionEmbedding("zeros")
    assert positions(np.ones((2, 6, 8))).shape == positions.compute_output_shape((2, 6, 8))
    for steps in (1, 5, 7):
        with pytest.raises(ValueError, match="incompatible with the layer"):
            positions(np.ones((2, steps, 8)))
