"""The residual league: equal cost, equal examples, and rates that are chosen on validation."""

import dataclasses
import json

import keras
import numpy as np
import pytest

import zoo
from helpers.harness import slow_elsewhere, without_backend
from zoo.recipes import experiment
from zoo.recipes.experiment import characters, store
from zoo.recipes.league import ramp, rules

SIZES = {"depth": 2, "heads": 2, "steps": 8, "width": 16}


def network(entry, hidden):
    return zoo.transformer_lm(5, **SIZES, **entry, hidden=hidden)


def hidden_size(name, match, **changes):
    return rules.hidden_size(name, rules.Sizes(**{**SIZES, **changes}), 5, match)


@without_backend
@pytest.mark.parametrize("name", ["dhc", "mhc", "attnres", "coupled", "keel", "unet"])
def test_an_entry_costs_what_pre_ln_does(name):
    hidden = hidden_size(name, "operations")
    found, pre = (
        zoo.graph.cost(network(entry, size)).operations
        for entry, size in [(rules.ENTRIES[name], hidden), ({}, 64)]
    )
    unit = 2 * 16 * 2 * 8  # of a hidden feature: two kernels, two layers, eight steps
    assert abs(found - pre) <= unit / 2
    assert hidden_size(name, "none") == 64


def test_a_rule_that_costs_too_much_is_refused():
    with pytest.raises(ValueError, match="that cost less than the feed-forward"):
        hidden_size("mhc", "parameters", depth=1, heads=1, width=2)


def test_each_symbol_is_a_target_once():
    x, y = characters.windows(np.arange(11), 3)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert y.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_networks_of_a_seed_see_the_same_examples():
    text = np.random.default_rng(0).integers(0, 9, 200)
    x, y = characters.random_examples(text, 16, 12, 3)
    assert x.shape == (12, 16)
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    np.testing.assert_array_equal(x, characters.random_examples(text, 16, 12, 3)[0])
    assert (x != characters.random_examples(text, 16, 12, 4)[0]).any()


def rates(*losses):
    runs = {str(i): {"rate": 10.0**i, "validation": v} for i, v in enumerate(losses)}
    return {"pre": runs}


def test_the_best_rate_is_that_of_the_mean_over_seeds():
    assert rules.best_rates([rates(3, 1.0, 2, 3), rates(3, 2.5, 1, 3)], {"pre"}) == {"pre": 100.0}
    assert rules.best_rates([rates(3, 1.0, 2)], {"pre"}) == {}
    with pytest.raises(ValueError, match="at the edge"):
        rules.best_rates([rates(1, 2, 3), rates(1, 2, 3)], {"pre"})


def test_a_table_of_rates_has_all_columns_in_each_row():
    post = {"post": {"0.1": {"rate": 0.1, "validation": 2.0}, **rates(3, 1)["pre"]}}
    rows = [*rules.rates_table([{**rates(3, 1.0), **post}])]
    assert [[*row] for row in rows] == [["entry", "0.1", "1", "10"]] * 2
    assert [row["0.1"] for row in rows] == ["", 2.0]


def test_a_control_differs_from_pre_ln_also_where_the_claim_does_not():
    losses = {"keel": 1.9, "scaled": 2.05, "pre": 2.0, "pre_again": 2.01}
    measured = {name: {"test": loss} for name, loss in losses.items()}
    (claim,) = (one for one in rules.CLAIMS if one.name == "L9")
    assert claim.value(measured) == pytest.approx(-0.15)
    assert claim.control.value(measured) == pytest.approx(0.01)


