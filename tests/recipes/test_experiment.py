"""The driver: flags from settings, resumable runs, stored measurements, verdicts."""

import dataclasses
import fcntl
import functools
import importlib
import json
import math
import os
import pathlib
import re
import runpy
import signal
import sys
import time
import types

import keras
import numpy as np
import pytest
from absl import flags
from scipy import stats

import zoo
from helpers.harness import output_of, start_recipe, without_backend
from helpers.test_data import write_images
from zoo.backend import keras_private
from zoo.recipes import reproduce
from zoo.recipes.experiment import (
    Artifact,
    Claim,
    Control,
    Experiment,
    Options,
    Run,
    Settings,
    catalog,
    command_line,
    pages,
    plots,
    provenance,
    setting,
    store,
)
from zoo.recipes.experiment.definitions import (
    REPLICATIONS,
    ImageSettings,
    difference,
    holm,
    interval,
)
from zoo.recipes.experiment.networks import DivergenceError
from zoo.recipes.srivastava2015 import gates

pytestmark = without_backend


class Toy(Settings):
    """Settings of an experiment without a network."""

    size: int = setting(100, "Number of values; section 1.")
    names: tuple[str, ...] = setting(("a", "b"), "Names.", ["a", "b", "c"])
    factor: float | None = setting(None, "Factor.", most=9)


TOY = Experiment(
    name="toy/numbers",
    scales={"smoke": Toy(size=3), "full": Toy()},
    measure=lambda settings, run: {"values": np.arange(settings.size) + run.seed},
    artifacts=[Artifact("sums", "sums", lambda seeds: [{"sum": o["values"].sum()} for o in seeds])],
)


def test_flags_are_the_fields_of_the_settings_and_override_a_scale():
    words = ["--scale=smoke", "--names=b,c", "--seeds=1,4", "--precision=float64", "--runs=there"]
    plan, rest = command_line.parse(TOY, words)
    assert plan.settings == Toy(size=3, names=("b", "c"), precision="float64")
    assert (plan.seeds, plan.options.runs, rest) == ((1, 4), "there", [])
    text = command_line.help_of(catalog.load("srivastava2015/gates"))
    for field in dataclasses.fields(gates.Settings):
        assert f"{field.name}: " in text
    assert "gate_bias: Initial bias of T; section 4, the best 50-layer network." in text
    assert "Default: 6 (smoke), 50 (miniature/full)." in text


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--keep", "those of --scale smoke are meaningless"),
        ("fast", r"Expected flags only. Received: \['fast'\]"),
        ("--size=0", "a positive integer"),
        ("--names=a,d", "one of <a|b|c>"),
        ("--scale=huge", "one of <smoke|full>"),
        ("--seeds=-1", "a non-negative integer"),
        ("--seeds=1,2,1", "different seeds. Received: --seeds 1,2,1"),
        ("--seeds=", "different seeds"),
        ("--names=", "one or more values"),
        ("--factor=-1", r"-1.0 is not a number in the range \[0, 9\]"),
        ("--factor=nan", "nan is not a number in the range"),
    ],
)
def test_invalid_flags_are_refused_before_any_work(word, message):
    with pytest.raises((ValueError, flags.Error), match=message):
        command_line.parse(TOY, ["--scale=smoke", word])


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        ("pruning/transformer", "--shares=2", r"in the range \[0.1, 0.9\]"),
        ("pruning/transformer", "--depth=1", "1 is not"),
        ("yutomasi2019/divergence", "--depths=5,6", r"3 n \+ 2 layers each"),
        ("greff2017/lesions", "--depths=14,2", "from 8 on"),
        ("srivastava2015/depth_search", "--rates=-1", "lower and the upper end of a range"),
        ("league/rates", "--extensions=-1", "non-negative"),
    ],
)
def test_settings_that_no_network_has_are_refused_before_any_work(name, word, message):
    with pytest.raises((ValueError, flags.Error), match=message):
        command_line.parse(catalog.load(name), ["--scale=full", word])


@pytest.mark.parametrize("module", sorted({*catalog.EXPERIMENTS.values()}))
def test_a_module_of_experiments_runs_by_itself(module, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [module, "--help"])
    imported = importlib.import_module(f"zoo.recipes.{module}")
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(imported.__file__, run_name="__main__")
    text = capsys.readouterr().out
    assert "--scale" in text
    assert text.startswith(imported.__doc__[:50])


def test_deviations_are_the_differences_from_the_full_scale():
    differences = difference(Toy(size=3, factor=0.5), Toy())
    assert differences == ["size 3 (the paper: 100)", "factor 0.5 (the paper: all)"]


def test_a_changed_setting_that_the_full_scale_lacks_is_a_deviation(tmp_path):
    scales = {"miniature": Toy(size=3, factor=0.5), "full": Settings()}
    toy = dataclasses.replace(TOY, scales=scales)
    for factor, deviations in ((0.5, []), (2.0, ["factor 2.0 (the scale miniature: 0.5)"])):
        settings = Toy(size=3, factor=factor)
        plan = command_line.Plan(toy, "miniature", settings, Options(runs=str(tmp_path)), (0,))
        plan.run()
        assert store.load(plan.folders[0])[1]["deviations"] == deviations


