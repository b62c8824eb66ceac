"""The recipes that compare plain and residual networks, as their users meet them."""

import collections
import json
import re
import types

import keras
import numpy as np
import pytest
from experiment.results import Result
from helpers.recipes import recipe
from report import claims

from helpers import reference
from helpers.harness import (
    output_of,
    slow_elsewhere,
    start_changed_recipe,
    start_recipe,
    without_backend,
)
from helpers.test_data import lines_of, rows_of, write_images
from yutomasi2019 import figures, networks, tables
from zoo.callbacks import Table
from zoo.callbacks.probes.table import Row

pytestmark = slow_elsewhere


def test_plain_and_residual_networks_are_trained_side_by_side_and_then_inspected(tmp_path):
    options = write_images(tmp_path / "images.npz"), "--data=other", "--budget=smoke"
    options = *options, f"--runs={tmp_path / 'runs'}", "--export=false"
    run_dir = tmp_path / "run"
    output = output_of(start_recipe("plain_vs_residual.py", *options, f"--run_dir={run_dir}"))
    assert "network 4 of 4: dominant5" in output
    rows = rows_of(run_dir / "table4.csv")
    losses = {row["network"]: row for row in rows if row["when"] == "before"}
    assert [*losses] == ["plain", "residual", "transferred"]
    for key in ("training_loss", "penalty"):  # equivalent: equal, but for rounding
        residual, transferred = (float(losses[n][key]) for n in ("residual", "transferred"))
        assert transferred == pytest.approx(residual, rel=1e-5)
    own = {name: float(row["own_penalty"]) for name, row in losses.items()}
    assert own["plain"] == pytest.approx(float(losses["plain"]["penalty"]), rel=1e-5)
    assert own["residual"] < 0.1 * own["transferred"]  # what Table 4 prints is its own weights'
    figures = {"fig7-depth5", "fig8-depth5", "fig9"}
    tables = {"table1", "table2", "table4", "table5"}
    tables |= {f"table3-{network}5" for network in losses}
    written = {path.name for path in run_dir.iterdir()}
    pictures = {f"{name}.png" for name in figures}
    assert written == {f"{name}.csv" for name in tables | figures} | pictures | {"results.jsonl"}
    rows = {(r["when"], r["entries"]): r for r in rows_of(run_dir / "table3-residual5.csv")}
    mean = float(rows["before", "identity"]["mean"])
    assert mean == pytest.approx(1, abs=0.01)  # phi adds one to entries of 1/(9 c)
    assert rows["before", "identity"]["count"] == str(16 + 16 + 32)
    (ratio,) = [line for line in lines_of(run_dir) if line["model"] == "nets 5"]
    expected = (32 + 32 + 64 + 128 + 10 / 3) / ((3 + 16) / 144 + 16 / 288 + 32 / 576 + 10 / 3)
    assert ratio["value"] == pytest.approx(expected, rel=0.05)  # of the paper's own networks
    folders = {path.name: path for path in (tmp_path / "runs").iterdir()}
    assert len(folders) == 4
    (line,) = lines_of(next(path for name, path in folders.items() if name.startswith("plain5")))
    for one in (*lines_of(run_dir), line):  # not the paper's images: none of its numbers
        assert not [key for key in one if key.startswith("paper") and one[key] is not None]
    states = {name: (path / "state.npz").read_bytes() for name, path in folders.items()}

    count = len(lines_of(run_dir))
    output = output_of(start_recipe("noise_stability.py", *options, f"--run_dir={run_dir}"))
    assert "residual5: layer_cushion" in output and "dominant5: dominant_flow" in output
    assert "5: dominance, residual over plain, deep" in output
    assert {f"fig{n}-depth5.png" for n in (3, 10, 12)} <= {path.name for path in run_dir.iterdir()}
    table = Table.from_csv(run_dir / "section5-plain5.csv")
    assert {"interlayer_cushion", "noise_change", "layer_cushion_min"} <= {*table.probes()}
    check_cushions(run_dir)
    stable = lines_of(run_dir)[count:]
    kinds = collections.Counter(line["artifact"].split("/")[1] for line in stable)
    assert kinds == {"fig3": 4, "section5": 2 * 3, "fig10": 4, "fig12": 4 + 2}, kinds
    assert all(len(line["departures"]) > 1 and line["value"] is not None for line in stable)
    trained = {name: (path / "state.npz").read_bytes() for name, path in folders.items()}
    assert trained == states  # found, not trained again
    check_claims(lines_of(run_dir))
    flows = rows_of(run_dir / "fig12-depth5.csv")
    assert {row["iteration"] for row in flows} == {"first", "last", "mean"}