def test_verdicts_are_those_of_students_test_with_holms_correction():
    above = {  # of four seeds: t is -10, 3.35 and 0
        "keel": [-0.09, -0.11, -0.11, -0.09],
        "mhc": [0.01, 0.03, 0.01, 0.03],
        "lns": [0.001, -0.001, 0.001, -0.001],
        "post": [0.1, -0.1, 0.1, -0.1],
    }
    seeds = [
        {"pre": {"test": 2.0}, **{name: {"test": 2 + one[i]} for name, one in above.items()}}
        for i in range(4)
    ]
    found = rules.differences(seeds)
    assert [*found] == ["keel", "lns", "post", "mhc"]
    # Student's quantile of 97.5 % and three degrees of freedom is 3.182
    assert found["keel"].half == pytest.approx(3.182 * 0.02 / 12**0.5, rel=1e-3)
    assert found["mhc"].p == pytest.approx(3 * 0.0405, rel=1e-2)
    verdicts = {name: one.verdict for name, one in found.items()}
    assert verdicts == {
        "keel": "better",
        "mhc": "not told apart",
        "lns": "equal",
        "post": "not told apart",
    }
    assert {one.verdict for one in rules.differences(seeds[:1]).values()} == {"not told apart"}
    assert [tick.get_text() for tick in rules.ranking(seeds).axes[0].get_yticklabels()] == [*found]


def test_probes_are_drawn_by_depth_if_all_entries_are_there():
    one = {name: dict.fromkeys(rules.PROBES, [1.0, 2.0, 4.0]) for name in rules.DRAWN}
    figure = rules.by_depth([one, one])
    assert len(figure.axes) == len(rules.PROBES)
    assert [len(axis.lines) for axis in figure.axes] == [len(rules.DRAWN)] * len(rules.PROBES)
    assert rules.by_depth([{"pre": one["pre"]}]) is None


def test_more_multiply_adds_are_five_percent():
    cost = {}
    for name in ("pre", "pre_more"):
        model = network(rules.ENTRIES[name], hidden_size(name, "operations"))
        cost[name] = zoo.graph.cost(model).operations
    unit = 2 * 16 * 2 * 8
    assert abs(cost["pre_more"] - 1.05 * cost["pre"]) <= unit / 2


def test_the_league_needs_rates_on_record(tmp_path):
    run = experiment.Run(tmp_path, 0, experiment.Options(runs=str(tmp_path)))
    settings = rules.Settings(entries=("pre",), updates=7)
    with pytest.raises(ValueError, match="best rate of 'pre' is not on record"):
        rules.measure(settings, run)
    with pytest.raises(ValueError, match="`test_characters` must be more than the 64"):
        rules.Settings(test_characters=64)


@slow_elsewhere
@pytest.mark.parametrize("rule", ["pre", "shc", "mhc"])
def test_the_gain_is_that_of_the_product_of_all_mixings(rule):
    model = zoo.transformer_lm(5, **SIZES, rule=rule, seed=0)
    random = np.random.default_rng(0)
    product = np.eye(2)
    for layer in model.layers:
        if rule == "shc" and isinstance(layer, zoo.SubLayer):
            a_r = random.normal(size=(2, 2))
            layer.rule.a_r.assign(a_r)
            product = a_r.T @ product
    expected = np.abs([product, product.T]).sum(-1).max()  # 1 of doubly stochastic ones
    x, y = characters.windows(np.arange(41) % 5, 8)
    assert rules.gain(model, x) == pytest.approx(expected, rel=1e-3)
    if rule == "mhc":
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        found = rules.looked_into(model, x, y)
        assert {name: len(v) for name, v in found.items() if name != "gain"} == {
            **dict.fromkeys(("influence", "gradient", "size", "kl"), 4),
            "alike": 3,
        }


@without_backend
def test_a_run_that_was_begun_with_another_text_is_not_continued(tmp_path):
    run = experiment.Run(tmp_path / "run", 0, experiment.Options(data_dir=str(tmp_path)))
    for words in ("a b c d", "a b c d", "a b c c"):
        for part in ("train", "valid", "test"):
            (tmp_path / f"{part}.txt").write_text(f"{words}\n" * 9, "utf-8")
        if words == "a b c d":
            assert characters.load_text(run, None).count > 4
            continue
        with pytest.raises(ValueError, match="data 'text' with which.*choose other --runs"):
            characters.load_text(run, None)