def test_measurements_are_stored_exactly(tmp_path):
    measured = {
        "array": np.array([[1.5, math.nan], [-math.inf, 1e-300]]),
        "lost": math.inf,
        "nested": {"words": ["a", "b"], "one": np.float32(0.1), "empty": {}},
        "integers": np.arange(3),
    }
    store.save(tmp_path, measured, {"seed": 3})
    loaded, facts = store.load(tmp_path, {})
    assert facts == {"seed": 3}
    np.testing.assert_equal(loaded["array"], measured["array"])
    np.testing.assert_equal(loaded["integers"], measured["integers"])
    assert loaded["lost"] == math.inf
    assert loaded["nested"] == {"words": ["a", "b"], "one": float(np.float32(0.1)), "empty": {}}
    json.loads((tmp_path / store.MEASURED).read_text(), parse_constant=pytest.fail)  # no NaN
    with pytest.raises(ValueError, match="without '/'"):
        store.save(tmp_path, {"a/b": 1}, {})


def test_a_run_that_has_ended_is_not_repeated(tmp_path):
    counted = []

    def measure(settings, run):
        counted.append(run.seed)
        return {"values": np.arange(settings.size) + run.seed}

    toy = dataclasses.replace(TOY, measure=measure)
    plan = command_line.Plan(toy, "smoke", Toy(size=3), Options(runs=str(tmp_path)), (0, 1))
    first = plan.run()
    assert [one["values"].tolist() for one in first] == [[0, 1, 2], [1, 2, 3]]
    assert counted == [0, 1]
    second = dataclasses.replace(plan, seeds=(0, 1, 2)).run()
    assert counted == [0, 1, 2] and len(second) == 3
    folder = plan.folders[0]
    facts = store.load(folder)[1]
    assert facts["deviations"] == ["size 3 (the paper: 100)"]
    assert facts["settings"]["size"] == 3 and facts["backend"] == keras.config.backend()
    assert (folder.parent / "sums.csv").read_text().split() == ["sum", "3", "6", "9"]
    plans = [dataclasses.replace(plan, settings=Toy(size=size)) for size in (3, 4)]
    assert plans[0].folders == plan.folders != plans[1].folders


def test_a_damaged_measurement_names_the_folder_to_delete(tmp_path):
    store.save(tmp_path, {"x": np.arange(100.0)}, {})
    content = (tmp_path / "measured.npz").read_bytes()
    (tmp_path / "measured.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=f"Delete {tmp_path} to repeat the run"):
        store.load(tmp_path, {})


ORIGIN = {"commit": "c", "backend": "b", "hardware": "h"}
FACTS = {**ORIGIN, "seconds": 1.0, "deviations": [], "settings": {}, "data": "d", "seed": 0}
FACTS |= {"scale": "miniature", "command": "python"}


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "7", '{"measured": {}}', json.dumps({**FACTS, "measured": {}, "commit": [1]})],
)
def test_facts_that_are_missing_or_of_another_type_name_the_file(text, tmp_path):
    store.save(tmp_path, {}, FACTS)
    assert store.load(tmp_path) == ({}, FACTS)
    path = tmp_path / store.MEASURED
    path.write_text(text)
    with pytest.raises(ValueError, match=f"Received: {path}.*Delete {tmp_path} to repeat the run"):
        store.load(tmp_path)
    with pytest.raises(ValueError, match=f"Received: {path}, which is damaged.*Delete it"):
        store.read_json(path, store.ORIGIN)


def test_the_commit_is_that_at_the_start_of_a_command(monkeypatch):
    seen = []

    def command():
        monkeypatch.setattr(provenance.subprocess, "check_output", lambda *_, **__: "later")
        seen.append(provenance.commit())

    provenance.commit.cache_clear()
    command_line.guarded(command)
    assert "later" not in seen[0]


def test_a_part_of_a_measurement_survives_the_process(tmp_path):
    run = Run(tmp_path)

    def measure():
        run.deviations.append("half of the images")
        return {"x": np.ones(2)}

    assert run.part("half", measure)["x"].tolist() == [1, 1]
    again = Run(tmp_path)
    found = again.part("half", lambda: pytest.fail("measured twice"))
    assert found["x"].tolist() == [1, 1] and again.deviations == ["half of the images"]
    part = tmp_path / "parts" / "half" / "measured.json"
    part.write_text(part.read_text().replace(again.origin()["commit"], "abc"))
    resumed = Run(tmp_path)
    resumed.part("half", lambda: pytest.fail("measured twice"))
    assert resumed.origin()["commit"].startswith("abc, ")
    assert resumed.found[0]["seconds"] >= 0
    anew = Run(tmp_path, options=Options(resume=False))
    assert anew.part("half", lambda: {"x": np.zeros(2)})["x"].tolist() == [0, 0]