def check_claims(lines):
    """Check that the claims about these networks can be measured, those of full ones aside."""
    names = [f"Y{number}" for number in (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13)]
    for claim in claims.select(names):
        assert np.isfinite(claim.measure(lines)), claim.name


def check_cushions(run_dir):
    """Check the results of Fig. 3 and its curves, three networks before and after training."""
    found = [line for line in lines_of(run_dir) if line["artifact"].endswith("fig3")]
    assert [line["config"] for line in found] == [{"images": 8}] * 4  # of three, and of a pair
    pairs = zip(found[0]["smallest_by_block"], found[0]["by_block"], strict=True)
    assert all(0 < smallest <= mean for smallest, mean in pairs)
    assert min(found[0]["largest_contraction_by_block"]) >= 1
    assert found[-1]["metric"] == "layers_without_larger_cushion" and found[-1]["layers"] == 3
    curves = {(row["network"], row["when"]) for row in rows_of(run_dir / "fig3-depth5.csv")}
    names = ("plain5", "residual5", "transferred5")
    assert curves == {(name, when) for name in names for when in ("before", "after")}


def test_equivalent_networks_part_by_rounding_alone_and_go_on_exactly(tmp_path):
    options = write_images(tmp_path / "images.npz"), "--data=other", "--budget=smoke"

    def run(name, *more, runs="runs"):
        where = f"--runs={tmp_path / runs}", f"--run_dir={tmp_path / name}"
        output_of(start_recipe("divergence.py", *options, *where, *more))
        single = "--precision=float32" in more
        rows = rows_of(tmp_path / name / ("fig6-float32.csv" if single else "fig6.csv"))
        return [float(row["largest_difference"]) for row in rows]

    both = "--starts=hardt_ma,kaiming"
    exact = run("double", both)
    assert len(exact) == 2 * 4 and max(exact) < 1e-14  # an ulp of 1, or some
    single = "--precision=float32", both
    run("part", *single, "--steps=2")
    (claim,) = claims.select(["Y1"])
    assert claim.measure(lines_of(tmp_path / "double")) in exact
    gaps, whole = run("part", *single, "--steps=4"), run("whole", *single, "--steps=4", runs="anew")
    assert len(gaps) == 2 * 4 and gaps == whole and 0 < gaps[0] and 0 < gaps[4]
    assert 1e6 * max(exact) < max(gaps) < 1e-3
    line = lines_of(tmp_path / "part")[-1]
    assert (
        line["value"] == gaps[-1] and "float32; the paper: double precision" in line["departures"]
    )


@pytest.mark.slow
def test_fully_fledged_networks_have_cushions_and_dominance_too(tmp_path):
    data = write_images(tmp_path / "images.npz"), "--data=other", "--budget=smoke"
    networks = "--networks=full_plain,full_residual", "--export=false"
    where = f"--runs={tmp_path / 'runs'}", f"--run_dir={tmp_path / 'run'}"
    output = output_of(start_recipe("noise_stability.py", *data, *networks, *where))
    assert "full_residual8: interlayer_cushion" in output
    assert "full_8: dominance, residual over plain, shallow" in output
    table = Table.from_csv(tmp_path / "run" / "section5-full_plain8.csv")
    assert table.array("layer_cushion_convolutions").shape == (3, 2)
    (claim,) = claims.select(["Y10"])
    assert claim.measure(lines_of(tmp_path / "run")) > 0
    assert (tmp_path / "run" / "fig12-full-depth8.png").exists()