def test_rates_on_record_of_other_entries_stay(tmp_path, monkeypatch):
    run = experiment.Run(tmp_path, 0, experiment.Options(runs=str(tmp_path)))
    monkeypatch.setattr(rules, "load_text", lambda *_: None)
    best = {"post": 4.5e-4, "keel": 9e-3}

    def train(name, settings, run, data, rate, match):
        return {"rate": rate, "validation": abs(np.log(rate / best[name]))}

    monkeypatch.setattr(rules, "train", train)
    settings = rules.Settings(entries=("post", "keel"), rates=(1e-3, 2e-3), extensions=2)
    stored = json.loads(json.dumps(dataclasses.asdict(settings))) | {"entries": ["pre", "post"]}
    facts = {name: kind() for name, kind in store.RUN.items() if name != "measured"}
    facts |= {"backend": keras.config.backend(), "settings": stored}
    store.save(tmp_path / "record", {"pre": 1, "post": 2}, facts)
    monkeypatch.setattr(rules.pages, "seeds_on_record", lambda *_: [tmp_path / "record"])
    found = rules.measure_rates(settings, run)
    assert {name: one if name == "pre" else [*one] for name, one in found.items()} == {
        "pre": 1,
        "post": ["0.00025", "0.0005", "0.001", "0.002"],
        "keel": ["0.001", "0.002", "0.004", "0.008"],
    }
    own = {name: found[name] for name in settings.entries}
    with pytest.raises(ValueError, match="'keel', whose best rate 0.008 is at the edge"):
        rules.best_rates([own, own], {"post", "keel"})
    assert rules.best_rates([own, own], {"post"}) == {"post": 0.0005}
    store.save(tmp_path / "record", {"pre": 1}, {**facts, "settings": {**stored, "width": 7}})
    assert "pre" not in rules.measure_rates(settings, run)


@slow_elsewhere
def test_a_network_that_diverges_has_the_loss_of_the_frequencies(tmp_path, monkeypatch):
    run = experiment.Run(tmp_path, 0, experiment.Options(runs=str(tmp_path)))
    text = np.random.default_rng(0).integers(0, 5, 400).astype("int32")
    data = characters.Characters(text, text[:100], text[100:200], 5)
    monkeypatch.setattr(rules, "random_examples", lambda *_: [np.full((12, 16), 1)] * 2)
    settings = rules.SCALES["smoke"]
    found = rules.train("pre", settings, run, data, float("inf"), "none")
    assert found["diverged"]
    assert found["test"] == data.unigram_loss
    counts = np.bincount(text, minlength=5) + 1
    expected = -np.log(counts / counts.sum())[text[100:200]].mean()
    assert data.unigram_loss == pytest.approx(expected)


@without_backend
def test_divergence_is_half_a_nat_above_an_earlier_mean():
    sums = np.concatenate([[0.0], np.cumsum([4.0, 2.0] * 20 + [2.6] * 40)])
    losses = ramp.means(sums)
    assert losses[:21] == pytest.approx(np.full(21, 3.0)) and losses[-1] == pytest.approx(2.6)
    assert ramp.diverges(losses) is None
    assert ramp.diverges(np.array([3.0, 2.0, 2.49, 2.51, 9.0])) == 3
    assert ramp.diverges(np.array([3.0, np.nan, 3.0])) == 1


@slow_elsewhere
def test_a_rate_that_grows_beyond_all_bounds_makes_a_network_diverge(tmp_path, monkeypatch):
    run = experiment.Run(tmp_path, 0, experiment.Options(runs=str(tmp_path)))
    settings = dataclasses.replace(ramp.SCALES["smoke"], updates=60, last_rate=1e4)
    random = np.random.default_rng(0).integers(0, 5, (2, 240, 16)).astype("int32")
    found = ramp.ramp("post", settings, run, 5, (random[0], random[1]))
    end = ramp.diverges(found["losses"])
    assert found["diverged"] and len(found["losses"]) == end + 1  # the training stops there
    expected = 1e-4 * 1e8 ** ((end + ramp.WINDOW - 1) / 59)
    assert found["rate"] == pytest.approx(expected)