def test_the_origin_of_a_network_that_was_found_trained_is_told(tmp_path):
    run = Run(tmp_path / "run", options=Options(runs=str(tmp_path)))
    folder, _ = run.open_network("net", "digits", {})
    trained = {"commit": "abc", "backend": "jax", "hardware": "a GPU"}
    (folder / "trained.json").write_text(json.dumps(trained))
    assert run.origin()["commit"].startswith("abc, ")
    assert run.origin()["hardware"].startswith("a GPU, ")


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="takes torch's names of devices")
@pytest.mark.parametrize("rounds", [True, False])
def test_hardware_tells_of_an_accelerator_that_rounds_products(rounds, monkeypatch):
    cuda = sys.modules["torch"].cuda
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cuda, "get_device_name", lambda index: "a GPU")
    monkeypatch.setattr(sys.modules["torch"].backends.cudnn, "allow_tf32", False)
    product = keras.ops.matmul

    def of_rounded(x, y):
        return product(*(keras.ops.cast(keras.ops.cast(v, "bfloat16"), v.dtype) for v in (x, y)))

    if rounds:
        monkeypatch.setattr(keras.ops, "matmul", of_rounded)
    assert provenance.hardware() == "1 x a GPU" + rounds * " (products rounded)"


def test_a_killed_experiment_resumes_to_the_same_measurements(tmp_path):
    data = write_images(
        tmp_path / "mnist.npz", (28, 28, 1), train=200, test=40, classes=10, step=20
    )
    options = data, "--scale=smoke", "--epochs=3", "--depth=4", "--train_examples=200"
    folders = {}
    for name in ("whole", "killed"):
        folders[name] = tmp_path / name
        process = start_recipe("srivastava2015/gates.py", *options, f"--runs={folders[name]}")
        if name == "killed":
            checkpoint = "networks/*/state.npz"
            while process.poll() is None and not [*folders[name].glob(checkpoint)]:
                time.sleep(0.01)
            process.kill()
            process.communicate(timeout=100)
            process = start_recipe("srivastava2015/gates.py", *options, f"--runs={folders[name]}")
        output_of(process)
    whole, killed = (
        store.load(next(folder.glob("srivastava2015-gates/*/seed0")))[0]
        for folder in folders.values()
    )
    np.testing.assert_equal(killed, whole)


@pytest.mark.parametrize(
    ("data", "words", "message"),
    [
        ("missing.npz", (), "data_dir="),
        ("mnist.npz", ("--batch=300",), "`batch` must be at most the 200 training images"),
        ("mnist.npz", ("--depht=3",), "Unknown command line flag 'depht'"),
    ],
)
def test_unusable_input_ends_in_one_line(tmp_path, data, words, message):
    write_images(tmp_path / "mnist.npz", (28, 28, 1), train=200, test=20, classes=10, step=20)
    words = f"--data_dir={tmp_path / data}", "--scale=smoke", f"--runs={tmp_path / 'r'}", *words
    process = start_recipe("srivastava2015/gates.py", *words)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == (2 if "(see --help)" in output else 1)
    assert message in output.splitlines()[-1] and "Traceback" not in output


def test_ctrl_c_is_not_lost_where_keras_catches_it():
    def catch_all():
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            return "caught"
        return "not interrupted"

    name = keras_private.CATCHES_INTERRUPTS
    inputs = keras.Input((2,))
    assert hasattr(keras.Model(inputs, inputs), name)
    in_keras = types.FunctionType(catch_all.__code__.replace(co_name=name), globals())
    before = signal.signal(signal.SIGINT, command_line.interrupt)
    try:
        assert catch_all() == "caught"
        with pytest.raises(KeyboardInterrupt):
            assert in_keras() == "not interrupted"
            time.sleep(5)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_list_has_verdicts_where_results_are_on_record(monkeypatch, tmp_path):
    (first, *_, claims) = pages.listing(["srivastava2015/gates"])
    assert "(on record: " in first and "claims S5 (shown), S6" in claims
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "none")  # as in a wheel
    monkeypatch.setattr(pages, "CLAIMS", tmp_path / "none")
    (first, *_, claims) = pages.listing(["srivastava2015/gates"])
    assert first == "srivastava2015/gates" and claims.endswith("claims S5, S6, S7, S8, S9")


def test_a_checkout_is_needed_to_keep(monkeypatch, tmp_path):
    monkeypatch.setattr(pages, "DOCS", tmp_path / "docs")
    with pytest.raises(ValueError, match="write into a checkout"):
        pages.report()
    (plan,) = command_line.plans_of([catalog.load("srivastava2015/gates")], ["--keep"])
    with pytest.raises(ValueError, match="write into a checkout"):
        plan.run()