def test_full_networks_add_the_block_s_input_to_the_second_normalization():
    model = networks.fully_fledged(8, "residual", (16, 16, 3), 10, widths=(4, 8, 8))
    reference.random_weights(model, scale=0.3)
    block = model.get_layer("stage1_block00")
    x = np.maximum(reference.images(2, 16, 16, 4), 0)
    conv1, norm1, _, conv2, norm2 = block.transform.layers
    y = norm2(conv2(keras.ops.relu(norm1(conv1(x)))))
    whole = keras.Model(
        model.get_layer("stem_relu").output, model.get_layer("stage1_relu00").output
    )
    expected = np.maximum(keras.ops.convert_to_numpy(y) + x, 0)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(whole(x)), expected, atol=1e-4)
    plain = networks.fully_fledged(8, "plain", (16, 16, 3), 10, widths=(4, 8, 8))
    block = plain.get_layer("stage1_block00")
    relu = plain.get_layer("stage1_relu00")
    end = keras.ops.convert_to_numpy(block.transform(x))
    whole = keras.Model(plain.get_layer("stem_relu").output, relu.output)
    output = keras.ops.convert_to_numpy(whole(x))
    np.testing.assert_allclose(output, np.maximum(end, 0), atol=1e-4)


def test_untrained_networks_are_measured_with_settled_averages(tmp_path):
    options = write_images(tmp_path / "images.npz"), "--data=other", "--budget=smoke"
    options += "--widths=2,2,2", f"--runs={tmp_path / 'runs'}"

    def statistics(run):
        norm = run.model.get_layer("stem_norm")
        return [keras.ops.convert_to_numpy(v) for v in (norm.moving_mean, norm.moving_variance)]

    with recipe("noise_stability", *options) as noise_stability:
        run = networks.prepare("full_residual", 8)
        mean, variance = noise_stability.at_start(run, statistics)
        x = run.data.preprocess(run.images.x_train[: networks.BATCH])
        inputs = keras.ops.convert_to_numpy(run.model.get_layer("stem_conv")(x))
        np.testing.assert_allclose(mean, inputs.mean((0, 1, 2)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(variance, inputs.var((0, 1, 2)), rtol=1e-4)
        np.testing.assert_array_equal(statistics(run), [[0, 0], [1, 1]])


def test_dominance_is_averaged_over_the_training(tmp_path):
    options = write_images(tmp_path / "images.npz"), "--data=other", "--budget=smoke"
    options += "--widths=4,4,4", "--networks=plain,residual", "--artifact=fig12", "--epochs=2"
    options += f"--runs={tmp_path / 'runs'}", f"--run_dir={tmp_path / 'run'}", "--clip=0"
    output_of(start_recipe("noise_stability.py", *options))
    values = collections.defaultdict(list)
    for folder in (tmp_path / "runs").glob("residual5*"):
        for row in Table.from_csv(folder / "dominance.csv").of_probe("dominant_flow"):
            values[row.block].append(row.value)
    lines = lines_of(tmp_path / "run")
    (line,) = [row for row in lines if row["model"] == "residual5"]
    assert line["epochs_of_mean"] == [0, 1, 2]
    assert line["by_block"] == pytest.approx([last for _, last in values.values()], abs=1e-5)
    means = [
        (first + sum(later)) / 3
        for first, later in zip(line["before_by_block"], values.values(), strict=True)
    ]
    assert line["mean_by_block"] == pytest.approx(means, abs=1e-5)
    assert any("gradients not clipped" in text for text in line["readings"])
    assert "widths 4, 4, 4; the paper: 16, 32, 64" in line["departures"]


def test_an_epoch_that_is_repeated_is_measured_once(tmp_path, monkeypatch):
    with recipe("noise_stability") as noise_stability:
        row = Row("dominant_flow", "block", 1, None, None, 0.5)
        monkeypatch.setattr(noise_stability, "dominance", lambda run: [row])
        run = types.SimpleNamespace(folder=tmp_path, epochs=4)
        for resumed_at in (0, 1):
            callback = noise_stability.DominanceByEpoch(run)
            for epoch in range(resumed_at, 3):
                callback.on_epoch_end(epoch)
        assert [row.epoch for row in callback.read()] == [1, 2, 3]


def test_rate_and_clip_are_flags():
    with recipe("plain_vs_residual", "--rate=0.5", "--clip=0", "--budget=paper"):
        optimizer = networks.optimizer(2000)
        assert optimizer.global_clipnorm is None
        rates = []
        for step in (0, 1200, 1600):
            optimizer.iterations.assign(step)
            rates.append(float(optimizer.learning_rate))
        assert rates == pytest.approx([0.5, 0.05, 0.005])
    with recipe("plain_vs_residual", "--budget=paper"):
        assert networks.optimizer(2000).global_clipnorm == 0.1
        assert "clipped at norm 0.1" in networks.assumptions()[0]


def test_a_miniature_is_trained_to_the_end_of_its_schedule():
    with recipe("plain_vs_residual", "--budget=minutes"):
        assert networks.widths() == (8, 16, 32)
        optimizer = networks.optimizer(2000)
        assert optimizer.global_clipnorm == 1.0
        optimizer.iterations.assign(1000)
        assert float(optimizer.learning_rate) == pytest.approx(0.025)
        selected = networks.selected({})
        assert ("plain", 20) in selected and ("dominant", 56) in selected


@without_backend
def test_fig_9_compares_starts_seed_by_seed(tmp_path, monkeypatch):
    rows = [
        {"seed": seed, **row}
        for seed in (0, 1)
        for network, risk in (("plain", [2.0, 1.5 + seed]), ("transferred", [1.0, 0.5]))
        for row in figures.start_rows(network, 32, risk, None)
    ]
    shown = []
    monkeypatch.setattr(figures.plots, "lines", lambda path, rows, **options: shown.extend(rows))
    figures.fig9(tmp_path / "fig9.png", rows)
    differences = {
        (r["seed"], r["epoch"]): r["difference"] for r in shown if r["network"] == "plain"
    }
    assert differences == {(0, 1): 1.0, (0, 2): 1.0, (1, 1): 1.0, (1, 2): 2.0}


DIVERGING = """
import dataclasses
import keras

original = recipe.networks.study

def study(network):
    changed = dataclasses.replace(original(network), optimizer=lambda n: keras.optimizers.SGD(1e30))
    return changed if network == "plain" else original(network)

recipe.networks.study = study
"""


def test_a_network_that_diverges_does_not_end_the_others(tmp_path):
    options = write_images(tmp_path / "images.npz"), "--data=other", "--budget=smoke"
    options += "--export=false", "--artifact=table1", f"--runs={tmp_path / 'runs'}"
    options += (f"--run_dir={tmp_path / 'run'}",)
    process = start_changed_recipe(tmp_path, "plain_vs_residual.py", *options, patch=DIVERGING)
    output = output_of(process, 1)
    assert re.search("plain5: .* Last good checkpoint: none", output), output
    rows = rows_of(tmp_path / "run" / "table1.csv")
    assert [row["network"] for row in rows] == ["residual"]


@without_backend
def test_the_papers_numbers_stand_beside_results_of_its_images_only():
    losses = dict.fromkeys(("before", "after"), tables.Losses(2.0, 1e-3, 1e-3))
    template = Result(artifact="", model="", metric="", value=None)
    both = []
    for known in (True, False):
        trained = networks.Trained("plain", 32, {}, known, template)
        measured = tables.Measured(trained, losses, None, 0.5)
        rows = tables.metadata(measured) | tables.losses_row(measured)
        both.append(rows | tables.paper_weights(measured))
    known, other = both
    assert known["paper_training_loss"] == 0.1225 and known["paper_cost"] == 0.1234  # Table 1
    assert known["paper_test_error"] == 0.1349 and known["entries_over_0_7"] == [1, 26]
    assert known["cost"] == 2.001
    assert not [value for key, value in other.items() if key.startswith("paper") and value]
    assert "entries_over_0_7" not in other


def test_dominance_that_can_be_worked_out_is_drawn_beside_its_simulation(tmp_path):
    options = "--budget=smoke", f"--run_dir={tmp_path}", f"--results={tmp_path / 'all.jsonl'}"
    output = output_of(start_recipe("trivial_dominance.py", *options))
    gap = float(output.split("differ by ")[1].split()[0])
    assert 0 < gap < 0.1
    rows = rows_of(tmp_path / "fig11.csv")
    flat = [float(r["simulated"]) for r in rows if r["parameter"] == "feature_sigma"]
    assert len({*flat[::2]}) == len({*flat[1::2]}) == 1  # does not depend on it
    assert (tmp_path / "fig13.png").exists()
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line["artifact"].split("/")[1] for line in lines] == ["fig11", "fig13"]
    assert gap <= lines[0]["value"] < 0.1 and 0 < lines[1]["value"] < 0.02
    (claim,) = claims.select(["Y14"])
    assert claim.measure(lines) == pytest.approx(gap, abs=1e-3)
    assert lines == lines_of(tmp_path)