def test_errors_of_the_system_have_advice_and_data_that_are_not_read_are_told(tmp_path, capsys):
    def full():
        raise OSError(28, "No space left on device")

    assert "No space left on device. Check the free disk space" in command_line.guarded(full)
    toy = dataclasses.replace(TOY, artifacts=[])
    words = [f"--runs={tmp_path}", f"--data_dir={tmp_path}", "--seeds=0"]
    for _ in range(2):
        command_line.parse(toy, words)[0].run()
    assert "measured before, of no data; --data_dir is not read" in capsys.readouterr().out
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="Expected a folder to read, write and lock.*Choose"):
        command_line.parse(toy, [f"--runs={tmp_path / 'file'}", "--seeds=0"])[0].run()


def test_ctrl_c_says_how_to_resume(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    assert command_line.guarded(interrupted) == 128 + signal.SIGINT
    assert "Run the same command again to resume." in capsys.readouterr().err


def test_intervals_are_students():
    """With 2 degrees of freedom t(p) = (2 p - 1) / sqrt(2 p (1 - p)); p = 1 - 0.025 / 2."""
    half = 0.975 / (2 * 0.9875 * 0.0125) ** 0.5 / 3**0.5
    assert interval([1.0, 2.0, 3.0], ratio=False) == pytest.approx((2 - half, 2 + half))
    ends = interval([1.0, 10.0, 100.0], ratio=True)
    assert np.log10(ends) == pytest.approx((1 - half, 1 + half))
    low, high = np.log10(interval([1.0, 10.0, 100.0, 1000.0, 10000.0], ratio=True))
    assert (low + high) / 2 == pytest.approx(2)
    t = (high - low) / 2 / 0.5**0.5  # a standard error of sqrt(2.5 / 5)
    share = t**2 / (1 + t**2 / 4)  # the distribution function with 4 degrees of freedom, exactly
    assert 0.5 + 0.375 * share**0.5 * (1 - share / 12) == pytest.approx(1 - 0.025 / 8)
    assert interval([1.0, 2.0], ratio=False) is None
    five, eight = [1.0, 2.0, 3.0, 4.0, 5.0], [5.0, 1.0, 4.0, 2.0, 3.0, 6.0, 0.0, 7.0]
    assert interval([*five, 9.0, 9.0], ratio=False) == interval(five, ratio=False)
    assert interval([*eight, 99.0], ratio=False) == interval(eight, ratio=False)
    assert interval([1.0, 0.0, 2.0], ratio=True) is None


TEXTS = {"name": "T1", "section": "1", "statement": "S.", "quantity": "q"}
CONTROL = Control("chance", lambda one: one["control"])


@pytest.mark.parametrize(
    ("values", "controls", "verdict"),
    [
        ([10.0, 11.0, 12.0], [1.0, 2.0, 3.0], "shown"),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], "contradicted"),
        ([1.0, 5.0, 12.0], [1.0, 2.0, 3.0], "undecided"),
        ([100.0, 101.0], [1.0, 2.0], "undecided"),
        ([10.0, 11.0, 12.0], [10.0, 11.0, 12.0], "not told apart"),
        ([10.0, 11.0, 12.0], [1.0, 5.0, 12.0], "not told apart"),
        ([10.0, 11.0, 12.0], [1.0, 2.0, math.nan], "not told apart"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side_and_the_controls_on_the_other(
    values, controls, verdict
):
    claim = Claim(value=lambda one: one["x"], at_least=6, control=CONTROL, **TEXTS)
    assert claim.verdict(values, controls) == verdict
    experiment = catalog.load("srivastava2015/gates")
    facts = [
        {"seed": seed, "seconds": 1.0, "deviations": ["small"]}
        | dict.fromkeys(("commit", "backend", "hardware", "data", "scale"), "x")
        for seed in range(len(values))
    ]
    measured = [[{"x": v, "control": c}] for v, c in zip(values, controls, strict=True)]
    row = pages.evaluate(experiment, claim, measured, facts)
    assert row["verdict"] == verdict and row["values"] == values
    assert row["criterion"] == "q: at least 6" and row["deviations"] == ["small"]
    np.testing.assert_equal(row["control"]["values"], controls)


def test_an_equivalence_needs_the_whole_interval_between_its_limits():
    claim = Claim(value=float, at_least=-1, at_most=1, control=CONTROL, **TEXTS)
    assert claim.criterion == "q: at least -1 and at most 1"
    assert claim.decide([0.0, 0.1, 0.2]) == "shown"
    assert claim.decide([-9.0, 0.0, 9.0]) == "undecided"  # covers both limits
    assert claim.decide([2.0, 2.1, 2.2]) == "contradicted"
    assert claim.decide([0.8, 0.81, 0.82], factor=0.75) == "contradicted"


def test_p_values_are_students_and_holms_correction_that_of_a_table():
    """t = 2 sqrt(3) at 2 degrees of freedom: p = 1 - t / sqrt(2 + t^2), doubled at the first look.

    Holm (1979), by hand.
    """
    claim = Claim(value=float, at_least=0, control=CONTROL, **TEXTS)
    t = 2 * 3**0.5
    assert claim.p_value([1.0, 2.0, 3.0]) == pytest.approx(2 - 2 * t / (2 + t * t) ** 0.5)
    assert claim.p_value([1.0, 2.0]) == claim.p_value([1.0, 2.0, math.inf]) == 1
    assert claim.p_value([1.0, 1.0, 1.0]) == 0 and claim.p_value([0.0, 0.0, 0.0]) == 1
    assert holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx([0.04, 0.06, 0.06, 0.06])


def test_looking_more_than_once_errs_in_at_most_five_percent():
    claim = Claim(value=float, at_least=0, control=CONTROL, **TEXTS)
    draws = np.random.default_rng(0).normal(size=(250, 10))  # of mean 0: each decision is wrong
    decided = [any(claim.decide(one[:n]) != "undecided" for n in range(3, 9)) for one in draws]
    assert 0.025 < np.mean(decided) < 0.05  # by 95 % intervals 0.18


@pytest.mark.parametrize(
    ("values", "words", "seeds"),
    [
        ([10.0, 10.1, 10.2], [], [0, 1, 2]),
        ([10.0, 10.0, 13.0, 10.0], [], [0, 1, 2, 3]),
        ([6.1, 5.9] * 5, [], [*range(8)]),
        ([6.1, 5.9] * 5, ["--seeds=1,2"], [1, 2]),
    ],
)
def test_a_claim_takes_more_seeds_until_it_is_settled(
    values, words, seeds, tmp_path, monkeypatch, capsys
):
    claim = Claim(value=lambda one: one["x"], at_least=6, control=CONTROL, **TEXTS)
    toy = dataclasses.replace(
        TOY,
        measure=lambda settings, run: {"x": values[run.seed], "control": 0.0},
        artifacts=[],
        claims=[claim],
    )
    monkeypatch.setattr(catalog, "claims", lambda names: [(toy, claim)])
    monkeypatch.setattr(catalog, "load", lambda name: toy)
    monkeypatch.setitem(catalog.TITLES, "toy", "Toys")
    assert reproduce.run_claims([], [f"--runs={tmp_path}", *words]) == 0
    assert len([*tmp_path.rglob(store.MEASURED)]) == len(seeds)
    assert f"seeds {seeds}\n" in capsys.readouterr().out


def test_a_replication_has_one_verdict_of_seeds_that_are_fixed(tmp_path, monkeypatch, capsys):
    def measure(settings, run):
        return {"x": 6.01 + 0.01 * (run.seed % 2), "control": 0.0}

    claim = Claim(value=lambda one: one["x"], at_least=6, control=CONTROL, **TEXTS)
    scales = {"replication": Settings(), "full": Settings()}
    toy = dataclasses.replace(TOY, scales=scales, measure=measure, artifacts=[])
    monkeypatch.setattr(catalog, "claims", lambda names: [(toy, claim)])
    monkeypatch.setattr(catalog, "load", lambda name: toy)
    monkeypatch.setitem(catalog.TITLES, "toy", "Toys")
    assert reproduce.run_claims([], [f"--runs={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("shown") == 1  # and none after 3, 4, 5 and 8 seeds
    seeds = REPLICATIONS["replication"]
    assert f"seeds {[*seeds]}\n" in printed
    samples = [0.0, 1.0] * 5
    expected = stats.t.interval(0.95, 9, 0.5, stats.sem(samples))
    np.testing.assert_allclose(interval(samples, False), expected)
    with pytest.raises(ValueError, match=r"Received: seeds=\(200, 201, 202\)"):
        reproduce.run_claims([], [f"--runs={tmp_path}", "--seeds=200,201,202"])
    ten = ",".join(map(str, seeds))  # of another scale they would have a replication's level
    with pytest.raises(ValueError, match="`seeds` must be at most 8"):
        reproduce.run_claims([], [f"--runs={tmp_path}", "--scale=full", f"--seeds={ten}"])


@pytest.mark.parametrize("command", ["claims", "list", "report"])
def test_commands_of_all_experiments_have_help_and_refuse_unknown_flags(command, capsys):
    assert reproduce.main([command, "--help"]) == 0
    assert "claims S5 S6" in capsys.readouterr().out
    with pytest.raises(flags.UnrecognizedFlagError, match="'seed'"):
        reproduce.main([command, "--seed", "1"])


def test_a_report_of_one_experiment_is_refused_as_all_pages_are_written():
    with pytest.raises(ValueError, match="none: `report` writes all pages.*'greff2017/lesions'"):
        reproduce.main(["report", "greff2017/lesions"])


def test_a_claim_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    def measure(settings, run):
        if run.seed == 1:
            raise DivergenceError("The loss is NaN.")
        return {"x": 8.0, "control": 0.0}

    texts = {**TEXTS, "value": lambda one: one["x"], "at_least": 6, "control": CONTROL}
    claims = [Claim(**{**texts, "name": name}) for name in ("T1", "T2")]
    toy = dataclasses.replace(TOY, measure=measure, artifacts=[], claims=claims)
    monkeypatch.setattr(catalog, "claims", lambda names: [(toy, claim) for claim in claims])
    monkeypatch.setattr(catalog, "load", lambda name: toy)
    monkeypatch.setitem(catalog.TITLES, "toy", "Toys")
    words = [f"--runs={tmp_path}", "--seeds=0,1"]
    assert reproduce.run_claims([], words) == 1
    assert "failed: T1, T2" in capsys.readouterr().err
    assert reproduce.run_claims([], [words[0], "--seeds=0"]) == 0
    assert "seed 0: measured before, of" in capsys.readouterr().out
    with pytest.raises(flags.Error, match="Received: --noresume"):
        reproduce.run_claims([], [*words, "--noresume"])


def test_seeds_of_other_settings_are_not_kept_beside_those_on_record(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "results")
    toy = dataclasses.replace(TOY, artifacts=[])

    def run(name, backend="jax", **settings):
        folder = tmp_path / f"{settings}" / name
        store.save(folder, {"x": 1.0}, {**FACTS, "settings": settings, "backend": backend})
        return [folder]

    pages.keep(toy, "miniature", run("seed0", blocks=9, rate=0.1))
    pages.keep(toy, "miniature", run("seed1", blocks=9, rate=0.1))
    with pytest.raises(ValueError, match="`blocks` must be 9 as on record; run without --keep"):
        pages.keep(toy, "miniature", run("seed2", blocks=2, rate=0.1))
    with pytest.raises(ValueError, match="`backend` must be 'jax' as on record.*backend='torch'"):
        pages.keep(toy, "miniature", run("seed2", "torch", blocks=9, rate=0.1))
    kept = {path.name for path in pages.seeds_on_record(toy, "miniature")}
    assert kept == {"seed0", "seed1"}


def test_a_run_that_was_begun_with_other_images_is_not_continued(tmp_path):
    settings = ImageSettings(data="other", batch=2)
    for step in (20, 20, 30):
        write_images(tmp_path / "other.npz", (4, 4, 1), train=4, test=4, classes=2, step=step)
        run = Run(tmp_path / "run", 0, Options(data_dir=str(tmp_path / "other.npz")))
        if step == 20:
            assert len(run.load_images(settings).x_train) == 4
            continue
        with pytest.raises(ValueError, match="data 'other' with which.*choose other --runs"):
            run.load_images(settings)


def test_a_run_anew_that_is_interrupted_leaves_no_earlier_result(tmp_path, monkeypatch):
    monkeypatch.setitem(catalog.TITLES, "toy", "Toys")

    def measure(settings, run):
        if not run.options.resume:
            raise KeyboardInterrupt
        return run.part("x", lambda: {"x": 1.0})

    toy = dataclasses.replace(TOY, measure=measure, artifacts=[])
    words = [f"--runs={tmp_path}", "--seeds=0"]
    command_line.parse(toy, words)[0].run()
    with pytest.raises(KeyboardInterrupt):
        command_line.parse(toy, [*words, "--noresume"])[0].run()
    assert not [*tmp_path.rglob("parts")]
    with monkeypatch.context() as patch:
        patch.setattr(Run, "part", lambda *_: {"x": 2.0})
        assert command_line.parse(toy, words)[0].run() == [{"x": 2.0}]  # measured again
    assert command_line.parse(toy, words)[0].run() == [{"x": 2.0}]


def test_a_run_anew_leaves_the_folder_of_a_running_process_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setitem(catalog.TITLES, "toy", "Toys")
    toy = dataclasses.replace(TOY, measure=lambda *_: pytest.fail("began"), artifacts=[])
    plan = command_line.parse(toy, [f"--runs={tmp_path}", "--seeds=0", "--noresume"])[0]
    (folder,) = plan.folders
    for name in ("data.json", "parts/x/measured.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    descriptor = os.open(folder, os.O_RDONLY)  # as another process has it
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(ValueError, match="where one is running. Wait for it"):
        plan.run()
    os.close(descriptor)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_model_file_of_a_trained_network_is_repaired(run):
    settings = ImageSettings(batch=20, epochs=1)

    def train():
        data = run.images(settings, "highway_mlp")
        build = functools.partial(zoo.highway_mlp, 2, 4, **data.sizes)
        network = run.network("net", settings, data, build, lambda _: keras.optimizers.SGD(0.1))
        network.train()
        return network

    path = train().folder / "model.keras"
    path.write_bytes(b"damaged")
    weights = train().model.get_weights()
    np.testing.assert_equal(keras.saving.load_model(path).get_weights(), weights)


def test_a_run_anew_that_cannot_begin_leaves_the_earlier_result(tmp_path, monkeypatch):
    monkeypatch.setitem(catalog.TITLES, "toy", "Toys")

    def measure(settings, run):
        if not run.options.resume:
            raise ValueError("Expected other data.")
        return run.part("x", lambda: {"x": 1.0})

    toy = dataclasses.replace(TOY, measure=measure, artifacts=[])
    words = [f"--runs={tmp_path}", "--seeds=0"]
    command_line.parse(toy, words)[0].run()
    with pytest.raises(ValueError, match="other data"):
        command_line.parse(toy, [*words, "--noresume"])[0].run()
    assert command_line.parse(toy, words)[0].run() == [{"x": 1.0}]


def test_a_run_anew_that_was_interrupted_is_resumed_or_gives_the_earlier_result_back(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(catalog.TITLES, "toy", "Toys")
    errors = [None, KeyboardInterrupt, ValueError, KeyboardInterrupt, ValueError, None]

    def measure(settings, run):
        error = errors.pop(0)
        if error is not None:
            raise error("Expected other data.")
        return {"x": float(len(errors))}

    toy = dataclasses.replace(TOY, measure=measure, artifacts=[])
    words = [f"--runs={tmp_path}", "--seeds=0"]

    def run(*more):
        return command_line.parse(toy, [*words, *more])[0].run()

    assert run() == [{"x": 5.0}]
    with pytest.raises(KeyboardInterrupt):
        run("--noresume")
    with pytest.raises(ValueError, match="other data"):
        run()  # as without --data_dir
    with pytest.raises(KeyboardInterrupt):
        run()  # it was not finished
    with pytest.raises(ValueError, match="other data"):
        run("--noresume")
    assert run() == [{"x": 5.0}] and len(errors) == 1


def test_networks_that_a_run_anew_did_not_reach_are_trained_anew_when_it_is_resumed(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(catalog.TITLES, "toy", "Toys")
    found = []

    def measure(settings, run):
        for name in ("first", "second"):
            part = run.open_network(name, "digits", {})[0] / "parts" / "trained"
            found.append(part.exists())
            part.mkdir(parents=True, exist_ok=True)
            if not run.options.resume:
                raise KeyboardInterrupt
        return {"x": 1.0}

    toy = dataclasses.replace(TOY, measure=measure, artifacts=[])
    words = [f"--runs={tmp_path}", "--seeds=0"]
    command_line.parse(toy, words)[0].run()
    with pytest.raises(KeyboardInterrupt):
        command_line.parse(toy, [*words, "--noresume"])[0].run()
    command_line.parse(toy, words)[0].run()
    assert found == [False, False, False, True, False]


def test_files_without_the_numbers_of_an_experiment_are_named(tmp_path):
    plan = command_line.Plan(TOY, "smoke", Toy(size=3), Options(runs=str(tmp_path)), (0,))
    plan.run()
    (folder,) = plan.folders
    store.save(folder, {}, store.load(folder)[1])
    with pytest.raises(ValueError, match=f"measures in {folder}. Received: files without 'values'"):
        plan.run()


def test_seeds_are_added_to_those_on_record_of_the_same_settings(tmp_path, monkeypatch):
    claim = Claim(value=float, at_least=6, control=Control("chance", lambda v: v - 9.0), **TEXTS)
    experiment = catalog.load("srivastava2015/gates")

    def record(values, deviations=()):
        keys = "commit", "backend", "hardware", "data", "scale"
        facts = [dict.fromkeys(keys, "x") | {"seed": s, "seconds": 2.0} for s in values]
        facts = [one | {"deviations": [*deviations]} for one in facts]
        return pages.evaluate(experiment, claim, [[v] for v in values.values()], facts)

    monkeypatch.setattr(pages, "CLAIMS", tmp_path / "claims.json")
    pages.keep_claims([record({0: 10.0, 1: 12.0, 2: 11.0}, ["short", "small"])])
    row = pages.with_other_seeds(claim, record({1: 10.1, 3: 10.2}, ["small", "short"]))
    assert row["seeds"] == [0, 1, 2, 3] and row["values"] == [10.0, 10.1, 11.0, 10.2]
    assert row["control"]["values"] == [1.0, pytest.approx(1.1), 2.0, pytest.approx(1.2)]
    assert row["verdict"] == "shown" and row["seconds"] == 8.0
    twice = record({3: 10.2, 1: 10.1, 0: 10.0, 2: 11.0}, ["small", "short"]) | {"commit": "y"}
    assert pages.with_other_seeds(claim, twice) == twice
    assert twice["seeds"] == [3, 1, 0, 2] and twice["values"] == [10.2, 10.1, 10.0, 11.0]
    pages.keep_claims([row | {"commit": "x, then y"}])
    joined = pages.with_other_seeds(claim, record({4: 10.0}, ["small", "short"]) | {"commit": "y"})
    assert joined["seeds"] == [0, 1, 2, 3, 4] and joined["commit"] == "x, then y"
    assert pages.with_other_seeds(claim, record({3: 10.2}))["seeds"] == [3]


def test_pages_count_claims_by_their_largest_scale_and_keep_earlier_criteria(monkeypatch):
    claim = Claim(value=float, at_least=6, control=Control("chance", lambda v: v - 9.0), **TEXTS)
    scales = {"smoke": Toy(), "miniature": Toy(), "full": Toy()}
    experiment = dataclasses.replace(TOY, claims=[claim], scales=scales)
    monkeypatch.setattr(catalog, "claims", lambda: [(experiment, claim)])
    monkeypatch.setitem(catalog.TITLES, "toy", "Toys")
    facts = {"seconds": 1.0, "deviations": [], "commit": "c", "backend": "b", "hardware": "h"}
    rows = []
    for scale, values in (("full", [10.0, 10.1, 10.2]), ("miniature", [1.0, 1.1, 1.2])):
        seeds = [{**facts, "seed": i, "scale": scale, "data": "d"} for i in range(3)]
        rows.append(pages.evaluate(experiment, claim, [[v] for v in values], seeds))
    earlier = {**rows[0], "criterion": "q: at least 3", "verdict": "shown"}
    rows.append(earlier)
    assert pages.summary(pages.decided(rows)) == "Of 1 claims, 1 shown."
    assert pages.summary(pages.decided([earlier])) == "Of 1 claims, 1 not measured."
    text = "<!--T1.range-->9<!--/-->, <!--T1.control_range-->?<!--/-->"
    shown = "<!--T1.range-->10 to 10.2<!--/-->, <!--T1.control_range-->1 to 1.2<!--/-->"
    assert pages.with_numbers(text, rows) == pages.with_numbers(shown, rows) == shown
    page = pages.claims_page(rows)
    assert "| T1 S. | miniature | **contradicted** |" in page
    assert "| T1 S. | full | **shown** |" in page
    assert "With the criterion times 0.75: shown, times 1.25: shown." in page
    assert "| T1 | q: at least 3 | shown |" in page.split("## Earlier measurements")[1]


def test_names_patterns_and_figures_stand_for_experiments():
    assert catalog.find(["srivastava2015/fig2"]) == [
        "srivastava2015/gates",
        "srivastava2015/gates_cifar",
    ]
    assert "jastrzebski2018/sharing" in catalog.find(["jastrzebski2018/*"])
    assert catalog.find(["ptb_char_lm"]) == ["greff2017/char_lm"]
    assert catalog.find(["Greff2017"]) == [n for n in catalog.EXPERIMENTS if "greff2017/" in n]
    for name, message in {
        "srivastava2015/gate": "Did you mean 'srivastava2015/gates'",
        "gref2017": "Did you mean 'greff2017'",
        "?": "`list` names all",
        "jastrzebski2018/appendix_a1": "against_its_gradient; nothing is measured",
    }.items():
        with pytest.raises(flags.Error, match=message):
            catalog.find([name])
    names = [claim.name for _, claim in catalog.claims()]
    assert len(names) == len({*names})
    assert [claim.name for _, claim in catalog.claims(["s5", "S10*"])] == ["S5", "S10", "S10b"]
    with pytest.raises(flags.Error, match="There is no claim 'S10c'. Did you mean 'S10"):
        catalog.claims(["S10c"])


def test_every_experiment_has_a_smoke_and_a_full_scale_and_known_needs():
    for experiment in catalog.load_all():
        assert {"smoke", "full"} <= {*experiment.scales}
        options = {field.name for field in dataclasses.fields(Options)}
        for settings in experiment.scales.values():
            assert not {*vars(settings)} & {"scale", "seeds", "keep", *options}
        names = [artifact.name for artifact in experiment.artifacts]
        assert len(names) == len({*names})
        for claim in experiment.claims:
            assert claim.bounds and claim.control.text
            assert {*claim.needs} <= {*catalog.EXPERIMENTS}
            assert claim.figure in ("", *names)


def test_what_no_experiment_measures_is_tested():
    root = pathlib.Path(__file__).parents[2]
    for text in catalog.OTHERS.values():
        if text.startswith("shown by "):
            path, _, word = text.removeprefix("shown by ").partition(" -k ")
            source = (root / path).read_text(encoding="utf-8")
            assert re.search(rf"def test_\w*{word.strip()}", source), text


def test_lines_are_means_over_seeds_in_bands_but_not_over_models():
    def rows_of(one):
        return [{"x": x, "y": one * x} for x in range(3)]

    alone = plots.lines(plots.with_seeds([1.0, 3.0], rows_of, str), x="x", y="y").axes[0]
    assert [[*line.get_ydata()] for line in alone.lines] == [[0, 1, 2], [0, 3, 6]]
    axis = plots.lines(plots.with_seeds([1.0, 3.0], rows_of), x="x", y="y").axes[0]
    assert axis.lines[0].get_ydata().tolist() == [0, 2, 4]
    assert axis.collections[0].get_paths()[0].vertices[:, 1].max() == pytest.approx(4 + 8**0.5)


def test_a_line_runs_forward_where_seeds_have_different_places():
    rows = [{"seed": s, "x": x, "y": x} for s, xs in enumerate([(10, 100), (10, 50)]) for x in xs]
    axis = plots.lines(rows, x="x", y="y").axes[0]
    assert axis.lines[0].get_xdata().tolist() == [10, 50, 100]
